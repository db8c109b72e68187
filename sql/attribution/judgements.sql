-- Why each slow request was slow: class, phase, cause, and how sure.
-- A cause is named only where its own evidence explains at least half of the excess; else it is
-- 'unknown', and the phase still stands.
-- grain: one row per request and violated metric that is judged.
-- inputs: winners, standing, winner_confidence, slow_requests, cost_model, interference, causes, attribution_rules
-- request_key: identity of the request
-- metric: ttft, tpot or e2e
-- class: attributed, request_shape, mixed, unexplained or insufficient_evidence
-- phase: phase to blame, or the one whose size it is; NULL where none can be told
-- cause: cause of the phase's excess; unknown where the data do not carry one, unsearched where the
--   request was not among the sample that is looked into
-- excess_ms: [ms] what that phase took too long; a lower bound where censored = 1
-- expected_ms: [ms] what it should have taken for this request's shape
-- confidence: [1] share of redraws of ordinary variation that give the same answer
-- confidence_label: high, likely or mixed
-- culprit_request_id: the request that stalled it most, NULL if none
-- worker: worker of that phase, or of its cause; NULL if unknown or if the phase has none
-- reason: what decided: excess, shape, spread, usual, ordinary, loose, coverage, clock, size, reach,
--   phases or rows
-- value_ms: [ms] what the metric was
-- threshold_ms: [ms] what it is slow against
-- censored: 1 if the request was killed, else 0
-- runner_up: phase with the second largest excess
-- cause_ms: [ms] part of excess_ms that the cause's evidence explains, NULL where it has no measure
-- model: model name, '' if unknown
-- route: traffic class or endpoint, '' if unknown
-- uncached_tokens: [tokens] prompt tokens to compute; the whole prompt if the cache is unknown
-- output_tokens: [tokens] generated
with culprits as (
    select
        request_key,
        phase,
        culprit_request_id,
        row_number() over (
            partition by request_key, phase
            order by stall_ms desc nulls last, culprit_key nulls last
        ) as place
    from interference
),

-- an expectation that half of the requests are far from says nothing of a size
shape_errors as (
    select
        w.slow_id as slow_id,
        case w.shape_phase
            when 'client_wait' then m.client_wait_error
            when 'network' then m.network_error
            when 'route' then m.route_error
            when 'frontend' then m.frontend_error
            when 'queue' then m.queue_error
            when 'prefill' then m.prefill_error
            when 'queue_or_prefill' then m.queue_or_prefill_error
            when 'kv_transfer' then m.kv_transfer_error
            when 'decode' then m.decode_error
        end as error
    from winners as w
    join cost_model as m on w.cell_index = m.cell_index
),

judged as (
    select
        w.slow_id as slow_id,
        w.request_key as request_key,
        w.metric as metric,
        k.candidate as candidate,
        k.reason as reason,
        case k.candidate when 'attributed' then w.phase when 'mixed' then w.phase
            when 'request_shape' then w.shape_phase end as phase,
        case k.candidate when 'attributed' then w.excess_ms when 'mixed' then w.excess_ms
            when 'request_shape' then w.shape_excess_ms end as excess_ms,
        case k.candidate when 'attributed' then w.expected_ms when 'mixed' then w.expected_ms
            when 'request_shape' then w.shape_expected_ms end as expected_ms,
        w.shape_fixed_ms as shape_fixed_ms,
        w.runner_up as runner_up,
        s.uncached_tokens as uncached_tokens,
        s.output_tokens as output_tokens,
        s.value_ms as value_ms,
        s.threshold_ms as threshold_ms,
        s.censored as censored,
        s.model as model,
        s.route as route,
        s.worker as worker,
        s.prefill_worker as prefill_worker,
        s.engine_step_wait_ms as engine_step_wait_ms,
        s.kv_transfer_wait_ms as kv_transfer_wait_ms,
        s.preemptions as preemptions,
        -- what is not known puts a ceiling on how sure one can be
        case
            when w.unjudged_ms > 0 then 1
            when case case k.candidate when 'request_shape' then w.shape_phase else w.phase end
                when 'client_wait' then m.client_wait_borrowed
                when 'network' then m.network_borrowed
                when 'route' then m.route_borrowed
                when 'frontend' then m.frontend_borrowed
                when 'queue' then m.queue_borrowed
                when 'prefill' then m.prefill_borrowed
                when 'queue_or_prefill' then m.queue_or_prefill_borrowed
                when 'kv_transfer' then m.kv_transfer_borrowed
                when 'decode' then m.decode_borrowed
            end = 1 then 1
            when w.phase = 'queue_or_prefill' then 1
            -- a fault that lasts all of the window is in what the sizes of its requests should take
            when k.candidate = 'request_shape' and m.source = 'window' then 1
            when s.cached_known = 0 and s.metric <> 'tpot' and k.candidate = 'request_shape'
                and w.shape_phase in ('prefill', 'queue_or_prefill') then 1
            when s.cached_known = 0 and s.metric <> 'tpot' and k.candidate = 'attributed'
                and w.phase not in ('prefill', 'queue_or_prefill')
                and w.excess_ms <= w.prompt_ms then 1
            else 0
        end as is_limited,
        case when k.candidate = 'request_shape' and e.error > p.max_shape_error then 1 else 0 end
            as is_loose,
        case when k.candidate = 'request_shape'
                 and (e.error > p.max_shape_error or c.confidence < p.likely)
             then 1 else 0 end as is_doubted,
        c.confidence as drawn
    from winners as w
    cross join attribution_rules as p
    join standing as k on w.slow_id = k.slow_id
    join slow_requests as s on w.slow_id = s.slow_id
    left join cost_model as m on w.cell_index = m.cell_index
    left join winner_confidence as c on w.slow_id = c.slow_id
    left join shape_errors as e on w.slow_id = e.slow_id
),

