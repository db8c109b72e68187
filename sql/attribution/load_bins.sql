-- How busy each worker was over time, from the requests themselves: who waited, prefilled, decoded.
-- Counts are means over the slice, exact: an interval that covers half a slice counts a half. The
-- running sums (`total_`) make the mean over any stretch of slices a difference of two rows.
-- grain: one row per worker and slice of time.
-- inputs: stall_phases, request_facts, load_rules, time_bins
-- worker: worker, or the model where no worker is known
-- bin_unix_ns: [unix ns] start of the slice
-- waiting: [1] requests in its queue
-- prefilling: [1] requests that it prefilled
-- decoding: [1] requests that it decoded
-- moving: [1] requests whose KV cache was on its way to it
-- arrived: requests that came to it in the slice
-- kv_tokens: [tokens] context of the requests in service
-- idle_unix_ns: [unix ns] the last slice, up to this one, in which mostly nothing waited; NULL: none
-- total_waiting: [1] sum of `waiting` over the slices up to and with this one
-- total_prefilling: [1] as total_waiting
-- total_decoding: [1] as total_waiting
-- total_moving: [1] as total_waiting
-- total_arrived: requests that came to it up to and with this slice
-- total_kv_tokens: [tokens] as total_waiting
with intervals as (
    select
        coalesce(p.worker, case when p.phase = 'decode' then c.worker else c.prefill_worker end,
            c.model) as worker,
        p.start_unix_ns as start_unix_ns,
        p.end_unix_ns as end_unix_ns,
        cast(case when p.phase = 'queue' then 1 else 0 end as double) as waiting,
        cast(case when p.phase = 'prefill' then 1 else 0 end as double) as prefilling,
        cast(case when p.phase = 'decode' then 1 else 0 end as double) as decoding,
        cast(case when p.phase = 'kv_transfer' then 1 else 0 end as double) as moving,
        -- a worker first sees a request in its queue, a decode server in the transfer to it
        cast(case when p.phase in ('queue', 'kv_transfer') then 1
            when p.phase = 'prefill' and coalesce(c.queue_ms, 0.0) <= 0.0 then 1
            else 0 end as double) as arrived,
        case when p.phase = 'prefill' then coalesce(c.input_tokens, 0.0)
            when p.phase = 'decode' then coalesce(c.input_tokens, 0.0) + coalesce(c.steps, 0.0) / 2.0
            else 0.0 end as kv_tokens
    from stall_phases as p
    join request_facts as c on p.request_key = c.request_key
    where p.is_counted = 1
),

edges as (
    select worker, start_unix_ns as at_unix_ns, waiting, prefilling, decoding, moving, arrived,
        kv_tokens
    from intervals
    union all
    select worker, end_unix_ns as at_unix_ns, -waiting as waiting, -prefilling as prefilling,
        -decoding as decoding, -moving as moving, 0.0 * arrived as arrived, -kv_tokens as kv_tokens
    from intervals
),

-- share: how much of the slice lies after the edge
placed as (
    select
        e.worker as worker,
        e.at_unix_ns - e.at_unix_ns % nullif(r.bin_ns, 0) as bin_unix_ns,
        1.0 - cast(e.at_unix_ns % nullif(r.bin_ns, 0) as double) / nullif(cast(r.bin_ns as double), 0.0)
            as share,
        e.waiting * cast(r.step as double) as waiting,
        e.prefilling * cast(r.step as double) as prefilling,
        e.decoding * cast(r.step as double) as decoding,
        e.moving * cast(r.step as double) as moving,
        e.arrived * cast(r.step as double) as arrived,
        e.kv_tokens * cast(r.step as double) as kv_tokens
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
        sum(kv_tokens) as kv_tokens,
        sum(waiting * share) as waiting_part,
        sum(prefilling * share) as prefilling_part,
        sum(decoding * share) as decoding_part,
        sum(moving * share) as moving_part,
        sum(kv_tokens * share) as kv_tokens_part
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
        coalesce(c.waiting, 0.0) as waiting,
        coalesce(c.prefilling, 0.0) as prefilling,
        coalesce(c.decoding, 0.0) as decoding,
        coalesce(c.moving, 0.0) as moving,
        coalesce(c.arrived, 0.0) as arrived,
        coalesce(c.kv_tokens, 0.0) as kv_tokens,
        coalesce(c.waiting_part, 0.0) as waiting_part,
        coalesce(c.prefilling_part, 0.0) as prefilling_part,
        coalesce(c.decoding_part, 0.0) as decoding_part,
        coalesce(c.moving_part, 0.0) as moving_part,
        coalesce(c.kv_tokens_part, 0.0) as kv_tokens_part
    from workers as w
    cross join time_bins as b
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
        arrived,
        sum(kv_tokens) over w - kv_tokens + kv_tokens_part as kv_tokens
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
    kv_tokens,
    max(case when waiting < 0.5 then bin_unix_ns end) over w as idle_unix_ns,
    sum(waiting) over w as total_waiting,
    sum(prefilling) over w as total_prefilling,
    sum(decoding) over w as total_decoding,
    sum(moving) over w as total_moving,
    sum(arrived) over w as total_arrived,
    sum(kv_tokens) over w as total_kv_tokens
from levels
window w as (
    partition by worker order by bin_unix_ns nulls last
    rows between unbounded preceding and current row
)
