-- How each worker does against its peers at equal shape, in the phases that are blamed: the median
-- excess as a share of what was expected. Standard errors come from the quartiles, so that a few
-- stuck requests make no slow worker.
-- grain: one row per model, phase and worker.
-- inputs: request_costs, winners, attribution_rules
-- model: model name, '' if unknown
-- phase: prefill, queue_or_prefill or decode
-- worker: worker
-- n: completed requests of this worker with that phase
-- excess_share: [1] median of excess / expected
-- peers: workers of the same model that have enough requests
-- peer_excess_share: [1] the median over those peers
-- standard_error: [1] of the difference
-- is_slow: 1 if the worker stands out beyond three standard errors and by a share that matters
with blames as (
    select phase, cast(count(*) as double) as n
    from winners
    where candidate = 'attributed'
    group by phase
),

total as (
    select sum(n) as n from blames
),

-- phases that carry next to nothing of the blame are not worth ranking every request for
blamed as (
    select b.phase as phase
    from blames as b
    cross join total as t
    where b.phase in ('prefill', 'queue_or_prefill', 'decode') and b.n >= 0.005 * t.n
),

costs as (
    select
        c.model as model,
        b.phase as phase,
        case b.phase when 'decode' then c.worker else c.prefill_worker end as worker,
        case b.phase when 'decode' then c.decode_ms
            -- the decode server's prefill is not the prefill server's
            when 'prefill' then c.prefill_ms - coalesce(c.double_prefill_ms, 0.0)
            else c.queue_or_prefill_ms end as actual_ms,
        case b.phase when 'decode' then c.decode_expected_ms
            when 'prefill' then c.prefill_expected_ms
            else c.queue_or_prefill_expected_ms end as expected_ms
    from request_costs as c
    cross join blamed as b
    where c.completed = 1
),

ratios as (
    select model, phase, worker, (actual_ms - expected_ms) / nullif(expected_ms, 0.0) as share
    from costs
    where worker is not null and expected_ms > 0
),

by_worker as (
    select
        model,
        phase,
        worker,
        count(*) as n,
        percentile_cont(0.25) within group (order by share) as low,
        percentile_cont(0.5) within group (order by share) as middle,
        percentile_cont(0.75) within group (order by share) as high
    from ratios
    group by model, phase, worker
),

-- the standard error of a median: 1.2533 sigma / sqrt(n), with sigma = (q3 - q1) / 1.349
errors as (
    select
        model,
        phase,
        worker,
        n,
        middle,
        0.929 * (high - low) / nullif(sqrt(cast(n as double)), 0.0) as error
    from by_worker
),

against as (
    select
        a.model as model,
        a.phase as phase,
        a.worker as worker,
        count(*) as peers,
        percentile_cont(0.5) within group (order by b.middle) as middle,
        percentile_cont(0.5) within group (order by b.error) as error
    from errors as a
    join errors as b on a.model = b.model and a.phase = b.phase
    cross join attribution_rules as p
    where b.worker <> a.worker and b.n >= p.min_worker_rows
    group by a.model, a.phase, a.worker
),

compared as (
    select
        e.model as model,
        e.phase as phase,
        e.worker as worker,
        e.n as n,
        e.middle as excess_share,
        coalesce(g.peers, 0) as peers,
        g.middle as peer_excess_share,
        sqrt(e.error * e.error + g.error * g.error) as standard_error
    from errors as e
    left join against as g
        on e.model = g.model and e.phase = g.phase and e.worker = g.worker
)

select
    c.model as model,
    c.phase as phase,
    c.worker as worker,
    c.n as n,
    c.excess_share as excess_share,
    cast(c.peers as bigint) as peers,
    c.peer_excess_share as peer_excess_share,
    c.standard_error as standard_error,
    case when c.n >= p.min_worker_rows
             and c.excess_share - c.peer_excess_share > 3.0 * c.standard_error
             and c.excess_share - c.peer_excess_share > p.min_worker_share
         then 1 else 0 end as is_slow
from compared as c
cross join attribution_rules as p
