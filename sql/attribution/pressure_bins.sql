-- What engine metrics and GPU samples said of each worker, per slice, with running sums.
-- grain: one row per worker that has samples and slice of time.
-- inputs: worker_samples, pressure_rules, pressure_times, attribution_rules
-- worker: worker
-- bin_unix_ns: [unix ns] start of the slice
-- total_kv_samples: samples of KV usage up to and with this slice
-- total_full: those of them that found the KV cache full
-- total_kv_usage: [1] sum of their usage
-- total_preemption_samples: samples that told preemptions up to and with this slice
-- total_preemptions: preemptions up to and with this slice
-- total_transfer_s: [s] time in KV transfers up to and with this slice
-- total_transfer_bytes: [bytes] moved up to and with this slice
-- total_clock_samples: samples of a working GPU's clock up to and with this slice
-- total_clock_hz: [Hz] sum of those clocks
-- total_throttled: samples of a throttled GPU up to and with this slice
with seen as (
    select
        s.worker as worker,
        s.at_unix_ns - s.at_unix_ns % nullif(r.bin_ns, 0) as bin_unix_ns,
        sum(cast(case when s.kv_usage is not null then 1 else 0 end as double)) as kv_samples,
        sum(cast(case when s.kv_usage >= p.full_kv then 1 else 0 end as double)) as full_samples,
        sum(coalesce(s.kv_usage, 0.0)) as kv_usage,
        sum(cast(case when s.preemptions is not null then 1 else 0 end as double))
            as preemption_samples,
        sum(coalesce(s.preemptions, 0.0)) as preemptions,
        sum(coalesce(s.transfer_s, 0.0)) as transfer_s,
        sum(coalesce(s.transfer_bytes, 0.0)) as transfer_bytes,
        sum(cast(case when s.sm_clock_hz is not null then 1 else 0 end as double)) as clock_samples,
        sum(coalesce(s.sm_clock_hz, 0.0)) as clock_hz,
        sum(cast(case when s.is_throttled = 1 then 1 else 0 end as double)) as throttled
    from worker_samples as s
    cross join pressure_rules as r
    cross join attribution_rules as p
    group by s.worker, s.at_unix_ns - s.at_unix_ns % nullif(r.bin_ns, 0)
),

workers as (
    select distinct worker from seen
),

dense as (
    select
        w.worker as worker,
        t.bin_unix_ns as bin_unix_ns,
        coalesce(s.kv_samples, 0.0) as kv_samples,
        coalesce(s.full_samples, 0.0) as full_samples,
        coalesce(s.kv_usage, 0.0) as kv_usage,
        coalesce(s.preemption_samples, 0.0) as preemption_samples,
        coalesce(s.preemptions, 0.0) as preemptions,
        coalesce(s.transfer_s, 0.0) as transfer_s,
        coalesce(s.transfer_bytes, 0.0) as transfer_bytes,
        coalesce(s.clock_samples, 0.0) as clock_samples,
        coalesce(s.clock_hz, 0.0) as clock_hz,
        coalesce(s.throttled, 0.0) as throttled
    from workers as w
    cross join pressure_times as t
    left join seen as s on w.worker = s.worker and t.bin_unix_ns = s.bin_unix_ns
)

select
    worker,
    bin_unix_ns,
    sum(kv_samples) over w as total_kv_samples,
    sum(full_samples) over w as total_full,
    sum(kv_usage) over w as total_kv_usage,
    sum(preemption_samples) over w as total_preemption_samples,
    sum(preemptions) over w as total_preemptions,
    sum(transfer_s) over w as total_transfer_s,
    sum(transfer_bytes) over w as total_transfer_bytes,
    sum(clock_samples) over w as total_clock_samples,
    sum(clock_hz) over w as total_clock_hz,
    sum(throttled) over w as total_throttled
from dense
window w as (
    partition by worker order by bin_unix_ns nulls last
    rows between unbounded preceding and current row
)
