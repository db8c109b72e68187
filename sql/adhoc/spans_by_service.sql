-- Who sends, how much, and when last: the first look when something is missing.
-- grain: one row per service and span name
-- inputs: spans
-- service_name: resource service.name
-- name: span name
-- spans: spans, duplicates removed
-- traces: traces they belong to
-- roots: spans without a parent: more than one a trace means that context is not propagated
-- first_at: UTC time of the first span
-- last_at: UTC time of the last span
-- last_received_at: UTC time at which the last one was received
select
    service_name,
    name,
    count(*) as spans,
    count(distinct trace_id) as traces,
    count(*) filter (where parent_span_id is null) as roots,
    make_timestamp(min(start_unix_ns) // 1000) as first_at,
    make_timestamp(max(start_unix_ns) // 1000) as last_at,
    make_timestamp(max(ingested_unix_ns) // 1000) as last_received_at
from spans
group by all
order by spans desc, service_name, name
