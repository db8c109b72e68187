-- Percentiles of the completed requests, where there are enough of them to print one.
-- grain: one row per metric.
-- inputs: request_facts, attribution_rules
-- metric: ttft_ms, ttfa_ms, tpot_ms or e2e_ms
-- n: requests that have the metric
-- p50: [ms] median, NULL below 30 requests
-- p95: [ms] 95th percentile, NULL below 60 requests
-- p99: [ms] 99th percentile, NULL below 300 requests
with facts as (
    select
        count(ttft_ms) as ttft_n,
        percentile_cont(0.5) within group (order by ttft_ms) as ttft_p50,
        percentile_cont(0.95) within group (order by ttft_ms) as ttft_p95,
        percentile_cont(0.99) within group (order by ttft_ms) as ttft_p99,
        count(ttfa_ms) as ttfa_n,
        percentile_cont(0.5) within group (order by ttfa_ms) as ttfa_p50,
        percentile_cont(0.95) within group (order by ttfa_ms) as ttfa_p95,
        percentile_cont(0.99) within group (order by ttfa_ms) as ttfa_p99,
        count(tpot_ms) as tpot_n,
        percentile_cont(0.5) within group (order by tpot_ms) as tpot_p50,
        percentile_cont(0.95) within group (order by tpot_ms) as tpot_p95,
        percentile_cont(0.99) within group (order by tpot_ms) as tpot_p99,
        count(e2e_ms) as e2e_n,
        percentile_cont(0.5) within group (order by e2e_ms) as e2e_p50,
        percentile_cont(0.95) within group (order by e2e_ms) as e2e_p95,
        percentile_cont(0.99) within group (order by e2e_ms) as e2e_p99
    from request_facts
    where completed = 1
),

long as (
    select 'ttft_ms' as metric, ttft_n as n,
        ttft_p50 as p50, ttft_p95 as p95, ttft_p99 as p99 from facts
    union all select 'ttfa_ms' as metric, ttfa_n as n,
        ttfa_p50 as p50, ttfa_p95 as p95, ttfa_p99 as p99 from facts
    union all select 'tpot_ms' as metric, tpot_n as n,
        tpot_p50 as p50, tpot_p95 as p95, tpot_p99 as p99 from facts
    union all select 'e2e_ms' as metric, e2e_n as n,
        e2e_p50 as p50, e2e_p95 as p95, e2e_p99 as p99 from facts
)

select
    l.metric as metric,
    l.n as n,
    case when l.n >= p.min_rows then l.p50 end as p50,
    case when l.n >= p.min_p95_rows then l.p95 end as p95,
    case when l.n >= p.min_p99_rows then l.p99 end as p99
from long as l
cross join attribution_rules as p
