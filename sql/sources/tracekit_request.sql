-- Requests that a server tells of itself with the SDK (`tracekit.request`) as its leg.
-- grain: one row per SERVER span with `tracekit.role`
-- inputs: spans
-- when: kind = 2 and operation_name is not null
-- Its phases are spans right below it (`tracekit_phase`), which take its role; what they tell, the
-- span itself does not claim once more. Without a prefill and a transfer of its own it tells when
-- the first token came, and where a queue is told, that it was scheduled at its end.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with s as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        json_extract_string(s.attributes, [
            '$."tracekit.role"',
            '$."tracekit.request_id"',
            '$."tracekit.status"',
            '$."tracekit.time_to_last_token_ms"',
            '$."tracekit.chunks"',
            '$."tracekit.worker"',
            '$."tracekit.engine"',
            '$."tracekit.route"',
            '$."tracekit.tenant"',
            '$."tracekit.kv_bytes"',
            '$."tracekit.preemptions"',
            '$."tracekit.pair_id"',
            '$."gen_ai.usage.cache_read.input_tokens"',
            '$."gen_ai.usage.cache_creation.input_tokens"',
            '$."gen_ai.usage.reasoning.output_tokens"',
            '$."gen_ai.response.finish_reasons"[0]',
            '$."gen_ai.request.stream"',
            '$."gen_ai.provider.name"',
            '$."error.type"'
        ]) as a,
        case when s.events is not null then
            list_min(list_transform(
                list_filter(from_json(s.events, '[{"name":"VARCHAR","time_unix_ns":"BIGINT"}]'),
                    lambda e: e.name = 'first_token'
                        and e.time_unix_ns between s.start_unix_ns and s.end_unix_ns),
                lambda e: e.time_unix_ns))
        end as token_ns
    from spans as s
    where s.kind = 2 and s.operation_name in ('chat', 'text_completion', 'generate_content')
),

p as (
    select
        trace_id, parent_span_id, service_name, service_instance_id, process_id,
        max(case when tracekit_phase = 'queue' then end_unix_ns end) as queue_end,
        max(case when tracekit_phase in ('prefill', 'queue_or_prefill', 'kv_transfer',
            'kv_transfer.wire')
            then 1 else 0 end) as any_prefill,
        max(case when tracekit_phase = 'decode' then 1 else 0 end) as any_decode
    from spans
    where tracekit_phase is not null and parent_span_id is not null
    group by all
),

r as (
    select
        s.*, p.queue_end,
        coalesce(p.any_decode, 0) as any_decode,
        coalesce(p.any_prefill, 0) as any_prefill,
        -- within the call, or it is not believed
        case when try_cast(a[4] as double) between 0 and (end_unix_ns - start_unix_ns) / 1e6
            then start_unix_ns + (round(try_cast(a[4] as double) * 1e6))::bigint end as last_ns
    from s
    left join p on s.trace_id = p.trace_id and s.span_id = p.parent_span_id
        and s.service_name is not distinct from p.service_name
        and s.service_instance_id is not distinct from p.service_instance_id
        and s.process_id is not distinct from p.process_id
    where a[1] in ('engine', 'prefill_engine', 'decode_engine', 'gateway', 'router')
),

t as (
    select
        r.*,
        case when any_decode = 0 or any_prefill = 0 then token_ns end as first_ns,
        case when any_prefill = 0 and token_ns >= queue_end then queue_end end as scheduled_ns
    from r
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    a[1] as role,
    'tracekit_request' as source,
    trace_id,
    span_id,
    parent_span_id,
    coalesce(a[2], response_id, request_id) as request_id,
    regexp_replace(coalesce(a[2], response_id, request_id), '^(chatcmpl|cmpl)-', '')
        as norm_request_id,
    coalesce(a[12], case when a[1] in ('prefill_engine', 'decode_engine') then a[2] end) as pair_id,
    service_name,
    service_instance_id,
    host_name,
    coalesce(a[6], service_name) as worker,
    a[7] as engine,
    model,
    a[18] as provider,
    coalesce(a[8], http_route) as route,
    a[9] as tenant,
    try_cast(a[17] as boolean)::integer as streaming,
    case when a[3] in ('ok', 'error', 'aborted', 'timeout') then a[3]
        when status_code = 2 then 'error' else 'ok' end as status,
    a[16] as finish_reason,
    case when status_code = 2 and coalesce(a[3], 'error') not in ('ok', 'aborted')
        then coalesce(a[19], nullif(status_message, '')) end as error,
    input_tokens,
    try_cast(a[13] as bigint) as cached_tokens,
    try_cast(a[14] as bigint) as cache_write_tokens,
    output_tokens,
    try_cast(a[15] as bigint) as reasoning_tokens,
    case when coalesce(input_tokens, output_tokens) is not null then 'server' end as tokens_source,
    try_cast(a[10] as bigint) as kv_bytes,
    try_cast(a[11] as integer) as preemptions,
    'server' as ttft_kind,
    a[5] as chunk_times,
    1 as has_clock,
    start_unix_ns as recv_unix_ns,
    'measured span start' as recv_src,
    scheduled_ns as scheduled_unix_ns,
    case when scheduled_ns is not null then 'measured tracekit.phase=queue' end as scheduled_src,
    first_ns as first_token_unix_ns,
    case when first_ns is not null then 'measured event first_token' end as first_token_src,
    last_ns as last_token_unix_ns,
    case when last_ns is not null
        then 'measured tracekit.time_to_last_token_ms' end as last_token_src,
    end_unix_ns as leg_end_unix_ns,
    'measured span end' as leg_end_src,
    ingested_unix_ns
from t
