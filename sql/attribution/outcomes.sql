-- How the requests of the window ended, the unusable ones apart.
-- grain: one row per status, quarantine reason and attempt kind.
-- inputs: request_facts
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
    status,
    quarantine_reason,
    superseded_attempt,
    count(*) as requests,
    cast(sum(case when arrival_unix_ns is null then 1 else 0 end) as bigint) as without_clock,
    min(arrival_unix_ns) as first_unix_ns,
    max(arrival_unix_ns) as last_unix_ns,
    sum(case when unexplained_ms is not null then e2e_ms end) as wall_ms,
    sum(case when e2e_ms > 0 then unexplained_ms end) as unexplained_ms
from request_facts
group by status, quarantine_reason, superseded_attempt
