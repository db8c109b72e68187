-- What other requests' prefills explain of a suspect's lost time: the overlap beyond the usual, but
-- no more than those prefills can have cost.
-- grain: one row per suspect request and phase with any such part.
-- inputs: suspect_overlaps, overlap_pairs
-- suspect_id: the row of suspect_requests
-- request_key: identity of the request
-- phase: frontend, prefill or decode
-- excess_ms: [ms] excess of that phase
-- explained_ms: [ms] part of it that others' prefills explain
with costs as (
    select suspect_id, sum(cost_ms) as cost_ms
    from overlap_pairs
    group by suspect_id
)

select
    o.suspect_id as suspect_id,
    o.request_key as request_key,
    o.phase as phase,
    o.excess_ms as excess_ms,
    case when c.cost_ms < o.beyond_ms then c.cost_ms else o.beyond_ms end as explained_ms
from suspect_overlaps as o
join costs as c on o.suspect_id = c.suspect_id
