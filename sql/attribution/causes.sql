-- Why a suspect lost its time: the cause whose own evidence carries at least half of the loss.
-- Each test also rules out what looks like it: a queue behind a slow worker is that worker's, not
-- a burst's; load that came to one worker only is the router's; memory is full or it is not.
-- grain: one row per suspect.
-- inputs: cause_evidence, attribution_rules
-- suspect_id: the row of suspect_requests
-- request_key: identity of the request
-- phase: phase it lost its time in
-- cause: cause of the loss; unknown where the data do not carry one
-- cause_ms: [ms] part of the loss that the evidence measures, NULL where it has no measure
-- is_decode_servers: 1 if it is the decode server's, whichever server the time was lost on, else 0
with tested as (
    select
        e.suspect_id as suspect_id,
        e.request_key as request_key,
        e.phase as phase,
        e.excess_ms as excess_ms,
        e.expected_ms as expected_ms,
        p.cause_share * e.excess_ms as enough_ms,
        e.interference_ms as interference_ms,
        e.contention_ms as contention_ms,
        e.decoding_ms as decoding_ms,
        e.cache_ms as cache_ms,
        e.size_ms as size_ms,
        e.transfer_wait_ms as transfer_wait_ms,
        e.wire_ms as wire_ms,
        e.again_ms as again_ms,
        -- what a client alone sees before the first token also holds the way there: a slow worker
        -- decodes slowly, too
        case when e.slow_share > p.min_worker_share and e.slow_share > 3.0 * e.slow_error
                and (e.phase <> 'queue_or_prefill' or e.decode_share > p.min_worker_share)
            then e.slow_ms else 0.0 end as slow_ms,
        -- a clock that fell needs no peers to be seen
        case when e.clock_share < p.low_clock
                and (e.throttled_share > 0.5 or e.own_share > 0.0
                    or e.slow_share > p.min_worker_share)
            then 1 else 0 end as is_throttled,
        -- and is believed unless service was clearly as quick as that of the peers
        case when e.slow_share + 3.0 * e.slow_error > p.min_worker_share
                or e.own_share > p.min_worker_share
            then 1 else 0 end as is_slower,
        -- of more arrivals and slower service the larger one makes the queue
        case when coalesce(e.surplus_share, 0.0) < case
                     when e.slow_share > p.min_worker_share and e.slow_share > 3.0 * e.slow_error
                         and e.slow_share > coalesce(e.own_share, 0.0) then e.slow_share
                     when e.own_share > p.min_worker_share then e.own_share else 0.0 end
            then 0 else e.is_elevated end as is_demand,
        e.is_elevated as is_elevated,
        e.is_spike as is_spike,
        case when e.peers > 0 and e.waiting + e.busy >= 2.0
                 and e.peer_waiting <= 0.25 * e.waiting + 0.1
                 and e.peer_busy <= p.room_share * e.busy
                 -- because more were sent here, not because this one got rid of less
                 and e.arrivals > p.crowd_factor * e.peer_arrivals
                 and e.arrivals - e.peer_arrivals > 3.0 * sqrt(e.peer_arrivals + 1.0)
            then 1 else 0 end as is_crowded,
        -- an engine admits while it has slots, step budget and memory: requests that wait beside
        -- free slots wait for memory, if it is filled at all
        case when e.full_share is not null
                 then case when e.full_share >= p.full_share or e.worker_preemptions > 0 then 1
                     when e.phase = 'queue' and e.waiting >= 1.0 and e.slots_share <= p.free_slots
                         and e.kv_usage >= p.filled_kv then 1
                     else 0 end
             else 0 end as is_full,
        -- ... and memory it is, not a long prefill, where it ran out while slots stayed free
        case when e.slots_share <= p.free_slots
                and (e.full_share >= p.full_share or e.worker_preemptions > 0)
            then 1 else 0 end as is_out_of_memory,
        -- Little's law: a worker that no more came to than to its peers, and that holds many more,
        -- keeps each of them longer
        case when e.peers > 0 and e.waiting >= 1.0 and e.peer_waiting <= 0.25 * e.waiting
                and e.peer_busy <= p.room_share * e.busy
                and e.arrivals - e.peer_arrivals <= sqrt(e.peer_arrivals + 1.0)
                and e.slow_share > e.slow_error
            then 1 else 0 end as is_holding,
        coalesce(e.worker_preemptions, 0.0) as worker_preemptions,
        coalesce(e.preemptions, 0) as preemptions,
        e.transfer_share as transfer_share,
        -- behind others' transfers one waits for the link: that it runs at its usual speed, or that
        -- no others were on their way, must be known before the wait is one for room
        case when e.transfer_share is not null or e.moving < 2.0 then 1 else 0 end as is_link_free,
        e.alloc_ms as alloc_ms,
        e.step_wait_ms as step_wait_ms,
        e.frozen_ms as frozen_ms,
        -- a clock that is low for heat or power did not sleep
        case when e.idle_ms > 0.0 and e.clock_share < p.low_clock
                 and coalesce(e.throttled_share, 0.0) <= 0.0 then 1 else 0 end as is_asleep
    from cause_evidence as e
    cross join attribution_rules as p
),

