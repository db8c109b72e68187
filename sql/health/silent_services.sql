-- Services whose engine started up but never reported a request.
-- grain: one row per service
-- inputs: spans
-- service_name: resource service.name
-- startup_spans: spans of server start
-- requests: request spans
select
    coalesce(service_name, '') as service_name,
    count(*) filter (
        where name in ('Overall Loading', 'EngineCoreProc init', 'Load model', 'Prepare model')
    ) as startup_spans,
    count(*) filter (where name = 'llm_request') as requests
from spans
group by 1
having startup_spans > 0 and requests = 0
order by 1
