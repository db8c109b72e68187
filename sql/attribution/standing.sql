-- What a winner is taken for once it is known whether its loss stands out from what this traffic
-- loses all the time: a loss that does not is no fault; it is the request's own size if that alone
-- takes (nearly) what is allowed.
-- grain: one row per request and violated metric that is judged.
-- inputs: winners, outstanding, attribution_rules
-- slow_id: the row of slow_requests
-- candidate: attributed, request_shape, mixed, unexplained or insufficient_evidence
-- reason: what decided: excess, shape, spread, usual, ordinary, coverage, clock, size,
--   reach, phases or rows
select
    w.slow_id as slow_id,
    case when w.candidate <> 'attributed' or o.slow_id is not null then w.candidate
         when w.expected_total_ms >= p.shape_share * w.limit_ms
             and w.expected_total_ms >= 0.5 * w.scope_ms then 'request_shape'
         else 'unexplained' end as candidate,
    case when w.candidate <> 'attributed' or o.slow_id is not null then w.reason
         when w.expected_total_ms >= p.shape_share * w.limit_ms
             and w.expected_total_ms >= 0.5 * w.scope_ms then 'shape'
         else 'usual' end as reason
from winners as w
cross join attribution_rules as p
left join outstanding as o on w.slow_id = o.slow_id
