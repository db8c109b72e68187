-- Requests that met every limit of the SLO. A killed request met none; one whose limited metric is
-- not known is left out; an answer of one token has no TPOT to miss.
-- grain: one row.
-- inputs: request_facts, slo
-- n: finished requests that can be judged
-- good: how many met every limit
-- span_s: [s] from the first arrival to the last end, NULL without a clock
select
    count(*) as n,
    cast(sum(case
        when f.completed = 1
            and (s.ttft_ms is null or f.ttft_ms <= s.ttft_ms)
            and (s.tpot_ms is null or f.tpot_ms is null or f.tpot_ms <= s.tpot_ms)
            and (s.e2e_ms is null or f.e2e_ms <= s.e2e_ms)
        then 1 else 0 end) as bigint) as good,
    cast(max(f.arrival_unix_ns + cast(floor(coalesce(f.e2e_ms, 0.0) * 1e6) as bigint))
        - min(f.arrival_unix_ns) as double) / 1e9 as span_s
from request_facts as f
cross join slo as s
where f.completed + f.censored > 0
    and (s.ttft_ms is null or f.ttft_ms is not null or f.censored = 1)
    and (s.e2e_ms is null or f.e2e_ms is not null or f.censored = 1)
