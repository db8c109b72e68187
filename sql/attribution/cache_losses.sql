-- What a missed prefix cost: the same request with the cache hit that it should have had.
-- grain: one row per slow request that had less from the cache than it should.
-- inputs: slow_requests, request_facts, cost_model
-- request_key: identity of the request
-- missed_tokens: [tokens] prompt tokens that were computed although the prefix had been seen
-- cache_ms: [ms] what computing them should have cost
with slow as (
    select distinct request_key from slow_requests
)

select
    f.request_key as request_key,
    f.uncached_tokens - f.due_uncached_tokens as missed_tokens,
    case when f.prefill_ms is not null
        then coalesce(c.prefill_a1, 0.0) * (f.uncached_tokens - f.due_uncached_tokens)
            + coalesce(c.prefill_a2, 0.0) * (f.attended_tokens_sq - f.due_attended_tokens_sq)
        else coalesce(c.queue_or_prefill_a1, 0.0) * (f.uncached_tokens - f.due_uncached_tokens)
            + coalesce(c.queue_or_prefill_a2, 0.0)
                * (f.attended_tokens_sq - f.due_attended_tokens_sq)
    end as cache_ms
from slow as s
join request_facts as f on s.request_key = f.request_key
join cost_model as c
    on f.model = c.model and f.engine = c.engine
    and f.engine_version = c.engine_version and f.topology = c.topology
where f.uncached_tokens > f.due_uncached_tokens
