-- Phases of requests whose legs overlap: every instant goes to the claim with the best priority.
-- grain: one row per request and phase interval, path sweep only
-- inputs: claims
-- request_key: identity of the request
-- revision: [unix ns] settle pass that wrote the row
-- phase: phase name
-- sub_phase: sub-phase, NULL if none
-- start_unix_ns: [unix ns] start
-- end_unix_ns: [unix ns] end
-- src: provenance and field behind the interval, NULL if none
-- role: leg that claims it, NULL if none
-- worker: worker of that leg, NULL if none
with edges as (
    select request_key, revision, start_unix_ns as at_unix_ns from claims
    union all
    select request_key, revision, end_unix_ns as at_unix_ns from claims
),

pts as (
    select request_key, revision, at_unix_ns from edges
    group by request_key, revision, at_unix_ns
),

seg as (
    select
        request_key, revision, at_unix_ns as s0,
        lead(at_unix_ns, 1, at_unix_ns) over (
            partition by request_key, revision order by at_unix_ns nulls last) as s1
    from pts
),

ranked as (
    select
        seg.request_key, seg.revision, seg.s0, seg.s1,
        c.phase, c.sub_phase, c.src, c.role, c.worker,
        row_number() over (
            partition by seg.request_key, seg.revision, seg.s0
            order by c.prio nulls last, c.start_unix_ns nulls last, c.role nulls last,
                c.worker nulls last, c.sub_phase nulls last, c.src nulls last,
                c.end_unix_ns nulls last
        ) as rn
    from seg
    join claims as c
        on seg.request_key = c.request_key and seg.revision = c.revision
            and c.start_unix_ns <= seg.s0 and c.end_unix_ns >= seg.s1
    where seg.s1 > seg.s0
),

won as (
    select
        request_key, revision, s0, s1, phase, sub_phase, src, role, worker,
        phase || '|' || sub_phase || '|' || role || '|' || worker as who
    from ranked
    where rn = 1
),

marked as (
    select
        request_key, revision, s0, s1, phase, sub_phase, src, role, worker,
        case when who = lag(who, 1, '') over (
            partition by request_key, revision order by s0 nulls last) then 0 else 1 end as is_new
    from won
),

islands as (
    select
        request_key, revision, s0, s1, phase, sub_phase, src, role, worker,
        sum(is_new) over (
            partition by request_key, revision order by s0 nulls last
            rows between unbounded preceding and current row) as island
    from marked
)

select
    request_key, revision, phase,
    case when sub_phase <> '' then sub_phase end as sub_phase,
    min(s0) as start_unix_ns,
    max(s1) as end_unix_ns,
    max(case when src <> '' then src end) as src,
    case when role <> '' then role end as role,
    case when worker <> '' then worker end as worker
from islands
group by request_key, revision, island, phase, sub_phase, role, worker
