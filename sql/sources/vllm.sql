-- vLLM's `llm_request` spans as legs (V1 attribute names, and V0's, whose queue starts at arrival).
-- grain: one row per span, that is per finished sequence (n > 1 gives n rows).
-- inputs: spans
-- when: name = 'llm_request'
-- The span is flat: phases are durations in seconds. They are placed backwards from the first token,
-- because the whole residual (front end, waiting for the running engine step) lies before QUEUED.
-- Negative or absurd durations (unset timestamps are 0.0 in the engine) quarantine the leg.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with v as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        json_extract_string(s.attributes, [
            '$."gen_ai.latency.time_in_queue"',
            '$."gen_ai.latency.time_in_model_prefill"',
            '$."gen_ai.latency.time_in_model_decode"',
            '$."gen_ai.latency.time_to_first_token"',
            '$."gen_ai.latency.e2e"',
            '$."gen_ai.usage.prompt_tokens"',
            '$."gen_ai.usage.completion_tokens"',
            '$."gen_ai.response.model"',
            '$."gen_ai.usage.cached_tokens"'
        ]) as a
    from spans as s
    where s.name = 'llm_request'
        -- TensorRT-LLM's spans have the same name: scope first, else the key or the service's name
        and case
            when s.scope_name = 'trt.llm' then false
            when s.scope_name like 'vllm%' then true
            when s.attributes like '%gen_ai.latency.kv_cache_transfer_time%' then false
            when lower(concat_ws(' ', s.scope_name, s.service_name)) like '%tensorrt%' then false
            when lower(concat_ws(' ', s.scope_name, s.service_name)) like '%trtllm%' then false
            else true
        end
),

-- seconds to ns; what no duration can be (and NaN, which is the largest number here) is cut to a
-- number that still is none, so that one bad span does not stop all others
n as (
    select
        v.*,
        list_transform(
            list_transform(a[1:5], lambda x: try_cast(x as double)),
            lambda s: (round(case when s > 1e9 then 1e9 when s < -1e9 then -1e9 else s end * 1e9))::bigint
        ) as ns
    from v
),

d as (
    select
        n.*,
        ns[1] as queue_ns,
        ns[2] as prefill_ns,
        ns[3] as decode_ns,
        ns[4] as ttft_ns,
        ns[5] as e2e_ns,
        coalesce(try_cast(a[6] as bigint), n.input_tokens) as prompt_tokens,
        coalesce(try_cast(a[7] as bigint), n.output_tokens) as completion_tokens,
        n.end_unix_ns - n.start_unix_ns as wall_ns
    from n
),

q as (
    select
        d.*,
        case
            when queue_ns < 0 then 'negative_duration:queue'
            when prefill_ns < 0 then 'negative_duration:prefill'
            when decode_ns < 0 then 'negative_duration:decode'
            when ttft_ns < 0 then 'negative_duration:ttft'
            when e2e_ns < 0 then 'negative_duration:e2e'
            -- unset timestamps are 0.0 in the engine
            when ttft_ns = 0 then 'unset_duration:ttft'
            when queue_ns > wall_ns + 1000000000 then 'absurd_duration:queue'
            when prefill_ns > wall_ns + 1000000000 then 'absurd_duration:prefill'
            when decode_ns > wall_ns + 1000000000 then 'absurd_duration:decode'
            when ttft_ns > wall_ns + 1000000000 then 'absurd_duration:ttft'
            when e2e_ns > wall_ns + 1000000000 then 'absurd_duration:e2e'
            -- two clocks differ by little; more than that contradicts itself
            when ttft_ns > e2e_ns + 50000000 then 'inconsistent_durations:ttft>e2e'
            -- one release wrote each into the other's place: there they fit
            when queue_ns + prefill_ns > ttft_ns + 50000000
                    and queue_ns + decode_ns <= ttft_ns + 50000000
                    and abs(prefill_ns - (e2e_ns - ttft_ns)) <= 50000000
                then 'swapped_durations:prefill<>decode'
            when queue_ns + prefill_ns > ttft_ns + 50000000
                then 'inconsistent_durations:queue+prefill>ttft'
        end as bad
    from d
),

-- a quarantined leg keeps its wall time and loses its phases: they must not be believed
b as (
    select
        q.*,
        case when bad is null then start_unix_ns + ttft_ns end as first_ns,
        case
            when bad is null and prefill_ns is not null then start_unix_ns + ttft_ns - prefill_ns
            when bad is null and queue_ns is not null then start_unix_ns + queue_ns
        end as scheduled_ns,
        case
            when bad is not null then null
            when prefill_ns is not null then start_unix_ns + ttft_ns - prefill_ns - queue_ns
            when queue_ns is not null then start_unix_ns
        end as queued_ns
    from q
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    'engine' as role,
    'vllm' as source,
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
    coalesce(model, a[8]) as model,
    'vllm' as engine,
    json_extract_string(resource, '$."service.version"') as engine_version,
    case when status_code = 2 then 'error' else 'ok' end as status,
    case when status_code = 2 then coalesce(nullif(status_message, ''), 'error') end as error,
    prompt_tokens as input_tokens,
    try_cast(a[9] as bigint) as cached_tokens,
    completion_tokens as output_tokens,
    'server' as tokens_source,
    'server' as ttft_kind,
    1 as has_clock,
    bad as leg_quarantine,
    start_unix_ns as recv_unix_ns,
    'measured span start' as recv_src,
    queued_ns as queued_unix_ns,
    case when queued_ns is not null
        then 'reported gen_ai.latency.time_in_queue' end as queued_src,
    scheduled_ns as scheduled_unix_ns,
    case
        when scheduled_ns is null then null
        when prefill_ns is not null then 'reported gen_ai.latency.time_in_model_prefill'
        else 'inferred gen_ai.latency.time_in_queue'
    end as scheduled_src,
    -- where the engine says how long prefill took, its end is a boundary of its own
    case when prefill_ns is not null then first_ns end as prefill_end_unix_ns,
    case when prefill_ns is not null and first_ns is not null
        then 'reported gen_ai.latency.time_in_model_prefill' end as prefill_end_src,
    first_ns as first_token_unix_ns,
    case when first_ns is not null
        then 'reported gen_ai.latency.time_to_first_token' end as first_token_src,
    case
        when bad is not null then null
        when e2e_ns is not null then start_unix_ns + e2e_ns
        when decode_ns is not null then first_ns + decode_ns
    end as last_token_unix_ns,
    case
        when bad is not null then null
        when e2e_ns is not null then 'reported gen_ai.latency.e2e'
        when decode_ns is not null then 'reported gen_ai.latency.time_in_model_decode'
    end as last_token_src,
    end_unix_ns as leg_end_unix_ns,
    'measured span end' as leg_end_src,
    ingested_unix_ns
from b
