-- The exclusive phases of every request: each instant of its wall time belongs to exactly one row.
-- grain: one row per request and phase interval; an interval with sub-phases inside is several rows
-- inputs: phases_cut, phases_sweep, phases_split
-- Who counts intervals takes `whole_start_unix_ns` and `whole_end_unix_ns` where they are not NULL,
-- and leaves out rows that start later than `whole_start_unix_ns`.
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
-- whole_start_unix_ns: [unix ns] start of the interval it was cut out of, NULL if none was cut
-- whole_end_unix_ns: [unix ns] end of the interval it was cut out of, NULL if none was cut
with c as (
    select request_key, revision, phase, sub_phase, start_unix_ns, end_unix_ns, src, role, worker,
        uncertainty_ns
    from phases_cut
    union all
    select request_key, revision, phase, sub_phase, start_unix_ns, end_unix_ns, src, role, worker,
        uncertainty_ns
    from phases_sweep
),

gone as (
    select request_key, revision, whole_start_unix_ns
    from phases_split
    group by request_key, revision, whole_start_unix_ns
),

u as (
    select c.request_key, c.revision, c.phase, c.sub_phase, c.start_unix_ns, c.end_unix_ns, c.src,
        c.role, c.worker, c.uncertainty_ns, cast(null as bigint) as whole_start_unix_ns,
        cast(null as bigint) as whole_end_unix_ns
    from c
    left join gone on c.request_key = gone.request_key and c.revision = gone.revision
        and c.start_unix_ns = gone.whole_start_unix_ns
    where gone.request_key is null
    union all
    select request_key, revision, phase, sub_phase, start_unix_ns, end_unix_ns, src, role, worker,
        uncertainty_ns, whole_start_unix_ns, whole_end_unix_ns
    from phases_split
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
    uncertainty_ns / 1e6 as uncertainty_ms,
    whole_start_unix_ns,
    whole_end_unix_ns
from u
