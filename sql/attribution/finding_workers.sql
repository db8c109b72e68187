-- For each finding, on which workers its requests ran.
-- grain: one row per class, phase, cause, metric and worker.
-- inputs: verdicts
-- class: attributed or request_shape
-- phase: phase
-- cause: cause
-- metric: ttft, tpot or e2e
-- worker: worker
-- n: requests
select
    class,
    phase,
    cause,
    metric,
    worker,
    count(*) as n
from verdicts
where class in ('attributed', 'request_shape') and worker is not null
group by class, phase, cause, metric, worker
