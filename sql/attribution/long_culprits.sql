-- What of a suspect's loss others' prefills explain whose prompts are of another kind than usual.
-- Such prompts make a loss stand out even if they come all the time.
-- grain: one row per suspect with such culprits.
-- inputs: overlap_pairs, request_costs, prompt_kinds
-- suspect_id: the row of suspect_requests
-- long_ms: [ms] what prefills of that kind can have cost it
with culprits as (
    select distinct culprit_key from overlap_pairs
),

costs as (
    select c.request_key as culprit_key, c.prefill_cost_ms as expected_ms
    from request_costs as c
    join culprits as k on c.request_key = k.culprit_key
)

select
    p.suspect_id as suspect_id,
    sum(p.cost_ms) as long_ms
from overlap_pairs as p
join costs as c on p.culprit_key = c.culprit_key
cross join prompt_kinds as k
where c.expected_ms >= k.long_ms
group by p.suspect_id
