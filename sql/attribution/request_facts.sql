-- What attribution needs to know of each request: its cell, its size, its phases.
-- Quarantined rows and superseded attempts are here to be counted: they are neither completed nor
-- censored, so nothing is learned from them and nothing said of them.
-- grain: one row per request of the window.
-- inputs: window_requests, cache_due, usual_hits, speculation
-- request_key: identity of the request
-- model: model name, '' if unknown
-- engine: serving engine, '' if unknown
-- engine_version: engine version, '' if unknown: a deploy starts a new cell
-- topology: disaggregated if a KV transfer took part, else aggregated
-- route: traffic class or endpoint, '' if unknown
-- worker: worker that decoded (or the only one), NULL if unknown
-- prefill_worker: worker that prefilled, NULL if unknown
-- arrival_unix_ns: [unix ns] when the request was meant to start, NULL without a clock
-- status: ok, error, aborted, timeout or open
-- quarantine_reason: why the row must not be used for statistics, NULL if it may
-- superseded_attempt: 1 if a later attempt replaced this one, else 0
-- completed: 1 if it ended well and may be used, else 0
-- censored: 1 if it was killed (abort, error, timeout) and may be used: its times are lower bounds
-- input_tokens: [tokens] prompt
-- cached_known: 1 if the source said how many prompt tokens came from a cache
-- uncached_tokens: [tokens] prompt tokens to compute; the whole prompt if the cache is unknown
-- attended_tokens_sq: [tokens^2] uncached x (cached + uncached / 2): the attention work of prefill
-- due_uncached_tokens: [tokens] as uncached_tokens, with the cache hit that was due
-- due_attended_tokens_sq: [tokens^2] as attended_tokens_sq, with the cache hit that was due
-- steps: [1] decode steps of one sequence; its tokens where accepted drafts are not known of all
-- step_context: [tokens] steps x mean context length: the attention work of decode
-- kv_bytes: [bytes] KV cache moved
-- output_tokens: [tokens] generated
-- ttft_ms: [ms] start to first token; elapsed time where a censored request never had one
-- ttft_kind: what the first token was, NULL where there was none
-- ttfa_ms: [ms] start to first visible answer token
-- tpot_ms: [ms] time per output token after the first
-- e2e_ms: [ms] wall time; elapsed time where the request was censored
-- has_client: 1 if a client told of it
-- client_wait_ms: [ms] phase client_wait, NULL if no boundary tells
-- network_ms: [ms] phase network
-- route_ms: [ms] phase route
-- frontend_ms: [ms] phase frontend
-- queue_ms: [ms] phase queue
-- prefill_ms: [ms] phase prefill
-- queue_or_prefill_ms: [ms] phase queue_or_prefill
-- kv_transfer_ms: [ms] phase kv_transfer
-- decode_ms: [ms] phase decode
-- unexplained_ms: [ms] covered by no boundary
-- engine_step_wait_ms: [ms] sub-phase of frontend_ms
-- kv_transfer_wait_ms: [ms] sub-phase of kv_transfer_ms
-- kv_transfer_wire_ms: [ms] sub-phase of kv_transfer_ms, NULL if not told when bytes moved
-- kv_transfer_recompute_ms: [ms] sub-phase of kv_transfer_ms
-- kv_transfer_uncertainty_ms: [ms] +- of kv_transfer_ms, NULL for one clock or no bound
-- double_prefill_ms: [ms] part of prefill_ms: the decode server computed the prompt again
-- max_gap_ms: [ms] longest gap between tokens, NULL where no chunk times are known
-- preemptions: times preempted, NULL if unknown
with r as (
    select
        w.request_key as request_key,
        coalesce(w.model, '') as model,
        coalesce(w.engine, '') as engine,
        coalesce(w.engine_version, '') as engine_version,
        case when w.kv_transfer_ms > 0 or w.prefill_worker <> w.decode_worker then 'disaggregated'
             else 'aggregated' end as topology,
        coalesce(w.route, '') as route,
        coalesce(w.decode_worker, w.worker) as worker,
        coalesce(w.prefill_worker, w.worker) as prefill_worker,
        case when w.has_clock = 1 then coalesce(w.intended_start_unix_ns, w.start_unix_ns) end
            as arrival_unix_ns,
        coalesce(w.status, 'ok') as status,
        w.quarantine_reason as quarantine_reason,
        case when w.superseded_attempt = 1 then 1 else 0 end as superseded_attempt,
        case when w.quarantine_reason is null and coalesce(w.superseded_attempt, 0) = 0
                 and coalesce(w.status, 'ok') = 'ok' then 1 else 0 end as completed,
        case when w.quarantine_reason is null and coalesce(w.superseded_attempt, 0) = 0
                 and w.status in ('aborted', 'error', 'timeout') then 1 else 0 end as censored,
        cast(w.input_tokens as double) as input_tokens,
        case when w.cached_tokens is null then 0 else 1 end as cached_known,
        -- a source that counts more cached than prompt tokens must not make negative work
        case when w.cached_tokens > w.input_tokens then cast(w.input_tokens as double)
             else cast(coalesce(w.cached_tokens, 0) as double) end as cached_tokens,
        -- a due hit never covers the last prompt token
        case when w.cached_tokens is null then 0.0
             when w.cached_tokens > w.input_tokens then cast(w.input_tokens as double)
             when d.due_tokens > cast(w.cached_tokens as double)
                 and d.due_tokens < cast(w.input_tokens as double) then d.due_tokens
             when d.due_tokens is null
                 and u.due_tokens + u.due_share * cast(w.input_tokens as double)
                     > cast(w.cached_tokens as double)
                 and u.due_tokens + u.due_share * cast(w.input_tokens as double)
                     < cast(w.input_tokens as double)
                 and cast(w.cached_tokens as double) >= u.least_share
                     * (u.due_tokens + u.due_share * cast(w.input_tokens as double))
                 then u.due_tokens + u.due_share * cast(w.input_tokens as double)
             else cast(w.cached_tokens as double) end as due_cached_tokens,
        case when w.output_tokens is null then null
             when coalesce(w.choices, 1) > 1
                 then cast(w.output_tokens as double) / cast(w.choices as double)
             else cast(w.output_tokens as double) end as sequence_tokens,
        case when p.counted = 1 and w.accepted_tokens_per_step > 1
                 then w.accepted_tokens_per_step else 1.0 end as accepted,
        w.kv_bytes as kv_bytes,
        w.output_tokens as output_tokens,
        w.ttft_ms as ttft_ms,
        w.ttft_kind as ttft_kind,
        w.ttfa_ms as ttfa_ms,
        w.tpot_ms as tpot_ms,
        w.e2e_ms as e2e_ms,
        cast(w.end_unix_ns - coalesce(w.intended_start_unix_ns, w.start_unix_ns) as double) / 1e6
            as elapsed_ms,
        case when w.leg_roles like '%client%' then 1 else 0 end as has_client,
        w.client_wait_ms as client_wait_ms,
        w.network_ms as network_ms,
        w.route_ms as route_ms,
        w.frontend_ms as frontend_ms,
        w.queue_ms as queue_ms,
        w.prefill_ms as prefill_ms,
        w.queue_or_prefill_ms as queue_or_prefill_ms,
        w.kv_transfer_ms as kv_transfer_ms,
        w.decode_ms as decode_ms,
        w.unexplained_ms as unexplained_ms,
        w.engine_step_wait_ms as engine_step_wait_ms,
        w.kv_transfer_wait_ms as kv_transfer_wait_ms,
        w.kv_transfer_wire_ms as kv_transfer_wire_ms,
        w.kv_transfer_recompute_ms as kv_transfer_recompute_ms,
        w.kv_transfer_uncertainty_ms as kv_transfer_uncertainty_ms,
        w.double_prefill_ms as double_prefill_ms,
        w.max_gap_ms as max_gap_ms,
        w.preemptions as preemptions
    from window_requests as w
    left join cache_due as d on w.request_key = d.request_key
    left join usual_hits as u
        on coalesce(w.model, '') = u.model and coalesce(w.route, '') = u.route
    cross join speculation as p
)

