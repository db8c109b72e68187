-- The requests to explain: one row for each limit a request is over.
-- A request that was killed counts as soon as its elapsed time is over the limit (censored = 1):
-- dropping it would make the worst requests vanish.
-- grain: one row per request and violated metric.
-- inputs: request_facts, slow_thresholds
-- slow_id: number of the row, from 1: what the relations below join on
-- request_key: identity of the request
-- metric: ttft, tpot or e2e
-- value_ms: [ms] what it took; a lower bound where censored = 1
-- threshold_ms: [ms] what it is slow against
-- threshold_level: given, route, model or all
-- censored: 1 if the request was killed, else 0
-- cached_known: 1 if the source said how many prompt tokens came from a cache
-- model: model name, '' if unknown
-- route: traffic class or endpoint, '' if unknown
-- arrival_unix_ns: [unix ns] when the request was meant to start, NULL without a clock
-- engine_step_wait_ms: [ms] sub-phase of frontend
-- kv_transfer_wait_ms: [ms] sub-phase of kv_transfer
-- kv_transfer_wire_ms: [ms] sub-phase of kv_transfer, NULL if not told
-- kv_transfer_uncertainty_ms: [ms] +- of kv_transfer_ms, NULL for one clock or no bound
-- double_prefill_ms: [ms] part of prefill_ms: the decode server computed the prompt again
-- preemptions: times preempted
-- e2e_ms: [ms] wall time; elapsed time where the request was censored
-- uncached_tokens: [tokens] prompt tokens to compute; the whole prompt if the cache is unknown
-- output_tokens: [tokens] generated
-- worker: worker that decoded (or the only one), NULL if unknown
-- prefill_worker: worker that prefilled, NULL if unknown
with over_a_limit as (
    select
        f.request_key as request_key,
        f.censored as censored,
        f.cached_known as cached_known,
        f.model as model,
        f.route as route,
        f.arrival_unix_ns as arrival_unix_ns,
        f.engine_step_wait_ms as engine_step_wait_ms,
        f.kv_transfer_wait_ms as kv_transfer_wait_ms,
        f.kv_transfer_wire_ms as kv_transfer_wire_ms,
        f.kv_transfer_uncertainty_ms as kv_transfer_uncertainty_ms,
        f.double_prefill_ms as double_prefill_ms,
        f.preemptions as preemptions,
        f.e2e_ms as e2e_ms,
        f.uncached_tokens as uncached_tokens,
        f.output_tokens as output_tokens,
        f.worker as worker,
        f.prefill_worker as prefill_worker,
        f.ttft_ms as ttft_ms,
        f.tpot_ms as tpot_ms,
        t.ttft_ms as ttft_threshold_ms,
        t.tpot_ms as tpot_threshold_ms,
        t.e2e_ms as e2e_threshold_ms,
        t.ttft_level as ttft_level,
        t.tpot_level as tpot_level,
        t.e2e_level as e2e_level
    from request_facts as f
    join slow_thresholds as t on f.model = t.model and f.route = t.route
    where (f.ttft_ms > t.ttft_ms or f.tpot_ms > t.tpot_ms or f.e2e_ms > t.e2e_ms)
        and f.completed + f.censored > 0
),

metrics as (
    select 'ttft' as metric
    union all
    select 'tpot' as metric
    union all
    select 'e2e' as metric
),

s as (
    select
        o.request_key as request_key,
        m.metric as metric,
        case m.metric when 'ttft' then o.ttft_ms when 'tpot' then o.tpot_ms else o.e2e_ms end
            as value_ms,
        case m.metric when 'ttft' then o.ttft_threshold_ms when 'tpot' then o.tpot_threshold_ms
             else o.e2e_threshold_ms end as threshold_ms,
        case m.metric when 'ttft' then o.ttft_level when 'tpot' then o.tpot_level
             else o.e2e_level end as threshold_level,
        o.censored as censored,
        o.cached_known as cached_known,
        o.model as model,
        o.route as route,
        o.arrival_unix_ns as arrival_unix_ns,
        o.engine_step_wait_ms as engine_step_wait_ms,
        o.kv_transfer_wait_ms as kv_transfer_wait_ms,
        o.kv_transfer_wire_ms as kv_transfer_wire_ms,
        o.kv_transfer_uncertainty_ms as kv_transfer_uncertainty_ms,
        o.double_prefill_ms as double_prefill_ms,
        o.preemptions as preemptions,
        o.e2e_ms as e2e_ms,
        o.uncached_tokens as uncached_tokens,
        o.output_tokens as output_tokens,
        o.worker as worker,
        o.prefill_worker as prefill_worker
    from over_a_limit as o
    cross join metrics as m
)

select
    row_number() over (order by metric nulls last, request_key nulls last) as slow_id,
    request_key,
    metric,
    value_ms,
    threshold_ms,
    threshold_level,
    censored,
    cached_known,
    model,
    route,
    arrival_unix_ns,
    engine_step_wait_ms,
    kv_transfer_wait_ms,
    kv_transfer_wire_ms,
    kv_transfer_uncertainty_ms,
    double_prefill_ms,
    preemptions,
    e2e_ms,
    uncached_tokens,
    output_tokens,
    worker,
    prefill_worker
from s
where value_ms > threshold_ms
