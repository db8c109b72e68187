-- What of a suspect's loss ended at the moment at which others of its worker went on too: a front
-- end that stood still lets all streams and all new arrivals go at once. So does a long engine step:
-- a stall that lies half or more under another's prefill counts as one. Front ends of several
-- workers that let go at once stood still together: no engine step of one makes others wait. That
-- counts while such moments are rare; if a front end lets go all the time, two meet by chance.
-- grain: one row per suspect in the front end or with stalled tokens.
-- inputs: suspect_load, token_gaps, request_facts, overlap_segments, attribution_rules
-- suspect_id: the row of suspect_requests
-- frozen_ms: [ms] of its loss that ended within 100 ms of another request's
with frontends as (
    select
        suspect_id,
        request_key,
        worker,
        end_unix_ns,
        end_unix_ns - end_unix_ns % 100000000 as bin_unix_ns,
        excess_ms as lost_ms
    from suspect_load
    where phase = 'frontend' and is_control = 0
),

reach as (
    select min(start_unix_ns) as first_unix_ns, max(end_unix_ns) as last_unix_ns
    from suspect_load
),

moments as (
    select distinct bin_unix_ns from frontends
),

-- 1 if few of all moments lie beside one at which a front end let go
rare as (
    select
        -- each reaches over three bins of 100 ms
        case when 3.0 * cast(count(*) as double)
                 <= max(p.rare_share) * cast(max(r.last_unix_ns - r.first_unix_ns) as double) / 1e8
             then 1 else 0 end as is_rare
    from moments as m
    cross join reach as r
    cross join attribution_rules as p
),

-- '' stands for all workers
anywhere as (
    select f.suspect_id, f.request_key, '' as worker, f.end_unix_ns, f.bin_unix_ns, f.lost_ms
    from frontends as f
    cross join rare as r
    where r.is_rare = 1
),

-- stalls under a prefill of another
stepped as (
    select distinct
        s.suspect_id as suspect_id,
        g.end_unix_ns as end_unix_ns
    from suspect_load as s
    join token_gaps as g on s.request_key = g.request_key
    join overlap_segments as o on s.suspect_id = o.suspect_id
    where s.phase = 'decode' and s.is_control = 0 and g.is_stall = 1
        and o.start_unix_ns >= g.start_unix_ns and o.end_unix_ns <= g.end_unix_ns
        and 2 * (o.end_unix_ns - o.start_unix_ns) >= g.end_unix_ns - g.start_unix_ns
),

held as (
    select suspect_id, request_key, worker, end_unix_ns, lost_ms
    from frontends
    union all
    select suspect_id, request_key, worker, end_unix_ns, lost_ms
    from anywhere
    union all
    select
        s.suspect_id as suspect_id,
        s.request_key as request_key,
        s.worker as worker,
        g.end_unix_ns as end_unix_ns,
        g.excess_ms as lost_ms
    from suspect_load as s
    join token_gaps as g on s.request_key = g.request_key
    left join stepped as t on s.suspect_id = t.suspect_id and g.end_unix_ns = t.end_unix_ns
    where s.phase = 'decode' and s.is_control = 0 and g.is_stall = 1 and t.suspect_id is null
),

-- whatever its phase: a stall of a decode server's stream and one of a prefill server's arrival
-- end together only by chance, so those are looked for per worker
others as (
    select
        g.request_key as request_key,
        f.worker as worker,
        g.end_unix_ns - g.end_unix_ns % 100000000 as bin_unix_ns
    from token_gaps as g
    join request_facts as f on g.request_key = f.request_key
    where g.is_stall = 1 and g.gap_ms >= 200.0
    union all
    select request_key, worker, bin_unix_ns from frontends
    union all
    select request_key, worker, bin_unix_ns from anywhere
),

reached as (
    select request_key, worker, bin_unix_ns from others
    union all
    select request_key, worker, bin_unix_ns - 100000000 as bin_unix_ns from others
    union all
    select request_key, worker, bin_unix_ns + 100000000 as bin_unix_ns from others
),

matched as (
    select
        h.suspect_id as suspect_id,
        h.end_unix_ns as end_unix_ns,
        max(h.lost_ms) as lost_ms
    from held as h
    join reached as r
        on h.worker = r.worker and r.bin_unix_ns = h.end_unix_ns - h.end_unix_ns % 100000000
    where h.request_key <> r.request_key
    group by h.suspect_id, h.end_unix_ns
)

select suspect_id, sum(lost_ms) as frozen_ms
from matched
group by suspect_id
