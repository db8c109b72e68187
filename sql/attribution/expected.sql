-- What each phase of each request should have taken for the request's shape.
-- grain: one row per usable request and phase.
-- inputs: excess
-- request_key: identity of the request
-- phase: client_wait, network, route, frontend, queue, prefill, queue_or_prefill, ...
-- expected_ms: [ms] what it should have taken, NULL if that cannot be told
-- scale_ms: [ms] ordinary variation of the phase at that size
select
    request_key,
    phase,
    expected_ms,
    scale_ms
from excess
