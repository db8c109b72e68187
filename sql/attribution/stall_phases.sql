-- The intervals that the causes need, taken out of `phases`: those of suspects, of controls and of
-- requests that load is counted from, and every prefill long enough to stall somebody. An interval
-- with sub-phases inside is one.
-- grain: one row per request and phase interval.
-- inputs: phases, marked_requests, suspect_requests, attribution_rules
-- request_key: identity of the request
-- phase: phase of the interval
-- worker: worker that it ran on
-- start_unix_ns: [unix ns] start of the interval
-- end_unix_ns: [unix ns] end of the interval
-- may_stall: 1 if it is a prefill that could stall others on its worker, else 0
-- is_counted: 1 if load is counted from it, else 0
-- place: where its load is counted: the worker, or the model where no worker is known
with wanted as (
    select
        count(case when is_control = 0 then 1 end) as suspects,
        count(case when phase = 'frontend' then 1 end) as frontends
    from suspect_requests
),

intervals as (
    select
        request_key, phase, worker, start_unix_ns,
        coalesce(whole_end_unix_ns, end_unix_ns) as end_unix_ns,
        coalesce((whole_end_unix_ns - whole_start_unix_ns) / 1e6, duration_ms) as duration_ms
    from phases
    -- the first part stands for all
    where whole_start_unix_ns is null or start_unix_ns = whole_start_unix_ns
),

asked as (
    select
        p.request_key as request_key,
        p.phase as phase,
        p.worker as worker,
        p.start_unix_ns as start_unix_ns,
        p.end_unix_ns as end_unix_ns,
        case when p.phase = 'prefill' and p.worker is not null
                and p.duration_ms >= a.min_prefill_ms and w.suspects > 0
            then 1 else 0 end as may_stall,
        -- one join over all phases: a second would cost seconds
        coalesce(m.is_counted, 0) as is_counted,
        case when p.worker is not null then p.worker
            when p.phase = 'decode' then m.place else m.prefill_place end as place
    from intervals as p
    cross join wanted as w
    cross join attribution_rules as a
    left join marked_requests as m on p.request_key = m.request_key
    -- every request has these two, and few lost their time in them
    where p.phase <> 'network'
        and (p.phase <> 'frontend' or w.frontends > 0)
        and p.end_unix_ns > p.start_unix_ns
        and (m.request_key is not null
            or (p.phase = 'prefill' and p.duration_ms >= a.min_prefill_ms))
)

select
    request_key,
    phase,
    worker,
    start_unix_ns,
    end_unix_ns,
    may_stall,
    case when phase in ('queue', 'prefill', 'kv_transfer', 'decode') then is_counted else 0 end
        as is_counted,
    place
from asked
