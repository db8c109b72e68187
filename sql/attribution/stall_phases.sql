-- The intervals that the search for interference needs, read from `phases` in one pass: every
-- prefill long enough to stall somebody, and the phases of suspects and controls.
-- grain: one row per request and phase interval.
-- inputs: phases, suspect_requests, attribution_rules
-- request_key: identity of the request
-- phase: frontend, prefill or decode
-- worker: worker that it ran on
-- start_unix_ns: [unix ns] start of the interval
-- end_unix_ns: [unix ns] end of the interval
-- duration_ms: [ms] end - start
-- is_suspect: 1 if it is a phase of a suspect or control, else 0
with wanted as (
    select count(*) as suspects from suspect_requests where is_control = 0
)

select
    p.request_key as request_key,
    p.phase as phase,
    p.worker as worker,
    p.start_unix_ns as start_unix_ns,
    p.end_unix_ns as end_unix_ns,
    p.duration_ms as duration_ms,
    case when s.request_key is null then 0 else 1 end as is_suspect
from phases as p
cross join wanted as w
cross join attribution_rules as a
left join suspect_requests as s on p.request_key = s.request_key and p.phase = s.phase
where w.suspects > 0
    and p.end_unix_ns > p.start_unix_ns
    and (s.request_key is not null
        or (p.phase = 'prefill' and p.worker is not null and p.duration_ms >= a.min_prefill_ms))