select
    request_key,
    model,
    engine,
    engine_version,
    topology,
    route,
    worker,
    prefill_worker,
    arrival_unix_ns,
    status,
    quarantine_reason,
    superseded_attempt,
    completed,
    censored,
    input_tokens,
    cached_known,
    input_tokens - cached_tokens as uncached_tokens,
    (input_tokens - cached_tokens) * (cached_tokens + (input_tokens - cached_tokens) / 2.0)
        as attended_tokens_sq,
    input_tokens - due_cached_tokens as due_uncached_tokens,
    (input_tokens - due_cached_tokens)
        * (due_cached_tokens + (input_tokens - due_cached_tokens) / 2.0) as due_attended_tokens_sq,
    case when sequence_tokens > 1 then (sequence_tokens - 1.0) / accepted else 0.0 * sequence_tokens
         end as steps,
    case when sequence_tokens > 1
             then (sequence_tokens - 1.0) / accepted * (input_tokens + sequence_tokens / 2.0)
         else 0.0 * sequence_tokens end as step_context,
    kv_bytes,
    output_tokens,
    case when ttft_ms is null and censored = 1 then coalesce(e2e_ms, elapsed_ms) else ttft_ms end
        as ttft_ms,
    case when ttft_ms is not null then ttft_kind end as ttft_kind,
    ttfa_ms,
    tpot_ms,
    case when e2e_ms is null and censored = 1 then elapsed_ms else e2e_ms end as e2e_ms,
    has_client,
    client_wait_ms,
    network_ms,
    route_ms,
    frontend_ms,
    queue_ms,
    prefill_ms,
    queue_or_prefill_ms,
    kv_transfer_ms,
    decode_ms,
    unexplained_ms,
    engine_step_wait_ms,
    kv_transfer_wait_ms,
    kv_transfer_wire_ms,
    kv_transfer_recompute_ms,
    kv_transfer_uncertainty_ms,
    double_prefill_ms,
    max_gap_ms,
    preemptions
from r
