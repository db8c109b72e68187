-- How busy the worker was while a suspect lost its time: means over the slices that it touched.
-- grain: one row per suspect and control whose phase has a place on the clock.
-- inputs: suspect_requests, stall_phases, request_facts, load_bins, load_rules
-- suspect_id: the row of suspect_requests
-- request_key: identity of the request
-- phase: phase it lost its time in
-- is_control: 0 for what is to be explained; 1 for ordinary requests, there to tell what is usual;
--   2 for how suspects that waited were served
-- model: model name, '' if unknown
-- worker: worker of that phase, or the model where none is known
-- actual_ms: [ms] what the phase took
-- expected_ms: [ms] what it should have taken
-- excess_ms: [ms] actual less expected
-- start_unix_ns: [unix ns] start of its longest stretch of that phase
-- end_unix_ns: [unix ns] its end
-- idle_unix_ns: [unix ns] until when mostly nothing waited on the worker before that, 0 if it always
--   did; when the request itself came, if that was before: what came with it is served beside it
-- slices: [1] slices touched
-- waiting: [1] requests in the worker's queue
-- prefilling: [1] requests that it prefilled
-- decoding: [1] requests that it decoded
-- moving: [1] requests whose KV cache was on its way to it
-- backlog: [1] requests in the worker's queue in these slices and the seconds before
with stretches as (
    select
        s.suspect_id as suspect_id,
        s.request_key as request_key,
        s.phase as phase,
        s.is_control as is_control,
        s.actual_ms as actual_ms,
        s.expected_ms as expected_ms,
        s.excess_ms as excess_ms,
        f.model as model,
        f.arrival_unix_ns as arrival_unix_ns,
        -- a client's boundaries name no worker, but its log may
        coalesce(p.worker, case when s.phase = 'decode' then f.worker else f.prefill_worker end,
            f.model) as worker,
        p.start_unix_ns as start_unix_ns,
        p.end_unix_ns as end_unix_ns,
        row_number() over (
            partition by s.suspect_id
            order by p.end_unix_ns - p.start_unix_ns desc nulls last, p.start_unix_ns nulls last
        ) as place
    from suspect_requests as s
    join stall_phases as p on s.request_key = p.request_key and s.phase = p.phase
    join request_facts as f on s.request_key = f.request_key
),

longest as (
    select
        t.suspect_id as suspect_id,
        t.request_key as request_key,
        t.phase as phase,
        t.is_control as is_control,
        t.actual_ms as actual_ms,
        t.expected_ms as expected_ms,
        t.excess_ms as excess_ms,
        t.model as model,
        t.arrival_unix_ns as arrival_unix_ns,
        t.worker as worker,
        t.start_unix_ns as start_unix_ns,
        t.end_unix_ns as end_unix_ns,
        r.bin_ns as bin_ns,
        r.lead_ns as lead_ns,
        t.start_unix_ns - t.start_unix_ns % nullif(r.bin_ns, 0) as first_bin,
        t.end_unix_ns - t.end_unix_ns % nullif(r.bin_ns, 0) as last_bin
    from stretches as t
    cross join load_rules as r
    where t.place = 1
),

sized as (
    select
        suspect_id, request_key, phase, is_control, actual_ms, expected_ms, excess_ms, model,
        arrival_unix_ns, worker, start_unix_ns, end_unix_ns, first_bin, last_bin, bin_ns,
        lead_ns,
        1.0 + cast(last_bin - first_bin as double) / nullif(cast(bin_ns as double), 0.0) as slices
    from longest
)

select
    z.suspect_id as suspect_id,
    z.request_key as request_key,
    z.phase as phase,
    z.is_control as is_control,
    z.model as model,
    z.worker as worker,
    z.actual_ms as actual_ms,
    z.expected_ms as expected_ms,
    z.excess_ms as excess_ms,
    z.start_unix_ns as start_unix_ns,
    z.end_unix_ns as end_unix_ns,
    case when z.arrival_unix_ns < coalesce(case when a.worker is null then z.first_bin
                 else a.idle_unix_ns + z.bin_ns end, 0)
             then z.arrival_unix_ns
         when a.worker is null then z.first_bin
         else coalesce(a.idle_unix_ns + z.bin_ns, 0) end as idle_unix_ns,
    z.slices as slices,
    (b.total_waiting - coalesce(a.total_waiting, 0.0)) / nullif(z.slices, 0.0) as waiting,
    (b.total_prefilling - coalesce(a.total_prefilling, 0.0)) / nullif(z.slices, 0.0) as prefilling,
    (b.total_decoding - coalesce(a.total_decoding, 0.0)) / nullif(z.slices, 0.0) as decoding,
    (b.total_moving - coalesce(a.total_moving, 0.0)) / nullif(z.slices, 0.0) as moving,
    (b.total_waiting - coalesce(c.total_waiting, 0.0))
        / nullif(z.slices + cast(z.lead_ns as double) / nullif(cast(z.bin_ns as double), 0.0), 0.0)
        as backlog
from sized as z
join load_bins as b on z.worker = b.worker and b.bin_unix_ns = z.last_bin
left join load_bins as a on z.worker = a.worker and a.bin_unix_ns = z.first_bin - z.bin_ns
left join load_bins as c
    on z.worker = c.worker and c.bin_unix_ns = z.first_bin - z.bin_ns - z.lead_ns
