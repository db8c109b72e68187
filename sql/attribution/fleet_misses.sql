-- What putting a phase back to its expectation would save each violation, and what it needs saved.
-- A violation vanishes if the phases put back save at least over_ms. Only time above expectation is
-- saved: a phase that was faster stays so, and one without an expectation saves nothing. That is a
-- lower bound: a request that spends less also makes others wait less, which is not counted.
-- Apart (beyond) is the part that ordinary variation does not reach: what the phase took more than
-- expected + max(min_excess_ms, scale_factor x scale, ordinary_reach x reach x scale).
-- A violation that vanishes in full but not by what is beyond may be ordinary variation.
-- grain: one row per request and violated metric.
-- inputs: slow_requests, slow_phases, fleet_ranges, attribution_rules
-- slow_id: the row of slow_requests
-- metric: ttft, tpot or e2e
-- model: model name, '' if unknown
-- route: traffic class or endpoint, '' if unknown
-- is_open: 1 if the request was killed, so that over_ms lacks what it had still to do, else 0
-- ranges: phases in scope whose expectation and ordinary range are known
-- over_ms: [ms] what must be saved to meet the limit, NULL if the metric's time is not known
-- limit_ms: [ms] what the metric was allowed to be, as time (TPOT: time in decode)
-- kept_ms: [ms] what the phases with an expectation take when all are put back
-- client_wait_saved_ms: [ms] what phase client_wait took beyond its expectation
-- network_saved_ms: [ms] as client_wait_saved_ms
-- route_saved_ms: [ms] as client_wait_saved_ms
-- frontend_saved_ms: [ms] as client_wait_saved_ms
-- queue_saved_ms: [ms] as client_wait_saved_ms
-- prefill_saved_ms: [ms] as client_wait_saved_ms
-- queue_or_prefill_saved_ms: [ms] as client_wait_saved_ms
-- kv_transfer_saved_ms: [ms] as client_wait_saved_ms
-- decode_saved_ms: [ms] as client_wait_saved_ms
-- client_wait_beyond_ms: [ms] what it took beyond its ordinary range, 0 if that is unknown
-- network_beyond_ms: [ms] as client_wait_beyond_ms
-- route_beyond_ms: [ms] as client_wait_beyond_ms
-- frontend_beyond_ms: [ms] as client_wait_beyond_ms
-- queue_beyond_ms: [ms] as client_wait_beyond_ms
-- prefill_beyond_ms: [ms] as client_wait_beyond_ms
-- queue_or_prefill_beyond_ms: [ms] as client_wait_beyond_ms
-- kv_transfer_beyond_ms: [ms] as client_wait_beyond_ms
-- decode_beyond_ms: [ms] as client_wait_beyond_ms
with savings as (
    select
        s.slow_id as slow_id,
        s.phase as phase,
        s.actual_ms as actual_ms,
        s.expected_ms as expected_ms,
        case when s.excess_ms > 0 then s.excess_ms else 0.0 end as saved_ms,
        r.reach as reach,
        p.min_excess_ms as min_excess_ms,
        p.scale_factor * s.scale_ms as gate_ms,
        p.ordinary_reach * r.reach * (case when s.scale_ms > 1 then s.scale_ms else 1.0 end)
            as reach_ms
    from slow_phases as s
    left join fleet_ranges as r on s.cell_index = r.cell_index and s.phase = r.phase
    cross join attribution_rules as p
),

ranged as (
    select
        slow_id,
        phase,
        actual_ms,
        saved_ms,
        case when reach is null or expected_ms is null then 0 else 1 end as has_range,
        case when expected_ms is null then 0.0 when actual_ms > expected_ms then expected_ms
             else actual_ms end as kept_ms,
        case when gate_ms > min_excess_ms
                 then case when reach_ms > gate_ms then reach_ms else gate_ms end
             when reach_ms > min_excess_ms then reach_ms
             else min_excess_ms end as ordinary_ms
    from savings
),

parted as (
    select
        slow_id,
        phase,
        actual_ms,
        saved_ms,
        kept_ms,
        has_range,
        case when has_range = 1 and saved_ms > ordinary_ms then saved_ms - ordinary_ms else 0.0 end
            as beyond_ms
    from ranged
),

