-- sglang-router's (SMG's) span of a request as gateway leg.
-- grain: one row per span `http_request` of the router
-- inputs: spans
-- when: name = 'http_request' and kind = 1
-- It starts a trace of its own and gives it to both workers, so that a client is joined by its
-- x-request-id (`request_id`) alone. Its span outlasts the stream, by up to a minute: its end is none
-- of the call. `latency` (microseconds) lasts to the headers, which is the whole of a call that failed.
-- With two workers the router sends these when both have answered, and holds back tokens until then:
-- no client sees one earlier.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with h as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        json_extract_string(s.attributes,
            ['$.uri', '$.request_id', '$.status_code', '$.module', '$.latency']) as a,
        coalesce(s.events, '') like '%Received concurrent requests%' as has_two
    from spans as s
    where s.name = 'http_request' and s.kind = 1
),

l as (
    select
        h.*,
        -- within the call, or it is not believed
        case when try_cast(a[5] as double) between 0 and (end_unix_ns - start_unix_ns) / 1e3
            then start_unix_ns + (round(try_cast(a[5] as double) * 1e3))::bigint end as headers_ns,
        case
            when try_cast(a[3] as integer) = 499 then 'aborted'
            when try_cast(a[3] as integer) in (408, 504) then 'timeout'
            when status_code = 2 or try_cast(a[3] as integer) >= 400 then 'error'
            else 'ok'
        end as outcome
    from h
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    'gateway' as role,
    'sglang_router' as source,
    trace_id,
    span_id,
    parent_span_id,
    a[2] as request_id,
    a[2] as norm_request_id,
    service_name,
    service_instance_id,
    host_name,
    service_name as worker,
    a[1] as route,
    outcome as status,
    case when outcome <> 'ok'
        then coalesce(nullif(status_message, ''), 'http ' || a[3]) end as error,
    1 as has_clock,
    start_unix_ns as recv_unix_ns,
    'measured span start' as recv_src,
    case when has_two and outcome = 'ok' then headers_ns end as first_token_unix_ns,
    case when has_two and outcome = 'ok' and headers_ns is not null then 'inferred latency until both workers answered' end
        as first_token_src,
    case when outcome <> 'ok' then coalesce(headers_ns, end_unix_ns) end as leg_end_unix_ns,
    case when outcome <> 'ok'
        then case when headers_ns is null then 'measured span end' else 'reported latency' end end
        as leg_end_src,
    ingested_unix_ns
from l
where a[4] = 'smg' and (
    a[1] like '/v1/chat/completions%' or a[1] like '/v1/completions%' or a[1] like '/v1/responses%'
    or a[1] like '/v1/messages%' or a[1] like '/generate%')
