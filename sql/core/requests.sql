-- The request record: one generation, its sizes, its times and its phases.
-- grain: one row per (request_key, revision)
-- inputs: request_points, phases, request_inside, legs, request_groups, gap_summary
-- Columns and units are those of tracekit.lake.schema.REQUESTS, without the book-keeping of settling.
-- sums are of integers, so that they do not depend on the order of rows
with f as (
    select
        request_key, revision,
        sum(case when phase = 'client_wait' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as client_wait_ms,
        sum(case when phase = 'network' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as network_ms,
        sum(case when phase = 'frontend' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as frontend_ms,
        sum(case when phase = 'route' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as route_ms,
        sum(case when phase = 'queue' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as queue_ms,
        sum(case when phase = 'prefill' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as prefill_ms,
        sum(case when phase = 'queue_or_prefill' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as queue_or_prefill_ms,
        sum(case when phase = 'kv_transfer' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as kv_transfer_ms,
        sum(case when phase = 'decode' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as decode_ms,
        sum(case when phase = 'unexplained' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as unexplained_ms,
        sum(case when sub_phase = 'frontend.engine_step_wait' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as engine_step_wait_ms,
        sum(case when sub_phase = 'kv_transfer.wait' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as kv_transfer_wait_ms,
        sum(case when sub_phase = 'kv_transfer.wire' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as kv_transfer_wire_ms,
        sum(case when sub_phase = 'kv_transfer.recompute' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as kv_transfer_recompute_ms,
        sum(case when sub_phase = 'prefill.double' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as double_prefill_ms,
        sum(case when sub_phase = 'prefill.wait' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as prefill_wait_ms,
        sum(case when sub_phase = 'decode.stall' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as decode_stall_ms,
        sum(case when sub_phase = 'decode.preempted' then end_unix_ns - start_unix_ns else 0 end)
            / 1e6 as decode_preempted_ms,
        max(case when phase = 'kv_transfer' then uncertainty_ms end) as kv_transfer_uncertainty_ms
    from phases
    group by request_key, revision
),

l as (
    select
        request_key, revision,
        max(case when role = 'client' then request_id end) as c_request_id,
        max(case when role in ('gateway', 'router') then request_id end) as g_request_id,
        max(norm_request_id) as norm_request_id,
        min(case when source = 'request_log' then request_id end) as log_request_id,
        max(request_id) as any_request_id,
        max(case when role = 'client' then trace_id end) as c_trace_id,
        -- record spans of engines' logs have trace ids that nobody else knows
        max(case when trace_id not like '746b726563%' then trace_id end) as any_trace_id,
        max(case when source = 'request_log' then model end) as log_model,
        max(case when role = 'client' then model end) as c_model,
        max(model) as any_model,
        max(provider) as provider,
        max(case when role in ('engine', 'decode_engine', 'prefill_engine')
            and engine is not null then engine end) as e_engine,
        max(engine) as any_engine,
        max(engine_version) as engine_version,
        max(case when source = 'request_log' then route end) as log_route,
        max(case when role = 'client' then route end) as c_route,
        max(route) as any_route,
        max(tenant) as tenant,
        max(case when source = 'request_log' then worker end) as log_worker,
        max(prefill_worker) as prefill_worker,
        max(decode_worker) as decode_worker,
        max(case when role in ('engine', 'decode_engine', 'prefill_engine') then input_tokens end)
            as e_input,
        max(input_tokens) as any_input,
        -- a router tells what it expects to be cached, an engine what was
        coalesce(
            max(case when role in ('engine', 'decode_engine', 'prefill_engine')
                and cached_tokens between 0 and 1000000000000 then cached_tokens end),
            max(case when cached_tokens between 0 and 1000000000000 then cached_tokens end)
        ) as cached_tokens,
        max(case when cache_write_tokens between 0 and 1000000000000 then cache_write_tokens end) as cache_write_tokens,
        case when sum(case when role in ('engine', 'decode_engine') then output_tokens end) is null
            or max(case when role not in ('engine', 'decode_engine', 'prefill_engine')
                then output_tokens end)
            > sum(case when role in ('engine', 'decode_engine') then output_tokens end)
            then max(case when role not in ('engine', 'decode_engine', 'prefill_engine')
                then output_tokens end)
            else sum(case when role in ('engine', 'decode_engine') then output_tokens end)
        end as output_tokens,
        max(case when reasoning_tokens between 0 and 1000000000000 then reasoning_tokens end) as reasoning_tokens,
        max(case when tokens_source = 'server' then 1 else 0 end) as tokens_server,
        max(case when tokens_source = 'client' then 1 else 0 end) as tokens_client,
        max(case when tokens_source = 'estimated' then 1 else 0 end) as tokens_estimated,
        max(streaming) as streaming,
        sum(case when role = 'client' then 1 else 0 end) as c_n,
        -- an engine that does not know when a request came counts from its prefill on
        min(case when role = 'engine' then ttft_kind end) as e_kind,
        max(case when role = 'client' and status = 'ok' then 1 else 0 end) as c_ok,
        max(case when role = 'client' and status = 'aborted' then 1 else 0 end) as c_aborted,
        max(case when role = 'client' and status = 'timeout' then 1 else 0 end) as c_timeout,
        max(case when role = 'client' and status = 'error' then 1 else 0 end) as c_error,
        max(case when role = 'client' and status = 'open' then 1 else 0 end) as c_open,
        max(case when status = 'aborted' then 1 else 0 end) as any_aborted,
        max(case when status = 'timeout' then 1 else 0 end) as any_timeout,
        max(case when status = 'error' then 1 else 0 end) as any_error,
        max(case when role = 'gateway' and status = 'ok' then 1 else 0 end) as g_ok,
        max(case when role in ('engine', 'decode_engine') and status = 'ok' then 1 else 0 end)
            as e_ok,
        max(case when role in ('engine', 'decode_engine') and status = 'error' then 1 else 0 end)
            as e_error,
        max(case when role in ('engine', 'decode_engine') and status = 'timeout' then 1 else 0 end)
            as e_timeout,
        max(case when role in ('engine', 'decode_engine') and status = 'aborted' then 1 else 0 end)
            as e_aborted,
        max(case when role in ('engine', 'decode_engine', 'provider') then 0
            when status in ('aborted', 'timeout', 'error') then 1 else 0 end) as outer_failed,
        max(case when role = 'client' then finish_reason end) as c_finish,
        max(case when role = 'client' then output_tokens end) as c_output,
        -- a prefill server that did its part says length: it was to make one token
        coalesce(
            max(case when role = 'client' then finish_reason end),
            max(case when role <> 'prefill_engine' then finish_reason end),
            max(case when status in ('aborted', 'timeout', 'error') then finish_reason end)
        ) as finish_reason,
        coalesce(max(case when role = 'client' then error end), max(error)) as error,
        max(case when kv_bytes between 0 and 1000000000000000000 then kv_bytes end) as kv_bytes,
        max(preemptions) as preemptions,
        max(accepted_tokens_per_step) as accepted_tokens_per_step,
        max(tpot_ms) as tpot_ms,
        max(max_gap_ms) as max_gap_ms,
        max(stall_ms) as stall_ms,
        max(kv_hidden_ms) as kv_hidden_ms,
        max(note) as note,
        max(leg_quarantine) as leg_quarantine,
        min(case when source = 'request_log' then 1 else 0 end) as is_log,
        max(ingested_unix_ns) as ingested_unix_ns
    from legs
    group by request_key, revision
),

t as (
    select
        p.request_key, p.revision, p.has_clock, p.is_pd, p.d_again, p.wire_known, p.wire_told, p.loads,
        p.wall_start, p.wall_end, p.end_known,
        p.c_n, p.c_send, p.c_intended, p.c_first, p.c_last, p.c_kind, p.c_answer, p.c_last_src,
        p.e_n, p.e_first, p.e_last, p.p_first, p.e_worker, p.p_worker, p.in_first, p.in_last, p.c_end,
        p.g_n, p.g_recv, p.g_end, p.g_first, p.g_last, p.p_n, p.en_first, p.widest_ns,
        coalesce(p.e_scheduled, p.e_first) as e_ready,
        -- which phases some leg could tell: the others are unknown, not zero
        case when p.c_intended is not null then 1 else 0 end as knows_client_wait,
        case when p.c_n > 0 and (p.g_recv is not null or p.p_recv is not null
            or p.e_recv is not null) then 1 else 0 end as knows_network,
        case when (p.e_n > 0 and p.g_n > 0 and p.is_pd = 0) or p.p_n > 0 then 1 else 0 end
            as knows_route,
        case when (p.e_recv is not null and p.e_queued is not null)
            or (p.p_recv is not null and p.p_queued is not null) then 1 else 0 end as knows_frontend,
        case when (p.is_pd = 0 and p.e_queued is not null and p.e_scheduled is not null)
            or (p.p_queued is not null and p.p_scheduled is not null) then 1 else 0 end
            as knows_queue,
        case when (p.is_pd = 0 and p.e_prefilled = 1)
            or (p.p_scheduled is not null and p.p_first is not null) then 1 else 0 end
            as knows_prefill,
        case when (p.is_pd = 1 and (p.p_first is not null or p.e_first is not null)
                and not (p.p_first is null and p.kv_moved is not null)
                -- of a decode server that told nothing a gateway's first token may tell
                and (p.e_n > 0 or (p.g_first is not null
                    and (p.g_last is not null or p.g_first_src not like 'inferred%'))))
            or p.e_kv_start is not null or p.loads = 1 then 1 else 0 end as knows_kv,
        case when (p.e_first is not null and p.e_last is not null)
            or (p.e_n = 0 and p.c_first is not null and p.end_known = 1)
            or (p.g_first is not null and p.g_last is not null) then 1 else 0 end
            as knows_decode,
        -- a client's early role chunk is not a token: the engine's first token is later; a prefill
        -- server's token is none that anybody is sent: the decode server makes it again
        case
            -- a gateway passes no token on before the engine made it, and may hold it back
            when p.c_first is null and p.g_first > p.e_first then p.g_first
            when p.c_first is null then coalesce(p.e_first, p.g_first)
            when p.c_kind = 'first_chunk' and p.e_first > p.c_first then p.e_first
            else p.c_first
        end as first_ns,
        case
            when p.c_first is null and coalesce(p.g_first, p.e_first) is not null then 'server'
            when p.c_kind = 'first_chunk' and p.e_first > p.c_first then 'server'
            else p.c_kind
        end as kind,
        case when p.c_n > 0 then p.c_last else coalesce(p.g_last, p.e_last) end as last_ns,
        -- both ends of TPOT from one leg: the client's own stamps, else the engine's
        case when p.c_last_src like 'measured%' and p.c_first is not null
            and not (p.c_kind = 'first_chunk' and p.e_first > p.c_first)
            then p.c_last - p.c_first
            when p.e_first is not null and p.e_last is not null then p.e_last - p.e_first
            when p.g_first is not null and p.g_last is not null then p.g_last - p.g_first
            when p.c_first is not null and p.c_last is not null then p.c_last - p.c_first
        end as stream_ns,
        -- what the engine made while the client listened, where a gateway lies between them: it may
        -- hold back the first token and pass it on with later ones
        case when (p.g_n > 0 or p.is_pd = 1) and p.c_last_src like 'measured%'
                and p.e_first < p.c_first and p.e_first < p.e_last
            then case when p.e_last < p.c_last then p.e_last else p.c_last end - p.e_first
        end as made_ns,
        -- a gateway that only infers its first token is one that holds it back: for how long, and so
        -- how long the stream was, no leg tells where the engine's first token is not known
        case when p.e_first is null and p.g_first_src like 'inferred%'
            then 1 else 0 end as is_held
    from request_points as p
)

select
    t.request_key, t.revision,
    g.superseded_attempt,
    t.has_clock,
    g.choices, g.legs_count, g.leg_roles, g.sources,
    case when t.has_clock = 1 then t.first_ns end as first_token_unix_ns,
    case when t.has_clock = 1 then t.last_ns end as last_token_unix_ns,
    case when f.engine_step_wait_ms > 0 then f.engine_step_wait_ms end as engine_step_wait_ms,
    case when t.is_pd = 1 or d.tells_kv_wait = 1 then f.kv_transfer_wait_ms end
        as kv_transfer_wait_ms,
    case when t.wire_known = 1 or t.wire_told = 1 or t.loads = 1 or d.tells_wire = 1 then coalesce(f.kv_transfer_wire_ms, 0) end
        as kv_transfer_wire_ms,
    case when t.d_again is not null or d.tells_recompute = 1
        then coalesce(f.kv_transfer_recompute_ms, 0) end as kv_transfer_recompute_ms,
    case when t.d_again is not null or d.tells_double = 1 then coalesce(f.double_prefill_ms, 0) end
        as double_prefill_ms,
    case when d.tells_wait = 1 then coalesce(f.prefill_wait_ms, 0) end as prefill_wait_ms,
    case when d.tells_preempted = 1 or l.preemptions = 0 then coalesce(f.decode_preempted_ms, 0)
        end as decode_preempted_ms,
    case when t.c_n > 0 and t.e_last is not null and t.wall_end >= t.e_last
        then (t.wall_end - t.e_last) / 1e6 end as after_last_token_ms,
    gap.chunk_count,
    g.match_score,
    l.engine_version,
    t.widest_ns / 1e6 as clock_uncertainty_ms,
    f.kv_transfer_uncertainty_ms as kv_transfer_uncertainty_ms,
    -- arrivals before the sending, answers after the end, a transfer before its prefill was done
    case when (case when t.c_n > 0 then 1 else 0 end) + (case when t.g_n > 0 then 1 else 0 end)
            + (case when t.p_n > 0 then 1 else 0 end) + (case when t.e_n > 0 then 1 else 0 end) > 1
        then (
            case when t.in_first < t.c_send then t.c_send - t.in_first else 0 end
            + case when t.en_first < t.g_recv then t.g_recv - t.en_first else 0 end
            + case when t.e_ready < t.p_first then t.p_first - t.e_ready else 0 end
            + case when l.any_aborted + l.any_timeout + l.any_error > 0 then 0
                when t.c_n > 0 and t.in_last > t.wall_end then t.in_last - t.wall_end
                when t.c_n = 0 and t.in_last > t.g_end then t.in_last - t.g_end
                else 0 end
        ) / 1e6
    end as clipped_ms,
    coalesce(l.log_request_id, l.c_request_id, l.g_request_id, l.norm_request_id,
        l.any_request_id) as request_id,
    coalesce(l.c_trace_id, l.any_trace_id) as trace_id,
    g.attempt,
    case when t.has_clock = 1 then coalesce(t.c_send, t.in_first, t.wall_start) end as start_unix_ns,
    case when t.has_clock = 1 then t.c_intended end as intended_start_unix_ns,
    case when t.has_clock = 1 and t.end_known = 1 then t.wall_end end as end_unix_ns,
    coalesce(l.log_model, l.c_model, l.any_model) as model,
    l.provider,
    coalesce(l.e_engine, l.any_engine) as engine,
    coalesce(l.log_route, l.c_route, l.any_route) as route,
    l.tenant,
    coalesce(t.e_worker, l.log_worker) as worker,
    case when t.is_pd = 1 then coalesce(t.p_worker, l.prefill_worker) else l.prefill_worker end
        as prefill_worker,
    case when t.is_pd = 1 then coalesce(t.e_worker, l.decode_worker) else l.decode_worker end
        as decode_worker,
    -- what can be no count is not known; if it is the prompt or the answer, it is set aside below
    case when coalesce(l.e_input, l.any_input) between -1000000000000 and 1000000000000
        then coalesce(l.e_input, l.any_input) end as input_tokens,
    l.cached_tokens, l.cache_write_tokens,
    case when l.output_tokens between -1000000000000 and 1000000000000 then l.output_tokens end
        as output_tokens,
    l.reasoning_tokens,
    case when l.tokens_server = 1 then 'server' when l.tokens_client = 1 then 'client'
        when l.tokens_estimated = 1 then 'estimated' end as tokens_source,
    l.streaming,
    case
        when l.c_n > 0 then case when l.c_aborted = 1 then 'aborted' when l.c_timeout = 1
            then 'timeout' when l.c_error = 1 then 'error' when l.c_open = 1 then 'open'
            -- a client that tells no reason of the end knows that the headers came, no more
            when l.c_finish is not null or l.e_ok = 1 then 'ok'
            when l.e_timeout = 1 then 'timeout'
            when l.e_error = 1 then 'error'
            -- broken off before anything came, or by the client when it had enough
            when l.e_aborted = 1 and t.c_first is null and coalesce(l.c_output, 0) = 0
                then 'aborted'
            else 'ok' end
        -- of tries below a gateway one ended well
        when l.g_ok = 1 and l.e_ok = 1 and l.outer_failed = 0 then 'ok'
        when l.any_aborted = 1 then 'aborted'
        when l.any_timeout = 1 then 'timeout'
        when l.any_error = 1 then 'error'
        else 'ok'
    end as status,
    l.finish_reason, l.error,
    case when t.first_ns >= t.wall_start then (t.first_ns - t.wall_start) / 1e6 end as ttft_ms,
    case
        when t.first_ns < t.wall_start or t.first_ns is null then null
        when t.c_n = 0 and t.g_n = 0 and l.e_kind = 'server_excl_queue' then l.e_kind
        else t.kind
    end as ttft_kind,
    case when t.c_answer >= t.wall_start then (t.c_answer - t.wall_start) / 1e6 end as ttfa_ms,
    case
        when t.is_held = 1 then null
        when t.stream_ns >= 0 and g.choices > 0 and l.output_tokens > g.choices
            -- a log without chunk times says it better than the difference of its totals, if both
            -- agree: further apart than a tenth it is another definition (E2E a token, say), or the
            -- number of choices is not known
            then case
                when (t.c_last_src is null or t.c_last_src not like 'measured%')
                    and l.tpot_ms * (l.output_tokens / cast(g.choices as double) - 1)
                        between t.stream_ns / 11e5 and t.stream_ns * 11e-7
                    then l.tpot_ms
                -- a first token that was held back makes no tokens faster: the client waited for it,
                -- which is its TTFT, and had others with it. Less than half a step is no such wait
                when (t.made_ns - t.stream_ns) * 2
                        * (l.output_tokens / cast(g.choices as double) - 1) > t.made_ns
                    then t.made_ns / 1e6 / (l.output_tokens / cast(g.choices as double) - 1)
                else t.stream_ns / 1e6 / (l.output_tokens / cast(g.choices as double) - 1)
            end
        else l.tpot_ms
    end as tpot_ms,
    case when t.wall_end > t.wall_start and t.end_known = 1
        then (t.wall_end - t.wall_start) / 1e6 end as e2e_ms,
    case when t.wall_end > t.wall_start and t.end_known = 1
        then l.output_tokens / ((t.wall_end - t.wall_start) / 1e9) end as tokens_per_s,
    case when t.knows_client_wait = 1 or f.client_wait_ms > 0 then coalesce(f.client_wait_ms, 0) end as client_wait_ms,
    case when t.knows_network = 1 or f.network_ms > 0 then coalesce(f.network_ms, 0) end as network_ms,
    case when t.knows_frontend = 1 or f.frontend_ms > 0 then coalesce(f.frontend_ms, 0) end as frontend_ms,
    case when t.knows_route = 1 or f.route_ms > 0 then coalesce(f.route_ms, 0) end as route_ms,
    case when t.knows_queue = 1 or f.queue_ms > 0 then coalesce(f.queue_ms, 0) end as queue_ms,
    case when t.knows_prefill = 1 or f.prefill_ms > 0 then coalesce(f.prefill_ms, 0) end as prefill_ms,
    case when t.knows_kv = 1 or f.kv_transfer_ms > 0 then coalesce(f.kv_transfer_ms, 0) end as kv_transfer_ms,
    case when t.knows_decode = 1 or f.decode_ms > 0 then coalesce(f.decode_ms, 0) end as decode_ms,
    coalesce(f.unexplained_ms, 0) as unexplained_ms,
    l.kv_bytes, l.preemptions,
    -- what the engine says, else what the client saw: a decode step sends one chunk
    coalesce(l.accepted_tokens_per_step, gap.tokens_per_chunk) as accepted_tokens_per_step,
    coalesce(gap.max_gap_ms, l.max_gap_ms) as max_gap_ms,
    coalesce(gap.stall_ms, l.stall_ms, case when d.tells_stall = 1 then f.decode_stall_ms end)
        as stall_ms,
    case when t.wall_end > t.wall_start
        then 1 - coalesce(f.unexplained_ms, 0) / ((t.wall_end - t.wall_start) / 1e6)
    end as coverage,
    case
        -- stages without the span that they are stages of: on its way, or lost
        when g.is_partial = 1 then 'incomplete_trace'
        when l.leg_quarantine is not null then l.leg_quarantine
        -- what is still open has no end yet, and so no wall time; of what passed a gateway that tells
        -- no end, and of which nothing else is heard, none is known
        when t.wall_end <= t.wall_start and not (t.end_known = 0 and t.g_n > 0)
            and (l.c_open = 0 or l.c_aborted + l.c_timeout + l.c_error > 0) then 'no_wall_time'
        -- a server cannot receive before the client sends, nor answer after the client has it all:
        -- beyond what clocks of one site differ, no phase of such a request can be believed
        when l.c_n > 0 and l.c_ok = 1 and l.any_aborted + l.any_timeout + l.any_error = 0
            and (t.in_first < t.c_send - 50000000 or t.in_last > t.c_end + 50000000)
            -- one row of a log has one clock: its columns contradict each other (units, most likely)
            then case when l.is_log = 1 then 'inconsistent_durations:phases>e2e' else 'clock_skew' end
        when t.wall_end - t.wall_start > 86400000000000 then 'absurd_duration:e2e'
        when l.any_input < 0 or l.output_tokens < 0 then 'negative_tokens'
        when l.any_input > 1000000000000 or l.output_tokens > 1000000000000 then 'absurd_tokens'
    end as quarantine_reason,
    case when f.queue_or_prefill_ms > 0 then f.queue_or_prefill_ms end as queue_or_prefill_ms,
    coalesce(l.kv_hidden_ms,
        case when t.knows_prefill = 1 or f.prefill_ms > 0 then d.kv_hidden_ms end) as kv_hidden_ms,
    l.note,
    l.ingested_unix_ns
from t
join l on t.request_key = l.request_key and t.revision = l.revision
join request_groups as g on t.request_key = g.request_key
left join f on t.request_key = f.request_key and t.revision = f.revision
left join request_inside as d on t.request_key = d.request_key and t.revision = d.revision
left join gap_summary as gap on t.request_key = gap.request_key
