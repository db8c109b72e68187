-- Triton's OpenTelemetry spans (mode=opentelemetry) as gateway legs.
-- grain: one row per `InferRequest` span
-- inputs: spans
-- when: name = 'InferRequest' and kind = 2
-- Below it lie one span per model and one `compute` below each, whose events are Triton's timestamps.
-- * Its queue is the batcher's. A decoupled LLM model (TensorRT-LLM's backend) queues again within
--   COMPUTE, where nothing tells that from prefill: so Triton is a gateway with a queue, and what
--   follows is queue or prefill until the first response. An engine that traces itself tells more.
-- * An ensemble has a queue per member, and none of its own: only a model right below counts.
-- * Each response over HTTP is stamped, the empty last one too: of three the first is the first token.
--   Fewer may be one whole answer; a gRPC stream has one stamp whatever it sends.
-- * GRPC_WAITREAD_START is before the request came: Triton waits for one. HTTP_RECV_START is when it
--   came, before the span began.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with r as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        from_json(s.events, '[{"name":"VARCHAR","time_unix_ns":"BIGINT"}]') as stamps
    from spans as s
    where s.name = 'InferRequest' and s.kind = 2
        and (s.scope_name = 'triton-server' or s.events like '%INFER_RESPONSE_COMPLETE%'
            or s.events like '%HTTP_RECV_START%' or s.events like '%GRPC_WAITREAD_END%')
),

models as (
    select
        r.trace_id, r.span_id as root_id, m.span_id,
        list_min(list_transform(list_filter(
            from_json(m.events, '[{"name":"VARCHAR","time_unix_ns":"BIGINT"}]'),
            lambda e: e.name = 'QUEUE_START'), lambda e: e.time_unix_ns)) as queued_ns,
        coalesce(json_extract_string(m.attributes, '$."triton.model_name"'), m.name) as model_name,
        json_extract_string(m.attributes, '$."triton.request_id"') as asked_id
    from r
    join spans as m on r.trace_id = m.trace_id and r.span_id = m.parent_span_id
    where m.events like '%REQUEST_START%'
),

computes as (
    select
        m.trace_id, m.root_id,
        min(list_min(list_transform(list_filter(
            from_json(c.events, '[{"name":"VARCHAR","time_unix_ns":"BIGINT"}]'),
            lambda e: e.name = 'COMPUTE_START'), lambda e: e.time_unix_ns))) as begun_ns
    from models as m
    join spans as c on m.trace_id = c.trace_id and m.span_id = c.parent_span_id
    where c.events like '%COMPUTE_START%'
    group by m.trace_id, m.root_id
),

-- a span may have come twice
one as (
    select m.trace_id, m.root_id, min(m.queued_ns) as queued_ns, min(c.begun_ns) as begun_ns,
        min(m.model_name) as model_name, min(m.asked_id) as asked_id
    from models as m
    left join computes as c on m.trace_id = c.trace_id and m.root_id = c.root_id
    group by m.trace_id, m.root_id
    having count(distinct m.span_id) = 1
),

n as (
    select
        r.*,
        m.model_name, m.asked_id,
        case when m.queued_ns between r.start_unix_ns and m.begun_ns
            and m.begun_ns <= r.end_unix_ns then m.queued_ns end as queued_ns,
        case when m.queued_ns between r.start_unix_ns and m.begun_ns
            and m.begun_ns <= r.end_unix_ns then m.begun_ns end as begun_ns,
        list_min(list_transform(list_filter(r.stamps, lambda e: e.name = 'HTTP_RECV_START'
            and e.time_unix_ns between r.start_unix_ns - 60000000000 and r.start_unix_ns),
            lambda e: e.time_unix_ns)) as came_ns,
        list_transform(list_filter(r.stamps, lambda e: e.name = 'INFER_RESPONSE_COMPLETE'
            and e.time_unix_ns between r.start_unix_ns and r.end_unix_ns),
            lambda e: e.time_unix_ns) as answers,
        len(list_filter(r.stamps, lambda e: e.name in ('HTTP_RECV_START', 'GRPC_WAITREAD_END'))) > 0
            as is_stamped
    from r
    left join one as m on r.trace_id = m.trace_id and r.span_id = m.root_id
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    'gateway' as role,
    'triton' as source,
    trace_id,
    span_id,
    parent_span_id,
    asked_id as request_id,
    asked_id as norm_request_id,
    service_name,
    service_instance_id,
    host_name,
    service_name as worker,
    model_name as model,
    'triton' as engine,
    case when status_code = 2 or (is_stamped and len(answers) = 0) then 'error' else 'ok' end
        as status,
    case when status_code = 2 then coalesce(nullif(status_message, ''), 'error')
        when is_stamped and len(answers) = 0 then 'no response: failed or cancelled' end as error,
    case when len(answers) > 2 then 'first_chunk' end as ttft_kind,
    1 as has_clock,
    coalesce(came_ns, start_unix_ns) as recv_unix_ns,
    case when came_ns is not null then 'measured HTTP_RECV_START'
        else 'measured span start' end as recv_src,
    queued_ns as queued_unix_ns,
    case when queued_ns is not null then 'measured QUEUE_START' end as queued_src,
    begun_ns as scheduled_unix_ns,
    case when begun_ns is not null then 'measured COMPUTE_START' end as scheduled_src,
    case when len(answers) > 2 then list_min(answers) end as first_token_unix_ns,
    case when len(answers) > 2 then 'measured INFER_RESPONSE_COMPLETE' end as first_token_src,
    case when len(answers) > 2 then list_max(answers) end as last_token_unix_ns,
    case when len(answers) > 2 then 'measured INFER_RESPONSE_COMPLETE' end as last_token_src,
    end_unix_ns as leg_end_unix_ns,
    'measured span end' as leg_end_src,
    ingested_unix_ns
from n
