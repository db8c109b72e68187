-- How far the clocks of hosts are apart, and what that cost.
-- grain: one row per outermost clock and clock below it
-- inputs: window_requests, legs
-- A clock is a host, else a service instance. Without a contradiction no clock is moved.
-- clock: clock of servers
-- against: clock of the outermost legs of their requests
-- requests: requests that both stamped
-- moved: of these, requests whose legs were moved: their order contradicts equal clocks
-- offset_ms: [ms] median of what was added to the clock's times where it was moved, 0 if nowhere
-- offset_low_ms: [ms] least of it
-- offset_high_ms: [ms] most of it
-- uncertainty_ms: [ms] median +- of it, NULL if nothing bounds it
-- clipped: requests whose order still contradicts itself and was cut off
-- clipped_ms: [ms] the most that was cut off one request
-- set_aside: requests kept out of the statistics as clock_skew
with l as (
    select
        request_key, revision, clock_offset_ns,
        coalesce(
            nullif(host_name, ''),
            nullif(concat_ws('/', nullif(service_name, ''), nullif(service_instance_id, '')), '')
        ) as clock,
        case role when 'client' then 0 when 'gateway' then 1 when 'router' then 1
            when 'prefill_engine' then 2 else 3 end as depth
    from legs
    where has_clock = 1 and source <> 'request_log'
),

o as (
    select request_key, revision, arg_min(clock, depth) as against
    from l
    where clock is not null
    group by request_key, revision
    having min(clock) <> max(clock)
),

p as (
    select l.request_key, l.revision, l.clock, o.against,
        coalesce(max(l.clock_offset_ns), 0) / 1e6 as offset_ms
    from l
    join o on l.request_key = o.request_key and l.revision = o.revision
    where l.clock <> o.against
    group by l.request_key, l.revision, l.clock, o.against
)

select
    p.clock,
    p.against,
    count(*) as requests,
    count(*) filter (where p.offset_ms <> 0) as moved,
    coalesce(median(p.offset_ms) filter (where p.offset_ms <> 0), 0) as offset_ms,
    min(p.offset_ms) as offset_low_ms,
    max(p.offset_ms) as offset_high_ms,
    median(r.clock_uncertainty_ms) as uncertainty_ms,
    count(*) filter (where r.clipped_ms > 0) as clipped,
    max(r.clipped_ms) as clipped_ms,
    count(*) filter (where r.quarantine_reason = 'clock_skew') as set_aside
from p
join window_requests as r on p.request_key = r.request_key and p.revision = r.revision
group by p.clock, p.against
order by moved desc, clipped desc, requests desc, p.clock, p.against
