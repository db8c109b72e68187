-- The phases that may have caused each violation: those before the first token for TTFT, decode
-- for TPOT, all of them for the wall time.
-- grain: one row per judged request, violated metric and phase in the metric's scope.
-- inputs: slow_requests, excess
-- slow_id: the row of slow_requests
-- request_key: identity of the request
-- metric: ttft, tpot or e2e
-- phase: phase
-- phase_order: place in the life of a request, from 1; breaks ties
-- actual_ms: [ms] what it took
-- expected_ms: [ms] what it should have taken for this shape, NULL if that cannot be told
-- excess_ms: [ms] actual less expected, NULL if that cannot be told
-- scale_ms: [ms] ordinary variation of the phase at that size
-- is_beyond: 1 if it has no expectation since it is far larger than anything that was fitted, else 0
-- fixed_ms: [ms] the part of expected_ms that does not grow with the request's size
-- cell_index: row of the cost model that was applied, NULL if there is none
select
    s.slow_id as slow_id,
    s.request_key as request_key,
    s.metric as metric,
    e.phase as phase,
    e.phase_order as phase_order,
    e.actual_ms as actual_ms,
    e.expected_ms as expected_ms,
    e.excess_ms as excess_ms,
    e.scale_ms as scale_ms,
    e.is_beyond as is_beyond,
    e.fixed_ms as fixed_ms,
    e.cell_index as cell_index
from slow_requests as s
join excess as e on s.request_key = e.request_key
where s.metric = 'e2e'
    or (s.metric = 'ttft' and e.before_first_token = 1)
    or (s.metric = 'tpot' and e.phase = 'decode')
