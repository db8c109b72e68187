-- Verdicts of one kind, together: what is worth saying once instead of for each request.
-- Where a sample was judged, or the cause looked for in one, the drawn requests count for all: of
-- their metric, and of their phase.
-- grain: one row per class, phase, cause and metric.
-- inputs: judgements, slow_requests
-- class: attributed or request_shape
-- phase: phase
-- cause: cause
-- metric: ttft, tpot or e2e
-- n: requests
-- searched: those of them whose cause was looked for
-- censored: how many of them were killed: their times are lower bounds
-- share_of_misses: [1] of all that violate this metric
-- excess_ms: [ms] median excess of the phase
-- expected_ms: [ms] median of what the phase should have taken
-- value_ms: [ms] median of the metric
-- threshold_ms: [ms] median of what it was slow against
-- confidence: [1] mean confidence
-- total_excess_ms: [ms] excess in all
-- cause_ms: [ms] part of it that the cause explains, NULL where it has no measure
-- uncached_tokens: [tokens] median prompt tokens to compute
-- output_tokens: [tokens] median output
with metrics as (
    select metric, count(*) as misses
    from slow_requests
    group by metric
),

drawn as (
    select metric, count(*) as judged
    from judgements
    group by metric
),

looked_into as (
    select
        class,
        phase,
        metric,
        count(*) as losses,
        count(case when cause <> 'unsearched' then 1 end) as searched
    from judgements
    group by class, phase, metric
),

known as (
    select
        v.class as class,
        v.phase as phase,
        case when v.cause = 'unsearched' then 'unknown' else v.cause end as cause,
        v.metric as metric,
        v.censored as censored,
        v.excess_ms as excess_ms,
        v.expected_ms as expected_ms,
        v.value_ms as value_ms,
        v.threshold_ms as threshold_ms,
        v.confidence as confidence,
        v.cause_ms as cause_ms,
        v.uncached_tokens as uncached_tokens,
        cast(v.output_tokens as double) as output_tokens,
        cast(m.misses as double) / nullif(cast(d.judged as double), 0.0)
            * case when l.searched > 0
                 then cast(l.losses as double) / nullif(cast(l.searched as double), 0.0)
             else 1.0 end as stands_for
    from judgements as v
    join metrics as m on v.metric = m.metric
    join drawn as d on v.metric = d.metric
    join looked_into as l
        on v.class = l.class and v.phase = l.phase and v.metric = l.metric
    where v.class in ('attributed', 'request_shape')
        and (v.cause <> 'unsearched' or l.searched = 0)
),

grouped as (
    select
        class,
        phase,
        cause,
        metric,
        cast(floor(sum(stands_for) + 0.5) as bigint) as n,
        count(*) as searched,
        cast(floor(sum(stands_for * cast(censored as double)) + 0.5) as bigint) as censored,
        percentile_cont(0.5) within group (order by excess_ms) as excess_ms,
        percentile_cont(0.5) within group (order by expected_ms) as expected_ms,
        percentile_cont(0.5) within group (order by value_ms) as value_ms,
        percentile_cont(0.5) within group (order by threshold_ms) as threshold_ms,
        avg(confidence) as confidence,
        sum(stands_for * excess_ms) as total_excess_ms,
        sum(stands_for * cause_ms) as cause_ms,
        percentile_cont(0.5) within group (order by uncached_tokens) as uncached_tokens,
        percentile_cont(0.5) within group (order by output_tokens) as output_tokens
    from known
    group by class, phase, cause, metric
)

select
    g.class as class,
    g.phase as phase,
    g.cause as cause,
    g.metric as metric,
    g.n as n,
    g.searched as searched,
    g.censored as censored,
    cast(g.n as double) / nullif(cast(m.misses as double), 0.0) as share_of_misses,
    g.excess_ms as excess_ms,
    g.expected_ms as expected_ms,
    g.value_ms as value_ms,
    g.threshold_ms as threshold_ms,
    g.confidence as confidence,
    g.total_excess_ms as total_excess_ms,
    g.cause_ms as cause_ms,
    g.uncached_tokens as uncached_tokens,
    g.output_tokens as output_tokens
from grouped as g
join metrics as m on g.metric = m.metric
