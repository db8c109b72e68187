-- What `tracekit join` wrote down: that a client's call and an engine's request, which share no trace
-- and no id, are one by time and token counts.
-- grain: one row per such span; it lies in the engine's trace, below the engine's span.
-- inputs: spans
-- when: scope_name = 'tracekit.join'
-- It has no times and no service of its own: it bounds nothing, and no clock stamped it. norm_request_id is the leg id of the client's leg,
-- likeness how sure the join is.
select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    'provider' as role,
    'tracekit_join' as source,
    trace_id,
    span_id,
    parent_span_id,
    request_id as norm_request_id,
    'ok' as status,
    1 as has_clock,
    case when s.likeness between 0 and 1 then s.likeness end as likeness,
    ingested_unix_ns
from (
    select *, try_cast(json_extract_string(attributes, '$."tracekit.join.score"') as double)
        as likeness
    from spans
) as s
where s.scope_name = 'tracekit.join' and s.request_id is not null and s.parent_span_id is not null
