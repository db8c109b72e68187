-- What engine metrics and GPU samples said of a suspect's worker while it lost its time.
-- grain: one row per suspect whose worker has samples.
-- inputs: suspect_load, pressure_bins, pressure_rules, pressure_usual
-- suspect_id: the row of suspect_requests
-- full_share: [1] share of the samples that found the KV cache full, NULL without samples
-- kv_usage: [1] mean usage of the KV cache, NULL without samples
-- preemptions: preemptions on the worker, NULL where no sample told
-- transfer_share: [1] transfer speed as a share of the worker's usual one, NULL if none was seen
-- clock_share: [1] GPU clock as a share of what such GPUs reach, NULL without samples
-- throttled_share: [1] share of those samples that were throttled
with spans as (
    select
        s.suspect_id as suspect_id,
        s.worker as worker,
        s.start_unix_ns - s.start_unix_ns % nullif(r.bin_ns, 0) - r.bin_ns as before_bin,
        s.end_unix_ns - s.end_unix_ns % nullif(r.bin_ns, 0) as last_bin
    from suspect_load as s
    cross join pressure_rules as r
),

sums as (
    select
        s.suspect_id as suspect_id,
        s.worker as worker,
        b.total_kv_samples - coalesce(a.total_kv_samples, 0.0) as kv_samples,
        b.total_full - coalesce(a.total_full, 0.0) as full_samples,
        b.total_kv_usage - coalesce(a.total_kv_usage, 0.0) as kv_usage,
        b.total_preemption_samples - coalesce(a.total_preemption_samples, 0.0)
            as preemption_samples,
        b.total_preemptions - coalesce(a.total_preemptions, 0.0) as preemptions,
        b.total_transfer_s - coalesce(a.total_transfer_s, 0.0) as transfer_s,
        b.total_transfer_bytes - coalesce(a.total_transfer_bytes, 0.0) as transfer_bytes,
        b.total_clock_samples - coalesce(a.total_clock_samples, 0.0) as clock_samples,
        b.total_clock_hz - coalesce(a.total_clock_hz, 0.0) as clock_hz,
        b.total_throttled - coalesce(a.total_throttled, 0.0) as throttled
    from spans as s
    join pressure_bins as b on s.worker = b.worker and b.bin_unix_ns = s.last_bin
    left join pressure_bins as a on s.worker = a.worker and a.bin_unix_ns = s.before_bin
)

select
    s.suspect_id as suspect_id,
    s.full_samples / nullif(s.kv_samples, 0.0) as full_share,
    s.kv_usage / nullif(s.kv_samples, 0.0) as kv_usage,
    case when s.preemption_samples > 0 then s.preemptions end as preemptions,
    case when s.transfer_s > 0 then s.transfer_bytes / nullif(s.transfer_s, 0.0)
        / nullif(u.transfer_bps, 0.0) end as transfer_share,
    s.clock_hz / nullif(s.clock_samples, 0.0) / nullif(u.top_clock_hz, 0.0) as clock_share,
    s.throttled / nullif(s.clock_samples, 0.0) as throttled_share
from sums as s
join pressure_usual as u on s.worker = u.worker
