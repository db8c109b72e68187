-- How much of the time that a suspect lost was spent under other requests' prefills, against what
-- is usual on that worker: on an engine that is always prefilling, overlap explains nothing.
-- grain: one row per suspect request and phase.
-- inputs: suspect_requests, suspect_intervals, overlap_segments
-- suspect_id: the row of suspect_requests
-- request_key: identity of the request
-- phase: frontend, prefill or decode
-- excess_ms: [ms] excess of that phase
-- interval_ms: [ms] time in which it was lost
-- overlap_ms: [ms] part of it during which others prefilled
-- usual_share: [1] mean part of the same phase of ordinary requests on that worker
-- beyond_ms: [ms] overlap beyond the usual, at most the excess
with intervals as (
    select
        suspect_id,
        max(worker) as worker,
        max(is_stall) as has_stalls,
        sum(cast(end_unix_ns - start_unix_ns as double)) / 1e6 as interval_ms
    from suspect_intervals
    group by suspect_id
),

-- several prefills at once must not count the same instant twice
ordered as (
    select
        suspect_id,
        start_unix_ns,
        end_unix_ns,
        max(end_unix_ns) over (
            partition by suspect_id
            order by start_unix_ns nulls last, end_unix_ns nulls last, culprit_key nulls last
            rows between unbounded preceding and 1 preceding
        ) as covered_until_ns
    from overlap_segments
),

covered as (
    select
        suspect_id,
        sum(cast(
            case when covered_until_ns is null or covered_until_ns <= start_unix_ns
                     then end_unix_ns - start_unix_ns
                 when covered_until_ns < end_unix_ns then end_unix_ns - covered_until_ns
                 else 0 end as double)) / 1e6 as overlap_ms
    from ordered
    group by suspect_id
),

joined as (
    select
        s.suspect_id as suspect_id,
        s.request_key as request_key,
        s.phase as phase,
        s.is_control as is_control,
        s.excess_ms as excess_ms,
        i.worker as worker,
        i.has_stalls as has_stalls,
        i.interval_ms as interval_ms,
        coalesce(c.overlap_ms, 0.0) as overlap_ms
    from suspect_requests as s
    join intervals as i on s.suspect_id = i.suspect_id
    left join covered as c on s.suspect_id = c.suspect_id
),

-- a request counts once, however long it took: those that wait longest overlap most
usual as (
    select worker, phase, avg(overlap_ms / nullif(interval_ms, 0.0)) as usual_share
    from joined
    where is_control = 1
    group by worker, phase
),

beyond as (
    select
        j.suspect_id as suspect_id,
        j.request_key as request_key,
        j.phase as phase,
        j.excess_ms as excess_ms,
        j.interval_ms as interval_ms,
        j.overlap_ms as overlap_ms,
        -- without ordinary requests to compare with, only a stall speaks for itself
        -- (a queue is nothing that requests ordinarily spend time in)
        case when j.phase = 'queue' then 0.0
             else coalesce(u.usual_share, case when j.has_stalls = 1 then 0.0 else 1.0 end)
             end as usual_share
    from joined as j
    left join usual as u on j.worker = u.worker and j.phase = u.phase
    where j.is_control = 0
),

left_over as (
    select
        suspect_id,
        request_key,
        phase,
        excess_ms,
        interval_ms,
        overlap_ms,
        usual_share,
        overlap_ms - usual_share * interval_ms as beyond_ms
    from beyond
)

select
    suspect_id,
    request_key,
    phase,
    excess_ms,
    interval_ms,
    overlap_ms,
    usual_share,
    case when beyond_ms <= 0 then 0.0 when beyond_ms < excess_ms then beyond_ms else excess_ms end
        as beyond_ms
from left_over
