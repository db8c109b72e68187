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
    select
        count(case when is_control = 0 then 1 end) as suspects,
        count(case when phase = 'frontend' then 1 end) as frontends
    from suspect_requests
),

-- one row a request: what is wanted of it (a second join over all phases would cost seconds)
marked as (
    select
        request_key,
        max(is_counted) as is_counted,
        max(case when phase = 'frontend' then 1 else 0 end) as frontend,
        max(case when phase = 'queue' then 1 else 0 end) as queue,
        max(case when phase = 'prefill' then 1 else 0 end) as prefill,
        max(case when phase = 'queue_or_prefill' then 1 else 0 end) as queue_or_prefill,
        max(case when phase = 'kv_transfer' then 1 else 0 end) as kv_transfer,
        max(case when phase = 'decode' then 1 else 0 end) as decode
    from (
        select request_key, phase, 0 as is_counted
        from suspect_requests
        union all
        select c.request_key as request_key, null as phase, 1 as is_counted
        from request_facts as c
        cross join load_rules as r
        where c.quarantine_reason is null and c.superseded_attempt = 0
            -- of very many requests a sample, each counting for several (see `load_rules`)
            and (r.step = 1 or c.arrival_unix_ns % nullif(r.step, 0) = 0)
    ) as u
    group by request_key
),

asked as (
    select
        p.request_key as request_key,
        p.phase as phase,
        p.worker as worker,
        p.start_unix_ns as start_unix_ns,
        p.end_unix_ns as end_unix_ns,
        p.duration_ms as duration_ms,
        coalesce(case p.phase
            when 'frontend' then m.frontend
            when 'queue' then m.queue
            when 'prefill' then m.prefill
            when 'queue_or_prefill' then m.queue_or_prefill
            when 'kv_transfer' then m.kv_transfer
            when 'decode' then m.decode
        end, 0) as is_suspect,
        case when p.phase in ('queue', 'prefill', 'kv_transfer', 'decode')
            then coalesce(m.is_counted, 0) else 0 end as is_counted,
        case when p.phase = 'prefill' and p.worker is not null
                and p.duration_ms >= a.min_prefill_ms and w.suspects > 0
            then 1 else 0 end as may_stall
    from phases as p
    cross join wanted as w
    cross join attribution_rules as a
    left join marked as m on p.request_key = m.request_key
    where p.phase in (
            'frontend', 'queue', 'prefill', 'queue_or_prefill', 'kv_transfer', 'decode')
        and p.end_unix_ns > p.start_unix_ns
        -- every request has one, few lost their time in it
        and (p.phase <> 'frontend' or w.frontends > 0)
)

select
    request_key,
    phase,
    worker,
    start_unix_ns,
    end_unix_ns,
    duration_ms,
    is_suspect,
    is_counted
from asked
where is_suspect + is_counted + may_stall > 0
