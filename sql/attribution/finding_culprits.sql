-- For each finding of interference, who caused how much of it.
-- grain: one row per phase, metric and culprit.
-- inputs: judgements, interference
-- phase: phase in which the victims lost time
-- metric: ttft, tpot or e2e
-- culprit_key: request_key of the culprit
-- request_id: its request id, NULL if unknown
-- input_tokens: [tokens] its prompt
-- victims: requests that it stalled, among those that were judged and whose cause was looked for
-- stall_ms: [ms] time it cost them, a lower bound
select
    v.phase as phase,
    v.metric as metric,
    i.culprit_key as culprit_key,
    max(i.culprit_request_id) as request_id,
    max(i.culprit_input_tokens) as input_tokens,
    count(*) as victims,
    sum(i.stall_ms) as stall_ms
from judgements as v
join interference as i on v.request_key = i.request_key and v.phase = i.phase
where v.cause = 'prefill_interference'
group by v.phase, v.metric, i.culprit_key
