-- Whether more came in than usual before a suspect lost its time: at once, or lastingly.
-- Looked at: stretches of 1 to 256 slices that end when its loss began, or before that as long as
-- something has been waiting on its worker ever since. Of these the one that is least likely by
-- chance counts. What comes later cannot have made it wait, but tells how long the rise lasts: that
-- is the least likely of the stretches that end later too.
-- Usual is the 30th percentile of all stretches of 30 slices (most may be busy), raised by what
-- counting few takes off it. Requests are counted, not tokens: large prompts are another cause.
-- grain: one row per suspect.
-- inputs: suspect_load, arrival_slices, arrival_rules, attribution_rules
-- suspect_id: the row of suspect_requests
-- usual: [1] arrivals that are usual in as long a stretch, of its model
-- recent: [1] arrivals in that stretch
-- before: [1] arrivals in as long a stretch before it, NULL where the window does not reach so far
-- stretch_ns: [ns] length of the stretch
-- lasting_ns: [ns] how long the rise lasts, at least
-- is_elevated: 1 if clearly more came than usual
-- is_spike: 1 if it came at once: many times the usual, in a short stretch; or in a longer one of
--   which a quarter brought much of the rise, and far more than the others, and whose end is as usual
with rolling as (
    select
        model,
        avg(cast(arrivals as double)) over (
            partition by model order by bin_unix_ns nulls last
            rows between 29 preceding and current row
        ) as arrivals
    from arrival_slices
),

low as (
    -- stretches in which nothing came say nothing of how much is usual
    select model, 30.0 * percentile_cont(0.3) within group (order by arrivals) as arrivals
    from rolling
    where arrivals > 0
    group by model
),

usual as (
    -- of few arrivals the 30th percentile lies half a deviation of counting below the mean
    select model, (arrivals + 0.524 * sqrt(arrivals)) / 30.0 as usual
    from low
),

reach as (
    select min(bin_unix_ns) as first_unix_ns, count(distinct bin_unix_ns) as slices
    from arrival_slices
),

lengths as (
    select 1 as slices, 0 as eighth
    union all select 2 as slices, 0 as eighth union all select 4 as slices, 0 as eighth
    union all select 8 as slices, 1 as eighth union all select 16 as slices, 2 as eighth
    union all select 32 as slices, 4 as eighth union all select 64 as slices, 8 as eighth
    union all select 128 as slices, 16 as eighth union all select 256 as slices, 32 as eighth
),

eighths as (
    select 0 as eighths_ago union all select 1 as eighths_ago union all select 2 as eighths_ago
    union all select 3 as eighths_ago union all select 4 as eighths_ago
    union all select 5 as eighths_ago union all select 6 as eighths_ago
    union all select 7 as eighths_ago
),

ends as (
    select 0 as slices_ago union all select 1 as slices_ago union all select 2 as slices_ago
    union all select 4 as slices_ago union all select 8 as slices_ago
    union all select 16 as slices_ago union all select 32 as slices_ago
    union all select 64 as slices_ago
    union all select -1 as slices_ago union all select -2 as slices_ago
    union all select -4 as slices_ago union all select -8 as slices_ago
    union all select -16 as slices_ago union all select -32 as slices_ago
),

stretches as (
    select
        s.suspect_id as suspect_id,
        s.model as model,
        l.slices as slices,
        l.eighth as eighth,
        s.start_unix_ns - s.start_unix_ns % nullif(r.slice_ns, 0) - e.slices_ago * r.slice_ns
            as last_unix_ns,
        l.slices * r.slice_ns as stretch_ns,
        case when e.slices_ago >= 0 then 1 else 0 end as is_past
    from suspect_load as s
    cross join arrival_rules as r
    cross join reach as w
    cross join lengths as l
    cross join ends as e
    where s.is_control = 0
        -- a longer stretch would be most of the window, and so the usual itself
        and (l.slices = 1 or 3 * l.slices <= w.slices)
        and l.slices > -e.slices_ago
        and (e.slices_ago <= 0
            or s.start_unix_ns - s.start_unix_ns % nullif(r.slice_ns, 0)
                - (e.slices_ago - 1) * r.slice_ns > s.idle_unix_ns)
        and s.start_unix_ns - s.start_unix_ns % nullif(r.slice_ns, 0)
            - (e.slices_ago + l.slices - 1) * r.slice_ns >= w.first_unix_ns
),

