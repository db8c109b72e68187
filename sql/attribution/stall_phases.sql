-- The intervals that the causes need, taken out of `phases`: every prefill long enough to
-- stall somebody, the phases of suspects and controls, and those that load is counted from.
-- grain: one row per request and phase interval.
-- inputs: phases, suspect_requests, request_facts, load_rules, attribution_rules
-- request_key: identity of the request
-- phase: phase of the interval
-- worker: worker that it ran on
-- start_unix_ns: [unix ns] start of the interval
-- end_unix_ns: [unix ns] end of the interval
-- duration_ms: [ms] end - start
-- is_suspect: 1 if it is a phase of a suspect or control, else 0
-- is_counted: 1 if load is counted from it, else 0
with wanted as (
    select count(*) as suspects from suspect_requests where is_control = 0
),

counted as (
    select c.request_key as request_key
    from request_facts as c
    cross join load_rules as r
    where c.quarantine_reason is null and c.superseded_attempt = 0
        -- of very many requests a sample, each counting for several (see `load_rules`)
        and (r.step = 1 or c.arrival_unix_ns % nullif(r.step, 0) = 0)
),

counted_phases as (
    select 'queue' as phase
    union all
    select 'prefill' as phase
    union all
    select 'decode' as phase
    union all
    select 'kv_transfer' as phase
),

needed as (
    select request_key, phase, max(is_suspect) as is_suspect, max(is_counted) as is_counted
    from (
        select request_key, phase, 1 as is_suspect, 0 as is_counted
        from suspect_requests
        union all
        select c.request_key as request_key, f.phase as phase, 0 as is_suspect, 1 as is_counted
        from counted as c
        cross join counted_phases as f
    ) as u
    group by request_key, phase
)

-- the many that nobody asked for are dropped by the join here; below by phase and length
select
    p.request_key as request_key,
    p.phase as phase,
    p.worker as worker,
    p.start_unix_ns as start_unix_ns,
    p.end_unix_ns as end_unix_ns,
    p.duration_ms as duration_ms,
    n.is_suspect as is_suspect,
    n.is_counted as is_counted
from phases as p
join needed as n on p.request_key = n.request_key and p.phase = n.phase
where p.phase in ('frontend', 'queue', 'queue_or_prefill', 'kv_transfer', 'decode')
    and p.end_unix_ns > p.start_unix_ns
union all
select
    p.request_key as request_key,
    p.phase as phase,
    p.worker as worker,
    p.start_unix_ns as start_unix_ns,
    p.end_unix_ns as end_unix_ns,
    p.duration_ms as duration_ms,
    coalesce(n.is_suspect, 0) as is_suspect,
    coalesce(n.is_counted, 0) as is_counted
from phases as p
cross join wanted as w
cross join attribution_rules as a
left join needed as n on p.request_key = n.request_key and p.phase = n.phase
where p.phase = 'prefill'
    and p.end_unix_ns > p.start_unix_ns
    and (n.request_key is not null
        or (w.suspects > 0 and p.worker is not null and p.duration_ms >= a.min_prefill_ms))