named as (
    select
        t.suspect_id as suspect_id,
        case
            when t.phase = 'queue' then
                case
                    when t.is_throttled * t.is_slower = 1 then 'slow'
                    -- they say themselves that they waited for memory
                    when t.alloc_ms >= t.enough_ms then 'kv_capacity'
                    -- a long prefill is there on any day: what came at once, what was sent here
                    -- only, a worker or a memory that is short make a queue of it
                    when t.is_demand = 1 and t.is_spike = 1 and t.is_crowded = 0
                        then 'arrival_burst'
                    when t.is_crowded = 1 then 'router_imbalance'
                    when t.is_out_of_memory = 1 and t.is_demand = 0 then 'kv_capacity'
                    -- who serves slower makes wait at least as much longer
                    when t.is_demand = 0 and t.slow_ms >= 0.5 * t.enough_ms then 'slow'
                    when t.interference_ms >= t.enough_ms then 'prefill_interference'
                    when t.is_demand = 1 then 'capacity'
                    when t.slow_ms > 0.0 or t.is_holding = 1 then 'slow'
                    when t.is_full = 1 then 'kv_capacity'
                    else 'unknown'
                end
            when t.phase = 'kv_transfer' then
                case
                    when t.transfer_share < p.slow_transfer then 'kv_transfer_bandwidth'
                    -- told apart: whichever is the larger, if it carries the loss
                    when t.wire_ms >= t.enough_ms and t.wire_ms > coalesce(t.transfer_wait_ms, 0.0)
                        then 'kv_transfer_bandwidth'
                    when t.wire_ms is not null and t.transfer_wait_ms >= t.enough_ms
                        then 'kv_transfer_wait'
                    when t.is_full = 1 then 'kv_transfer_wait'
                    when t.size_ms >= t.enough_ms then 'kv_transfer_bandwidth'
                    -- where it is not told when bytes moved, only what does not grow with size is a wait
                    when t.transfer_wait_ms >= t.enough_ms and t.size_ms is not null
                            and t.is_link_free = 1
                        then 'kv_transfer_wait'
                    else 'unknown'
                end
            when t.phase = 'frontend' then
                case
                    when t.is_throttled * t.is_slower = 1 then 'slow'
                    when t.is_demand = 0 and t.slow_ms >= 0.5 * t.enough_ms then 'slow'
                    when t.interference_ms >= t.enough_ms then 'prefill_interference'
                    when t.slow_ms > 0.0 then 'slow'
                    when coalesce(t.step_wait_ms, 0.0) < t.enough_ms then 'frontend_stall'
                    when t.frozen_ms >= t.enough_ms then 'frontend_stall'
                    else 'unknown'
                end
            -- prefill, queue_or_prefill, decode
            when t.phase = 'prefill' and t.again_ms >= t.enough_ms then 'double_prefill'
            when t.phase = 'prefill' and t.is_asleep = 1 then 'gpu_asleep'
            -- more load and longer prefills of others are how a slow worker slows its requests
            when t.is_throttled * t.is_slower = 1 then 'slow'
            -- what a miss should have cost is no slowness
            when t.cache_ms >= t.enough_ms and t.phase <> 'decode' then 'cache_miss'
            when t.slow_ms >= t.enough_ms
                or (t.slow_ms >= 0.5 * t.enough_ms
                    -- others' prefills took longer there, too: that part of theirs is the worker's
                    and t.slow_ms >= 0.5 * t.interference_ms
                        * (1.0 - t.slow_ms / nullif(t.excess_ms + t.expected_ms, 0.0))
                    and t.is_elevated = 0 and t.is_crowded = 0) then 'slow'
            when t.preemptions > 0 then 'preemption'
            when t.interference_ms >= t.enough_ms then 'prefill_interference'
            when t.contention_ms >= t.enough_ms and t.is_crowded = 1 then 'router_imbalance'
            when t.contention_ms >= t.enough_ms and t.is_elevated = 1 and t.is_spike = 1
                then 'arrival_burst'
            when t.contention_ms >= t.enough_ms and t.is_elevated = 1 then 'capacity'
            when t.contention_ms >= t.enough_ms and t.decoding_ms < 0.5 * t.contention_ms
                and t.interference_ms >= 0.5 * t.enough_ms then 'prefill_interference'
            when t.worker_preemptions > 0 and t.phase <> 'queue_or_prefill' then 'preemption'
            when t.frozen_ms >= t.enough_ms then 'frontend_stall'
            else 'unknown'
        end as found
    from tested as t
    cross join attribution_rules as p
)

