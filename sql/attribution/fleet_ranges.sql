-- How far above its expectation a phase ordinarily goes: what requests within every limit show.
-- In multiples of the phase's scale (of at least 1 ms), so that requests of all sizes count
-- together: the 95th percentile of each worker, of these the (lower) median, so that one bad worker
-- makes nothing ordinary. A fault that lasts on most workers is part of what is ordinary here: a
-- baseline tells the two apart.
-- grain: one row per cell of the cost model and phase, where enough requests tell.
-- inputs: request_facts, excess, slow_requests, attribution_rules
-- cell_index: row of the cost model
-- phase: phase
-- n: requests of the cell that tell the phase
-- reach: [1] 95th percentile of excess / scale
with told as (
    select
        e.cell_index as cell_index,
        e.phase as phase,
        coalesce(case when e.phase = 'decode' then f.worker else f.prefill_worker end, '')
            as worker,
        case when e.scale_ms > 1 then e.excess_ms / e.scale_ms else e.excess_ms end as reach
    from request_facts as f
    join excess as e on f.request_key = e.request_key
    where f.completed = 1 and e.excess_ms is not null
        and not exists (select 1 from slow_requests as s where s.request_key = f.request_key)
),

whole as (
    select
        cell_index,
        phase,
        count(*) as n,
        percentile_cont(0.95) within group (order by reach) as reach
    from told
    group by cell_index, phase
),

by_worker as (
    select
        cell_index,
        phase,
        worker,
        count(*) as n,
        percentile_cont(0.95) within group (order by reach) as reach
    from told
    group by cell_index, phase, worker
),

ranked as (
    select
        w.cell_index as cell_index,
        w.phase as phase,
        w.reach as reach,
        row_number() over (
            partition by w.cell_index, w.phase order by w.reach nulls last, w.worker nulls last
        ) as place,
        count(*) over (partition by w.cell_index, w.phase) as workers
    from by_worker as w
    cross join attribution_rules as p
    where w.n >= p.min_rows
),

medians as (
    select cell_index, phase, reach
    from ranked
    where 2 * place = workers or 2 * place = workers + 1
)

select
    w.cell_index as cell_index,
    w.phase as phase,
    w.n as n,
    coalesce(m.reach, w.reach) as reach
from whole as w
left join medians as m on w.cell_index = m.cell_index and w.phase = m.phase
cross join attribution_rules as p
where w.n >= p.min_rows
