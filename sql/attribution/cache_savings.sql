-- What hits in the prefix cache saved: the expected prefill of the same requests without them, less
-- the expected prefill with them. Only where the fit is the cell's own, is close, and has seen
-- prompts computed that are as large as those it is asked about; what was preempted is left out,
-- because engines count what they compute again as a hit.
-- grain: one row per cell of the cost model that has hits.
-- inputs: request_facts, cost_model, attribution_rules
-- cell_index: row of the cost model
-- requests: completed requests that say what came from the cache
-- hits: those of them that had a share of their prompt from it that matters (`hit_share`): one token
--   that all prompts begin with is no hit
-- cached_tokens: [tokens] that these had from it
-- saved_ms: [ms] prefill that these tokens would have taken
-- e2e_ms: [ms] wall time of the requests
-- error: [1] how far half of the requests lie from the fit at most, as a share of the median
with r as (
    select
        c.cell_index as cell_index,
        f.input_tokens as input_tokens,
        f.uncached_tokens as uncached_tokens,
        f.input_tokens - f.uncached_tokens as cached_tokens,
        case when f.input_tokens - f.uncached_tokens >= p.hit_share * f.input_tokens
            then 1 else 0 end as is_hit,
        f.e2e_ms as e2e_ms,
        case when f.prefill_ms > 0
            then c.prefill_a1 * (f.input_tokens - f.uncached_tokens)
                + c.prefill_a2 * (f.input_tokens * f.input_tokens / 2.0 - f.attended_tokens_sq)
            else c.queue_or_prefill_a1 * (f.input_tokens - f.uncached_tokens)
                + c.queue_or_prefill_a2
                    * (f.input_tokens * f.input_tokens / 2.0 - f.attended_tokens_sq)
        end as saved_ms,
        case when f.prefill_ms > 0 then c.prefill_error else c.queue_or_prefill_error end as error
    from request_facts as f
    join cost_model as c
        on f.model = c.model and f.engine = c.engine
        and f.engine_version = c.engine_version and f.topology = c.topology
    cross join attribution_rules as p
    where f.completed = 1 and f.cached_known = 1 and f.input_tokens > 0 and f.e2e_ms > 0
        and coalesce(f.preemptions, 0) = 0
        and ((f.prefill_ms > 0 and c.prefill_borrowed = 0 and c.prefill_error <= p.max_fit_error)
            or (f.prefill_ms is null and f.queue_or_prefill_ms > 0
                and c.queue_or_prefill_borrowed = 0
                and c.queue_or_prefill_error <= p.max_fit_error))
),

-- how large the prompts are that were found in the cache
s as (
    select cell_index, percentile_cont(0.5) within group (order by input_tokens) as input_tokens
    from r
    where is_hit = 1
    group by cell_index
),

g as (
    select
        r.cell_index as cell_index,
        count(*) as requests,
        count(case when r.is_hit = 1 then 1 end) as hits,
        count(case when r.uncached_tokens >= p.fit_reach * s.input_tokens then 1 end) as reached,
        sum(case when r.is_hit = 1 then r.cached_tokens else 0 end) as cached_tokens,
        sum(case when r.is_hit = 1 then r.saved_ms else 0.0 end) as saved_ms,
        sum(r.e2e_ms) as e2e_ms,
        max(r.error) as error
    from r
    join s on r.cell_index = s.cell_index
    cross join attribution_rules as p
    group by r.cell_index
)

select
    g.cell_index as cell_index,
    g.requests as requests,
    g.hits as hits,
    g.cached_tokens as cached_tokens,
    g.saved_ms as saved_ms,
    g.e2e_ms as e2e_ms,
    g.error as error
from g
cross join attribution_rules as p
where g.reached >= p.min_reach_rows and g.requests >= p.min_rows
