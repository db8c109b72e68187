-- What engines' metrics and GPU samplers say of each worker: memory, preemptions, transfers, clocks.
-- grain: one row per worker and sample.
-- inputs: metric_samples, gpu_samples, legs
-- worker: worker as in `legs`
-- at_unix_ns: [unix ns] time of the sample
-- kv_usage: [1] share of the KV cache in use
-- preemptions: preemptions since the sample before
-- transfer_s: [s] time in KV transfers since the sample before
-- transfer_bytes: [bytes] moved since the sample before
-- sm_clock_hz: [Hz] SM clock, of windows in which the GPU worked
-- is_throttled: 1 if the GPU held its clock back for heat or power, else 0
-- A counter that falls was reset; what came before its first sample is not known.
with metrics as (
    select
        concat_ws('/', service_name, case
            when length(service_instance_id) > 16 then substr(service_instance_id, 1, 8)
            else service_instance_id
        end) as worker,
        at_unix_ns,
        case regexp_replace(name, '(_total|_sum)$', '')
            when 'vllm:kv_cache_usage_perc' then 'kv_usage'
            when 'vllm:gpu_cache_usage_perc' then 'kv_usage'
            when 'vllm:num_preemptions' then 'preemptions'
            when 'vllm:nixl_xfer_time_seconds' then 'transfer_s'
            when 'vllm:nixl_bytes_transferred' then 'transfer_bytes'
        end as field,
        value
    from metric_samples
    where name in (
        'vllm:kv_cache_usage_perc', 'vllm:gpu_cache_usage_perc', 'vllm:num_preemptions_total',
        'vllm:num_preemptions', 'vllm:nixl_xfer_time_seconds', 'vllm:nixl_xfer_time_seconds_sum',
        'vllm:nixl_bytes_transferred', 'vllm:nixl_bytes_transferred_sum')
        and value is not null
),

-- one engine of a worker at a time: several (data parallel) are added up, their fullest counts
points as (
    select
        worker,
        at_unix_ns,
        max(case when field = 'kv_usage' then value end) as kv_usage,
        sum(case when field = 'preemptions' then value end) as preemptions,
        sum(case when field = 'transfer_s' then value end) as transfer_s,
        sum(case when field = 'transfer_bytes' then value end) as transfer_bytes
    from metrics
    group by worker, at_unix_ns
),

steps as (
    select
        worker,
        at_unix_ns,
        kv_usage,
        preemptions - lag(preemptions ignore nulls) over w as preemptions,
        transfer_s - lag(transfer_s ignore nulls) over w as transfer_s,
        transfer_bytes - lag(transfer_bytes ignore nulls) over w as transfer_bytes
    from points
    window w as (partition by worker order by at_unix_ns)
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
    case when preemptions >= 0 then preemptions end as preemptions,
    case when transfer_s >= 0 then transfer_s end as transfer_s,
    case when transfer_bytes >= 0 then transfer_bytes end as transfer_bytes,
    null::double as sm_clock_hz,
    0 as is_throttled
from steps
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
