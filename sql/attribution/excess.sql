-- Actual against expected, for every request and phase that its boundaries tell.
-- grain: one row per usable request and phase.
-- inputs: request_costs
-- request_key: identity of the request
-- phase: client_wait, network, route, frontend, queue, prefill, queue_or_prefill, ...
-- phase_order: place in the life of a request, from 1; breaks ties
-- before_first_token: 1 if the phase counts for TTFT, else 0
-- actual_ms: [ms] what it took
-- expected_ms: [ms] what it should have taken for this shape, NULL if that cannot be told
-- excess_ms: [ms] actual less expected, NULL if that cannot be told
-- fixed_ms: [ms] the part of expected_ms that does not grow with the request's size
-- cell_index: row of the cost model that was applied, NULL if there is none
-- scale_ms: [ms] ordinary variation of the phase at that size
-- is_beyond: 1 if it has no expectation since it is far larger than anything that was fitted, else 0
with names as (
    select 'client_wait' as phase, 1 as phase_order, 1 as before_first_token
    union all select 'network' as phase, 2 as phase_order, 1 as before_first_token
    union all select 'route' as phase, 3 as phase_order, 1 as before_first_token
    union all select 'frontend' as phase, 4 as phase_order, 1 as before_first_token
    union all select 'queue' as phase, 5 as phase_order, 1 as before_first_token
    union all select 'prefill' as phase, 6 as phase_order, 1 as before_first_token
    union all select 'queue_or_prefill' as phase, 7 as phase_order, 1 as before_first_token
    union all select 'kv_transfer' as phase, 8 as phase_order, 1 as before_first_token
    union all select 'decode' as phase, 9 as phase_order, 0 as before_first_token
),

long as (
    select
        c.request_key as request_key,
        n.phase as phase,
        n.phase_order as phase_order,
        n.before_first_token as before_first_token,
        case n.phase
            when 'client_wait' then c.client_wait_ms
            when 'network' then c.network_ms
            when 'route' then c.route_ms
            when 'frontend' then c.frontend_ms
            when 'queue' then c.queue_ms
            when 'prefill' then c.prefill_ms
            when 'queue_or_prefill' then c.queue_or_prefill_ms
            when 'kv_transfer' then c.kv_transfer_ms
            when 'decode' then c.decode_ms
        end as actual_ms,
        case n.phase
            when 'client_wait' then c.client_wait_expected_ms
            when 'network' then c.network_expected_ms
            when 'route' then c.route_expected_ms
            when 'frontend' then c.frontend_expected_ms
            when 'queue' then c.queue_expected_ms
            when 'prefill' then c.prefill_expected_ms
            when 'queue_or_prefill' then c.queue_or_prefill_expected_ms
            when 'kv_transfer' then c.kv_transfer_expected_ms
            when 'decode' then c.decode_expected_ms
        end as expected_ms,
        case n.phase
            when 'client_wait' then c.client_wait_scale_ms
            when 'network' then c.network_scale_ms
            when 'route' then c.route_scale_ms
            when 'frontend' then c.frontend_scale_ms
            when 'queue' then c.queue_scale_ms
            when 'prefill' then c.prefill_scale_ms
            when 'queue_or_prefill' then c.queue_or_prefill_scale_ms
            when 'kv_transfer' then c.kv_transfer_scale_ms
            when 'decode' then c.decode_scale_ms
        end as scale_ms,
        case n.phase
            when 'prefill' then c.prefill_fixed_ms
            when 'queue_or_prefill' then c.queue_or_prefill_fixed_ms
            when 'kv_transfer' then c.kv_transfer_fixed_ms
            when 'decode' then c.decode_fixed_ms
        end as shaped_fixed_ms,
        case n.phase
            when 'prefill' then c.prefill_is_beyond
            when 'queue_or_prefill' then c.queue_or_prefill_is_beyond
            when 'kv_transfer' then c.kv_transfer_is_beyond
            when 'decode' then c.decode_is_beyond
            else 0
        end as is_beyond,
        c.cell_index as cell_index
    from request_costs as c
    cross join names as n
)

select
    request_key,
    phase,
    phase_order,
    before_first_token,
    actual_ms,
    expected_ms,
    actual_ms - expected_ms as excess_ms,
    coalesce(shaped_fixed_ms, expected_ms) as fixed_ms,
    cell_index,
    scale_ms,
    is_beyond
from long
where actual_ms is not null
