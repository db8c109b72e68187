-- Where all the waiting went: seconds by phase and how sure we are of it.
-- grain: one row per phase, sub-phase and provenance
-- inputs: window_requests, phases
-- phase: phase name
-- sub_phase: part of the phase, NULL if none
-- provenance: measured, reported or inferred
-- requests: requests that have it
-- seconds: [s] in all
-- share: [1] of all wall time
-- p50_ms: [ms] median of what a request that has it spends in it
-- p95_ms: [ms] 95th percentile of that, NULL below 60 requests
with spent as (
    select p.request_key, p.phase, p.sub_phase, p.provenance, sum(p.duration_ms) as ms
    from phases as p
    join window_requests as r on p.request_key = r.request_key and p.revision = r.revision
    where r.quarantine_reason is null and r.superseded_attempt = 0
    group by p.request_key, p.phase, p.sub_phase, p.provenance
)

select
    phase,
    sub_phase,
    provenance,
    count(*) as requests,
    sum(ms) / 1e3 as seconds,
    sum(ms) / sum(sum(ms)) over () as share,
    quantile_cont(ms, 0.5) as p50_ms,
    case when count(*) >= 60 then quantile_cont(ms, 0.95) end as p95_ms
from spent
group by phase, sub_phase, provenance
order by seconds desc
