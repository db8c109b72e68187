-- Where the time of the completed requests went.
-- grain: one row per phase.
-- inputs: request_facts, attribution_rules
-- phase: phase
-- phase_order: place in the life of a request, from 1
-- n: requests whose boundaries tell the phase
-- seconds: [s] time in it, all requests together
-- share: [1] of the time of all phases
-- p50_ms: [ms] median, NULL below 30 requests
-- p95_ms: [ms] 95th percentile, NULL below 60 requests
with facts as (
    select
        count(client_wait_ms) as client_wait_n,
        sum(client_wait_ms) as client_wait_sum,
        percentile_cont(0.5) within group (order by client_wait_ms) as client_wait_p50,
        percentile_cont(0.95) within group (order by client_wait_ms) as client_wait_p95,
        count(network_ms) as network_n,
        sum(network_ms) as network_sum,
        percentile_cont(0.5) within group (order by network_ms) as network_p50,
        percentile_cont(0.95) within group (order by network_ms) as network_p95,
        count(route_ms) as route_n,
        sum(route_ms) as route_sum,
        percentile_cont(0.5) within group (order by route_ms) as route_p50,
        percentile_cont(0.95) within group (order by route_ms) as route_p95,
        count(frontend_ms) as frontend_n,
        sum(frontend_ms) as frontend_sum,
        percentile_cont(0.5) within group (order by frontend_ms) as frontend_p50,
        percentile_cont(0.95) within group (order by frontend_ms) as frontend_p95,
        count(queue_ms) as queue_n,
        sum(queue_ms) as queue_sum,
        percentile_cont(0.5) within group (order by queue_ms) as queue_p50,
        percentile_cont(0.95) within group (order by queue_ms) as queue_p95,
        count(prefill_ms) as prefill_n,
        sum(prefill_ms) as prefill_sum,
        percentile_cont(0.5) within group (order by prefill_ms) as prefill_p50,
        percentile_cont(0.95) within group (order by prefill_ms) as prefill_p95,
        count(queue_or_prefill_ms) as queue_or_prefill_n,
        sum(queue_or_prefill_ms) as queue_or_prefill_sum,
        percentile_cont(0.5) within group (order by queue_or_prefill_ms) as queue_or_prefill_p50,
        percentile_cont(0.95) within group (order by queue_or_prefill_ms) as queue_or_prefill_p95,
        count(kv_transfer_ms) as kv_transfer_n,
        sum(kv_transfer_ms) as kv_transfer_sum,
        percentile_cont(0.5) within group (order by kv_transfer_ms) as kv_transfer_p50,
        percentile_cont(0.95) within group (order by kv_transfer_ms) as kv_transfer_p95,
        count(decode_ms) as decode_n,
        sum(decode_ms) as decode_sum,
        percentile_cont(0.5) within group (order by decode_ms) as decode_p50,
        percentile_cont(0.95) within group (order by decode_ms) as decode_p95,
        count(unexplained_ms) as unexplained_n,
        sum(unexplained_ms) as unexplained_sum,
        percentile_cont(0.5) within group (order by unexplained_ms) as unexplained_p50,
        percentile_cont(0.95) within group (order by unexplained_ms) as unexplained_p95
    from request_facts
    where completed = 1
),

long as (
    select 'client_wait' as phase, 1 as phase_order, client_wait_n as n,
        client_wait_sum as total_ms, client_wait_p50 as p50_ms, client_wait_p95 as p95_ms
    from facts
    union all select 'network' as phase, 2 as phase_order, network_n as n,
        network_sum as total_ms, network_p50 as p50_ms, network_p95 as p95_ms
    from facts
    union all select 'route' as phase, 3 as phase_order, route_n as n,
        route_sum as total_ms, route_p50 as p50_ms, route_p95 as p95_ms
    from facts
    union all select 'frontend' as phase, 4 as phase_order, frontend_n as n,
        frontend_sum as total_ms, frontend_p50 as p50_ms, frontend_p95 as p95_ms
    from facts
    union all select 'queue' as phase, 5 as phase_order, queue_n as n,
        queue_sum as total_ms, queue_p50 as p50_ms, queue_p95 as p95_ms
    from facts
    union all select 'prefill' as phase, 6 as phase_order, prefill_n as n,
        prefill_sum as total_ms, prefill_p50 as p50_ms, prefill_p95 as p95_ms
    from facts
    union all select 'queue_or_prefill' as phase, 7 as phase_order, queue_or_prefill_n as n,
        queue_or_prefill_sum as total_ms, queue_or_prefill_p50 as p50_ms,
        queue_or_prefill_p95 as p95_ms
    from facts
    union all select 'kv_transfer' as phase, 8 as phase_order, kv_transfer_n as n,
        kv_transfer_sum as total_ms, kv_transfer_p50 as p50_ms, kv_transfer_p95 as p95_ms
    from facts
    union all select 'decode' as phase, 9 as phase_order, decode_n as n,
        decode_sum as total_ms, decode_p50 as p50_ms, decode_p95 as p95_ms
    from facts
    union all select 'unexplained' as phase, 10 as phase_order, unexplained_n as n,
        unexplained_sum as total_ms, unexplained_p50 as p50_ms, unexplained_p95 as p95_ms
    from facts
),

wall as (
    select sum(coalesce(total_ms, 0.0)) as total_ms from long
)

select
    l.phase as phase,
    l.phase_order as phase_order,
    l.n as n,
    coalesce(l.total_ms, 0.0) / 1e3 as seconds,
    case when w.total_ms > 0 then coalesce(l.total_ms, 0.0) / w.total_ms end as share,
    case when l.n >= p.min_rows then l.p50_ms end as p50_ms,
    case when l.n >= p.min_p95_rows then l.p95_ms end as p95_ms
from long as l
cross join wall as w
cross join attribution_rules as p
