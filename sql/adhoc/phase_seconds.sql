-- Where all the waiting went: seconds by phase and how sure we are of it.
-- grain: one row per phase, sub-phase and provenance
-- inputs: window_requests, phases
-- phase: phase name
-- sub_phase: part of the phase, NULL if none
-- provenance: measured, reported or inferred
-- requests: requests that have it
-- seconds: [s] in all
-- share: [1] of all wall time
-- p50_ms: [ms] median interval
-- p95_ms: [ms] 95th percentile of the interval, NULL below 60 intervals
select
    p.phase,
    p.sub_phase,
    p.provenance,
    count(distinct p.request_key) as requests,
    sum(p.duration_ms) / 1e3 as seconds,
    sum(p.duration_ms) / sum(sum(p.duration_ms)) over () as share,
    quantile_cont(p.duration_ms, 0.5) as p50_ms,
    case when count(*) >= 60 then quantile_cont(p.duration_ms, 0.95) end as p95_ms
from phases as p
join window_requests as r on p.request_key = r.request_key and p.revision = r.revision
where r.quarantine_reason is null and r.superseded_attempt = 0
group by p.phase, p.sub_phase, p.provenance
order by seconds desc
