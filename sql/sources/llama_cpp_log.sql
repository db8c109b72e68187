-- Requests of llama.cpp's server log, gathered from the lines of their tasks, as engine legs.
-- grain: one row per request that became a task (the n sequences of a call are one).
-- inputs: spans
-- when: scope_name = 'tracekit.import.llama-cpp-log'
-- Durations are the server's own (`prompt_ms`, `predicted_ms`), placed backwards from the line that
-- tells them: a slot may wait for seconds after its launch line, while another's prompt fills the
-- batches, so that line is no start of a prefill. It stands in for one only where a request had no
-- timings (cancelled, failed) and nothing better is logged: as the latest it can have come.
-- The queue is known where the arrival is logged (verbosity 5); else the leg begins with its prefill.
-- Cached tokens, where no line tells them (below verbosity 4), are what a slot held when it was
-- released less what was computed: n_tokens - prompt_n - predicted_n + 1, the last token being in no
-- cache. Not for prompts that were cut (truncated).
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
            '$.log_start_unix_ns',
            '$.posted_us',
            '$.launched_us',
            '$.new_prompt_us',
            '$.first_token_us',
            '$.last_token_us',
            '$.print_timing_us',
            '$.error_us',
            '$.cancelled_us',
            '$.children_end_us',
            '$.prompt_n',
            '$.predicted_n',
            '$.n_prompt_tokens',
            '$.cache_n',
            '$.n_tokens',
            '$.truncated',
            '$.n_gen',
            '$.n_children',
            '$.children_predicted_n',
            '$.id_task',
            '$.model',
            '$.build_info',
            '$.error'
        ]) as a,
        try_cast(json_extract_string(s.attributes, '$.prompt_ms') as double) as prompt_ms,
        try_cast(json_extract_string(s.attributes, '$.predicted_ms') as double) as predicted_ms
    from spans as s
    where s.scope_name = 'tracekit.import.llama-cpp-log'
),

-- numbers; what no count and no time of a log can be is left out
n as (
    select
        v.*,
        case when try_cast(a[1] as bigint) between 0 and 7258118400000000000
            then try_cast(a[1] as bigint) end as zero_ns,
        list_transform(a[2:10], lambda x: case when try_cast(x as bigint) between 0 and 1000000000000000
            then try_cast(x as bigint) * 1000 end) as at_ns,
        list_transform(a[11:19], lambda x: case when try_cast(x as bigint) between 0 and 1000000000000
            then try_cast(x as bigint) end) as num,
        case when prompt_ms between 0 and 864e5 then (round(prompt_ms * 1e6))::bigint end
            as prompt_ns,
        case when predicted_ms between 0 and 864e5 then (round(predicted_ms * 1e6))::bigint end
            as predicted_ns,
        case
            when prompt_ms < 0 then 'negative_duration:prompt_ms'
            when predicted_ms < 0 then 'negative_duration:predicted_ms'
            when prompt_ms > 864e5 then 'absurd_duration:prompt_ms'
            when predicted_ms > 864e5 then 'absurd_duration:predicted_ms'
        end as bad
    from v
),

t as (
    select
        n.*,
        zero_ns + at_ns[1] as posted_ns,
        zero_ns + at_ns[2] as launched_ns,
        zero_ns + at_ns[3] as new_prompt_ns,
        zero_ns + at_ns[4] as first_line_ns,
        zero_ns + at_ns[5] as last_line_ns,
        case when prompt_ns is not null and predicted_ns is not null then zero_ns + at_ns[6] end
            as timed_ns,
        zero_ns + at_ns[7] as error_ns,
        zero_ns + at_ns[8] as cancelled_ns,
        zero_ns + at_ns[9] as children_ns,
        num[1] as prompt_n,
        num[2] as predicted_n,
        coalesce(num[4], case when num[6] = 0 and num[5] - num[1] - num[2] + 1 >= 0
            then num[5] - num[1] - num[2] + 1 end) as cached_n,
        case
            when at_ns[7] is not null then 'error'
            when at_ns[8] is not null then 'aborted'
            else 'ok'
        end as outcome
    from n
),

b as (
    select
        t.*,
        coalesce(timed_ns, error_ns, cancelled_ns, end_unix_ns) as stop_ns,
        coalesce(timed_ns - predicted_ns, first_line_ns) as first_ns,
        -- a prompt that began nowhere, in a log that would have told, waited to its end
        coalesce(
            timed_ns - predicted_ns - prompt_ns,
            new_prompt_ns,
            case when posted_ns is not null then coalesce(error_ns, cancelled_ns) end,
            launched_ns
        ) as scheduled_ns
    from t
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    'engine' as role,
    'llama_cpp_log' as source,
    2 as is_part,
    -- as a client is told the same in `timings`; a call's n sequences have timings each
    case when timed_ns is not null and num[8] is null then concat_ws('/', 'llama.cpp',
        printf('%.2f', try_cast(json_extract_string(attributes, '$.prompt_ms') as double)), a[11],
        printf('%.2f', try_cast(json_extract_string(attributes, '$.predicted_ms') as double)), a[12])
    end as norm_request_id,
    trace_id,
    span_id,
    service_name,
    service_instance_id,
    host_name,
    service_name as worker,
    a[21] as model,
    'llama.cpp' as engine,
    a[22] as engine_version,
    outcome as status,
    a[23] as error,
    coalesce(num[3], cached_n + prompt_n) as input_tokens,
    cached_n as cached_tokens,
    case when num[8] is null then coalesce(predicted_n, num[7]) else predicted_n + num[9] end
        as output_tokens,
    'server' as tokens_source,
    1 + num[8] as choices,
    case when posted_ns is not null then 'server' else 'server_excl_queue' end as ttft_kind,
    1 as has_clock,
    'task ' || a[20] as note,
    bad as leg_quarantine,
    -- of one that was cancelled before it had a slot nothing is known but that
    case when posted_ns is not null then posted_ns
        when scheduled_ns is null then stop_ns end as recv_unix_ns,
    case when posted_ns is not null then 'measured post: new task'
        when scheduled_ns is null then 'inferred cancel task' end as recv_src,
    posted_ns as queued_unix_ns,
    case when posted_ns is not null then 'measured post: new task' end as queued_src,
    scheduled_ns as scheduled_unix_ns,
    case
        when timed_ns is not null then 'reported prompt_ms'
        when new_prompt_ns is not null then 'measured new prompt'
        when posted_ns is not null and scheduled_ns is not null then 'inferred never began'
        when scheduled_ns is not null then 'inferred launch_slot_'
    end as scheduled_src,
    first_ns as prefill_end_unix_ns,
    case when timed_ns is not null then 'reported prompt_ms'
        when first_ns is not null then 'measured n_gen = 1' end as prefill_end_src,
    first_ns as first_token_unix_ns,
    case when timed_ns is not null then 'reported predicted_ms'
        when first_ns is not null then 'measured n_gen = 1' end as first_token_src,
    case when timed_ns is not null then
        case when children_ns > timed_ns then children_ns else timed_ns end
        else last_line_ns end as last_token_unix_ns,
    case when timed_ns is not null then 'measured print_timing'
        when last_line_ns is not null then 'measured n_gen' end as last_token_src,
    case when children_ns > stop_ns then children_ns else stop_ns end as leg_end_unix_ns,
    case when timed_ns is not null then 'measured print_timing'
        when error_ns is not null then 'measured send_error'
        else 'measured cancel task' end as leg_end_src,
    ingested_unix_ns
from b
where zero_ns is not null
