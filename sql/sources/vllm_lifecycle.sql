-- vLLM's lifecycle spans (open change #44402) as parts of its `llm_request`, or in its place.
-- grain: one row per span `vllm_queue`, `vllm_prefill`, `vllm_async_kv_transfer` or `vllm_decode`
-- inputs: spans
-- when: name in ('vllm_queue', 'vllm_prefill', 'vllm_async_kv_transfer', 'vllm_decode')
-- They stamp what `llm_request` only reports as durations. Built from the change's description.
-- A preempted request queues and prefills again after it has begun to decode: that is part of its
-- decode (`decode.preempted`), as in `llm_request`, and not of its queue and prefill.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with s as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        'measured ' || s.name as src
    from spans as s
    where s.name in ('vllm_queue', 'vllm_prefill', 'vllm_async_kv_transfer', 'vllm_decode')
),

t as (
    select
        s.*,
        case when name <> 'vllm_decode' and start_unix_ns >= min(
            case when name = 'vllm_decode' then start_unix_ns end) over (
                partition by trace_id, parent_span_id, service_name, service_instance_id)
            then 'preempted' else name end as stage
    from s
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    'engine' as role,
    'vllm_lifecycle' as source,
    2 as is_part,
    trace_id,
    span_id,
    parent_span_id,
    request_id,
    regexp_replace(regexp_replace(request_id, '^cmpl-(.*)-\d+$', '\1'), '^(chatcmpl|cmpl)-', '')
        as norm_request_id,
    service_name,
    service_instance_id,
    host_name,
    concat_ws('/', service_name, case
        when length(service_instance_id) > 16 then substr(service_instance_id, 1, 8)
        else service_instance_id
    end) as worker,
    model,
    'vllm' as engine,
    case when status_code = 2 then 'error' else 'ok' end as status,
    case when status_code = 2 then coalesce(nullif(status_message, ''), 'error') end as error,
    'server' as ttft_kind,
    1 as has_clock,
    case when stage = 'vllm_queue' then start_unix_ns end as queued_unix_ns,
    case when stage = 'vllm_queue' then src end as queued_src,
    case when stage = 'vllm_queue' then end_unix_ns when stage = 'vllm_prefill' then start_unix_ns end
        as scheduled_unix_ns,
    case when stage in ('vllm_queue', 'vllm_prefill') then src end as scheduled_src,
    case when stage = 'vllm_prefill' then end_unix_ns end as prefill_end_unix_ns,
    case when stage = 'vllm_prefill' then src end as prefill_end_src,
    case when stage = 'vllm_async_kv_transfer' then start_unix_ns end as kv_start_unix_ns,
    case when stage = 'vllm_async_kv_transfer' then src end as kv_start_src,
    case when stage = 'vllm_async_kv_transfer' then end_unix_ns end as kv_end_unix_ns,
    case when stage = 'vllm_async_kv_transfer' then src end as kv_end_src,
    case when stage = 'vllm_decode' then start_unix_ns end as first_token_unix_ns,
    case when stage = 'vllm_decode' then src end as first_token_src,
    case when stage = 'vllm_decode' then end_unix_ns end as last_token_unix_ns,
    case when stage = 'vllm_decode' then src end as last_token_src,
    case when stage = 'preempted' then 'decode.preempted' end as sub_phase,
    case when stage = 'preempted' then start_unix_ns end as recv_unix_ns,
    case when stage = 'preempted' then src end as recv_src,
    case when stage = 'preempted' then end_unix_ns end as leg_end_unix_ns,
    case when stage = 'preempted' then src end as leg_end_src,
    ingested_unix_ns
from t
