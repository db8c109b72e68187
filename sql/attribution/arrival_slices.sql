-- How many requests came in per slice of time, empty slices too, and up to it.
-- grain: one row per model and slice.
-- inputs: request_facts, arrival_rules, arrival_times
-- model: model name, '' if unknown
-- bin_unix_ns: [unix ns] start of the slice
-- arrivals: requests that were meant to start in it
-- total_arrivals: those up to and with this slice
with seen as (
    select
        f.model as model,
        f.arrival_unix_ns - f.arrival_unix_ns % nullif(a.slice_ns, 0) as bin_unix_ns,
        count(*) as arrivals
    from request_facts as f
    cross join arrival_rules as a
    where f.arrival_unix_ns is not null and f.completed + f.censored > 0
    group by f.model, f.arrival_unix_ns - f.arrival_unix_ns % nullif(a.slice_ns, 0)
),

models as (
    select distinct model from seen
),

dense as (
    select
        m.model as model,
        t.bin_unix_ns as bin_unix_ns,
        coalesce(s.arrivals, 0) as arrivals
    from models as m
    cross join arrival_times as t
    left join seen as s on m.model = s.model and t.bin_unix_ns = s.bin_unix_ns
)

select
    model,
    bin_unix_ns,
    arrivals,
    cast(sum(arrivals) over (
        partition by model order by bin_unix_ns nulls last
        rows between unbounded preceding and current row
    ) as bigint) as total_arrivals
from dense
