-- The cost model applied: what each phase of each request should have taken, given its shape.
-- Shape only (tokens, cache, bytes), with the cache hit that was due: concurrency and batch are how a fault acts, so they must not
-- explain it away. A phase without a usable fit, or a request without the size it needs or with one
-- far beyond what was fitted, has no expectation (NULL): such a phase may not be judged.
-- grain: one row per usable request.
-- inputs: request_facts, cost_model, attribution_rules
-- request_key: identity of the request
-- model: model name, '' if unknown
-- route: traffic class or endpoint, '' if unknown
-- worker: worker that decoded (or the only one), NULL if unknown
-- prefill_worker: worker that prefilled, NULL if unknown
-- arrival_unix_ns: [unix ns] when the request was meant to start, NULL without a clock
-- completed: 1 if it ended well, else 0
-- cell_index: row of the cost model that was applied, NULL if there is none
-- input_tokens: [tokens] prompt
-- cached_known: 1 if the source said how many prompt tokens came from a cache
-- steps: [1] decode steps of one sequence
-- ttft_ms: [ms] start to first token
-- tpot_ms: [ms] time per output token after the first
-- e2e_ms: [ms] wall time
-- engine_step_wait_ms: [ms] sub-phase of frontend_ms
-- kv_transfer_wait_ms: [ms] sub-phase of kv_transfer_ms
-- double_prefill_ms: [ms] part of prefill_ms that no expectation is for
-- prefill_cost_ms: [ms] what the engine was busy with its prefill: prefill_expected_ms, or all that it
--   took where it is beyond what was fitted
-- prefill_fixed_ms: [ms] the part of the expectation that does not grow with the prompt
-- queue_or_prefill_fixed_ms: [ms] as prefill_fixed_ms
-- kv_transfer_fixed_ms: [ms] the part of the expectation that does not grow with the size
-- decode_fixed_ms: [ms] the part of the expectation that does not grow with the context
-- client_wait_ms: [ms] phase client_wait
-- client_wait_expected_ms: [ms] what it should have taken
-- client_wait_scale_ms: [ms] its ordinary variation at that size
-- network_ms: [ms] phase network
-- network_expected_ms: [ms] what it should have taken
-- network_scale_ms: [ms] its ordinary variation at that size
-- route_ms: [ms] phase route
-- route_expected_ms: [ms] what it should have taken
-- route_scale_ms: [ms] its ordinary variation at that size
-- frontend_ms: [ms] phase frontend
-- frontend_expected_ms: [ms] what it should have taken
-- frontend_scale_ms: [ms] its ordinary variation at that size
-- queue_ms: [ms] phase queue
-- queue_expected_ms: [ms] what it should have taken
-- queue_scale_ms: [ms] its ordinary variation at that size
-- prefill_ms: [ms] phase prefill
-- prefill_expected_ms: [ms] what it should have taken
-- prefill_scale_ms: [ms] its ordinary variation at that size
-- prefill_is_beyond: 1 if it is far larger than anything the phase was fitted on, else 0
-- queue_or_prefill_ms: [ms] phase queue_or_prefill
-- queue_or_prefill_expected_ms: [ms] what it should have taken
-- queue_or_prefill_scale_ms: [ms] its ordinary variation at that size
-- queue_or_prefill_is_beyond: 1 if it is far larger than anything the phase was fitted on, else 0
-- kv_transfer_ms: [ms] phase kv_transfer
-- kv_transfer_expected_ms: [ms] what it should have taken
-- kv_transfer_scale_ms: [ms] its ordinary variation at that size
-- kv_transfer_is_beyond: 1 if it is far larger than anything the phase was fitted on, else 0
-- decode_ms: [ms] phase decode
-- decode_expected_ms: [ms] what it should have taken
-- decode_scale_ms: [ms] its ordinary variation at that size
-- decode_is_beyond: 1 if it is far larger than anything the phase was fitted on, else 0
with e as (
    select
        f.request_key as request_key,
        f.model as model,
        f.route as route,
        f.worker as worker,
        f.prefill_worker as prefill_worker,
        f.arrival_unix_ns as arrival_unix_ns,
        f.completed as completed,
        c.cell_index as cell_index,
        f.input_tokens as input_tokens,
        f.cached_known as cached_known,
        f.steps as steps,
        f.ttft_ms as ttft_ms,
        f.tpot_ms as tpot_ms,
        f.e2e_ms as e2e_ms,
        f.engine_step_wait_ms as engine_step_wait_ms,
        f.kv_transfer_wait_ms as kv_transfer_wait_ms,
        f.double_prefill_ms as double_prefill_ms,
        case when f.prefill_ms > 0 then c.prefill_a0 when f.prefill_ms = 0 then 0.0 end
            as prefill_fixed_ms,
        case when f.queue_or_prefill_ms > 0 then c.queue_or_prefill_a0
             when f.queue_or_prefill_ms = 0 then 0.0 end as queue_or_prefill_fixed_ms,
        case when f.kv_transfer_ms > 0 then c.kv_transfer_k0 when f.kv_transfer_ms = 0 then 0.0 end
            as kv_transfer_fixed_ms,
        case when f.decode_ms > 0 then c.decode_g0 * f.steps when f.decode_ms = 0 then 0.0 end
            as decode_fixed_ms,
        f.client_wait_ms as client_wait_ms,
        case when f.client_wait_ms is null then null else c.client_wait_c0 end
            as client_wait_expected_ms,
        f.network_ms as network_ms,
        case when f.network_ms is null then null else c.network_c0 end as network_expected_ms,
        f.route_ms as route_ms,
        case when f.route_ms is null then null else c.route_c0 end as route_expected_ms,
        f.frontend_ms as frontend_ms,
        case when f.frontend_ms is null then null else c.frontend_c0 end as frontend_expected_ms,
        f.queue_ms as queue_ms,
        case when f.queue_ms is null then null else c.queue_c0 end as queue_expected_ms,
        f.prefill_ms as prefill_ms,
        case when f.prefill_ms is null then null when f.prefill_ms = 0 then 0.0
             else c.prefill_a0 + c.prefill_a1 * f.due_uncached_tokens
                 + c.prefill_a2 * f.due_attended_tokens_sq
             end as prefill_fit_ms,
        f.queue_or_prefill_ms as queue_or_prefill_ms,
        case when f.queue_or_prefill_ms is null then null when f.queue_or_prefill_ms = 0 then 0.0
             else c.queue_or_prefill_a0 + c.queue_or_prefill_a1 * f.due_uncached_tokens
                 + c.queue_or_prefill_a2 * f.due_attended_tokens_sq
             end as queue_or_prefill_fit_ms,
        f.kv_transfer_ms as kv_transfer_ms,
        case when f.kv_transfer_ms is null then null when f.kv_transfer_ms = 0 then 0.0
             when c.kv_transfer_per_byte = 1
                 then c.kv_transfer_k0 + c.kv_transfer_k1 * cast(f.kv_bytes as double)
             else c.kv_transfer_k0 + c.kv_transfer_k1 * f.input_tokens
             end as kv_transfer_fit_ms,
        f.decode_ms as decode_ms,
        case when f.decode_ms is null then null when f.decode_ms = 0 then 0.0
             else c.decode_g0 * f.steps + c.decode_g1 * f.step_context
             end as decode_fit_ms,
        case when f.prefill_ms > 0
                 and (f.due_uncached_tokens > p.size_reach * c.prefill_reach
                     or f.due_attended_tokens_sq
                         > p.size_reach * c.prefill_context_reach * f.due_uncached_tokens)
             then 1 else 0 end as prefill_is_beyond,
        case when f.queue_or_prefill_ms > 0
                 and (f.due_uncached_tokens > p.size_reach * c.queue_or_prefill_reach
                     or f.due_attended_tokens_sq
                         > p.size_reach * c.queue_or_prefill_context_reach * f.due_uncached_tokens)
             then 1 else 0 end as queue_or_prefill_is_beyond,
        case when f.kv_transfer_ms > 0
                 and case when c.kv_transfer_per_byte = 1 then cast(f.kv_bytes as double)
                     else f.input_tokens end > p.size_reach * c.kv_transfer_reach
             then 1 else 0 end as kv_transfer_is_beyond,
        case when f.decode_ms > 0
                 and (f.steps > p.size_reach * c.decode_reach
                     or f.step_context > p.size_reach * c.decode_context_reach * f.steps)
             then 1 else 0 end as decode_is_beyond,
        c.client_wait_s0 as client_wait_s0,
        c.client_wait_s1 as client_wait_s1,
        c.network_s0 as network_s0,
        c.network_s1 as network_s1,
        c.route_s0 as route_s0,
        c.route_s1 as route_s1,
        c.frontend_s0 as frontend_s0,
        c.frontend_s1 as frontend_s1,
        c.queue_s0 as queue_s0,
        c.queue_s1 as queue_s1,
        c.prefill_s0 as prefill_s0,
        c.prefill_s1 as prefill_s1,
        c.queue_or_prefill_s0 as queue_or_prefill_s0,
        c.queue_or_prefill_s1 as queue_or_prefill_s1,
        c.kv_transfer_s0 as kv_transfer_s0,
        c.kv_transfer_s1 as kv_transfer_s1,
        c.decode_s0 as decode_s0,
        c.decode_s1 as decode_s1
    from request_facts as f
    cross join attribution_rules as p
    left join cost_model as c
        on f.model = c.model and f.engine = c.engine
        and f.engine_version = c.engine_version and f.topology = c.topology
    where f.quarantine_reason is null and f.superseded_attempt = 0
)