wide as (
    select
        slow_id,
        sum(actual_ms) as phases_ms,
        sum(kept_ms) as kept_ms,
        cast(sum(has_range) as bigint) as ranges,
        sum(case when phase = 'client_wait' then saved_ms else 0.0 end) as client_wait_saved_ms,
        sum(case when phase = 'network' then saved_ms else 0.0 end) as network_saved_ms,
        sum(case when phase = 'route' then saved_ms else 0.0 end) as route_saved_ms,
        sum(case when phase = 'frontend' then saved_ms else 0.0 end) as frontend_saved_ms,
        sum(case when phase = 'queue' then saved_ms else 0.0 end) as queue_saved_ms,
        sum(case when phase = 'prefill' then saved_ms else 0.0 end) as prefill_saved_ms,
        sum(case when phase = 'queue_or_prefill' then saved_ms else 0.0 end)
            as queue_or_prefill_saved_ms,
        sum(case when phase = 'kv_transfer' then saved_ms else 0.0 end) as kv_transfer_saved_ms,
        sum(case when phase = 'decode' then saved_ms else 0.0 end) as decode_saved_ms,
        sum(case when phase = 'client_wait' then beyond_ms else 0.0 end) as client_wait_beyond_ms,
        sum(case when phase = 'network' then beyond_ms else 0.0 end) as network_beyond_ms,
        sum(case when phase = 'route' then beyond_ms else 0.0 end) as route_beyond_ms,
        sum(case when phase = 'frontend' then beyond_ms else 0.0 end) as frontend_beyond_ms,
        sum(case when phase = 'queue' then beyond_ms else 0.0 end) as queue_beyond_ms,
        sum(case when phase = 'prefill' then beyond_ms else 0.0 end) as prefill_beyond_ms,
        sum(case when phase = 'queue_or_prefill' then beyond_ms else 0.0 end)
            as queue_or_prefill_beyond_ms,
        sum(case when phase = 'kv_transfer' then beyond_ms else 0.0 end) as kv_transfer_beyond_ms,
        sum(case when phase = 'decode' then beyond_ms else 0.0 end) as decode_beyond_ms
    from parted
    group by slow_id
),

timed as (
    select
        s.slow_id as slow_id,
        s.metric as metric,
        s.model as model,
        s.route as route,
        -- what was generated until the end is an honest rate
        case when s.censored = 1 and s.metric <> 'tpot' then 1 else 0 end as is_open,
        coalesce(w.ranges, 0) as ranges,
        -- TPOT is a rate: its time is the decode phase, its limit scaled alike
        case when s.metric = 'tpot' then w.phases_ms else s.value_ms end as scope_ms,
        case when s.metric = 'tpot'
                 then w.phases_ms * (s.threshold_ms / nullif(s.value_ms, 0.0))
             else s.threshold_ms end as limit_ms,
        coalesce(w.kept_ms, 0.0) as kept_ms,
        coalesce(w.client_wait_saved_ms, 0.0) as client_wait_saved_ms,
        coalesce(w.network_saved_ms, 0.0) as network_saved_ms,
        coalesce(w.route_saved_ms, 0.0) as route_saved_ms,
        coalesce(w.frontend_saved_ms, 0.0) as frontend_saved_ms,
        coalesce(w.queue_saved_ms, 0.0) as queue_saved_ms,
        coalesce(w.prefill_saved_ms, 0.0) as prefill_saved_ms,
        coalesce(w.queue_or_prefill_saved_ms, 0.0) as queue_or_prefill_saved_ms,
        coalesce(w.kv_transfer_saved_ms, 0.0) as kv_transfer_saved_ms,
        coalesce(w.decode_saved_ms, 0.0) as decode_saved_ms,
        coalesce(w.client_wait_beyond_ms, 0.0) as client_wait_beyond_ms,
        coalesce(w.network_beyond_ms, 0.0) as network_beyond_ms,
        coalesce(w.route_beyond_ms, 0.0) as route_beyond_ms,
        coalesce(w.frontend_beyond_ms, 0.0) as frontend_beyond_ms,
        coalesce(w.queue_beyond_ms, 0.0) as queue_beyond_ms,
        coalesce(w.prefill_beyond_ms, 0.0) as prefill_beyond_ms,
        coalesce(w.queue_or_prefill_beyond_ms, 0.0) as queue_or_prefill_beyond_ms,
        coalesce(w.kv_transfer_beyond_ms, 0.0) as kv_transfer_beyond_ms,
        coalesce(w.decode_beyond_ms, 0.0) as decode_beyond_ms
    from slow_requests as s
    left join wide as w on s.slow_id = w.slow_id
)

select
    slow_id,
    metric,
    model,
    route,
    is_open,
    ranges,
    scope_ms - limit_ms as over_ms,
    limit_ms,
    kept_ms,
    client_wait_saved_ms,
    network_saved_ms,
    route_saved_ms,
    frontend_saved_ms,
    queue_saved_ms,
    prefill_saved_ms,
    queue_or_prefill_saved_ms,
    kv_transfer_saved_ms,
    decode_saved_ms,
    client_wait_beyond_ms,
    network_beyond_ms,
    route_beyond_ms,
    frontend_beyond_ms,
    queue_beyond_ms,
    prefill_beyond_ms,
    queue_or_prefill_beyond_ms,
    kv_transfer_beyond_ms,
    decode_beyond_ms
from timed
