-- From whom: what each service sent and what became of it.
-- grain: one row per service
-- inputs: spans, legs
-- service_name: resource service.name
-- spans: spans, without duplicates
-- legs: spans that became a leg of a request
-- requests: requests they belong to
-- instances: distinct service.instance.id
-- scopes: instrumentation scopes with their versions
-- sources: how its legs were understood
-- engines: serving engines with their versions, as far as sent
-- roles: roles of its legs
-- last_ingested_unix_ns: [unix ns] when its last span was received
with s as (
    select
        coalesce(service_name, '') as service_name,
        count(*) as spans,
        count(distinct service_instance_id) as instances,
        string_agg(distinct concat_ws(' ', scope_name, nullif(scope_version, '')), ', ') as scopes,
        max(ingested_unix_ns) as last_ingested_unix_ns
    from spans
    -- those are tracekit's own notes
    where coalesce(scope_name, '') <> 'tracekit.join'
    group by 1
),

l as (
    select
        coalesce(service_name, '') as service_name,
        count(*) as legs,
        count(distinct request_key) as requests,
        string_agg(distinct source, ', ' order by source) as sources,
        string_agg(distinct nullif(concat_ws(' ', engine, engine_version), ''), ', ') as engines,
        string_agg(distinct role, ', ' order by role) as roles
    from legs
    where span_id is not null and source <> 'tracekit_join'
    group by 1
)

select
    s.service_name,
    s.spans,
    coalesce(l.legs, 0) as legs,
    coalesce(l.requests, 0) as requests,
    s.instances,
    s.scopes,
    l.sources,
    nullif(l.engines, '') as engines,
    l.roles,
    s.last_ingested_unix_ns
from s
left join l on l.service_name = s.service_name
order by s.spans desc, s.service_name
