-- OpenTelemetry GenAI client spans (current and older keys) as client legs.
-- grain: one row per inference span of kind CLIENT (or INTERNAL: the model runs in-process).
-- inputs: spans
-- when: kind in (1, 3) and operation_name is not null
-- First token, best first: a stamped event (content), the reported time to first chunk, the first of
-- OpenLLMetry's chunk events, OpenInference's event. Text of prompts is never read.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with c as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        json_extract_string(s.attributes, [
            '$."gen_ai.response.time_to_first_chunk"',
            '$."gen_ai.provider.name"',
            '$."gen_ai.system"',
            '$."gen_ai.usage.prompt_tokens"',
            '$."gen_ai.usage.completion_tokens"',
            '$."gen_ai.usage.cache_read.input_tokens"',
            '$."gen_ai.usage.cache_creation.input_tokens"',
            '$."gen_ai.usage.reasoning.output_tokens"',
            '$."gen_ai.usage.reasoning_tokens"',
            '$."gen_ai.request.stream"',
            '$."gen_ai.is_streaming"',
            '$."gen_ai.response.finish_reasons"[0]',
            '$."error.type"',
            '$."http.response.status_code"',
            '$."gen_ai.response.model"',
            '$."tracekit.chunks"',
            '$."tracekit.intended_start_unix_ns"',
            '$."tracekit.route"',
            '$."tracekit.tenant"',
            '$."tracekit.request_id"',
            '$."tracekit.attempt"',
            '$."gen_ai.response.finish_reasons"',
            '$."tracekit.status"',
            '$."tracekit.time_to_first_answer_ms"',
            '$."tracekit.response_cache_hit"',
            '$."tracekit.time_to_last_token_ms"'
        ]) as a,
        case when s.events is not null then
            list_min(list_transform(
                list_filter(from_json(s.events, '[{"name":"VARCHAR","time_unix_ns":"BIGINT"}]'),
                    lambda e: e.name = 'first_token'
                        and e.time_unix_ns between s.start_unix_ns and s.end_unix_ns),
                lambda e: e.time_unix_ns))
        end as first_token_event_ns,
        case when s.events is not null then
            list_min(list_transform(
                list_filter(from_json(s.events, '[{"name":"VARCHAR","time_unix_ns":"BIGINT"}]'),
                    lambda e: e.name in ('gen_ai.content.completion.chunk', 'first_chunk',
                        'First Token Stream Event')
                        and e.time_unix_ns between s.start_unix_ns and s.end_unix_ns),
                lambda e: e.time_unix_ns))
        end as first_chunk_event_ns
    from spans as s
    where s.kind in (1, 3)
        and s.operation_name in ('chat', 'text_completion', 'generate_content')
),

d as (
    select
        c.*,
        coalesce(try_cast(a[10] as boolean), try_cast(a[11] as boolean)) as is_streaming,
        -- within the call, or it is not believed
        case when try_cast(a[1] as double) between 0 and (end_unix_ns - start_unix_ns) / 1e9
            then start_unix_ns + (round(try_cast(a[1] as double) * 1e9))::bigint
        end as first_chunk_ns,
        case when try_cast(a[17] as bigint) between 0 and start_unix_ns
            then try_cast(a[17] as bigint) end as intended_ns,
        -- the first that shows, or, where nothing hidden came before it, the first
        case when try_cast(a[24] as double) between 0 and (end_unix_ns - start_unix_ns) / 1e6
            then start_unix_ns + (round(try_cast(a[24] as double) * 1e6))::bigint
        end as answer_ns,
        -- what closes a stream comes after it
        case when try_cast(a[26] as double) between 0 and (end_unix_ns - start_unix_ns) / 1e6
            then start_unix_ns + (round(try_cast(a[26] as double) * 1e6))::bigint
        end as last_ns,
        coalesce(a[12], a[22]) as finish,
        coalesce(c.output_tokens, try_cast(a[5] as bigint)) as out_tokens,
        try_cast(a[14] as integer) as http_status
    from c
),

b as (
    select
        d.*,
        coalesce(first_token_event_ns, first_chunk_ns, first_chunk_event_ns) as first_ns,
        case
            when a[23] in ('ok', 'error', 'aborted', 'timeout') then a[23]
            when status_code = 2 and (
                lower(a[13]) in ('cancelled', 'canceled', 'aborted', 'generatorexit')
                or lower(a[13]) like '%cancel%' or lower(status_message) like '%cancel%'
            ) then 'aborted'
            when status_code = 2 and lower(a[13]) like '%timeout%' then 'timeout'
            when status_code = 2 or http_status >= 400 then 'error'
            when status_code <> 1 and is_streaming and finish is null and out_tokens is null
                then 'aborted'
            else 'ok'
        end as outcome
    from d
    -- a gateway library's own cache answered: no model was asked
    where a[25] is distinct from 'true'
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    'client' as role,
    'genai_client' as source,
    trace_id,
    span_id,
    parent_span_id,
    coalesce(a[20], response_id, request_id) as request_id,
    regexp_replace(coalesce(a[20], response_id, request_id), '^(chatcmpl|cmpl)-', '')
        as norm_request_id,
    service_name,
    service_instance_id,
    host_name,
    service_name as worker,
    coalesce(model, a[15]) as model,
    coalesce(a[2], a[3]) as provider,
    coalesce(a[18], http_route) as route,
    a[19] as tenant,
    try_cast(a[21] as integer) as attempt,
    is_streaming::integer as streaming,
    outcome as status,
    finish as finish_reason,
    case when outcome not in ('ok', 'aborted')
        then coalesce(a[13], nullif(status_message, ''), 'http ' || a[14]) end as error,
    coalesce(input_tokens, try_cast(a[4] as bigint)) as input_tokens,
    try_cast(a[6] as bigint) as cached_tokens,
    try_cast(a[7] as bigint) as cache_write_tokens,
    out_tokens as output_tokens,
    coalesce(try_cast(a[8] as bigint), try_cast(a[9] as bigint)) as reasoning_tokens,
    case when out_tokens is not null then 'server' end as tokens_source,
    case
        when first_token_event_ns is not null then 'first_content'
        when first_ns is not null then 'first_chunk'
    end as ttft_kind,
    a[16] as chunk_times,
    1 as has_clock,
    intended_ns as intended_start_unix_ns,
    case when intended_ns is not null
        then 'measured tracekit.intended_start_unix_ns' end as intended_start_src,
    start_unix_ns as send_unix_ns,
    'measured span start' as send_src,
    first_ns as first_token_unix_ns,
    case
        when first_token_event_ns is not null then 'measured event first_token'
        when first_chunk_ns is not null then 'reported gen_ai.response.time_to_first_chunk'
        when first_chunk_event_ns is not null then 'measured event of the first chunk'
    end as first_token_src,
    answer_ns as first_answer_unix_ns,
    case when answer_ns is not null
        then 'measured tracekit.time_to_first_answer_ms' end as first_answer_src,
    -- who gave up has waited since
    case when outcome = 'ok' and last_ns >= first_ns then last_ns
        when outcome in ('ok', 'aborted', 'timeout') and (outcome = 'ok' or first_ns is not null)
            then end_unix_ns end as last_token_unix_ns,
    case when outcome = 'ok' and last_ns >= first_ns then 'measured tracekit.time_to_last_token_ms'
        when outcome in ('ok', 'aborted', 'timeout') and (outcome = 'ok' or first_ns is not null)
            then 'inferred span end' end as last_token_src,
    end_unix_ns as leg_end_unix_ns,
    'measured span end' as leg_end_src,
    ingested_unix_ns
from b
