-- HTTP spans on an LLM route that carry no GenAI attributes, as gateway (SERVER) or client legs.
-- grain: one row per HTTP span.
-- inputs: spans
-- when: kind in (2, 3) and http_route is not null
-- They know when a call came and went, nothing of tokens. A CLIENT span below a SERVER one is a
-- proxy's onward call; the matching turns its role into gateway.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with h as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        try_cast(json_extract_string(s.attributes, '$."http.response.status_code"') as integer)
        as http_status
    from spans as s
    where s.kind in (2, 3)
        and s.name <> 'llm_request'
        and s.name not like 'llm_d.pd_proxy.%'
        and coalesce(s.operation_name, '') not in ('chat', 'text_completion', 'generate_content')
        and (
            s.http_route like '%/chat/completions'
            or s.http_route like '%/v1/completions'
            or s.http_route like '%/v1/responses'
            or s.http_route like '%/v1/messages'
            or s.http_route like '%:generateContent'
            or s.http_route like '%:streamGenerateContent'
            or s.http_route like '%/api/chat'
            or s.http_route like '%/api/generate'
            or s.http_route in ('/generate', '/generate_stream')
        )
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    case when kind = 2 then 'gateway' else 'client' end as role,
    'http_call' as source,
    trace_id,
    span_id,
    parent_span_id,
    service_name,
    service_instance_id,
    host_name,
    service_name as worker,
    http_route as route,
    case
        when http_status = 499 then 'aborted'
        when http_status in (408, 504) then 'timeout'
        when status_code = 2 or http_status >= 400 then 'error'
        else 'ok'
    end as status,
    case when status_code = 2 or http_status >= 400
        then coalesce(nullif(status_message, ''), 'http ' || http_status::varchar) end as error,
    1 as has_clock,
    case when kind = 3 then start_unix_ns end as send_unix_ns,
    case when kind = 3 then 'measured span start' end as send_src,
    case when kind = 2 then start_unix_ns end as recv_unix_ns,
    case when kind = 2 then 'measured span start' end as recv_src,
    end_unix_ns as leg_end_unix_ns,
    'measured span end' as leg_end_src,
    ingested_unix_ns
from h
