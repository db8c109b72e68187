-- For each violation the phase with the largest absolute excess, and whether it may be blamed.
-- Not the largest share of time, nor the most unusual phase: the one without which most
-- milliseconds would not have been spent. `candidate` is the class before confidence is known.
-- grain: one row per judged request and violated metric.
-- inputs: slow_requests, slow_phases, attribution_rules
-- slow_id: the row of slow_requests
-- request_key: identity of the request
-- metric: ttft, tpot or e2e
-- candidate: attributed, request_shape, mixed, unexplained or insufficient_evidence
-- reason: what decided: excess, shape, spread, ordinary, coverage, clock, size, reach,
--   phases or rows
-- phase: phase with the largest excess, NULL if none can be judged
-- excess_ms: [ms] its excess
-- expected_ms: [ms] what it should have taken
-- actual_ms: [ms] what it took
-- scale_ms: [ms] its ordinary variation
-- widest_scale_ms: [ms] the widest ordinary variation of the phases in scope
-- runner_up: phase with the second largest excess
-- runner_up_excess_ms: [ms] its excess
-- positive_excess_ms: [ms] sum of what all phases in scope took too long
-- shape_phase: phase in scope with the largest expectation
-- shape_expected_ms: [ms] that expectation
-- shape_fixed_ms: [ms] the part of it that does not grow with the request's size
-- shape_excess_ms: [ms] what that phase took beyond it
-- expected_total_ms: [ms] expectation of all phases in scope
-- scope_ms: [ms] what the violated metric measured, as time
-- limit_ms: [ms] what it was allowed to be, as time
-- unexplained_ms: [ms] part of scope_ms that no phase covers
-- unjudged_ms: [ms] time in phases without an expectation
-- beyond_ms: [ms] part of unjudged_ms that is far larger than anything that was fitted
-- prompt_ms: [ms] time in prefill or queue_or_prefill: what a cache hit could change
-- cell_index: row of the cost model that was applied, NULL if there is none
with tops as (
    select
        slow_id,
        max(cell_index) as cell_index,
        max(excess_ms) as excess_ms,
        max(expected_ms) as shape_expected_ms,
        max(scale_ms) as widest_scale_ms,
        sum(case when excess_ms > 0 then excess_ms else 0.0 end) as positive_excess_ms,
        sum(coalesce(expected_ms, 0.0)) as expected_total_ms,
        sum(actual_ms) as explained_ms,
        sum(case when expected_ms is null then actual_ms else 0.0 end) as unjudged_ms,
        sum(case when is_beyond = 1 then actual_ms else 0.0 end) as beyond_ms,
        sum(case when phase in ('prefill', 'queue_or_prefill') then actual_ms else 0.0 end)
            as prompt_ms
    from slow_phases
    group by slow_id
),

-- of equal ones the phase that comes first (a window function would sort all rows twice)
picks as (
    select
        t.slow_id as slow_id,
        min(case when p.excess_ms = t.excess_ms then p.phase_order end) as winner_order,
        min(case when p.expected_ms = t.shape_expected_ms then p.phase_order end) as shape_order
    from tops as t
    join slow_phases as p on t.slow_id = p.slow_id
    group by t.slow_id
),

details as (
    select
        k.slow_id as slow_id,
        max(k.winner_order) as winner_order,
        max(case when p.phase_order = k.winner_order then p.phase end) as phase,
        max(case when p.phase_order = k.winner_order then p.expected_ms end) as expected_ms,
        max(case when p.phase_order = k.winner_order then p.actual_ms end) as actual_ms,
        max(case when p.phase_order = k.winner_order then p.scale_ms end) as scale_ms,
        max(case when p.phase_order <> k.winner_order then p.excess_ms end)
            as runner_up_excess_ms,
        max(case when p.phase_order = k.shape_order then p.phase end) as shape_phase,
        max(case when p.phase_order = k.shape_order then p.fixed_ms end) as shape_fixed_ms,
        max(case when p.phase_order = k.shape_order then p.excess_ms end) as shape_excess_ms
    from picks as k
    join slow_phases as p on k.slow_id = p.slow_id
    group by k.slow_id
),

