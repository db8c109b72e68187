-- What was set aside, where and why.
-- grain: one row per place and reason
-- inputs: quarantine, window_requests
-- place: receipt (refused when it came in) or request (counted, in no statistic)
-- reason: short reason
-- n: how many
-- example: field and value, or id, of one of them
select
    'receipt' as place,
    reason,
    count(*) as n,
    min(coalesce(detail, source_file, trace_id)) as example
from quarantine
group by reason
union all
select
    'request' as place,
    quarantine_reason as reason,
    count(*) as n,
    min(coalesce(request_id, trace_id, request_key)) as example
from window_requests
where quarantine_reason is not null
group by quarantine_reason
order by n desc, place, reason
