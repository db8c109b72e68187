-- Dynamo's request-trace records (DYN_REQUEST_TRACE) as parts of the request whose id they name.
-- grain: two rows per record: the frontend's and its worker's part
-- inputs: spans
-- when: scope_name = 'tracekit.import.dynamo-request-trace'
-- They tell when the prefill worker was done, which Dynamo's spans do not. `ttft_ms` is that worker's
-- first token under P/D, and the client's otherwise. `kv_transfer_estimated_latency_ms` follows it,
-- an upper bound; 0 is what is written where it is unknown (bootstrap). `prefill_time_ms` holds the
-- engine's queue. The arrival is in whole ms, so that these legs are up to 1 ms early.
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
            '$.request_id',
            '$.input_tokens',
            '$.output_tokens',
            '$.cached_tokens',
            '$.prefill_wait_time_ms',
            '$.ttft_ms',
            '$.total_time_ms',
            '$.kv_transfer_estimated_latency_ms',
            '$.worker.prefill_worker_id',
            '$.worker.decode_worker_id',
            '$.model'
        ]) as a
    from spans as s
    where s.scope_name = 'tracekit.import.dynamo-request-trace'
),

n as (
    select
        r.*,
        a[9] <> a[10] or a[8] is not null as is_pd,
        list_transform(list_transform(a[5:8], lambda x: try_cast(x as double)),
            lambda x: case when x between 0 and 864e5 then (round(x * 1e6))::bigint end) as ns
    from r
),

t as (
    select
        n.*,
        start_unix_ns + ns[1] as sent_ns,
        start_unix_ns + ns[2] as told_ns,
        start_unix_ns + ns[3] as last_ns,
        case when not coalesce(is_pd, false) then start_unix_ns + ns[2]
            when ns[4] > 0 then start_unix_ns + ns[2] + ns[4] end as first_ns,
        substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
            process_rank)), 1, 24) as id
    from n
)

select
    id as leg_id,
    'gateway' as role,
    'dynamo_trace' as source,
    2 as is_part,
    trace_id,
    span_id,
    a[1] as request_id,
    a[1] as norm_request_id,
    service_name,
    'dynamo' as engine,
    a[11] as model,
    'ok' as status,
    try_cast(a[2] as bigint) as input_tokens,
    try_cast(a[4] as bigint) as cached_tokens,
    try_cast(a[3] as bigint) as output_tokens,
    'server' as tokens_source,
    'server' as ttft_kind,
    1 as has_clock,
    case when is_pd then a[9] end as prefill_worker,
    case when is_pd then a[10] end as decode_worker,
    null as worker,
    start_unix_ns as recv_unix_ns,
    'reported request_received_ms' as recv_src,
    null as prefill_end_unix_ns,
    null as prefill_end_src,
    first_ns as first_token_unix_ns,
    case when first_ns is null then null
        when is_pd then 'inferred kv_transfer_estimated_latency_ms' else 'reported ttft_ms' end
        as first_token_src,
    last_ns as last_token_unix_ns,
    case when last_ns is not null then 'reported total_time_ms' end as last_token_src,
    last_ns as leg_end_unix_ns,
    case when last_ns is not null then 'reported total_time_ms' end as leg_end_src,
    ingested_unix_ns
from t
union all
select
    id || '-worker',
    case when is_pd then 'prefill_engine' else 'engine' end,
    'dynamo_trace', 2, trace_id, span_id, null, a[1], service_name, 'dynamo', a[11], 'ok',
    null, null, null, null, null, 1, null, null,
    case when is_pd then null else a[10] end,
    sent_ns,
    case when sent_ns is not null then 'reported prefill_wait_time_ms' end,
    case when is_pd then told_ns end,
    case when is_pd and told_ns is not null then 'reported ttft_ms' end,
    null, null, null, null, null, null, ingested_unix_ns
from t