runners as (
    select
        d.slow_id as slow_id,
        min(case when p.phase_order <> d.winner_order and p.excess_ms = d.runner_up_excess_ms
            then p.phase end) as runner_up
    from details as d
    join slow_phases as p on d.slow_id = p.slow_id
    group by d.slow_id
),

scopes as (
    select
        t.slow_id as slow_id,
        t.cell_index as cell_index,
        d.phase as phase,
        t.excess_ms as excess_ms,
        d.expected_ms as expected_ms,
        d.actual_ms as actual_ms,
        d.scale_ms as scale_ms,
        t.widest_scale_ms as widest_scale_ms,
        r.runner_up as runner_up,
        d.runner_up_excess_ms as runner_up_excess_ms,
        t.positive_excess_ms as positive_excess_ms,
        d.shape_phase as shape_phase,
        t.shape_expected_ms as shape_expected_ms,
        d.shape_fixed_ms as shape_fixed_ms,
        d.shape_excess_ms as shape_excess_ms,
        t.expected_total_ms as expected_total_ms,
        t.explained_ms as explained_ms,
        t.unjudged_ms as unjudged_ms,
        t.beyond_ms as beyond_ms,
        t.prompt_ms as prompt_ms
    from tops as t
    join details as d on t.slow_id = d.slow_id
    join runners as r on t.slow_id = r.slow_id
),

measured as (
    select
        s.slow_id as slow_id,
        s.request_key as request_key,
        s.metric as metric,
        c.cell_index as cell_index,
        c.phase as phase,
        c.excess_ms as excess_ms,
        c.expected_ms as expected_ms,
        c.actual_ms as actual_ms,
        c.scale_ms as scale_ms,
        c.widest_scale_ms as widest_scale_ms,
        c.runner_up as runner_up,
        c.runner_up_excess_ms as runner_up_excess_ms,
        c.positive_excess_ms as positive_excess_ms,
        c.shape_phase as shape_phase,
        c.shape_expected_ms as shape_expected_ms,
        c.shape_fixed_ms as shape_fixed_ms,
        c.shape_excess_ms as shape_excess_ms,
        c.expected_total_ms as expected_total_ms,
        c.explained_ms as explained_ms,
        c.unjudged_ms as unjudged_ms,
        c.beyond_ms as beyond_ms,
        c.prompt_ms as prompt_ms,
        -- a transfer shorter than its own +- may be nothing at all
        case when c.phase = 'kv_transfer' and c.actual_ms < s.kv_transfer_uncertainty_ms
             then 1 else 0 end as is_blurred,
        -- TPOT is a rate: its time is the decode phase, its limit scaled alike
        case when s.metric = 'tpot' then c.explained_ms else s.value_ms end as scope_ms,
        case when s.metric = 'tpot' then c.explained_ms * (s.threshold_ms / s.value_ms)
             else s.threshold_ms end as limit_ms
    from slow_requests as s
    left join scopes as c on s.slow_id = c.slow_id
),

bounded as (
    select
        slow_id,
        request_key,
        metric,
        cell_index,
        phase,
        excess_ms,
        expected_ms,
        actual_ms,
        scale_ms,
        widest_scale_ms,
        runner_up,
        runner_up_excess_ms,
        positive_excess_ms,
        shape_phase,
        shape_expected_ms,
        shape_fixed_ms,
        shape_excess_ms,
        expected_total_ms,
        unjudged_ms,
        beyond_ms,
        prompt_ms,
        is_blurred,
        scope_ms,
        limit_ms,
        case when scope_ms > explained_ms then scope_ms - explained_ms
             when explained_ms is null then scope_ms else 0.0 end as unexplained_ms
    from measured
),

