-- llm-d's spans: the inference scheduler (EPP) as gateway leg, its queue and the routing sidecar beside.
-- grain: one row per span of those named below
-- inputs: spans
-- when: name in ('gateway.request', 'gateway.request_orchestration', 'llm_d.pd_proxy.request', 'llm_d.pd_proxy.prefill', 'llm_d.pd_proxy.decode') or name like 'llm_d.pd_proxy.POST %'
-- gateway.request lasts to the end of the answer; gateway.request_orchestration is flow control and
-- scheduling, a queue. The sidecar's spans are siblings of the engines' (nothing injects its context),
-- so they are parts of whatever request of the trace runs at that time; what they know of a prefill
-- counts where no engine's own span is there, and holds that engine's queue.
-- * Other gateways have a span gateway.request too: the scheduler's has its own spans below it, or
--   attributes of its own.
-- * true_ttft_ms is when the decode call began, and no token: it is not read.
-- * A prefill that failed other than by the client's fault (not 4xx) is followed by a full prefill on
--   the decode server: then nothing was handed over.
-- * SGLang's servers are called at once (async): the end of that prefill call is no boundary, and may
--   come after the request's.
-- * Durations are cut to whole ms: the spans' own times are better.
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
            '$."llm_d.pd_proxy.prefill.status_code"',
            '$."llm_d.pd_proxy.prefill_target"',
            '$."llm_d.pd_proxy.decode.target"',
            '$."gen_ai.request.id"',
            '$."gen_ai.request.model"',
            '$.target_model',
            '$."llm_d.pd_proxy.request_path"',
            '$."http.response.status_code"',
            '$."llm_d.pd_proxy.prefill.async"'
        ]) as a
    from spans as s
    where s.name in ('gateway.request', 'gateway.request_orchestration', 'llm_d.pd_proxy.request',
        'llm_d.pd_proxy.prefill', 'llm_d.pd_proxy.decode') or s.name like 'llm_d.pd_proxy.POST %'
),

-- what the scheduler did for a request
own as (
    select distinct trace_id, parent_span_id
    from spans
    where name = 'gateway.request_orchestration' or name like 'llm_d.%'
),

k as (
    select
        s.*,
        name = 'gateway.request' as is_gateway,
        name = 'gateway.request_orchestration' as is_queue,
        name = 'llm_d.pd_proxy.prefill'
            and not (coalesce(try_cast(a[1] as integer), 200) >= 400 or status_code = 2) as is_prefill,
        -- called beside the decode server: it is over when the transfer was seen to be, or later
        coalesce(a[9] = 'true', false) as is_beside,
        name = 'llm_d.pd_proxy.decode' as is_decode,
        name = 'llm_d.pd_proxy.request' or name like 'llm_d.pd_proxy.POST %' as is_proxy,
        try_cast(a[8] as integer) as http_status
    from s
    left join own as o on s.name = 'gateway.request'
        and s.trace_id = o.trace_id and s.span_id = o.parent_span_id
    where s.name <> 'gateway.request'
        or (s.kind = 2 and (o.trace_id is not null or coalesce(a[4], a[5], a[6]) is not null
            or s.attributes like '%"llm_d.%'))
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    case
        when is_gateway or is_proxy then 'gateway'
        when is_prefill then 'prefill_engine'
        when is_decode then 'decode_engine'
        else 'router'
    end as role,
    'llm_d' as source,
    case when is_gateway then 0 when is_proxy then 2 else 1 end as is_part,
    trace_id,
    span_id,
    parent_span_id,
    case when is_gateway then a[4] end as request_id,
    case when is_gateway then a[4] end as norm_request_id,
    service_name,
    service_instance_id,
    host_name,
    case when is_prefill then coalesce(a[2], service_name)
        when is_decode then coalesce(a[3], service_name) else service_name end as worker,
    coalesce(a[5], a[6]) as model,
    case when is_gateway or is_proxy then a[7] end as route,
    case
        when http_status = 499 then 'aborted'
        when http_status in (408, 504) then 'timeout'
        when (is_gateway or is_proxy) and (status_code = 2 or http_status >= 400) then 'error'
        else 'ok'
    end as status,
    case when (is_gateway or is_proxy) and (status_code = 2 or http_status >= 400)
        then coalesce(nullif(status_message, ''), 'http ' || a[8], 'error') end as error,
    1 as has_clock,
    case when is_gateway or is_proxy or is_prefill or is_decode then start_unix_ns end
        as recv_unix_ns,
    case when is_gateway or is_proxy or is_prefill or is_decode then 'measured span start' end
        as recv_src,
    case when is_queue then start_unix_ns end as queued_unix_ns,
    case when is_queue then 'measured gateway.request_orchestration' end as queued_src,
    case when is_queue then end_unix_ns end as scheduled_unix_ns,
    case when is_queue then 'measured gateway.request_orchestration' end as scheduled_src,
    case when is_prefill and not is_beside then end_unix_ns end as prefill_end_unix_ns,
    case when is_prefill and not is_beside then 'measured llm_d.pd_proxy.prefill' end
        as prefill_end_src,
    case when is_gateway or is_proxy or is_decode then end_unix_ns end as leg_end_unix_ns,
    case when is_gateway or is_proxy or is_decode then 'measured span end' end as leg_end_src,
    ingested_unix_ns
from k
