-- How busy each worker was over time, from the requests themselves: who waited, prefilled, decoded.
-- Counts are means over the slice, exact: an interval that covers half a slice counts a half. The
-- running sums (`total_`) make the mean over any stretch of slices a difference of two rows.
-- grain: one row per worker and slice of time.
-- inputs: stall_phases, load_rules, time_bins
-- worker: worker, or the model where no worker is known
-- bin_unix_ns: [unix ns] start of the slice
-- waiting: [1] requests in its queue
-- prefilling: [1] requests that it prefilled
-- decoding: [1] requests that it decoded
-- moving: [1] requests whose KV cache was on its way to it
-- arrived: requests that came to it in the slice
-- idle_unix_ns: [unix ns] the last slice, up to this one, in which mostly nothing waited; NULL: none
-- total_waiting: [1] sum of `waiting` over the slices up to and with this one
-- total_prefilling: [1] as total_waiting
-- total_decoding: [1] as total_waiting
-- total_moving: [1] as total_waiting
-- total_arrived: requests that came to it up to and with this slice
with intervals as (
    select
        place as worker,
        start_unix_ns,
        end_unix_ns,
        cast(case when phase = 'queue' then 1 else 0 end as double) as waiting,
        cast(case when phase = 'prefill' then 1 else 0 end as double) as prefilling,
        cast(case when phase = 'decode' then 1 else 0 end as double) as decoding,
        cast(case when phase = 'kv_transfer' then 1 else 0 end as double) as moving
    from stall_phases
    where is_counted = 1
),

-- a request comes to a worker where its first phase there begins
arrivals as (
    select place as worker, min(start_unix_ns) as at_unix_ns
    from stall_phases
    where is_counted = 1
    group by place, request_key
),

edges as (
    select worker, start_unix_ns as at_unix_ns, waiting, prefilling, decoding, moving,
        cast(0 as double) as arrived
    from intervals
    union all
    select worker, end_unix_ns as at_unix_ns, -waiting as waiting, -prefilling as prefilling,
        -decoding as decoding, -moving as moving, cast(0 as double) as arrived
    from intervals
    union all
    select worker, at_unix_ns, cast(0 as double) as waiting, cast(0 as double) as prefilling,
        cast(0 as double) as decoding, cast(0 as double) as moving, cast(1 as double) as arrived
    from arrivals
),

-- share: how much of the slice lies after the edge
placed as (
    select
        e.worker as worker,
        e.at_unix_ns - e.at_unix_ns % nullif(r.bin_ns, 0) as bin_unix_ns,
        1.0 - cast(e.at_unix_ns % nullif(r.bin_ns, 0) as double) / nullif(cast(r.bin_ns as double), 0.0)
            as share,
        e.waiting as waiting,
        e.prefilling as prefilling,
        e.decoding as decoding,
        e.moving as moving,
        e.arrived as arrived
    from edges as e
    cross join load_rules as r
),

changes as (
    select
        worker,
        bin_unix_ns,
        sum(waiting) as waiting,
        sum(prefilling) as prefilling,
        sum(decoding) as decoding,
        sum(moving) as moving,
        sum(arrived) as arrived,
        sum(waiting * share) as waiting_part,
        sum(prefilling * share) as prefilling_part,
        sum(decoding * share) as decoding_part,
        sum(moving * share) as moving_part
    from placed
    group by worker, bin_unix_ns
),

workers as (
    select distinct worker from changes
),

dense as (
    select
        w.worker as worker,
        b.bin_unix_ns as bin_unix_ns,
        coalesce(c.waiting, 0.0) * cast(r.step as double) as waiting,
        coalesce(c.prefilling, 0.0) * cast(r.step as double) as prefilling,
        coalesce(c.decoding, 0.0) * cast(r.step as double) as decoding,
        coalesce(c.moving, 0.0) * cast(r.step as double) as moving,
        coalesce(c.arrived, 0.0) * cast(r.step as double) as arrived,
        coalesce(c.waiting_part, 0.0) * cast(r.step as double) as waiting_part,
        coalesce(c.prefilling_part, 0.0) * cast(r.step as double) as prefilling_part,
        coalesce(c.decoding_part, 0.0) * cast(r.step as double) as decoding_part,
        coalesce(c.moving_part, 0.0) * cast(r.step as double) as moving_part
    from workers as w
    cross join time_bins as b
    cross join load_rules as r
    left join changes as c on w.worker = c.worker and b.bin_unix_ns = c.bin_unix_ns
),

-- those that were there when the slice began, and what changed within it
levels as (
    select
        worker,
        bin_unix_ns,
        sum(waiting) over w - waiting + waiting_part as waiting,
        sum(prefilling) over w - prefilling + prefilling_part as prefilling,
        sum(decoding) over w - decoding + decoding_part as decoding,
        sum(moving) over w - moving + moving_part as moving,
        arrived
    from dense
    window w as (
        partition by worker order by bin_unix_ns nulls last
        rows between unbounded preceding and current row
    )
)

select
    worker,
    bin_unix_ns,
    waiting,
    prefilling,
    decoding,
    moving,
    arrived,
    max(case when waiting < 0.5 then bin_unix_ns end) over w as idle_unix_ns,
    sum(waiting) over w as total_waiting,
    sum(prefilling) over w as total_prefilling,
    sum(decoding) over w as total_decoding,
    sum(moving) over w as total_moving,
    sum(arrived) over w as total_arrived
from levels
window w as (
    partition by worker order by bin_unix_ns nulls last
    rows between unbounded preceding and current row
)
