-- How much of a suspect's lost time each other request can have cost it. A prefill that was itself
-- slowed lasts longer than it keeps the engine busy: beyond its own cost it explains nothing, so a
-- short prompt that rode along with a long one is no culprit of the long one.
-- grain: one row per suspect and overlapping request.
-- inputs: overlap_segments, suspect_requests, request_costs, attribution_rules
-- suspect_id: the row of suspect_requests
-- culprit_key: request_key of the request that was prefilling
-- overlap_ms: [ms] how long the two overlapped
-- cost_ms: [ms] the overlap, at most what the prefill should cost the engine (with a margin)
with pairs as (
    select
        g.suspect_id as suspect_id,
        g.culprit_key as culprit_key,
        sum(cast(g.end_unix_ns - g.start_unix_ns as double)) / 1e6 as overlap_ms
    from overlap_segments as g
    join suspect_requests as s on g.suspect_id = s.suspect_id
    where s.is_control = 0
    group by g.suspect_id, g.culprit_key
),

culprits as (
    select distinct culprit_key from pairs
),

costs as (
    select c.request_key as culprit_key, c.prefill_expected_ms as expected_ms
    from request_costs as c
    join culprits as k on c.request_key = k.culprit_key
)

select
    p.suspect_id as suspect_id,
    p.culprit_key as culprit_key,
    p.overlap_ms as overlap_ms,
    case when c.expected_ms is null or p.overlap_ms <= r.culprit_factor * c.expected_ms
             then p.overlap_ms
         else r.culprit_factor * c.expected_ms end as cost_ms
from pairs as p
cross join attribution_rules as r
left join costs as c on p.culprit_key = c.culprit_key
