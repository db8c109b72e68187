-- Verdicts of one kind, together: what is worth saying once instead of for each request.
-- grain: one row per class, phase, cause and metric.
-- inputs: verdicts
-- class: attributed or request_shape
-- phase: phase
-- cause: cause
-- metric: ttft, tpot or e2e
-- n: requests
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
    from verdicts
    group by metric
),

grouped as (
    select
        class,
        phase,
        cause,
        metric,
        count(*) as n,
        cast(sum(censored) as bigint) as censored,
        percentile_cont(0.5) within group (order by excess_ms) as excess_ms,
        percentile_cont(0.5) within group (order by expected_ms) as expected_ms,
        percentile_cont(0.5) within group (order by value_ms) as value_ms,
        percentile_cont(0.5) within group (order by threshold_ms) as threshold_ms,
        avg(confidence) as confidence,
        sum(excess_ms) as total_excess_ms,
        sum(cause_ms) as cause_ms,
        percentile_cont(0.5) within group (order by uncached_tokens) as uncached_tokens,
        percentile_cont(0.5) within group (order by cast(output_tokens as double))
            as output_tokens
    from verdicts
    where class in ('attributed', 'request_shape')
    group by class, phase, cause, metric
)

select
    g.class as class,
    g.phase as phase,
    g.cause as cause,
    g.metric as metric,
    g.n as n,
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
