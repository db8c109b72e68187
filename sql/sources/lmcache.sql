-- What LMCache loads for a request, as parts of that request: its server's spans, and its log.
-- grain: one row per span `mp.retrieve`, or per Retrieved line of the log
-- inputs: spans
-- when: name = 'mp.retrieve' or scope_name = 'tracekit.import.lmcache-log'
-- Its spans are a trace of their own; the session is the engine's request id. A load that the engine
-- waits for before it schedules the request is a transfer and no wait for a slot; one within its
-- prefill is hidden there. Lookups and stores are not on the way of the answer.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with s as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        coalesce(s.scope_name, '') = 'tracekit.import.lmcache-log' as is_log
    from spans as s
    where s.name = 'mp.retrieve' or s.scope_name = 'tracekit.import.lmcache-log'
),

-- the session stands on the span, or on the `request` above it
named as (
    select
        s.*,
        try_cast(json_extract_string(s.attributes, '$.size_gb') as double) as size_gb,
        coalesce(json_extract_string(s.attributes, '$.session_id'),
            json_extract_string(p.attributes, '$.session_id')) as session_id
    from s
    left join (
        select trace_id, span_id, any_value(attributes) as attributes from spans
        where name = 'request' group by trace_id, span_id
    ) as p on s.trace_id = p.trace_id and s.parent_span_id = p.span_id
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    'provider' as role,
    'lmcache' as source,
    1 as is_part,
    trace_id,
    span_id,
    parent_span_id,
    session_id as request_id,
    regexp_replace(regexp_replace(session_id, '^cmpl-(.*)-\d+$', '\1'), '^(chatcmpl|cmpl)-', '')
        as norm_request_id,
    service_name,
    service_instance_id,
    host_name,
    service_name as worker,
    case when status_code = 2 then 'error' else 'ok' end as status,
    case when status_code = 2 then coalesce(nullif(status_message, ''), 'error') end as error,
    -- what is no number of GB, or more than a machine holds, is not known
    case when is_log and size_gb between 0 and 1e6
        then (round(size_gb * 1073741824))::bigint end as kv_bytes,
    'kv_transfer.wire' as sub_phase,
    1 as has_clock,
    start_unix_ns as kv_start_unix_ns,
    case when is_log then 'measured Retrieved less cost' else 'measured mp.retrieve' end
        as kv_start_src,
    end_unix_ns as kv_end_unix_ns,
    case when is_log then 'measured Retrieved' else 'measured mp.retrieve' end as kv_end_src,
    ingested_unix_ns
from named
