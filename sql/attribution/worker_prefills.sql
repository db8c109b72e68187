-- The prefills that may have cost a suspect its time: on its worker, in its stretch of time.
-- Very short ones are left out, which keeps a culprit's share a lower bound.
-- grain: one row per request and prefill interval.
-- inputs: stall_phases, suspect_intervals
-- request_key: identity of the request that was prefilling
-- worker: worker that it prefilled on
-- start_unix_ns: [unix ns] start of the prefill
-- end_unix_ns: [unix ns] end of the prefill
with reach as (
    select min(start_unix_ns) as first_unix_ns, max(end_unix_ns) as last_unix_ns
    from suspect_intervals
),

workers as (
    select distinct worker from suspect_intervals
)

select
    p.request_key as request_key,
    p.worker as worker,
    p.start_unix_ns as start_unix_ns,
    p.end_unix_ns as end_unix_ns
from stall_phases as p
join workers as w on p.worker = w.worker
cross join reach as r
where p.may_stall = 1
    and p.start_unix_ns < r.last_unix_ns
    and p.end_unix_ns > r.first_unix_ns
