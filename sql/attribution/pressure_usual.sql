-- What is usual of a worker's transfers and of the clocks of its kind.
-- grain: one row per worker that has samples.
-- inputs: worker_samples
-- worker: worker
-- transfer_bps: [B/s] bytes over transfer time in the better quarter of its samples
-- top_clock_hz: [Hz] clock that a working GPU reaches a tenth of the time, over all workers
with speeds as (
    select
        worker,
        percentile_cont(0.75) within group (
            order by case when transfer_s > 0 then transfer_bytes / nullif(transfer_s, 0.0) end
        ) as transfer_bps
    from worker_samples
    group by worker
),

clocks as (
    select percentile_cont(0.9) within group (order by sm_clock_hz) as top_clock_hz
    from worker_samples
)

select s.worker as worker, s.transfer_bps as transfer_bps, c.top_clock_hz as top_clock_hz
from speeds as s
cross join clocks as c
