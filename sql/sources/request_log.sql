-- Imported log rows as client legs, and as engine legs where a row brings phases of its own.
-- grain: one to three rows per log row.
-- inputs: request_log
-- A row without a start time counts from 0 (has_clock = 0). Phases given as durations are placed
-- backwards from the first token, or forwards from the start where no TTFT is known; the engine's
-- first token comes earlier than the client's where its decode would not fit else.
-- Durations that cannot be (negative, over a day, no number) quarantine the row and are left out.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way. A
-- spreadsheet's times may count from 1899, but no call lasts from then to now.
with m as (
    select
        l.* replace (
            case when l.start_unix_ns > 7258118400000000000 then 7258118400000000000
                when l.start_unix_ns < -7258118400000000000 then -7258118400000000000
                else l.start_unix_ns end as start_unix_ns,
            case when l.start_unix_ns < 0 and l.end_unix_ns > 1000000000000000000
                    then 1000000000000000000
                when l.end_unix_ns > 7258118400000000000 then 7258118400000000000
                when l.end_unix_ns < -7258118400000000000 then -7258118400000000000
                else l.end_unix_ns end as end_unix_ns,
            case when l.intended_start_unix_ns > 7258118400000000000 then 7258118400000000000
                when l.intended_start_unix_ns < -7258118400000000000 then -7258118400000000000
                else l.intended_start_unix_ns end as intended_start_unix_ns
        ),
        ['ttft', 'e2e', 'ttfa', 'client_wait', 'network', 'route', 'frontend', 'queue', 'prefill',
            'queue_or_prefill', 'kv_transfer', 'decode'] as measures,
        [l.ttft_ms, l.e2e_ms, l.ttfa_ms, l.client_wait_ms, l.network_ms, l.route_ms, l.frontend_ms,
            l.queue_ms, l.prefill_ms, l.queue_or_prefill_ms, l.kv_transfer_ms, l.decode_ms] as ms
    from request_log as l
),

n as (
    select
        m.*,
        list_position(list_transform(ms, lambda x: x < 0), true) as negative,
        -- NaN is the largest number here
        list_position(list_transform(ms, lambda x: x > 864e5), true) as absurd,
        list_transform(ms, lambda x: case when x between 0 and 864e5
            then (round(x * 1e6))::bigint end) as ns
    from m
),

r as (
    select
        n.*,
        case when n.start_unix_ns is null then 0 else 1 end as clock,
        coalesce(n.start_unix_ns, 0) as t0,
        ns[1] as ttft_ns,
        ns[2] as e2e_ns,
        ns[3] as ttfa_ns,
        ns[4] as client_wait_ns,
        ns[5] as network_ns,
        ns[6] as route_ns,
        ns[7] as frontend_ns,
        ns[8] as queue_ns,
        ns[9] as prefill_ns,
        ns[10] as qop_ns,
        ns[11] as kv_ns,
        ns[12] as decode_ns,
        coalesce(ns[8], ns[9], ns[10], ns[11], ns[12], ns[7]) is not null as has_phases,
        -- a call that failed or was cut and says neither TTFT nor decode had no token: its waiting
        -- and prefill ended with it
        n.status in ('error', 'aborted', 'timeout') and ns[1] is null and ns[12] is null
            as no_token,
        case
            when n.quarantine_reason is not null then n.quarantine_reason
            when negative is not null then 'negative_duration:' || measures[negative]
            when absurd is not null then 'absurd_duration:' || measures[absurd]
            -- prefill longer than the TTFT it is part of: each fits only in the other's place
            when ns[9] > ns[1] + 50000000 and coalesce(ns[8], 0) + ns[12] <= ns[1] + 50000000
                    and abs(ns[9] - (ns[2] - ns[1])) <= 50000000
                then 'swapped_durations:prefill<>decode'
            -- parts of one clock that are longer than their whole; a server may go on after an abort
            when coalesce(n.status, 'ok') = 'ok' and list_sum(ns[5:12])
                    > coalesce(ns[2], n.end_unix_ns - n.start_unix_ns) + 50000000
                then 'inconsistent_durations:phases>e2e'
        end as bad,
        -- a call cannot have been meant for after it was sent
        case when n.intended_start_unix_ns between 0 and n.start_unix_ns
            then n.intended_start_unix_ns end as planned_ns,
        regexp_replace(n.request_id, '^(chatcmpl|cmpl)-', '') as norm_id,
        regexp_replace(regexp_replace(n.response_id, '^cmpl-(.*)-\d+$', '\1'),
            '^(chatcmpl|cmpl)-', '') as norm_answer_id
    from n
),

