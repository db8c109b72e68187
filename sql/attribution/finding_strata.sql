-- For each finding, of which model and route its requests are.
-- grain: one row per class, phase, cause, metric, model and route.
-- inputs: judgements
-- class: attributed or request_shape
-- phase: phase
-- cause: cause
-- metric: ttft, tpot or e2e
-- model: model name, '' if unknown
-- route: traffic class or endpoint, '' if unknown
-- n: requests among those that were judged and whose cause was looked for
select
    class,
    phase,
    cause,
    metric,
    model,
    route,
    count(*) as n
from judgements
where class in ('attributed', 'request_shape') and cause <> 'unsearched'
group by class, phase, cause, metric, model, route
