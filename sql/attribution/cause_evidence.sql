-- Everything that the tests for causes look at, side by side.
-- grain: one row per suspect.
-- inputs: suspect_requests, slow_requests, suspect_load, stalls_explained, contention, worker_slices, slice_rules, peer_load, demand, load_usual, suspect_pressure, cache_losses, coincidences, transfer_costs, after_idle, phases
-- suspect_id: the row of suspect_requests
-- request_key: identity of the request
-- phase: phase it lost its time in
-- excess_ms: [ms] what it lost
-- expected_ms: [ms] what the phase should have taken
-- interference_ms: [ms] of it under other requests' prefills, beyond the usual
-- contention_ms: [ms] of it that more load than usual on the worker explains
-- decoding_ms: [ms] of contention_ms what more decoding requests explain
-- slow_share: [1] how much slower than its peers the worker served then, at equal load and shape
-- slow_ms: [ms] of what the phase took: what it would not have taken on a peer
-- slow_error: [1] standard error of slow_share
-- own_share: [1] how much slower than at other times it served then
-- decode_share: [1] as slow_share, of decode alone
-- waiting: [1] requests waiting on the worker
-- busy: [1] requests in service on the worker
-- moving: [1] requests whose KV cache was on its way to the worker
-- peers: other workers of its kind
-- peer_waiting: [1] requests waiting on the least loaded of them
-- peer_busy: [1] requests in service there
-- arrivals: [1] requests that came to the worker before and meanwhile
-- peer_arrivals: [1] requests that came to a peer, on average
-- surplus_share: [1] how many more came in than usual, as a share of the usual
-- is_elevated: 1 if clearly more came in than usual
-- is_spike: 1 if it came at once
-- waiting_share: [1] share of all slices in which something waits on the worker
-- slots_share: [1] requests in service as a share of the most it was seen to serve
-- full_share: [1] share of the samples that found its KV cache full
-- kv_usage: [1] mean usage of its KV cache
-- worker_preemptions: preemptions on the worker meanwhile, NULL where no sample told
-- transfer_share: [1] speed of its KV transfers as a share of the usual
-- clock_share: [1] GPU clock as a share of what such GPUs reach
-- throttled_share: [1] share of the clock samples that were throttled
-- cache_ms: [ms] of the excess that the cache hit it should have had would have saved
-- preemptions: times it was preempted itself
-- step_wait_ms: [ms] of a front-end loss the wait for an engine step
-- transfer_wait_ms: [ms] of a KV transfer the wait before it
-- wire_ms: [ms] of a KV transfer the time in which bytes moved, NULL if not told
-- alloc_ms: [ms] of a queue the wait for KV space of the decode server, NULL if not told
-- again_ms: [ms] prefill on a decode server that computed the prompt again
-- size_ms: [ms] of a KV transfer's excess that grows with its size
-- frozen_ms: [ms] of its loss that ended at the moment at which others of its worker went on too
-- idle_ms: [ms] of a slow prefill how long nothing had run on its worker, where those that come so are
--   the slow ones; NULL else
with shapes as (
    select
        request_key,
        max(preemptions) as preemptions,
        max(engine_step_wait_ms) as engine_step_wait_ms,
        max(kv_transfer_wait_ms) as kv_transfer_wait_ms,
        max(kv_transfer_wire_ms) as kv_transfer_wire_ms,
        max(double_prefill_ms) as double_prefill_ms
    from slow_requests
    group by request_key
),

-- waits for KV space of a decode server, as its requests tell them
allocs as (
    select h.request_key as request_key, sum(p.end_unix_ns - p.start_unix_ns) / 1e6 as alloc_ms
    from phases as p
    join shapes as h on p.request_key = h.request_key
    where p.sub_phase = 'queue.kv_alloc'
    group by h.request_key
),

-- a wait is explained by how the worker served meanwhile: its slowest phase counts
told as (
    select
        s.suspect_id as suspect_id,
        w.level as level,
        w.peer_level as peer_level,
        w.own_level as own_level,
        w.standard_error as standard_error,
        case when w.phase = 'decode' then w.level - w.peer_level end as decode_share,
        case when s.phase = 'queue_or_prefill' and w.phase = 'decode' then 0 else 1 end as is_own
    from suspect_load as s
    cross join slice_rules as r
    join worker_slices as w
        on s.model = w.model and s.worker = w.worker
        and w.slice_unix_ns = s.start_unix_ns - s.start_unix_ns % nullif(r.slice_ns, 0)
    where s.phase = w.phase
        or s.phase in ('queue', 'frontend', 'kv_transfer')
        or s.phase = 'queue_or_prefill'
),

