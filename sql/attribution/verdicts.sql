-- Why each slow request was slow: class, phase, cause, and how sure.
-- A cause is named only where its own evidence explains at least half of the excess; else it is
-- 'unknown', and the phase still stands.
-- grain: one row per request and violated metric that is judged.
-- inputs: judgements, requests
-- request_key: identity of the request
-- request_id: id that client and server share
-- trace_id: 32 hex digits
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
select
    j.request_key as request_key,
    r.request_id as request_id,
    r.trace_id as trace_id,
    j.metric as metric,
    j.class as class,
    j.phase as phase,
    j.cause as cause,
    j.excess_ms as excess_ms,
    j.expected_ms as expected_ms,
    j.confidence as confidence,
    j.confidence_label as confidence_label,
    j.culprit_request_id as culprit_request_id,
    j.worker as worker,
    j.reason as reason,
    j.value_ms as value_ms,
    j.threshold_ms as threshold_ms,
    j.censored as censored,
    j.runner_up as runner_up,
    j.cause_ms as cause_ms,
    j.model as model,
    j.route as route,
    j.uncached_tokens as uncached_tokens,
    j.output_tokens as output_tokens
from judgements as j
join requests as r on j.request_key = r.request_key
