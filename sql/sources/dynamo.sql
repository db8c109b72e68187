-- NVIDIA Dynamo's own spans: the frontend as gateway leg, its router's queue, workers as engine legs.
-- grain: one row per span `http-request`, `kv_router.schedule` or `handle_payload`
-- inputs: spans
-- when: name in ('http-request', 'kv_router.schedule', 'handle_payload')
-- Dynamo sees tokens pass the frontend (`ttft_ms`) and nothing of what a worker's engine does: until
-- the first token nothing tells queue from prefill, unless the engine's own spans lie below. Numbers
-- are strings. Spans of housekeeping (probes, /metrics, KV queries between workers) are no requests.
-- Other programs have spans of these names too: a frontend's tells a route that generates and a request
-- id, a worker's its endpoint and which worker it is (or hangs below the router's).
-- A wait for the router to choose a worker is a queue; a worker is `prefill` or not by the router's
-- word (`phase` of route_request, `prefill_routing` of older releases), else by its component.
-- Spans that were given back from logs are parts: they stand alone, or beside the spans themselves.
-- The worker's span outlives the answer by up to a millisecond, and the frontend's can outlive it
-- by half a second: the last token passed when `avg_itl_ms` says, where that lies within the span.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with d as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        json_extract_string(s.attributes, [
            '$.uri',
            '$.endpoint',
            '$.x_request_id',
            '$.request_id',
            '$.model',
            '$.input_tokens',
            '$.output_tokens',
            '$.ttft_ms',
            '$.prefill_worker_id',
            '$.decode_worker_id',
            '$."request.outcome"',
            '$.component',
            '$.instance_id',
            '$."error.type"',
            '$."cancellation.signal"',
            '$.method',
            '$.busy_ns',
            '$.avg_itl_ms'
        ]) as a
    from spans as s
    where s.name in ('http-request', 'kv_router.schedule', 'handle_payload')
),

-- what the router called for: the span right above a worker's
routed as (
    select
        r.trace_id,
        r.span_id,
        max(lower(coalesce(json_extract_string(r.attributes, '$.phase'),
            case when r.name = 'prefill_routing' then 'prefill' else 'decode' end))) as phase
    from spans as r
    where r.name in ('kv_router.route_request', 'prefill_routing', 'decode_routing')
    group by r.trace_id, r.span_id
),

n as (
    select
        d.*,
        coalesce(r.phase = 'prefill', a[12] like '%prefill%') as is_prefill,
        r.phase = 'decode' as is_decode,
        coalesce(d.scope_name, '') = 'tracekit.import.dynamo-log' as is_log,
        try_cast(a[8] as double) as ttft_ms,
        (end_unix_ns - start_unix_ns) / 1e6 as wall_ms,
        case
            when a[11] is null and status_code <> 2 then 'ok'
            when lower(a[11]) in ('success', 'ok') then 'ok'
            when lower(a[11]) like '%cancel%' or lower(a[11]) like '%abort%' or a[15] is not null
                or lower(a[11]) like '%disconnect%' then 'aborted'
            when lower(a[11]) like '%timeout%' then 'timeout'
            else 'error'
        end as outcome
    from d
    left join routed as r on d.name = 'handle_payload'
        and d.trace_id = r.trace_id and d.parent_span_id = r.span_id
    where d.name = 'kv_router.schedule'
        or (d.name = 'http-request' and coalesce(a[16], 'POST') = 'POST'
            and rtrim(split_part(a[1], '?', 1), '/') in ('/v1/chat/completions', '/v1/completions',
                '/v1/responses', '/v1/messages', '/generate')
            and coalesce(a[4], a[3], a[17]) is not null)
        or (d.name = 'handle_payload' and coalesce(a[2], 'generate') = 'generate'
            and (r.phase is not null or (a[12] is not null and a[13] is not null)
                or (a[2] is not null and coalesce(a[12], a[13]) is not null)))
),

t as (
    select
        n.*,
        -- within the call, or it is not believed
        case when name = 'http-request' and ttft_ms > 0 and ttft_ms <= wall_ms
            then start_unix_ns + (round(ttft_ms * 1e6))::bigint end as first_ns,
        -- from the first to the last token, as the frontend counted the gaps
        case when outcome in ('ok', 'aborted')
            then ttft_ms + try_cast(a[18] as double) * (try_cast(a[7] as bigint) - 1) end as last_ms
    from n
),

u as (
    select
        t.*,
        case when last_ms >= ttft_ms and last_ms <= wall_ms
            then start_unix_ns + (round(last_ms * 1e6))::bigint end as told_ns
    from t
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    case
        when name = 'http-request' then 'gateway'
        when name = 'kv_router.schedule' then 'router'
        when is_prefill then 'prefill_engine'
        when is_decode then 'decode_engine'
        else 'engine'
    end as role,
    case when is_log then 'dynamo_log' else 'dynamo' end as source,
    case when name = 'kv_router.schedule' then 1 when is_log then 2 else 0 end as is_part,
    case when name <> 'kv_router.schedule' or is_log then a[4] end as pair_id,
    trace_id,
    span_id,
    parent_span_id,
    case when name = 'http-request' then coalesce(a[3], a[4]) end as request_id,
    case when name = 'http-request' then coalesce(a[3], a[4]) else a[4] end as norm_request_id,
    service_name,
    service_instance_id,
    host_name,
    concat_ws('/', service_name, a[13]) as worker,
    a[5] as model,
    case when name <> 'kv_router.schedule' then 'dynamo' end as engine,
    case when name = 'http-request' then a[1] end as route,
    case when name = 'kv_router.schedule' then 'ok' else outcome end as status,
    case when name <> 'kv_router.schedule' and outcome in ('error', 'timeout')
        then coalesce(a[14], nullif(status_message, ''), a[11], 'error') end as error,
    try_cast(a[6] as bigint) as input_tokens,
    case when name = 'http-request' then try_cast(a[7] as bigint) end as output_tokens,
    case when name = 'http-request' and a[7] is not null then 'server' end as tokens_source,
    case when first_ns is not null then 'server' end as ttft_kind,
    1 as has_clock,
    case when a[9] <> a[10] then a[9] end as prefill_worker,
    case when a[9] <> a[10] then a[10] end as decode_worker,
    case when name <> 'kv_router.schedule' then start_unix_ns end as recv_unix_ns,
    case when name <> 'kv_router.schedule' then 'measured span start' end as recv_src,
    case when name = 'kv_router.schedule' then start_unix_ns end as queued_unix_ns,
    case when name = 'kv_router.schedule' then 'measured kv_router.schedule' end as queued_src,
    case when name = 'kv_router.schedule' then end_unix_ns end as scheduled_unix_ns,
    case when name = 'kv_router.schedule' then 'measured kv_router.schedule' end as scheduled_src,
    first_ns as first_token_unix_ns,
    case when first_ns is not null then 'reported ttft_ms' end as first_token_src,
    case when first_ns is not null and outcome in ('ok', 'aborted')
        then coalesce(told_ns, end_unix_ns) end as last_token_unix_ns,
    case when first_ns is not null and outcome in ('ok', 'aborted')
        then case when told_ns is not null then 'reported avg_itl_ms' else 'inferred span end' end
    end as last_token_src,
    case when name <> 'kv_router.schedule' then end_unix_ns end as leg_end_unix_ns,
    case when name <> 'kv_router.schedule' then 'measured span end' end as leg_end_src,
    ingested_unix_ns
from u
