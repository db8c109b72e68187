-- How the requests of the window ended, the unusable ones apart.
-- grain: one row per status, quarantine reason and attempt kind.
-- inputs: request_facts, window_requests
-- status: ok, error, aborted, timeout or open
-- quarantine_reason: why the rows must not be used for statistics, NULL if they may
-- superseded_attempt: 1 if a later attempt replaced these, else 0
-- requests: number of requests
-- without_clock: how many of them have no start time
-- first_unix_ns: [unix ns] earliest start
-- last_unix_ns: [unix ns] latest start
-- wall_ms: [ms] wall time of those that know it and what of it no boundary covers
-- unexplained_ms: [ms] their time that no boundary covers
select
    status as status,
    nullif(status, status) as quarantine_reason,
    cast(0 as bigint) as superseded_attempt,
    count(*) as requests,
    cast(sum(case when arrival_unix_ns is null then 1 else 0 end) as bigint) as without_clock,
    min(arrival_unix_ns) as first_unix_ns,
    max(arrival_unix_ns) as last_unix_ns,
    sum(case when unexplained_ms is not null then e2e_ms end) as wall_ms,
    sum(case when e2e_ms > 0 then unexplained_ms end) as unexplained_ms
from request_facts
group by status
union all
select
    coalesce(w.status, 'ok') as status,
    w.quarantine_reason as quarantine_reason,
    cast(case when w.superseded_attempt = 1 then 1 else 0 end as bigint) as superseded_attempt,
    count(*) as requests,
    cast(sum(case when w.start_unix_ns is null then 1 else 0 end) as bigint) as without_clock,
    min(w.start_unix_ns) as first_unix_ns,
    max(w.start_unix_ns) as last_unix_ns,
    cast(null as double) as wall_ms,
    cast(null as double) as unexplained_ms
from window_requests as w
where w.quarantine_reason is not null or w.superseded_attempt = 1
group by
    coalesce(w.status, 'ok'),
    w.quarantine_reason,
    case when w.superseded_attempt = 1 then 1 else 0 end
