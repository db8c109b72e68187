-- The exclusive phases of every request: each instant of its wall time belongs to exactly one row.
-- grain: one row per request and phase interval
-- inputs: phases_cut, phases_sweep
-- request_key: identity of the request
-- revision: [unix ns] settle pass that wrote the row
-- phase: phase name
-- sub_phase: sub-phase, NULL if none
-- start_unix_ns: [unix ns] start (from the request's start where it has no clock)
-- end_unix_ns: [unix ns] end
-- duration_ms: [ms] end - start
-- provenance: measured, reported, inferred; NULL for unexplained time
-- field: field behind the interval
-- role: leg that claims it
-- worker: worker of that leg
-- uncertainty_ms: [ms] +- of the two clocks that stamped its ends, NULL for one clock or no bound
with u as (
    select request_key, revision, phase, sub_phase, start_unix_ns, end_unix_ns, src, role, worker,
        uncertainty_ns
    from phases_cut
    union all
    select request_key, revision, phase, sub_phase, start_unix_ns, end_unix_ns, src, role, worker,
        uncertainty_ns
    from phases_sweep
)

select
    request_key, revision, phase, sub_phase, start_unix_ns, end_unix_ns,
    (end_unix_ns - start_unix_ns) / 1e6 as duration_ms,
    case
        when src like 'measured %' then 'measured'
        when src like 'reported %' then 'reported'
        when src like 'inferred %' then 'inferred'
    end as provenance,
    -- the provenance words are all eight letters long
    substr(src, 10) as field,
    role, worker,
    uncertainty_ns / 1e6 as uncertainty_ms
from u
