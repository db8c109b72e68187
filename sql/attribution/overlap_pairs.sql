-- How much of a suspect's lost time each other request can have cost it, for the suspects that
-- overlap enough to be explained so. Two prefills in the same
-- engine steps share them by what each should cost, so a short prompt that rode along with a long
-- one is no culprit of the long one; and a prefill that was itself slowed far beyond its cost was
-- not what kept the engine busy. A queue moves on under ordinary prefills: only those of prompts far
-- longer than usual hold it up.
-- grain: one row per suspect and overlapping request.
-- inputs: worker_prefills, overlap_segments, suspect_requests, suspect_overlaps, stall_phases, request_costs, attribution_rules
-- suspect_id: the row of suspect_requests
-- culprit_key: request_key of the request that was prefilling
-- overlap_ms: [ms] how long the two overlapped
-- cost_ms: [ms] the part of it that the culprit can have cost
-- is_due: 0 if it came in only because others had held the request up: a decode that had ended in
--   time would not have met it, and a prefill goes before those that begin later; else 1
with stalled as (
    select o.suspect_id as suspect_id
    from suspect_overlaps as o
    cross join attribution_rules as p
    where o.beyond_ms > 0 and o.beyond_ms >= 0.5 * p.cause_share * o.excess_ms
),

-- when the phases of those began
begun as (
    select
        s.suspect_id as suspect_id,
        max(s.phase) as phase,
        max(s.expected_ms) as expected_ms,
        min(p.start_unix_ns) as start_unix_ns
    from stalled as t
    join suspect_requests as s on t.suspect_id = s.suspect_id
    join stall_phases as p on s.request_key = p.request_key and s.phase = p.phase
    group by s.suspect_id
),

pairs as (
    select
        g.suspect_id as suspect_id,
        g.culprit_key as culprit_key,
        min(g.start_unix_ns) as met_unix_ns,
        max(s.phase) as phase,
        max(case when s.phase = 'prefill' then s.expected_ms end) as own_ms,
        sum(cast(g.end_unix_ns - g.start_unix_ns as double)) / 1e6 as overlap_ms
    from overlap_segments as g
    join stalled as t on g.suspect_id = t.suspect_id
    join suspect_requests as s on g.suspect_id = s.suspect_id
    group by g.suspect_id, g.culprit_key
),

culprits as (
    select distinct culprit_key from pairs
),

costs as (
    select c.request_key as culprit_key, c.prefill_cost_ms as expected_ms
    from request_costs as c
    join culprits as k on c.request_key = k.culprit_key
),

usual as (
    select percentile_cont(0.5) within group (
            order by cast(end_unix_ns - start_unix_ns as double) / 1e6) as usual_ms
    from worker_prefills
),

shared as (
    select
        p.suspect_id as suspect_id,
        p.culprit_key as culprit_key,
        p.overlap_ms as overlap_ms,
        case when b.phase = 'decode'
                 and p.met_unix_ns >= b.start_unix_ns + cast(floor(b.expected_ms * 1e6) as bigint) then 0
             when b.phase = 'prefill' and p.met_unix_ns > b.start_unix_ns then 0
             else 1 end as is_due,
        case when p.phase = 'queue' and coalesce(c.expected_ms, 0.0) < r.long_factor * u.usual_ms
                 then 0.0
             else r.culprit_factor * c.expected_ms end as most_ms,
        case when p.own_ms + c.expected_ms > 0
                 then p.overlap_ms * c.expected_ms / nullif(p.own_ms + c.expected_ms, 0.0)
             else p.overlap_ms end as share_ms
    from pairs as p
    cross join attribution_rules as r
    cross join usual as u
    left join costs as c on p.culprit_key = c.culprit_key
    left join begun as b on p.suspect_id = b.suspect_id
)

select
    suspect_id,
    culprit_key,
    overlap_ms,
    case when share_ms > most_ms then most_ms else share_ms end as cost_ms,
    is_due
from shared
