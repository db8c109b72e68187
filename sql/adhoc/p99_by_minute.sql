-- Percentiles of TTFT and E2E per minute and model; a 99th needs 300 requests, a 95th 60, else NULL.
-- grain: one row per minute and model
-- inputs: requests
-- minute: UTC minute the requests started in
-- model: model name
-- n: completed requests; a percentile is NULL where they are too few
-- ttft_p50_ms: [ms] median TTFT
-- ttft_p95_ms: [ms] 95th percentile of TTFT, NULL below 60 requests that have one
-- ttft_p99_ms: [ms] 99th percentile of TTFT, NULL below 300 requests that have one
-- e2e_p50_ms: [ms] median wall time
-- e2e_p95_ms: [ms] 95th percentile of wall time, NULL below 60 requests that have one
-- e2e_p99_ms: [ms] 99th percentile of wall time, NULL below 300 requests that have one
select
    make_timestamp(start_unix_ns // 60000000000 * 60000000) as minute,
    model,
    count(*) as n,
    quantile_cont(ttft_ms, 0.5) as ttft_p50_ms,
    case when count(ttft_ms) >= 60 then quantile_cont(ttft_ms, 0.95) end as ttft_p95_ms,
    case when count(ttft_ms) >= 300 then quantile_cont(ttft_ms, 0.99) end as ttft_p99_ms,
    quantile_cont(e2e_ms, 0.5) as e2e_p50_ms,
    case when count(e2e_ms) >= 60 then quantile_cont(e2e_ms, 0.95) end as e2e_p95_ms,
    case when count(e2e_ms) >= 300 then quantile_cont(e2e_ms, 0.99) end as e2e_p99_ms
from requests
where status = 'ok' and quarantine_reason is null and start_unix_ns is not null
group by all
order by minute, model