gated as (
    select
        b.slow_id as slow_id,
        b.request_key as request_key,
        b.metric as metric,
        b.cell_index as cell_index,
        b.phase as phase,
        b.excess_ms as excess_ms,
        b.expected_ms as expected_ms,
        b.actual_ms as actual_ms,
        b.scale_ms as scale_ms,
        b.widest_scale_ms as widest_scale_ms,
        b.runner_up as runner_up,
        b.runner_up_excess_ms as runner_up_excess_ms,
        b.positive_excess_ms as positive_excess_ms,
        b.shape_phase as shape_phase,
        b.shape_expected_ms as shape_expected_ms,
        b.shape_fixed_ms as shape_fixed_ms,
        b.shape_excess_ms as shape_excess_ms,
        b.expected_total_ms as expected_total_ms,
        b.unjudged_ms as unjudged_ms,
        b.beyond_ms as beyond_ms,
        b.prompt_ms as prompt_ms,
        b.is_blurred as is_blurred,
        b.scope_ms as scope_ms,
        b.limit_ms as limit_ms,
        b.unexplained_ms as unexplained_ms,
        case when b.excess_ms >= p.min_excess_ms and b.excess_ms >= p.scale_factor * b.scale_ms
                 and b.excess_ms >= p.min_relative * b.expected_ms
             then 1 else 0 end as is_large,
        case when b.excess_ms >= p.min_share * b.positive_excess_ms then 1 else 0 end as is_main,
        case when b.unexplained_ms <= (1.0 - p.min_coverage) * b.scope_ms
                 or b.excess_ms > b.unexplained_ms then 1 else 0 end as is_covered,
        case when b.unjudged_ms = 0 or b.excess_ms > b.unjudged_ms then 1 else 0 end as is_judged,
        -- without the excess it would still have been slow, and most of the time is the shape's
        case when b.expected_total_ms >= b.limit_ms and b.excess_ms < b.expected_total_ms
             then 1 else 0 end as is_shape,
        -- or nearly so: a size that is well within the limit is not why it is over
        case when b.expected_total_ms >= p.shape_share * b.limit_ms
                 and b.expected_total_ms >= 0.5 * b.scope_ms then 1 else 0 end as is_mostly_shape
    from bounded as b
    cross join attribution_rules as p
),

decided as (
    select
        slow_id,
        request_key,
        metric,
        cell_index,
        phase,
        excess_ms,
        expected_ms,
        actual_ms,
        scale_ms,
        widest_scale_ms,
        runner_up,
        runner_up_excess_ms,
        positive_excess_ms,
        shape_phase,
        shape_expected_ms,
        shape_fixed_ms,
        shape_excess_ms,
        expected_total_ms,
        unjudged_ms,
        beyond_ms,
        prompt_ms,
        scope_ms,
        limit_ms,
        unexplained_ms,
        case
            when actual_ms is null and unjudged_ms is null then 'phases'
            when cell_index is null then 'rows'
            when is_covered = 0 then 'coverage'
            when is_blurred = 1 then 'clock'
            when (phase is null or is_judged = 0) and beyond_ms > 0
                    and beyond_ms >= 0.5 * unjudged_ms
                then 'reach'
            when phase is null or is_judged = 0 then 'size'
            when is_shape = 1 then 'shape'
            when is_large = 1 and is_main = 1 then 'excess'
            when is_large = 1 then 'spread'
            when is_mostly_shape = 1 then 'shape'
            else 'ordinary'
        end as reason
    from gated
)

select
    slow_id,
    request_key,
    metric,
    case reason
        when 'excess' then 'attributed'
        when 'shape' then 'request_shape'
        when 'spread' then 'mixed'
        when 'ordinary' then 'unexplained'
        else 'insufficient_evidence'
    end as candidate,
    reason,
    phase,
    excess_ms,
    expected_ms,
    actual_ms,
    scale_ms,
    widest_scale_ms,
    runner_up,
    runner_up_excess_ms,
    positive_excess_ms,
    shape_phase,
    shape_expected_ms,
    shape_fixed_ms,
    shape_excess_ms,
    expected_total_ms,
    scope_ms,
    limit_ms,
    unexplained_ms,
    unjudged_ms,
    beyond_ms,
    prompt_ms,
    cell_index
from decided