select
    request_key,
    model,
    route,
    worker,
    prefill_worker,
    arrival_unix_ns,
    completed,
    cell_index,
    input_tokens,
    cached_known,
    steps,
    ttft_ms,
    tpot_ms,
    e2e_ms,
    engine_step_wait_ms,
    kv_transfer_wait_ms,
    double_prefill_ms,
    case when prefill_is_beyond = 1 then prefill_ms - coalesce(double_prefill_ms, 0.0)
         else prefill_fit_ms end as prefill_cost_ms,
    prefill_fixed_ms,
    queue_or_prefill_fixed_ms,
    kv_transfer_fixed_ms,
    decode_fixed_ms,
    client_wait_ms,
    client_wait_expected_ms,
    client_wait_s0 + client_wait_s1 * client_wait_expected_ms as client_wait_scale_ms,
    network_ms,
    network_expected_ms,
    network_s0 + network_s1 * network_expected_ms as network_scale_ms,
    route_ms,
    route_expected_ms,
    route_s0 + route_s1 * route_expected_ms as route_scale_ms,
    frontend_ms,
    frontend_expected_ms,
    frontend_s0 + frontend_s1 * frontend_expected_ms as frontend_scale_ms,
    queue_ms,
    queue_expected_ms,
    queue_s0 + queue_s1 * queue_expected_ms as queue_scale_ms,
    prefill_ms,
    case when prefill_is_beyond = 1 then null else prefill_fit_ms end as prefill_expected_ms,
    case when prefill_is_beyond = 1 then null else prefill_s0 + prefill_s1 * prefill_fit_ms end
        as prefill_scale_ms,
    prefill_is_beyond,
    queue_or_prefill_ms,
    case when queue_or_prefill_is_beyond = 1 then null else queue_or_prefill_fit_ms end
        as queue_or_prefill_expected_ms,
    case when queue_or_prefill_is_beyond = 1 then null
         else queue_or_prefill_s0 + queue_or_prefill_s1 * queue_or_prefill_fit_ms end as queue_or_prefill_scale_ms,
    queue_or_prefill_is_beyond,
    kv_transfer_ms,
    case when kv_transfer_is_beyond = 1 then null else kv_transfer_fit_ms end
        as kv_transfer_expected_ms,
    case when kv_transfer_is_beyond = 1 then null
         else kv_transfer_s0 + kv_transfer_s1 * kv_transfer_fit_ms end as kv_transfer_scale_ms,
    kv_transfer_is_beyond,
    decode_ms,
    case when decode_is_beyond = 1 then null else decode_fit_ms end as decode_expected_ms,
    case when decode_is_beyond = 1 then null else decode_s0 + decode_s1 * decode_fit_ms end
        as decode_scale_ms,
    decode_is_beyond
from e
