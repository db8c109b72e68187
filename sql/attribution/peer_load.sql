-- How busy the other workers of the same kind were while a suspect lost its time.
-- Peers did the same phase for the same model. The least loaded one tells whether there was room.
-- A worker counts only if its own traffic shows that it was there: some of it before the loss and
-- some after (or until requests stopped coming to any of its kind). One that was started later or
-- stopped before looks idle, too, and has no room.
-- grain: one row per suspect that has peers.
-- inputs: suspect_load, load_bins, load_rules, arrival_rules, load_usual
-- suspect_id: the row of suspect_requests
-- peers: workers compared with
-- peer_waiting: [1] requests in the queue of the least loaded peer
-- peer_busy: [1] requests that it had in service
-- arrivals: requests that came to the worker, from 24 slices of `arrival_rules` before its loss on
-- peer_arrivals: [1] requests that came to a peer meanwhile, on average
with spans as (
    select
        s.suspect_id as suspect_id,
        s.model as model,
        s.worker as worker,
        s.slices as slices,
        s.start_unix_ns - 24 * a.bin_ns - (s.start_unix_ns - 24 * a.bin_ns) % nullif(r.bin_ns, 0)
            as since_bin,
        s.start_unix_ns - s.start_unix_ns % nullif(r.bin_ns, 0) as first_bin,
        s.start_unix_ns - s.start_unix_ns % nullif(r.bin_ns, 0) - r.bin_ns as before_bin,
        s.end_unix_ns - s.end_unix_ns % nullif(r.bin_ns, 0) as last_bin
    from suspect_load as s
    cross join load_rules as r
    cross join arrival_rules as a
    where s.is_control = 0
),

kinds as (
    select model, prefills, decodes, max(last_arrival_unix_ns) as last_arrival_unix_ns
    from load_usual
    group by model, prefills, decodes
),

pairs as (
    select
        s.suspect_id as suspect_id,
        s.slices as slices,
        s.since_bin as since_bin,
        s.before_bin as before_bin,
        s.last_bin as last_bin,
        q.worker as peer
    from spans as s
    join load_usual as o on s.worker = o.worker
    join load_usual as q on o.model = q.model and o.prefills = q.prefills and o.decodes = q.decodes
    join kinds as k on o.model = k.model and o.prefills = k.prefills and o.decodes = k.decodes
    where q.worker <> s.worker
        and q.since_unix_ns <= s.first_bin
        and (q.until_unix_ns >= s.last_bin or q.until_unix_ns >= k.last_arrival_unix_ns)
),

loads as (
    select
        p.suspect_id as suspect_id,
        p.peer as peer,
        (b.total_waiting - coalesce(a.total_waiting, 0.0)) / nullif(p.slices, 0.0) as waiting,
        (b.total_prefilling + b.total_decoding
            - coalesce(a.total_prefilling, 0.0) - coalesce(a.total_decoding, 0.0))
            / nullif(p.slices, 0.0) as busy,
        b.total_arrived - coalesce(c.total_arrived, 0.0) as arrivals
    from pairs as p
    join load_bins as b on p.peer = b.worker and b.bin_unix_ns = p.last_bin
    left join load_bins as a on p.peer = a.worker and a.bin_unix_ns = p.before_bin
    left join load_bins as c on p.peer = c.worker and c.bin_unix_ns = p.since_bin
),

ranked as (
    select
        suspect_id,
        waiting,
        busy,
        arrivals,
        row_number() over (
            partition by suspect_id order by waiting + busy nulls last, peer nulls last
        ) as place
    from loads
),

peers as (
    select
        suspect_id,
        count(*) as peers,
        max(case when place = 1 then waiting end) as peer_waiting,
        max(case when place = 1 then busy end) as peer_busy,
        avg(arrivals) as peer_arrivals
    from ranked
    group by suspect_id
),

own as (
    select
        s.suspect_id as suspect_id,
        b.total_arrived - coalesce(c.total_arrived, 0.0) as arrivals
    from spans as s
    join load_bins as b on s.worker = b.worker and b.bin_unix_ns = s.last_bin
    left join load_bins as c on s.worker = c.worker and c.bin_unix_ns = s.since_bin
)

select
    p.suspect_id as suspect_id,
    p.peers as peers,
    p.peer_waiting as peer_waiting,
    p.peer_busy as peer_busy,
    o.arrivals as arrivals,
    p.peer_arrivals as peer_arrivals
from peers as p
join own as o on p.suspect_id = o.suspect_id
