-- What holds the time of the requests that miss a given limit. No expectation is asked: a phase that
-- alone takes longer than the whole limit made the request miss it, whatever is ordinary here.
-- grain: one row per metric with a given limit and phase that holds most of the time of its misses.
-- inputs: slow_requests, slow_phases, judgements, request_facts, inferred_parts
-- metric: ttft, tpot or e2e
-- phase: phase in the metric's scope with the most time of its requests
-- misses: requests over that limit that are judged, with whatever phase
-- n: those of them with most of their time in this phase
-- alone: those of the n whose phase alone takes longer than the limit
-- unfound: those of the n that neither a fault nor their size accounts for
-- apart: those of the n that are prefilled on another worker than the one that decodes
-- value_ms: [ms] median of the metric over the n
-- threshold_ms: [ms] the limit
-- phase_ms: [ms] median of the phase over the n
-- split: those of the n whose phase is a merged one, of which other requests tell the parts
-- waited_ms: [ms] median of what is inferred to be waiting at least, over these; else NULL
-- prefill_ms: [ms] median of what is inferred to be prefill at most, over these; else NULL
with tops as (
    select
        s.slow_id as slow_id,
        max(p.actual_ms) as phase_ms
    from slow_requests as s
    join slow_phases as p on s.slow_id = p.slow_id
    -- TPOT is a rate, and its phase is decode whatever happened
    where s.threshold_level = 'given' and s.metric <> 'tpot'
    group by s.slow_id
),

-- of equal ones the phase that comes first
places as (
    select
        t.slow_id as slow_id,
        t.phase_ms as phase_ms,
        min(p.phase_order) as phase_order
    from tops as t
    join slow_phases as p on t.slow_id = p.slow_id and p.actual_ms = t.phase_ms
    group by t.slow_id, t.phase_ms
),

held as (
    select
        s.metric as metric,
        p.phase as phase,
        s.value_ms as value_ms,
        s.threshold_ms as threshold_ms,
        k.phase_ms as phase_ms,
        case when k.phase_ms > s.threshold_ms then 1 else 0 end as is_alone,
        case when f.topology = 'disaggregated' then 1 else 0 end as is_apart,
        case when j.class in ('attributed', 'request_shape') then 0 else 1 end as is_unfound,
        case when p.phase = 'queue_or_prefill' then i.queue_at_least_ms end as waited_ms,
        case when p.phase = 'queue_or_prefill' and i.queue_at_least_ms is not null
            then i.prefill_at_most_ms end as prefill_ms
    from places as k
    join slow_phases as p on k.slow_id = p.slow_id and k.phase_order = p.phase_order
    join slow_requests as s on k.slow_id = s.slow_id
    join judgements as j on s.request_key = j.request_key and s.metric = j.metric
    join request_facts as f on s.request_key = f.request_key
    left join inferred_parts as i on s.request_key = i.request_key
),

metrics as (
    select metric, count(*) as misses
    from held
    group by metric
)

select
    h.metric as metric,
    h.phase as phase,
    max(m.misses) as misses,
    count(*) as n,
    cast(sum(h.is_alone) as bigint) as alone,
    cast(sum(h.is_unfound) as bigint) as unfound,
    cast(sum(h.is_apart) as bigint) as apart,
    percentile_cont(0.5) within group (order by h.value_ms) as value_ms,
    max(h.threshold_ms) as threshold_ms,
    percentile_cont(0.5) within group (order by h.phase_ms) as phase_ms,
    count(h.waited_ms) as split,
    percentile_cont(0.5) within group (order by h.waited_ms) as waited_ms,
    percentile_cont(0.5) within group (order by h.prefill_ms) as prefill_ms
from held as h
join metrics as m on h.metric = m.metric
group by h.metric, h.phase
