-- What loading KV from another place (a slower tier, a link) took, beside what computing the same
-- tokens again would take. Only where the bytes that moved follow the tokens from the cache, not the
-- prompt: a hand-over from a prefill server is another thing. A request may have had other tokens from
-- the GPU's own cache as well, so what computing would take is at most what is said here.
-- grain: one row per cell of the cost model that has loads.
-- inputs: request_facts, cost_model, attribution_rules
-- cell_index: row of the cost model
-- loads: completed requests that loaded what they had from a cache
-- slower: those of them whose load took longer than computing
-- load_ms: [ms] what the loads took, where it was not hidden behind something else
-- compute_ms: [ms] prefill that the loaded tokens would have taken
-- median_load_ms: [ms] a load at the median
-- median_tokens: [tokens] loaded at the median
-- same_time_tokens: [tokens] prompt that is computed in the time of the median load
-- error: [1] how far half of the requests lie from the fit of prefill, as a share of the median
with r as (
    select
        c.cell_index as cell_index,
        f.input_tokens as input_tokens,
        f.uncached_tokens as uncached_tokens,
        f.input_tokens - f.uncached_tokens as loaded_tokens,
        f.kv_transfer_ms as load_ms,
        cast(f.kv_bytes as double) as kv_bytes,
        c.prefill_a1 * (f.input_tokens - f.uncached_tokens)
            + c.prefill_a2 * (f.input_tokens * f.input_tokens / 2.0 - f.attended_tokens_sq)
            as compute_ms,
        c.prefill_a1 as prefill_a1,
        c.prefill_error as error
    from request_facts as f
    join cost_model as c
        on f.model = c.model and f.engine = c.engine
        and f.engine_version = c.engine_version and f.topology = c.topology
    cross join attribution_rules as p
    where f.completed = 1 and f.cached_known = 1 and f.kv_transfer_ms > 0 and f.kv_bytes > 0
        and f.uncached_tokens < f.input_tokens and f.uncached_tokens > 0
        and f.worker = f.prefill_worker and coalesce(f.preemptions, 0) = 0
        and c.prefill_a1 > 0 and c.prefill_borrowed = 0 and c.prefill_error <= p.max_fit_error
),

g as (
    select
        cell_index,
        count(*) as loads,
        count(case when load_ms > compute_ms then 1 end) as slower,
        sum(load_ms) as load_ms,
        sum(compute_ms) as compute_ms,
        percentile_cont(0.5) within group (order by load_ms) as median_load_ms,
        percentile_cont(0.5) within group (order by loaded_tokens) as median_tokens,
        max(prefill_a1) as prefill_a1,
        max(error) as error,
        percentile_cont(0.1) within group (order by kv_bytes / nullif(loaded_tokens, 0.0))
            as low_by_loaded,
        percentile_cont(0.9) within group (order by kv_bytes / nullif(loaded_tokens, 0.0))
            as high_by_loaded,
        percentile_cont(0.1) within group (order by kv_bytes / nullif(input_tokens, 0.0))
            as low_by_prompt,
        percentile_cont(0.9) within group (order by kv_bytes / nullif(input_tokens, 0.0))
            as high_by_prompt
    from r
    group by cell_index
),

-- prompts of which as much was computed as is loaded: the fit has seen what it is asked
s as (
    select r.cell_index as cell_index, count(*) as reached
    from r
    join g on r.cell_index = g.cell_index
    cross join attribution_rules as p
    where r.uncached_tokens >= p.fit_reach * g.median_tokens
    group by r.cell_index
)

select
    g.cell_index as cell_index,
    g.loads as loads,
    g.slower as slower,
    g.load_ms as load_ms,
    g.compute_ms as compute_ms,
    g.median_load_ms as median_load_ms,
    g.median_tokens as median_tokens,
    g.median_load_ms / nullif(g.prefill_a1, 0.0) as same_time_tokens,
    g.error as error
from g
join s on g.cell_index = s.cell_index
cross join attribution_rules as p
where g.loads >= p.min_rows and s.reached >= p.min_reach_rows
    and g.high_by_loaded <= p.same_size * g.low_by_loaded
    and g.high_by_prompt > p.same_size * g.low_by_prompt
