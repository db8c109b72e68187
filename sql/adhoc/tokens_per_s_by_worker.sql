-- Is one worker slower than its peers at the same work?
-- grain: one row per worker and model
-- inputs: window_requests
-- worker: worker that decoded
-- model: model name
-- n: completed requests
-- output_tokens: [tokens] generated in all
-- tpot_p50_ms: [ms] median time per output token
-- tpot_p95_ms: [ms] 95th percentile of it, NULL below 60 requests that have one
-- tokens_per_s_p50: [tokens/s] median over requests of output tokens / wall time
select
    worker,
    model,
    count(*) as n,
    sum(output_tokens)::bigint as output_tokens,
    quantile_cont(tpot_ms, 0.5) as tpot_p50_ms,
    case when count(tpot_ms) >= 60 then quantile_cont(tpot_ms, 0.95) end as tpot_p95_ms,
    quantile_cont(tokens_per_s, 0.5) as tokens_per_s_p50
from window_requests
where status = 'ok' and quarantine_reason is null and superseded_attempt = 0
group by all
order by tpot_p50_ms desc nulls last