served as (
    select
        suspect_id,
        max(case when is_own = 1 then level - peer_level end) as slow_share,
        max(case when is_own = 1 then 1.0 - peer_level / nullif(level, 0.0) end) as slow_part,
        max(case when is_own = 1 then level - own_level end) as own_share,
        max(case when is_own = 1 then standard_error end) as slow_error,
        max(decode_share) as decode_share
    from told
    group by suspect_id
),

priced as (
    select
        s.suspect_id as suspect_id,
        s.expected_ms * (
            case when s.decoding > c.usual_decoding
                then c.per_decoding * (s.decoding - c.usual_decoding) else 0.0 end) as decoding_ms,
        s.expected_ms * (
            case when s.prefilling > c.usual_prefilling
                then c.per_prefilling * (s.prefilling - c.usual_prefilling) else 0.0 end)
            as prefilling_ms
    from suspect_load as s
    join contention as c on s.model = c.model and s.phase = c.phase
)

select
    q.suspect_id as suspect_id,
    q.request_key as request_key,
    q.phase as phase,
    q.excess_ms as excess_ms,
    q.expected_ms as expected_ms,
    coalesce(o.explained_ms, 0.0) as interference_ms,
    coalesce(p.decoding_ms + p.prefilling_ms, 0.0) as contention_ms,
    coalesce(p.decoding_ms, 0.0) as decoding_ms,
    v.slow_share as slow_share,
    case when v.slow_part > 0 then v.slow_part * coalesce(q.actual_ms, 0.0) else 0.0 end as slow_ms,
    v.slow_error as slow_error,
    v.own_share as own_share,
    v.decode_share as decode_share,
    l.waiting as waiting,
    l.prefilling + l.decoding as busy,
    l.moving as moving,
    coalesce(b.peers, 0) as peers,
    b.peer_waiting as peer_waiting,
    b.peer_busy as peer_busy,
    b.arrivals as arrivals,
    b.peer_arrivals as peer_arrivals,
    d.recent / nullif(d.usual, 0.0) - 1.0 as surplus_share,
    coalesce(d.is_elevated, 0) as is_elevated,
    coalesce(d.is_spike, 0) as is_spike,
    u.waiting_share as waiting_share,
    (l.prefilling + l.decoding) / nullif(u.most_busy, 0.0) as slots_share,
    e.full_share as full_share,
    e.kv_usage as kv_usage,
    e.preemptions as worker_preemptions,
    e.transfer_share as transfer_share,
    e.clock_share as clock_share,
    e.throttled_share as throttled_share,
    coalesce(k.cache_ms, 0.0) as cache_ms,
    h.preemptions as preemptions,
    h.engine_step_wait_ms as step_wait_ms,
    h.kv_transfer_wait_ms as transfer_wait_ms,
    h.kv_transfer_wire_ms as wire_ms,
    m.alloc_ms as alloc_ms,
    h.double_prefill_ms as again_ms,
    t.size_ms as size_ms,
    coalesce(g.frozen_ms, 0.0) as frozen_ms,
    i.idle_ms as idle_ms
from suspect_requests as q
left join shapes as h on q.request_key = h.request_key
left join allocs as m on q.request_key = m.request_key
left join suspect_load as l on q.suspect_id = l.suspect_id
left join stalls_explained as o on q.suspect_id = o.suspect_id
left join priced as p on q.suspect_id = p.suspect_id
left join served as v on q.suspect_id = v.suspect_id
left join peer_load as b on q.suspect_id = b.suspect_id
left join demand as d on q.suspect_id = d.suspect_id
left join load_usual as u on l.worker = u.worker
left join suspect_pressure as e on q.suspect_id = e.suspect_id
left join cache_losses as k on q.request_key = k.request_key
left join transfer_costs as t on q.suspect_id = t.suspect_id
left join coincidences as g on q.suspect_id = g.suspect_id
left join after_idle as i on q.suspect_id = i.suspect_id
where q.is_control = 0
