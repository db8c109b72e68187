-- Per model: is waiting the rule (too little capacity) or the exception (bursts)?
-- grain: one row per model.
-- inputs: arrival_bins
-- model: model name, '' if unknown
-- bins: slices of time with arrivals
-- usual_arrivals: median arrivals of a slice
-- waiting_share: [1] share of the slices in which at least half of the arrivals waited
-- service_ratio: [1] median over the slices of service time over the expected
select
    model,
    count(*) as bins,
    percentile_cont(0.5) within group (order by cast(arrivals as double)) as usual_arrivals,
    avg(case when 2 * waited >= arrivals then 1.0 else 0.0 end) as waiting_share,
    percentile_cont(0.5) within group (order by service_ratio) as service_ratio
from arrival_bins
group by model
