-- What prefix-cache hits save: prefill time with and without a hit, at like prompt lengths.
-- grain: one row per model and prompt-length bucket (powers of two)
-- inputs: requests
-- model: model name
-- input_tokens_from: [tokens] lower end of the bucket
-- n_hit: requests with cached tokens
-- n_miss: requests without
-- cached_share: [1] cached over all input tokens
-- prefill_hit_p50_ms: [ms] median prefill (or queue and prefill) with a hit
-- prefill_miss_p50_ms: [ms] the same without
-- saved_s: [s] seconds saved by the hits of this bucket, were every hit worth the difference
select
    model,
    (2 ** floor(log2(input_tokens)))::bigint as input_tokens_from,
    count(*) filter (where cached_tokens > 0) as n_hit,
    count(*) filter (where cached_tokens = 0) as n_miss,
    sum(cached_tokens) / sum(input_tokens)::double as cached_share,
    quantile_cont(coalesce(prefill_ms, queue_or_prefill_ms), 0.5)
        filter (where cached_tokens > 0) as prefill_hit_p50_ms,
    quantile_cont(coalesce(prefill_ms, queue_or_prefill_ms), 0.5)
        filter (where cached_tokens = 0) as prefill_miss_p50_ms,
    count(*) filter (where cached_tokens > 0)
        * (prefill_miss_p50_ms - prefill_hit_p50_ms) / 1000 as saved_s
from requests
where input_tokens > 0 and cached_tokens is not null and quarantine_reason is null
group by all
order by model, input_tokens_from
