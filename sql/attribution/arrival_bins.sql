-- Arrivals, waits and service per slice of time: what tells a burst from a lasting shortage.
-- grain: one row per model and slice of time with arrivals.
-- inputs: request_costs, arrival_rules, attribution_rules
-- model: model name, '' if unknown
-- bin_unix_ns: [unix ns] start of the slice
-- arrivals: requests that arrived in it
-- waited: arrivals whose queue wait was over the expected by more than the least that matters
-- service_ratio: [1] prefill and decode time of its arrivals over the expected, NULL if unknown
select
    c.model as model,
    c.arrival_unix_ns - c.arrival_unix_ns % nullif(a.bin_ns, 0) as bin_unix_ns,
    count(*) as arrivals,
    cast(sum(case when c.queue_ms - c.queue_expected_ms > p.min_excess_ms then 1 else 0 end)
        as bigint) as waited,
    case when sum(coalesce(c.prefill_expected_ms, 0.0) + coalesce(c.decode_expected_ms, 0.0)) > 0
        then sum(case when c.prefill_expected_ms is not null then c.prefill_ms else 0.0 end
                + case when c.decode_expected_ms is not null then c.decode_ms else 0.0 end)
            / sum(coalesce(c.prefill_expected_ms, 0.0) + coalesce(c.decode_expected_ms, 0.0))
        end as service_ratio
from request_costs as c
cross join arrival_rules as a
cross join attribution_rules as p
where c.arrival_unix_ns is not null
group by c.model, c.arrival_unix_ns - c.arrival_unix_ns % nullif(a.bin_ns, 0)
