-- Whether more came in than usual before a suspect lost its time: in a spike, or lastingly.
-- Looked at: two stretches of twelve slices before its loss began (at least 24 s, about ten times
-- what a request takes), against a usual stretch of the window (the 30th percentile of them: most
-- may be busy). Requests are counted, not tokens: large prompts are another cause.
-- grain: one row per suspect.
-- inputs: suspect_load, arrival_slices, arrival_rules, attribution_rules
-- suspect_id: the row of suspect_requests
-- usual: [1] arrivals in a usual slice of its model
-- recent: [1] arrivals a slice in the twelve slices up to its loss
-- before: [1] arrivals a slice in the twelve slices before those
-- peak: [1] arrivals a slice in the two busiest of the recent ones
-- is_elevated: 1 if clearly more came than usual
-- is_spike: 1 if most of the surplus came at once
with rolling as (
    select
        model,
        avg(cast(arrivals as double)) over (
            partition by model order by bin_unix_ns nulls last
            rows between 11 preceding and current row
        ) as arrivals
    from arrival_slices
),

usual as (
    -- stretches in which nothing came say nothing of how much is usual
    select model, percentile_cont(0.3) within group (order by arrivals) as usual
    from rolling
    where arrivals > 0
    group by model
),

near as (
    select
        s.suspect_id as suspect_id,
        s.model as model,
        a.bin_unix_ns as bin_unix_ns,
        cast(a.arrivals as double) as arrivals,
        case when a.bin_unix_ns > s.start_unix_ns - 12 * r.bin_ns then 1 else 0 end as is_recent
    from suspect_load as s
    cross join arrival_rules as r
    join arrival_slices as a on s.model = a.model
    where s.is_control = 0
        and a.bin_unix_ns <= s.start_unix_ns
        and a.bin_unix_ns > s.start_unix_ns - 24 * r.bin_ns
),

ranked as (
    select
        suspect_id,
        model,
        arrivals,
        is_recent,
        row_number() over (
            partition by suspect_id, is_recent order by arrivals desc nulls last, bin_unix_ns nulls last
        ) as place
    from near
),

counted as (
    select
        suspect_id,
        model,
        sum(case when is_recent = 1 then arrivals else 0.0 end) as recent_arrivals,
        sum(cast(is_recent as double)) as recent_slices,
        avg(case when is_recent = 0 then arrivals end) as before_slice,
        avg(case when is_recent = 1 and place <= 2 then arrivals end) as peak
    from ranked
    group by suspect_id, model
),

compared as (
    select
        c.suspect_id as suspect_id,
        u.usual as usual,
        c.recent_arrivals as recent_arrivals,
        c.recent_slices as recent_slices,
        c.recent_arrivals / nullif(c.recent_slices, 0.0) as recent,
        c.before_slice as before_slice,
        c.peak as peak
    from counted as c
    join usual as u on c.model = u.model
)

select
    c.suspect_id as suspect_id,
    c.usual as usual,
    c.recent as recent,
    c.before_slice as before,
    c.peak as peak,
    case when c.recent > p.demand_factor * c.usual
             -- and by more than counting noise
             and c.recent_arrivals - c.usual * c.recent_slices
                 > 3.0 * sqrt(c.usual * c.recent_slices + 1.0)
         then 1 else 0 end as is_elevated,
    case when c.peak > p.burst_factor * c.usual and c.peak > p.spike_factor * c.recent
         then 1 else 0 end as is_spike
from compared as c
cross join attribution_rules as p
