-- For each finding, on which workers its requests ran.
-- grain: one row per class, phase, cause, metric and worker.
-- inputs: judgements
-- class: attributed or request_shape
-- phase: phase
-- cause: cause
-- metric: ttft, tpot or e2e
-- worker: worker
-- n: requests among those that were judged and whose cause was looked for
select
    class,
    phase,
    cause,
    metric,
    worker,
    count(*) as n
from judgements
where class in ('attributed', 'request_shape') and worker is not null and cause <> 'unsearched'
group by class, phase, cause, metric, worker
