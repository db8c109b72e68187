-- What was refused or kept out of the statistics, and why.
-- grain: one row per place and reason
-- inputs: quarantine, window_requests
-- place: receipt (refused when it came in) or request (counted, in no statistic)
-- what: signal that was refused, or the request's status
-- reason: short reason
-- n: how many
-- example: one of them
select
    'receipt' as place,
    signal as what,
    reason,
    count(*) as n,
    min(coalesce(detail, source_file)) as example
from quarantine
group by all
union all
select
    'request' as place,
    status as what,
    quarantine_reason as reason,
    count(*) as n,
    min(coalesce(request_id, trace_id)) as example
from window_requests
where quarantine_reason is not null
group by all
order by n desc, place, reason
