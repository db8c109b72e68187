-- What engines' metrics and GPU samplers say of each worker: memory, preemptions, transfers, clocks.
-- grain: one row per worker and sample.
-- inputs: worker_metrics, gpu_samples, legs
-- worker: worker as in `legs`
-- at_unix_ns: [unix ns] time of the sample
-- kv_usage: [1] share of the KV cache in use
-- preemptions: preemptions since the sample before
-- transfer_s: [s] time in KV transfers since the sample before
-- transfer_bytes: [bytes] moved since the sample before
-- sm_clock_hz: [Hz] SM clock, of windows in which the GPU worked
-- is_throttled: 1 if the GPU held its clock back for heat or power, else 0
with metrics as (
    select worker, at_unix_ns, system, scope, field, value, delta
    from worker_metrics
    where worker is not null and scope <> 'router'
        and field in ('kv_usage', 'preemptions', 'transfer_s', 'transfer_bytes')
),

-- a speed is bytes over time of one and the same teller: the engine before a library inside it
movers as (
    select worker, arg_min(system, scope || system) as system
    from (
        select worker, system, scope
        from metrics
        where field in ('transfer_s', 'transfer_bytes')
        group by worker, system, scope
        having count(distinct field) = 2
    ) as m
    group by worker
),

points as (
    select
        m.worker,
        m.at_unix_ns,
        max(case when m.field = 'kv_usage' then m.value end) as kv_usage,
        sum(case when m.field = 'preemptions' then m.delta end) as preemptions,
        sum(case when m.field = 'transfer_s' and m.system = t.system then m.delta end)
            as transfer_s,
        sum(case when m.field = 'transfer_bytes' and m.system = t.system then m.delta end)
            as transfer_bytes
    from metrics as m
    left join movers as t on m.worker = t.worker
    group by m.worker, m.at_unix_ns
),

hosts as (
    select distinct worker, host_name
    from legs
    where role in ('engine', 'prefill_engine', 'decode_engine')
        and worker is not null and host_name is not null
)

select
    worker,
    at_unix_ns,
    kv_usage,
    preemptions,
    transfer_s,
    transfer_bytes,
    null::double as sm_clock_hz,
    0 as is_throttled
from points
union all
select
    h.worker,
    g.win_start_unix_ns as at_unix_ns,
    null as kv_usage,
    null as preemptions,
    null as transfer_s,
    null as transfer_bytes,
    case when g.gpu_time_util > 0.05 then g.sm_clock_hz::double end as sm_clock_hz,
    -- SW power cap, HW slowdown, SW and HW thermal slowdown, power brake
    case when g.throttled_ns > 0 or (g.clock_reasons & 236) <> 0 then 1 else 0 end as is_throttled
from gpu_samples as g
join hosts as h on g.host = h.host_name
where g.status = 'ok'
