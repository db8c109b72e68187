-- llama.cpp's log, a task gathered from its lines, as engine legs.
-- grain: one row per task
-- inputs: spans
-- when: scope_name = 'tracekit.import.llama-cpp-log'
-- prompt_ms and predicted_ms are placed backwards from the print_timing line: a slot can be launched
-- long before its prompt is begun, while another's fills the batches. prompt_ms holds what other
-- slots did in the same batches. Arrival is known at verbosity 5 only (`post: new task`): without it
-- the queue is not known, and the leg begins with its prompt. One token has no decode.
with r as (
    select
        s.*,
        json_extract_string(s.attributes, [
            '$.prompt_ms',
            '$.prompt_n',
            '$.predicted_ms',
            '$.predicted_n',
            '$.n_tokens',
            '$.posted_us',
            '$.error',
            '$.cancelled',
            '$.launched_us'
        ]) as a
    from spans as s
    where s.scope_name = 'tracekit.import.llama-cpp-log'
),

t as (
    select
        r.*,
        a[1] is not null as is_timed,
        end_unix_ns - (round(try_cast(a[3] as double) * 1e6))::bigint as first_ns,
        end_unix_ns - (round((try_cast(a[1] as double) + try_cast(a[3] as double)) * 1e6))::bigint
        as begun_ns,
        try_cast(a[2] as bigint) as prompt_n,
        try_cast(a[5] as bigint) as n_tokens
    from r
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    'engine' as role,
    'llama_cpp_log' as source,
    2 as is_part,
    case when is_timed then concat_ws('/', 'llama.cpp', a[1], a[2], a[3], a[4]) end as pair_id,
    trace_id,
    span_id,
    service_name,
    service_instance_id,
    host_name,
    service_name as worker,
    'llama.cpp' as engine,
    case when a[7] is not null then 'error' when a[8] is not null then 'aborted' else 'ok' end
        as status,
    a[7] as error,
    -- without the prompt's size only what was computed of it is known
    n_tokens as input_tokens,
    case when is_timed and n_tokens >= prompt_n then n_tokens - prompt_n end as cached_tokens,
    try_cast(a[4] as bigint) as output_tokens,
    'server' as tokens_source,
    'server' as ttft_kind,
    1 as has_clock,
    start_unix_ns as recv_unix_ns,
    case when a[6] is not null then 'measured post: new task'
        when is_timed then 'inferred print_timing' else 'measured launch_slot_' end as recv_src,
    case when a[6] is not null then start_unix_ns end as queued_unix_ns,
    case when a[6] is not null then 'measured post: new task' end as queued_src,
    case when is_timed then begun_ns end as scheduled_unix_ns,
    case when is_timed then 'reported prompt_ms' end as scheduled_src,
    case when is_timed then first_ns end as prefill_end_unix_ns,
    case when is_timed then 'reported prompt_ms' end as prefill_end_src,
    case when is_timed then first_ns end as first_token_unix_ns,
    case when is_timed then 'reported predicted_ms' end as first_token_src,
    case when is_timed then end_unix_ns end as last_token_unix_ns,
    case when is_timed then 'reported predicted_ms' end as last_token_src,
    end_unix_ns as leg_end_unix_ns,
    'measured print_timing' as leg_end_src,
    ingested_unix_ns
from t