counted as (
    select
        t.suspect_id as suspect_id,
        t.slices as slices,
        t.eighth as eighth,
        t.stretch_ns as stretch_ns,
        t.last_unix_ns as last_unix_ns,
        t.is_past as is_past,
        t.model as model,
        cast(a.total_arrivals - coalesce(b.total_arrivals, 0) as double) as arrivals,
        b.total_arrivals as total_before,
        u.usual * cast(t.slices as double) as usual
    from stretches as t
    join arrival_slices as a on t.model = a.model and t.last_unix_ns = a.bin_unix_ns
    left join arrival_slices as b
        on t.model = b.model and t.last_unix_ns - t.stretch_ns = b.bin_unix_ns
    join usual as u on t.model = u.model
),

risen as (
    select
        suspect_id, slices, eighth, stretch_ns, last_unix_ns, is_past, model, arrivals,
        total_before, usual,
        (arrivals - usual) / nullif(sqrt(usual + 1.0), 0.0) as rise
    from counted
),

ranked as (
    select
        suspect_id,
        slices,
        eighth,
        stretch_ns,
        last_unix_ns,
        is_past,
        model,
        arrivals,
        total_before,
        usual,
        rise,
        row_number() over (
            partition by suspect_id, is_past
            order by rise desc nulls last, slices nulls last, last_unix_ns desc nulls last
        ) as place
    from risen
),

-- what each eighth of the stretch brought
brought as (
    select
        c.suspect_id as suspect_id,
        e.eighths_ago as eighths_ago,
        cast(a.total_arrivals - coalesce(b.total_arrivals, 0) as double) as arrivals,
        row_number() over (
            partition by c.suspect_id
            order by a.total_arrivals - coalesce(b.total_arrivals, 0) desc nulls last,
                e.eighths_ago nulls last
        ) as place
    from ranked as c
    cross join eighths as e
    cross join arrival_rules as r
    join arrival_slices as a
        on c.model = a.model
        and c.last_unix_ns - e.eighths_ago * c.eighth * r.slice_ns = a.bin_unix_ns
    left join arrival_slices as b
        on c.model = b.model
        and c.last_unix_ns - (e.eighths_ago + 1) * c.eighth * r.slice_ns = b.bin_unix_ns
    where c.is_past = 1 and c.place = 1 and c.eighth > 0
),

-- the two that brought most, wherever they lie: two bursts are no lasting rise
peaks as (
    select
        suspect_id,
        sum(case when place <= 2 then arrivals else 0.0 end) as arrivals,
        sum(case when place > 2 then arrivals else 0.0 end) / 3.0 as beside,
        max(case when eighths_ago = 0 then arrivals end) as last_eighth
    from brought
    group by suspect_id
),

compared as (
    select
        c.suspect_id as suspect_id,
        c.usual as usual,
        c.arrivals as recent,
        cast(c.total_before - coalesce(b.total_arrivals, 0) as double) as before,
        c.stretch_ns as stretch_ns,
        k.arrivals as peak,
        k.beside as beside,
        k.last_eighth as last_eighth,
        -- a stretch that ends later is the rise if it is less likely still
        case when n.rise > c.rise then n.slices else c.slices end as lasting_slices
    from ranked as c
    left join ranked as n on c.suspect_id = n.suspect_id and n.is_past = 0 and n.place = 1
    left join peaks as k on c.suspect_id = k.suspect_id
    left join arrival_slices as b
        on c.model = b.model and c.last_unix_ns - 2 * c.stretch_ns = b.bin_unix_ns
    where c.is_past = 1 and c.place = 1
)

select
    c.suspect_id as suspect_id,
    c.usual as usual,
    c.recent as recent,
    c.before as before,
    c.stretch_ns as stretch_ns,
    c.lasting_slices * r.slice_ns as lasting_ns,
    case when c.recent > p.demand_factor * c.usual
             -- and by more than counting noise, with many stretches looked at
             and c.recent - c.usual > p.demand_deviations * sqrt(c.usual + 1.0)
         then 1 else 0 end as is_elevated,
    case when c.recent > p.spike_factor * c.usual
             and (c.before is null or c.recent > p.spike_factor * c.before)
             and c.lasting_slices <= case when w.slices > 50 * p.spike_slices
                 then w.slices / 50.0 else p.spike_slices end
         then 1
         when c.peak > p.spike_factor * 0.25 * c.usual
             and c.peak - c.beside > p.demand_deviations * sqrt(c.beside + 1.0)
             -- and it is over: what goes on is no burst, not even at its beginning
             and c.last_eighth <= 0.125 * c.usual + p.over_deviations * sqrt(0.125 * c.usual + 1.0)
             and c.peak - 0.25 * c.usual >= p.spike_part * (c.recent - c.usual)
         then 1 else 0 end as is_spike
from compared as c
cross join reach as w
cross join arrival_rules as r
cross join attribution_rules as p
