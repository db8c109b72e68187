-- What a comparison needs to know of each request: how it ended, what it was like, what it took.
-- A cached token is no shape and neither is a token accepted from a draft: both are the system's
-- doing, so the decode steps here count tokens (request_facts are to be those of a speculation with
-- counted = 0), and the whole prompt is kept beside the uncached.
-- grain: one row per usable request (completed or killed) of one side.
-- inputs: request_facts, window_requests
-- request_key: identity of the request
-- model: model name, '' if unknown
-- route: traffic class or endpoint, '' if unknown
-- engine_version: engine version, '' if unknown
-- worker: worker that decoded (or the only one), '' if unknown
-- prefill_worker: worker that prefilled, '' if unknown
-- leg_roles: roles of its legs, outermost first, '' if unknown: where its wall time was taken
-- ttft_kind: what its first token was, '' where there was none
-- arrival_unix_ns: [unix ns] when it was meant to start, NULL without a clock
-- completed: 1 if it ended well, 0 if it was killed: its times are then lower bounds
-- cached_known: 1 if the source said how many prompt tokens came from a cache
-- input_tokens: [tokens] prompt
-- uncached_tokens: [tokens] prompt tokens to compute; the whole prompt if the cache is unknown
-- output_tokens: [tokens] generated
-- decode_tokens: [tokens] of one sequence after its first token
-- decode_context: [tokens^2] decode_tokens x mean context length
-- kv_bytes: [bytes] KV cache moved
-- ttft_ms: [ms] start to first token
-- tpot_ms: [ms] time per output token after the first
-- e2e_ms: [ms] wall time
-- client_wait_ms: [ms] phase client_wait, NULL if no boundary tells
-- network_ms: [ms] phase network
-- route_ms: [ms] phase route
-- frontend_ms: [ms] phase frontend
-- queue_ms: [ms] phase queue
-- prefill_ms: [ms] phase prefill
-- queue_or_prefill_ms: [ms] phase queue_or_prefill
-- kv_transfer_ms: [ms] phase kv_transfer; 0 where the engine's phases are known and none took part
-- decode_ms: [ms] phase decode
select
    f.request_key as request_key,
    f.model as model,
    f.route as route,
    f.engine_version as engine_version,
    coalesce(f.worker, '') as worker,
    coalesce(f.prefill_worker, '') as prefill_worker,
    coalesce(w.leg_roles, '') as leg_roles,
    coalesce(f.ttft_kind, '') as ttft_kind,
    f.arrival_unix_ns as arrival_unix_ns,
    f.completed as completed,
    f.cached_known as cached_known,
    f.input_tokens as input_tokens,
    f.uncached_tokens as uncached_tokens,
    cast(f.output_tokens as double) as output_tokens,
    f.steps as decode_tokens,
    f.step_context as decode_context,
    cast(f.kv_bytes as double) as kv_bytes,
    f.ttft_ms as ttft_ms,
    f.tpot_ms as tpot_ms,
    f.e2e_ms as e2e_ms,
    f.client_wait_ms as client_wait_ms,
    f.network_ms as network_ms,
    f.route_ms as route_ms,
    f.frontend_ms as frontend_ms,
    f.queue_ms as queue_ms,
    f.prefill_ms as prefill_ms,
    f.queue_or_prefill_ms as queue_or_prefill_ms,
    case when f.kv_transfer_ms is null and f.prefill_ms is not null
              and f.topology = 'aggregated' then 0.0
         else f.kv_transfer_ms end as kv_transfer_ms,
    f.decode_ms as decode_ms
from request_facts as f
join window_requests as w on f.request_key = w.request_key
where f.completed + f.censored > 0
