-- Phases that a source tells only as a whole, split by what other requests took: inferred, and in no
-- phase, sum or verdict. Prefill is at most what the quickest of that size took, so waiting is at
-- least the rest; not so where prefill and decode are apart: a transfer that was over before anybody
-- saw the prefill worker's token is in the rest too. Of a transfer one part is there whatever the
-- size (rendezvous, polls, the decode server's first step); the rest is the moving of bytes, and what
-- this one took longer than others.
-- grain: one row per usable request of which something is inferred.
-- inputs: request_facts, request_costs, inferred_rules
-- request_key: identity of the request
-- queue_or_prefill_ms: [ms] the merged phase
-- prefill_at_most_ms: [ms] prefill in it, NULL if not inferred
-- queue_at_least_ms: [ms] waiting in it, NULL if not inferred, or if a transfer may be in it
-- kv_transfer_ms: [ms] the transfer
-- kv_transfer_fixed_ms: [ms] what it takes whatever the size, NULL if not inferred
-- kv_transfer_sized_ms: [ms] the rest of it, NULL if not inferred
with e as (
    select
        f.request_key as request_key,
        f.queue_or_prefill_ms as queue_or_prefill_ms,
        case when f.queue_or_prefill_ms > 0 and f.prefill_ms is null
            then r.quick_fixed_ms + r.quick_token_ms * f.uncached_tokens end as quick_ms,
        f.topology as topology,
        f.kv_transfer_ms as kv_transfer_ms,
        case when r.kv_requests > 0 and f.kv_transfer_ms > 0 and f.kv_transfer_wire_ms is null
            and c.kv_transfer_expected_ms is not null
            then c.kv_transfer_fixed_ms end as fixed_ms
    from request_facts as f
    join request_costs as c on f.request_key = c.request_key
    cross join inferred_rules as r
),

p as (
    select
        e.request_key as request_key,
        e.topology as topology,
        e.queue_or_prefill_ms as queue_or_prefill_ms,
        e.kv_transfer_ms as kv_transfer_ms,
        case when quick_ms > queue_or_prefill_ms then queue_or_prefill_ms
             when quick_ms > 0 then quick_ms end as prefill_at_most_ms,
        case when fixed_ms > kv_transfer_ms then kv_transfer_ms
             when fixed_ms >= 0 then fixed_ms end as kv_transfer_fixed_ms
    from e
)

select
    request_key,
    queue_or_prefill_ms,
    prefill_at_most_ms,
    case when topology = 'aggregated' then queue_or_prefill_ms - prefill_at_most_ms end
        as queue_at_least_ms,
    kv_transfer_ms,
    kv_transfer_fixed_ms,
    kv_transfer_ms - kv_transfer_fixed_ms as kv_transfer_sized_ms
from p
where prefill_at_most_ms is not null or kv_transfer_fixed_ms is not null
