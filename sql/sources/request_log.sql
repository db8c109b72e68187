-- Imported log rows as client legs, and as engine legs where a row brings phases of its own.
-- grain: one or two rows per log row.
-- inputs: request_log
-- A row without a start time counts from 0 (has_clock = 0). Phases given as durations are placed
-- backwards from the first token, or forwards from the start where no TTFT is known.
with r as (
    select
        l.*,
        case when l.start_unix_ns is null then 0 else 1 end as clock,
        coalesce(l.start_unix_ns, 0) as t0,
        (round(l.ttft_ms * 1e6))::bigint as ttft_ns,
        (round(l.e2e_ms * 1e6))::bigint as e2e_ns,
        (round(l.client_wait_ms * 1e6))::bigint as client_wait_ns,
        (round(l.network_ms * 1e6))::bigint as network_ns,
        (round(l.route_ms * 1e6))::bigint as route_ns,
        (round(l.frontend_ms * 1e6))::bigint as frontend_ns,
        (round(l.queue_ms * 1e6))::bigint as queue_ns,
        (round(l.prefill_ms * 1e6))::bigint as prefill_ns,
        (round(l.queue_or_prefill_ms * 1e6))::bigint as qop_ns,
        (round(l.kv_transfer_ms * 1e6))::bigint as kv_ns,
        (round(l.decode_ms * 1e6))::bigint as decode_ns,
        coalesce(l.queue_ms, l.prefill_ms, l.queue_or_prefill_ms, l.kv_transfer_ms, l.decode_ms,
            l.frontend_ms) is not null as has_phases,
        regexp_replace(l.request_id, '^(chatcmpl|cmpl)-', '') as norm_id
    from request_log as l
),

-- when the call was sent: the start, unless the log counts the start from the intended time
s as (
    select
        r.*,
        case
            when intended_start_unix_ns is not null and clock = 1 then t0
            when client_wait_ns is not null then t0 + client_wait_ns
            else t0
        end as send_ns,
        case
            when intended_start_unix_ns is not null and clock = 1 then intended_start_unix_ns
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

e as (
    select
        f.*,
        coalesce(stop_ns, first_ns + decode_ns) as last_ns,
        first_ns - coalesce(kv_ns, 0) as prefill_end_ns,
        case when prefill_ns is not null then first_ns - coalesce(kv_ns, 0) - prefill_ns end
            as scheduled_ns
    from f
),

q as (
    select
        e.*,
        case
            when queue_ns is not null and scheduled_ns is not null then scheduled_ns - queue_ns
            when qop_ns is not null then prefill_end_ns - qop_ns
        end as queued_ns
    from e
)

select
    substr(md5(log_key), 1, 24) as leg_id,
    'client' as role,
    'request_log' as source,
    trace_id,
    request_id,
    norm_id as norm_request_id,
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
    quarantine_reason as leg_quarantine,
    intended_ns as intended_start_unix_ns,
    case when intended_ns is not null then case when intended_start_unix_ns is not null
        then 'measured intended_start_unix_ns' else 'reported client_wait_ms' end
    end as intended_start_src,
    send_ns as send_unix_ns,
    'measured start_unix_ns' as send_src,
    first_ns as first_token_unix_ns,
    case
        when first_ns is null then null
        when ttft_ns is not null and chunk_times is not null then 'measured chunk_times'
        when ttft_ns is not null then 'reported ttft_ms'
        else 'reported prefill_ms'
    end as first_token_src,
    case when ttfa_ms is not null
        then coalesce(intended_ns, t0) + (round(ttfa_ms * 1e6))::bigint end as first_answer_unix_ns,
    case when ttfa_ms is not null then 'reported ttfa_ms' end as first_answer_src,
    -- a call that failed or was cut before any token has an end, but no last token
    case when status in ('error', 'aborted', 'timeout') and first_ns is null then null
        when e2e_ns is not null then coalesce(intended_ns, t0) + e2e_ns
        else last_ns end as last_token_unix_ns,
    case
        when status in ('error', 'aborted', 'timeout') and first_ns is null then null
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
from q

union all by name

-- the same row as an engine leg: only what its phase columns say
select
    substr(md5(log_key), 1, 24) || '-phases' as leg_id,
    'engine' as role,
    'request_log' as source,
    trace_id,
    request_id,
    norm_id as norm_request_id,
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
    case when network_ns is not null then send_ns + network_ns + coalesce(route_ns, 0)
        when frontend_ns is not null and coalesce(queued_ns, scheduled_ns) is not null
            then coalesce(queued_ns, scheduled_ns) - frontend_ns end as recv_unix_ns,
    case when network_ns is not null then 'reported network_ms'
        when frontend_ns is not null then 'reported frontend_ms' end as recv_src,
    queued_ns as queued_unix_ns,
    case when queued_ns is not null then case when queue_ns is not null then 'reported queue_ms'
        else 'reported queue_or_prefill_ms' end end as queued_src,
    scheduled_ns as scheduled_unix_ns,
    case when scheduled_ns is not null then 'reported prefill_ms' end as scheduled_src,
    case when kv_ns is not null then prefill_end_ns end as prefill_end_unix_ns,
    case when kv_ns is not null then 'reported kv_transfer_ms' end as prefill_end_src,
    case when kv_ns is not null then prefill_end_ns end as kv_start_unix_ns,
    case when kv_ns is not null then 'reported kv_transfer_ms' end as kv_start_src,
    case when kv_ns is not null then first_ns end as kv_end_unix_ns,
    case when kv_ns is not null then 'reported kv_transfer_ms' end as kv_end_src,
    first_ns as first_token_unix_ns,
    case when first_ns is not null then 'reported ttft_ms' end as first_token_src,
    case when decode_ns is not null then first_ns + decode_ns else last_ns end as last_token_unix_ns,
    case when decode_ns is not null then 'reported decode_ms'
        when last_ns is not null then 'reported e2e_ms' end as last_token_src,
    ingested_unix_ns
from q
where has_phases and first_ns is not null
