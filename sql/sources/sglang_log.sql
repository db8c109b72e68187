-- SGLang's ReqTimeStats lines as legs: beside its spans, or alone.
-- grain: one or two rows per line
-- inputs: spans
-- when: scope_name = 'tracekit.import.sglang-log'
-- Stages follow each other from `entry_time` (the scheduler's queue; what a message waited in its
-- socket is not in it). forward_duration is prefill and decode together (unified), prefill and the
-- wait for the end of the transfer (prefill server) or decode (decode server): only the last is one
-- phase. transfer_duration holds the remote queue and prefill: its end alone is a boundary. After a
-- retraction entry_time is that of the last entry, and the durations overlap.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with r as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        json_extract_string(s.attributes, [
            '$.rid',
            '$.bootstrap_room',
            '$.type',
            '$.input_len',
            '$.cached_input_len',
            '$.output_len',
            '$.transfer_total_mb'
        ]) as a,
        list_transform(
            list_transform(
                json_extract_string(s.attributes, [
                    '$.bootstrap_duration_ms',
                    '$.alloc_wait_duration_ms',
                    '$.transfer_duration_ms',
                    '$.queue_duration_ms',
                    '$.forward_duration_ms'
                ]),
                lambda x: try_cast(x as double)),
            lambda x: case when x between 0 and 864e5 then (round(x * 1e6))::bigint end) as ns
    from spans as s
    where s.scope_name = 'tracekit.import.sglang-log'
),

t as (
    select
        r.*,
        a[3] = 'decode' as is_decode,
        a[3] = 'prefill' as is_prefill,
        start_unix_ns + coalesce(ns[1], 0) + coalesce(ns[2], 0) as allocated_ns,
        start_unix_ns + coalesce(ns[1], 0) + coalesce(ns[2], 0) + coalesce(ns[3], 0) as queued_ns,
        start_unix_ns + coalesce(ns[1], 0) + coalesce(ns[2], 0) + coalesce(ns[3], 0) + ns[4]
        as scheduled_ns
    from r
),

k as (
    select
        t.*,
        substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
            process_rank)), 1, 24) as id,
        is_decode and coalesce(ns[5], 0) = 0 as is_lost
    from t
)

select
    id as leg_id,
    case when is_prefill then 'prefill_engine' when is_decode then 'decode_engine' else 'engine' end
        as role,
    'sglang_log' as source,
    2 as is_part,
    a[2] as pair_id,
    trace_id,
    span_id,
    a[1] as request_id,
    a[1] as norm_request_id,
    service_name,
    service_instance_id,
    host_name,
    service_name as worker,
    'sglang' as engine,
    case when is_lost then 'error' else 'ok' end as status,
    case when is_lost then 'Nothing was decoded: the transfer failed, or it was aborted' end
        as error,
    try_cast(a[4] as bigint) as input_tokens,
    try_cast(a[5] as bigint) as cached_tokens,
    case when is_prefill then null else try_cast(a[6] as bigint) end as output_tokens,
    'server' as tokens_source,
    -- what is no number of MB, or more than a machine holds, is not known
    case when is_prefill and try_cast(a[7] as double) between 0 and 1e9
        then (round(try_cast(a[7] as double) * 1048576))::bigint end as kv_bytes,
    'server' as ttft_kind,
    1 as has_clock,
    null as sub_phase,
    start_unix_ns as recv_unix_ns,
    'reported entry_time' as recv_src,
    case when is_decode then queued_ns else start_unix_ns end as queued_unix_ns,
    'reported queue_duration' as queued_src,
    scheduled_ns as scheduled_unix_ns,
    case when scheduled_ns is not null then 'reported queue_duration' end as scheduled_src,
    case when is_decode and ns[3] > 0 then queued_ns end as kv_end_unix_ns,
    case when is_decode and ns[3] > 0 then 'reported transfer_duration' end as kv_end_src,
    case when is_decode and ns[5] > 0 then scheduled_ns end as first_token_unix_ns,
    case when is_decode and ns[5] > 0 then 'reported forward_duration' end as first_token_src,
    case when is_prefill or not ns[5] > 0 then null else scheduled_ns + ns[5] end
        as last_token_unix_ns,
    case when is_prefill or not ns[5] > 0 then null else 'reported forward_duration' end
        as last_token_src,
    end_unix_ns as leg_end_unix_ns,
    'reported forward_duration' as leg_end_src,
    ingested_unix_ns
from k
union all
-- waiting for KV space of the decode server; with the room as an id to look the other line up by
select
    id || '-alloc', case when is_prefill then 'prefill_engine' else 'decode_engine' end,
    'sglang_log', 2, a[2], trace_id, span_id, null, a[2], service_name, service_instance_id,
    host_name, service_name, 'sglang', 'ok', null, null, null, null, null, null, null, 1,
    'queue.kv_alloc', start_unix_ns, 'reported bootstrap_duration', null, null, null, null, null,
    null, null, null, null, null, allocated_ns, 'reported bootstrap_duration', ingested_unix_ns
from k
where a[2] is not null
