-- Triton's trace records as gateway legs.
-- grain: one row per traced request
-- inputs: spans
-- when: scope_name = 'tracekit.import.triton-trace'
-- Triton's queue is its batcher's: a decoupled LLM model (TensorRT-LLM's backend) has its own queue
-- within COMPUTE, where neither prefill nor tokens are told. So only the batcher's queue is a phase,
-- and Triton is a gateway: what follows until a client's first token is queue or prefill.
with s as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        list_transform(
            json_extract_string(s.attributes, ['$.REQUEST_START', '$.QUEUE_START', '$.COMPUTE_START']),
            lambda x: try_cast(x as hugeint)) as ns,
        json_extract_string(s.attributes, ['$.model_name', '$.request_id']) as a
    from spans as s
    where s.scope_name = 'tracekit.import.triton-trace'
),

t as (
    select
        s.*,
        case when ns[2] - ns[1] between 0 and 86400000000000
            then start_unix_ns + (ns[2] - ns[1])::bigint end as queued_ns,
        case when ns[3] - ns[1] between 0 and 86400000000000
            then start_unix_ns + (ns[3] - ns[1])::bigint end as begun_ns
    from s
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    'gateway' as role,
    'triton_trace' as source,
    trace_id,
    span_id,
    a[2] as request_id,
    a[2] as norm_request_id,
    2 as is_part,
    service_name,
    service_instance_id,
    host_name,
    service_name as worker,
    a[1] as model,
    'triton' as engine,
    'ok' as status,
    1 as has_clock,
    start_unix_ns as recv_unix_ns,
    'measured REQUEST_START' as recv_src,
    queued_ns as queued_unix_ns,
    case when queued_ns is not null then 'measured QUEUE_START' end as queued_src,
    begun_ns as scheduled_unix_ns,
    case when begun_ns is not null then 'measured COMPUTE_START' end as scheduled_src,
    end_unix_ns as leg_end_unix_ns,
    'measured REQUEST_END' as leg_end_src,
    ingested_unix_ns
from t