-- when the call was sent: the start, unless the log counts the start from the intended time
s as (
    select
        r.*,
        case
            when planned_ns is null and client_wait_ns is not null then t0 + client_wait_ns
            else t0
        end as send_ns,
        case
            when planned_ns is not null then planned_ns
            when client_wait_ns is not null then t0
        end as intended_ns
    from r
),

f as (
    select
        s.*,
        case
            when ttft_ns is not null then coalesce(intended_ns, t0) + ttft_ns
            when queue_ns is not null and prefill_ns is not null then send_ns
                + coalesce(network_ns, 0) + coalesce(route_ns, 0) + coalesce(frontend_ns, 0)
                + queue_ns + prefill_ns + coalesce(kv_ns, 0)
            when qop_ns is not null then send_ns + coalesce(network_ns, 0) + coalesce(route_ns, 0)
                + coalesce(frontend_ns, 0) + qop_ns + coalesce(kv_ns, 0)
        end as first_ns,
        case
            when end_unix_ns is not null and clock = 1 then end_unix_ns
            when e2e_ns is not null then coalesce(intended_ns, t0) + e2e_ns
        end as stop_ns
    from s
),

l as (
    select f.*, coalesce(stop_ns, first_ns + decode_ns) as last_ns
    from f
),

e as (
    select
        l.*,
        case when first_ns + decode_ns > last_ns then last_ns - decode_ns else first_ns end
            as engine_first_ns
    from l
),

g as (
    select
        e.*,
        engine_first_ns - coalesce(kv_ns, 0) as prefill_end_ns,
        case
            when prefill_ns is not null then engine_first_ns - coalesce(kv_ns, 0) - prefill_ns
            when queue_ns is not null then send_ns + coalesce(network_ns, 0)
                + coalesce(route_ns, 0) + coalesce(frontend_ns, 0) + queue_ns
        end as scheduled_ns
    from e
),

q as (
    select
        g.*,
        case
            when queue_ns is not null then scheduled_ns - queue_ns
            when qop_ns is not null then prefill_end_ns - qop_ns
        end as queued_ns
    from g
),

-- arrivals, where something that lies before or after them is told
a as (
    select
        q.*,
        case
            when coalesce(network_ns, route_ns, frontend_ns) is null then null
            when coalesce(queued_ns, scheduled_ns) is not null
                then coalesce(queued_ns, scheduled_ns) - coalesce(frontend_ns, 0)
            when network_ns is not null then send_ns + network_ns + coalesce(route_ns, 0)
        end as recv_ns,
        has_phases and (first_ns is not null or queue_ns is not null)
            and not (no_token and coalesce(queue_ns, prefill_ns) is null) as has_engine
    from q
)

select
    substr(md5(log_key), 1, 24) as leg_id,
    'client' as role,
    'request_log' as source,
    trace_id,
    request_id,
    norm_id as norm_request_id,
    -- engines know a call by the id of its answer, whatever the client calls it
    norm_answer_id as norm_response_id,
    coalesce(tenant, 'request_log') as service_name,
    worker,
    model,
    provider,
    engine,
    route,
    tenant,
    attempt,
    streaming,
    coalesce(status, 'ok') as status,
    finish_reason,
    error,
    input_tokens,
    cached_tokens,
    cache_write_tokens,
    output_tokens,
    reasoning_tokens,
    tokens_source,
    choices,
    kv_bytes,
    preemptions,
    accepted_tokens_per_step,
    ttft_kind,
    chunk_times,
    prefill_worker,
    decode_worker,
    clock as has_clock,
    tpot_ms,
    max_gap_ms,
    stall_ms,
    kv_hidden_ms,
    note,
    bad as leg_quarantine,
    intended_ns as intended_start_unix_ns,
    case when intended_ns is not null then case when planned_ns is not null
        then 'measured intended_start_unix_ns' else 'reported client_wait_ms' end
    end as intended_start_src,
    send_ns as send_unix_ns,
    'measured start_unix_ns' as send_src,
    case when not no_token then first_ns end as first_token_unix_ns,
    case
        when first_ns is null or no_token then null
        when ttft_ns is not null and chunk_times is not null then 'measured chunk_times'
        when ttft_ns is not null then 'reported ttft_ms'
        else 'reported prefill_ms'
    end as first_token_src,
    coalesce(intended_ns, t0) + ttfa_ns as first_answer_unix_ns,
    case when ttfa_ns is not null then 'reported ttfa_ms' end as first_answer_src,
    -- a call that failed or was cut before any token has an end, but no last token
    case when status in ('error', 'aborted', 'timeout') and (first_ns is null or no_token) then null
        when e2e_ns is not null then coalesce(intended_ns, t0) + e2e_ns
        else last_ns end as last_token_unix_ns,
    case
        when status in ('error', 'aborted', 'timeout') and (first_ns is null or no_token) then null
        when e2e_ns is not null and chunk_times is not null then 'measured chunk_times'
        when e2e_ns is not null then 'reported e2e_ms'
        when end_unix_ns is not null then 'inferred end_unix_ns'
        when last_ns is not null then 'reported decode_ms'
    end as last_token_src,
    case when stop_ns >= last_ns then stop_ns else coalesce(last_ns, stop_ns) end as leg_end_unix_ns,
    case when stop_ns is not null then 'measured end_unix_ns' end as leg_end_src,
    null::bigint as recv_unix_ns,
    null::varchar as recv_src,
    null::bigint as queued_unix_ns,
    null::varchar as queued_src,
    null::bigint as scheduled_unix_ns,
    null::varchar as scheduled_src,
    null::bigint as prefill_end_unix_ns,
    null::varchar as prefill_end_src,
    null::bigint as kv_start_unix_ns,
    null::varchar as kv_start_src,
    null::bigint as kv_end_unix_ns,
    null::varchar as kv_end_src,
    ingested_unix_ns
