-- The fifty slowest requests and the phase that took longest in each.
-- grain: one row per request
-- inputs: requests
-- request_id: id that client and server share
-- request_key: identity in the store (for `tracekit show`)
-- model: model name
-- route: traffic class or endpoint
-- input_tokens: [tokens] prompt
-- output_tokens: [tokens] generated
-- ttft_ms: [ms] start to first token
-- e2e_ms: [ms] wall time
-- longest_phase: phase with the largest share (a share is no verdict: see verdicts)
-- longest_phase_ms: [ms] time in it
select
    request_id, request_key, model, route, input_tokens, output_tokens, ttft_ms, e2e_ms,
    list_reduce(phases, lambda a, b: case when b.ms > a.ms then b else a end).phase as longest_phase,
    list_reduce(phases, lambda a, b: case when b.ms > a.ms then b else a end).ms as longest_phase_ms
from (
    select
        *,
        [
            {'phase': 'client_wait', 'ms': coalesce(client_wait_ms, 0)},
            {'phase': 'network', 'ms': coalesce(network_ms, 0)},
            {'phase': 'route', 'ms': coalesce(route_ms, 0)},
            {'phase': 'frontend', 'ms': coalesce(frontend_ms, 0)},
            {'phase': 'queue', 'ms': coalesce(queue_ms, 0)},
            {'phase': 'prefill', 'ms': coalesce(prefill_ms, 0)},
            {'phase': 'queue_or_prefill', 'ms': coalesce(queue_or_prefill_ms, 0)},
            {'phase': 'kv_transfer', 'ms': coalesce(kv_transfer_ms, 0)},
            {'phase': 'decode', 'ms': coalesce(decode_ms, 0)},
            {'phase': 'unexplained', 'ms': coalesce(unexplained_ms, 0)}
        ] as phases
    from requests
    where quarantine_reason is null
)
order by e2e_ms desc nulls last
limit 50
