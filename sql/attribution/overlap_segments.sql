-- Which prefills of other requests ran on the same worker while a suspect lost its time.
-- Both kinds of interval are cut into bins and joined on (worker, bin): linear, where the plain
-- range join grows with the square of a worker's requests. A pair counts in its first shared bin.
-- grain: one row per suspect interval and overlapping prefill.
-- inputs: suspect_intervals, worker_prefills, bins, overlap_rules, attribution_rules
-- suspect_id: the row of suspect_requests
-- culprit_key: request_key of the request that was prefilling
-- start_unix_ns: [unix ns] start of the overlap
-- end_unix_ns: [unix ns] end of the overlap
-- A queue moves on under ordinary prefills: only those far longer than usual are held against it.
with usual as (
    select percentile_cont(0.5) within group (
            order by cast(end_unix_ns - start_unix_ns as double)) as usual_ns
    from worker_prefills
),

binned_prefills as (
    select
        p.request_key as request_key,
        p.worker as worker,
        p.start_unix_ns as start_unix_ns,
        p.end_unix_ns as end_unix_ns,
        p.start_unix_ns - p.start_unix_ns % nullif(o.bin_ns, 0) as first_bin,
        p.start_unix_ns - p.start_unix_ns % nullif(o.bin_ns, 0) + b.off_ns as bin
    from worker_prefills as p
    cross join overlap_rules as o
    join bins as b
        on b.span_ns = (p.end_unix_ns - p.end_unix_ns % nullif(o.bin_ns, 0))
            - (p.start_unix_ns - p.start_unix_ns % nullif(o.bin_ns, 0))
),

binned_suspects as (
    select
        i.suspect_id as suspect_id,
        i.request_key as request_key,
        i.phase as phase,
        i.worker as worker,
        i.start_unix_ns as start_unix_ns,
        i.end_unix_ns as end_unix_ns,
        i.start_unix_ns - i.start_unix_ns % nullif(o.bin_ns, 0) as first_bin,
        i.start_unix_ns - i.start_unix_ns % nullif(o.bin_ns, 0) + b.off_ns as bin
    from suspect_intervals as i
    cross join overlap_rules as o
    join bins as b
        on b.span_ns = (i.end_unix_ns - i.end_unix_ns % nullif(o.bin_ns, 0))
            - (i.start_unix_ns - i.start_unix_ns % nullif(o.bin_ns, 0))
)

select
    s.suspect_id as suspect_id,
    p.request_key as culprit_key,
    case when s.start_unix_ns > p.start_unix_ns then s.start_unix_ns else p.start_unix_ns end
        as start_unix_ns,
    case when s.end_unix_ns < p.end_unix_ns then s.end_unix_ns else p.end_unix_ns end as end_unix_ns
from binned_suspects as s
join binned_prefills as p on s.worker = p.worker and s.bin = p.bin
cross join usual as u
cross join attribution_rules as r
where p.start_unix_ns < s.end_unix_ns
    and (s.phase <> 'queue'
        or cast(p.end_unix_ns - p.start_unix_ns as double) >= r.long_factor * u.usual_ns)
    and p.end_unix_ns > s.start_unix_ns
    and p.request_key <> s.request_key
    and s.bin = case when s.first_bin > p.first_bin then s.first_bin else p.first_bin end