select
    t.suspect_id as suspect_id,
    t.request_key as request_key,
    t.phase as phase,
    case when n.found = 'slow'
             then case when t.is_throttled = 1 then 'gpu_throttled' else 'slow_worker' end
         else n.found end as cause,
    case n.found
        when 'prefill_interference'
            then case when t.interference_ms >= t.enough_ms then t.interference_ms
                      when t.contention_ms < t.excess_ms then t.contention_ms else t.excess_ms end
        when 'slow'
            then case when t.phase not in ('prefill', 'queue_or_prefill', 'decode') then null
                      when t.slow_ms <= 0.0 then null
                      when t.slow_ms < t.excess_ms then t.slow_ms
                      else t.excess_ms end
        when 'cache_miss'
            then case when t.cache_ms < t.excess_ms then t.cache_ms else t.excess_ms end
        when 'kv_capacity'
            then case when t.alloc_ms < t.excess_ms then t.alloc_ms
                      when t.alloc_ms is not null then t.excess_ms end
        when 'double_prefill'
            then case when t.again_ms < t.excess_ms then t.again_ms else t.excess_ms end
        when 'kv_transfer_wait'
            then case when t.transfer_wait_ms < t.excess_ms then t.transfer_wait_ms
                      else t.excess_ms end
        when 'kv_transfer_bandwidth'
            then case when t.wire_ms < t.excess_ms then t.wire_ms
                      when t.wire_ms is not null then t.excess_ms
                      when t.size_ms < t.excess_ms then t.size_ms end
    end as cause_ms,
    -- a prompt waits on the prefill server for room in the decode server's KV cache
    case when n.found = 'double_prefill'
            or (n.found = 'kv_capacity' and t.phase = 'queue' and t.alloc_ms >= t.enough_ms)
        then 1 else 0 end as is_decode_servers
from tested as t
join named as n on t.suspect_id = n.suspect_id
