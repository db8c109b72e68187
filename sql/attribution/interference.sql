-- Who stalled whom: where others' prefills explain a request's lost time, that time shared out over
-- them by what they can have cost, times prompt tokens. Those that it met only because others had
-- held it up count little in a decode, and nothing before (if any other did). A lower bound: what a
-- culprit delayed at second hand is not in it. Behind a backlog nobody is named: there each one held
-- up all behind it, also those that it never met.
-- grain: one row per stalled request, phase and culprit.
-- inputs: stalls_explained, overlap_pairs, suspect_load, requests, attribution_rules
-- request_key: identity of the request that lost time
-- phase: phase in which it lost it
-- culprit_key: request_key of the request that was prefilling
-- culprit_request_id: its request id
-- culprit_input_tokens: [tokens] its prompt
-- overlap_ms: [ms] how long the two overlapped
-- stall_ms: [ms] share of the lost time
with stalled as (
    select
        o.suspect_id as suspect_id,
        o.request_key as request_key,
        o.phase as phase,
        o.explained_ms as explained_ms,
        p.late_share as late_share
    from stalls_explained as o
    cross join attribution_rules as p
    left join suspect_load as l on o.suspect_id = l.suspect_id
    where o.explained_ms >= 0.5 * p.cause_share * o.excess_ms
        and coalesce(l.backlog, 0.0) < p.backlog
),

pairs as (
    select
        s.suspect_id as suspect_id,
        g.culprit_key as culprit_key,
        g.overlap_ms as overlap_ms,
        g.cost_ms as cost_ms,
        case when coalesce(g.is_due, 1) = 1 then 1.0
             when max(case when g.cost_ms > 0 then g.is_due else 0 end) over (
                 partition by s.suspect_id) = 0 then 1.0
             when s.phase = 'decode' then s.late_share
             else 0.0 end as counts
    from stalled as s
    join overlap_pairs as g on s.suspect_id = g.suspect_id
),

culprits as (
    select distinct culprit_key from pairs
),

known as (
    select
        r.request_key as culprit_key,
        r.request_id as request_id,
        r.input_tokens as input_tokens
    from requests as r
    join culprits as c on r.request_key = c.culprit_key
),

weighed as (
    select
        p.suspect_id as suspect_id,
        p.culprit_key as culprit_key,
        k.request_id as request_id,
        k.input_tokens as input_tokens,
        p.overlap_ms as overlap_ms,
        p.counts * p.cost_ms * cast(coalesce(k.input_tokens, 1) as double) as weight,
        sum(p.counts * p.cost_ms * cast(coalesce(k.input_tokens, 1) as double)) over (
            partition by p.suspect_id
        ) as total_weight
    from pairs as p
    left join known as k on p.culprit_key = k.culprit_key
)

select
    s.request_key as request_key,
    s.phase as phase,
    w.culprit_key as culprit_key,
    w.request_id as culprit_request_id,
    w.input_tokens as culprit_input_tokens,
    w.overlap_ms as overlap_ms,
    case when w.total_weight > 0 then s.explained_ms * w.weight / w.total_weight else 0.0 end
        as stall_ms
from weighed as w
join stalled as s on w.suspect_id = s.suspect_id
