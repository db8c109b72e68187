-- Phase intervals inside which a sub-phase is known, cut into the parts with it and without.
-- grain: one row per request and part of an interval, only of intervals that are cut
-- inputs: phases_cut, phases_sweep, phase_parts
-- The phase stays what it is: parts of one interval add up to it. A running count of the stretches
-- that are open tells each instant's sub-phase, so that the cost grows with their number only.
-- request_key: identity of the request
-- revision: [unix ns] settle pass that wrote the row
-- phase: phase name
-- sub_phase: sub-phase, NULL if none
-- start_unix_ns: [unix ns] start
-- end_unix_ns: [unix ns] end
-- src: provenance and field behind the part
-- role: leg that claims the interval
-- worker: worker of that leg
-- uncertainty_ns: [ns] +- of the two clocks that stamped its ends, NULL for one clock or no bound
-- whole_start_unix_ns: [unix ns] start of the interval that was cut
-- whole_end_unix_ns: [unix ns] end of the interval that was cut
with u as (
    select request_key, revision, phase, sub_phase, start_unix_ns, end_unix_ns, src, role, worker,
        uncertainty_ns
    from phases_cut
    union all
    select request_key, revision, phase, sub_phase, start_unix_ns, end_unix_ns, src, role, worker,
        uncertainty_ns
    from phases_sweep
),

x as (
    select
        u.request_key, u.revision, u.phase, u.sub_phase, u.src, u.role, u.worker,
        u.uncertainty_ns,
        u.start_unix_ns as whole_start, u.end_unix_ns as whole_end,
        p.sub_phase as part, p.place, p.src as part_src, p.uncertainty_ns as part_uncertainty,
        case when p.start_unix_ns > u.start_unix_ns then p.start_unix_ns else u.start_unix_ns end
            as part_start,
        case when p.end_unix_ns < u.end_unix_ns then p.end_unix_ns else u.end_unix_ns end
            as part_end
    from phase_parts as p
    join u on p.request_key = u.request_key and p.revision = u.revision and p.phase = u.phase
        and p.start_unix_ns < u.end_unix_ns and p.end_unix_ns > u.start_unix_ns
    where p.start_unix_ns < p.end_unix_ns
        -- what is told is better than what was inferred, but when bytes moved is in there already
        and (u.sub_phase is null or (u.src like 'inferred %' and p.src not like 'inferred %'
            and p.sub_phase <> 'kv_transfer.wire'))
),

edges as (
    select request_key, revision, whole_start, part_start as at_ns,
        case when place = 1 then 1 else 0 end as one,
        case when place = 2 then 1 else 0 end as two,
        case when place = 3 then 1 else 0 end as three
    from x
    union all
    select request_key, revision, whole_start, part_end,
        case when place = 1 then -1 else 0 end,
        case when place = 2 then -1 else 0 end,
        case when place = 3 then -1 else 0 end
    from x
    union all
    select request_key, revision, whole_start, whole_start, 0, 0, 0 from x
    union all
    select request_key, revision, whole_start, whole_end, 0, 0, 0 from x
),

pts as (
    select request_key, revision, whole_start, at_ns, sum(one) as one, sum(two) as two,
        sum(three) as three
    from edges
    group by request_key, revision, whole_start, at_ns
),

levels as (
    select
        request_key, revision, whole_start, at_ns,
        sum(one) over w as one, sum(two) over w as two, sum(three) over w as three,
        lead(at_ns, 1, at_ns) over (
            partition by request_key, revision, whole_start order by at_ns nulls last) as next_ns
    from pts
    window w as (
        partition by request_key, revision, whole_start order by at_ns nulls last
        rows between unbounded preceding and current row
    )
),

named as (
    select
        request_key, revision, whole_start, at_ns,
        -- the interval's end begins nothing
        case when next_ns = at_ns then -1 when one > 0 then 1 when two > 0 then 2
            when three > 0 then 3 else 0 end as place
    from levels
),

turns as (
    select
        request_key, revision, whole_start, at_ns, place,
        lag(place, 1, -2) over (
            partition by request_key, revision, whole_start order by at_ns nulls last) as before
    from named
),

parts as (
    select
        request_key, revision, whole_start, at_ns as s0, place,
        lead(at_ns, 1, at_ns) over (
            partition by request_key, revision, whole_start order by at_ns nulls last) as s1
    from turns
    where place <> before
),

wholes as (
    select
        request_key, revision, whole_start,
        max(whole_end) as whole_end, max(phase) as phase, max(sub_phase) as sub_phase,
        max(src) as src, max(role) as role, max(worker) as worker,
        max(uncertainty_ns) as uncertainty_ns, max(part_uncertainty) as part_uncertainty
    from x
    group by request_key, revision, whole_start
),

kinds as (
    select request_key, revision, whole_start, place, max(part) as part, max(part_src) as part_src
    from x
    group by request_key, revision, whole_start, place
)

select
    t.request_key, t.revision, w.phase,
    case when t.place > 0 then k.part else w.sub_phase end as sub_phase,
    t.s0 as start_unix_ns, t.s1 as end_unix_ns,
    case when t.place > 0 then k.part_src else w.src end as src,
    w.role, w.worker,
    case
        when t.s0 = t.whole_start and t.s1 = w.whole_end then w.uncertainty_ns
        when t.s0 = t.whole_start or t.s1 = w.whole_end
            then coalesce(w.part_uncertainty, w.uncertainty_ns)
    end as uncertainty_ns,
    t.whole_start as whole_start_unix_ns, w.whole_end as whole_end_unix_ns
from parts as t
join wholes as w on t.request_key = w.request_key and t.revision = w.revision
    and t.whole_start = w.whole_start
left join kinds as k on t.request_key = k.request_key and t.revision = k.revision
    and t.whole_start = k.whole_start and t.place = k.place
where t.s1 > t.s0