sure as (
    select
        j.slow_id as slow_id,
        j.request_key as request_key,
        j.metric as metric,
        case when j.candidate = 'attributed' and j.drawn < p.likely then 'mixed'
             when j.is_doubted = 1 then 'insufficient_evidence'
             else j.candidate end as class,
        case when j.is_loose = 1 then 'loose' else j.reason end as reason,
        -- whether it is its size is not sure: then no phase is named
        case when j.is_doubted = 1 then null else j.phase end as phase,
        case when j.is_doubted = 1 then null else j.excess_ms end as excess_ms,
        case when j.is_doubted = 1 then null else j.expected_ms end as expected_ms,
        j.shape_fixed_ms as shape_fixed_ms,
        j.runner_up as runner_up,
        j.uncached_tokens as uncached_tokens,
        j.output_tokens as output_tokens,
        j.value_ms as value_ms,
        j.threshold_ms as threshold_ms,
        j.censored as censored,
        j.model as model,
        j.route as route,
        case when j.phase in ('decode', 'kv_transfer') then j.worker
             when j.phase in ('frontend', 'queue', 'prefill', 'queue_or_prefill')
                 then j.prefill_worker end as worker,
        j.worker as decode_worker,
        j.engine_step_wait_ms as engine_step_wait_ms,
        j.kv_transfer_wait_ms as kv_transfer_wait_ms,
        j.preemptions as preemptions,
        case when j.is_limited = 1 and j.drawn > p.limited then p.limited else j.drawn end
            as confidence
    from judged as j
    cross join attribution_rules as p
),

caused as (
    select
        s.slow_id as slow_id,
        case
            when s.class = 'request_shape' and s.shape_fixed_ms >= 0.5 * s.expected_ms
                then 'fixed_overhead'
            when s.class = 'request_shape' and s.phase = 'kv_transfer' then 'kv_transfer_size'
            when s.class = 'request_shape' then 'long_prompt'
            when s.class <> 'attributed' then 'unknown'
            when s.phase = 'client_wait' then 'client_concurrency'
            when s.phase = 'network' then 'network'
            when s.phase = 'route' then 'unknown'
            -- of very many losses a sample is looked into (see `suspect_requests`)
            else coalesce(c.cause, 'unsearched')
        end as cause,
        c.cause_ms as cause_ms,
        case when s.class = 'attributed' then c.is_decode_servers end as is_decode_servers
    from sure as s
    left join causes as c on s.request_key = c.request_key and s.phase = c.phase
)

select
    w.request_key as request_key,
    w.metric as metric,
    w.class as class,
    w.phase as phase,
    c.cause as cause,
    w.excess_ms as excess_ms,
    w.expected_ms as expected_ms,
    w.confidence as confidence,
    case when w.confidence is null then null when w.class = 'mixed' then 'mixed'
         when w.confidence >= p.high then 'high'
         when w.confidence >= p.likely then 'likely'
         else 'mixed' end as confidence_label,
    case when c.cause = 'prefill_interference' then k.culprit_request_id end as culprit_request_id,
    case when c.is_decode_servers = 1 then w.decode_worker else w.worker end as worker,
    w.reason as reason,
    w.value_ms as value_ms,
    w.threshold_ms as threshold_ms,
    w.censored as censored,
    w.runner_up as runner_up,
    case when w.class = 'attributed' then c.cause_ms end as cause_ms,
    w.model as model,
    w.route as route,
    w.uncached_tokens as uncached_tokens,
    w.output_tokens as output_tokens
from sure as w
join caused as c on w.slow_id = c.slow_id
cross join attribution_rules as p
left join culprits as k on w.request_key = k.request_key and w.phase = k.phase and k.place = 1
