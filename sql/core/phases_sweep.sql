-- Phases of requests whose legs overlap: every instant goes to the claim with the best priority.
-- grain: one row per request and phase interval, path sweep only
-- inputs: claims, request_points
-- request_key: identity of the request
-- revision: [unix ns] settle pass that wrote the row
-- phase: phase name
-- sub_phase: sub-phase, NULL if none
-- start_unix_ns: [unix ns] start
-- end_unix_ns: [unix ns] end
-- src: provenance and field behind the interval, NULL if none
-- role: leg that claims it, NULL if none
-- worker: worker of that leg, NULL if none
-- uncertainty_ns: [ns] +- of the two clocks that stamped its ends, NULL for one clock or no bound
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
),

joined as (
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
)

select
    j.request_key, j.revision, j.phase, j.sub_phase, j.start_unix_ns, j.end_unix_ns, j.src, j.role,
    j.worker,
    case
        when j.phase = 'network' and j.start_unix_ns >= p.in_last then p.network_out_ns
        when j.phase = 'network' then p.network_in_ns
        when j.phase = 'route' and j.src = 'measured decode server arrival' then p.kv_ns
        when j.phase = 'route' and j.src = 'measured span end' then p.route_out_ns
        when j.phase = 'route' then p.route_in_ns
        -- where both ends are the decode server's own, it timed the transfer alone; where the
        -- prefill server's part cuts it, two clocks did
        when j.phase = 'kv_transfer' and p.p_n > 0 and not (
            (j.start_unix_ns = coalesce(p.e_queued, 0)
                or j.start_unix_ns = coalesce(p.e_scheduled, 0)
                or j.start_unix_ns = coalesce(p.e_kv_start, 0)
                or j.start_unix_ns = coalesce(p.wire_start, 0)
                or j.start_unix_ns = coalesce(p.wire_end, 0))
            and (j.end_unix_ns = coalesce(p.e_scheduled, 0)
                or j.end_unix_ns = coalesce(p.e_prefill_end, p.e_first, 0)
                or j.end_unix_ns = coalesce(p.e_kv_end, 0)
                or j.end_unix_ns = coalesce(p.wire_start, 0)
                or j.end_unix_ns = coalesce(p.wire_end, 0))) then p.kv_ns
    end as uncertainty_ns
from joined as j
join request_points as p on j.request_key = p.request_key and j.revision = p.revision