from a

union all by name

-- the same row as an engine leg: only what its phase columns say
select
    substr(md5(log_key), 1, 24) || '-phases' as leg_id,
    'engine' as role,
    'request_log' as source,
    trace_id,
    request_id,
    -- llama.cpp's log has no id of a call: what the server told of its times names it there
    case when engine = 'llama.cpp' and prefill_ms > 0 and decode_ms > 0 and output_tokens > 1
            and cached_tokens between 0 and input_tokens
        then concat_ws('/', 'llama.cpp', printf('%.2f', prefill_ms), input_tokens - cached_tokens,
            printf('%.2f', decode_ms), output_tokens)
        else norm_id end as norm_request_id,
    coalesce(engine, 'request_log') as service_name,
    worker,
    model,
    engine,
    coalesce(status, 'ok') as status,
    output_tokens,
    input_tokens,
    cached_tokens,
    ttft_kind,
    clock as has_clock,
    recv_ns as recv_unix_ns,
    case when recv_ns is null then null
        when frontend_ns is not null then 'reported frontend_ms'
        when route_ns is not null then 'reported route_ms'
        else 'reported network_ms' end as recv_src,
    queued_ns as queued_unix_ns,
    case when queued_ns is not null then case when queue_ns is not null then 'reported queue_ms'
        else 'reported queue_or_prefill_ms' end end as queued_src,
    scheduled_ns as scheduled_unix_ns,
    case when scheduled_ns is null then null
        when prefill_ns is not null then 'reported prefill_ms'
        else 'inferred queue_ms' end as scheduled_src,
    case when kv_ns is not null or prefill_ns is not null then prefill_end_ns end
        as prefill_end_unix_ns,
    case when prefill_ns is not null and prefill_end_ns is not null then 'reported prefill_ms'
        when kv_ns is not null then 'reported kv_transfer_ms' end as prefill_end_src,
    case when kv_ns is not null then prefill_end_ns end as kv_start_unix_ns,
    case when kv_ns is not null then 'reported kv_transfer_ms' end as kv_start_src,
    case when kv_ns is not null then engine_first_ns end as kv_end_unix_ns,
    case when kv_ns is not null then 'reported kv_transfer_ms' end as kv_end_src,
    case when not no_token then engine_first_ns end as first_token_unix_ns,
    case when no_token then null
        when engine_first_ns < first_ns then 'inferred decode_ms'
        when ttft_ns is not null then 'reported ttft_ms'
        else 'reported prefill_ms' end as first_token_src,
    case when not no_token then coalesce(engine_first_ns + decode_ns, last_ns) end
        as last_token_unix_ns,
    case when no_token then null
        when decode_ns is not null then 'reported decode_ms'
        when last_ns is not null then 'reported e2e_ms' end as last_token_src,
    ingested_unix_ns
from a
where has_engine

union all by name

-- and as a gateway leg, where it tells the time spent in routers
select
    substr(md5(log_key), 1, 24) || '-route' as leg_id,
    'gateway' as role,
    'request_log' as source,
    trace_id,
    request_id,
    norm_id as norm_request_id,
    'request_log' as service_name,
    coalesce(status, 'ok') as status,
    clock as has_clock,
    recv_ns - route_ns as recv_unix_ns,
    'reported route_ms' as recv_src,
    ingested_unix_ns
from a
where has_engine and route_ns is not null and recv_ns is not null
