-- tracekit's own phase spans (`tracekit.phase` = queue, prefill, queue_or_prefill, kv_transfer, decode,
-- or a sub-phase) as legs.
-- grain: one row per phase span; the matching merges those of one call.
-- inputs: spans
-- when: tracekit_phase is not null
-- Several prefill spans of one request on one worker are chunks of its prefill: what lies between them
-- is prefill.wait. A span that names a sub-phase (prefill.wait, decode.preempted, ...) tells what
-- happened inside the phase, beside that phase's own span or in its place; such a leg bounds no
-- phase, so it has an arrival and an end only. kv_transfer.wire is the transfer itself.
-- `tracekit.phase.source` says how the phase is known: measured (default), reported, inferred.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with p as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        coalesce(
            nullif(json_extract_string(s.attributes, '$."tracekit.phase.source"'), ''), 'measured'
        ) || ' tracekit.phase=' || s.tracekit_phase as src,
        json_extract_string(s.attributes, '$."tracekit.worker"') as phase_worker,
        try_cast(json_extract_string(s.attributes, '$."tracekit.kv_bytes"') as bigint) as phase_kv_bytes,
        s.tracekit_phase in ('kv_transfer', 'kv_transfer.wire') as is_kv,
        s.tracekit_phase like '%.%' and not is_kv as is_part
    from spans as s
    where s.tracekit_phase in ('queue', 'prefill', 'queue_or_prefill', 'kv_transfer', 'decode',
        'frontend.engine_step_wait', 'queue.kv_alloc', 'prefill.wait', 'prefill.double', 'decode.stall',
        'decode.preempted', 'kv_transfer.wait', 'kv_transfer.wire', 'kv_transfer.recompute')
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    'engine' as role,
    'tracekit' as source,
    trace_id,
    span_id,
    parent_span_id,
    service_name,
    service_instance_id,
    host_name,
    coalesce(phase_worker, service_name) as worker,
    case when status_code = 2 then 'error' else 'ok' end as status,
    phase_kv_bytes as kv_bytes,
    case when tracekit_phase like '%.%' then tracekit_phase end as sub_phase,
    'server' as ttft_kind,
    1 as has_clock,
    case when is_part then start_unix_ns end as recv_unix_ns,
    case when is_part then src end as recv_src,
    case when tracekit_phase in ('queue', 'queue_or_prefill') then start_unix_ns
        end as queued_unix_ns,
    case when tracekit_phase in ('queue', 'queue_or_prefill') then src end as queued_src,
    case when tracekit_phase = 'queue' then end_unix_ns
        when tracekit_phase = 'prefill' then start_unix_ns end as scheduled_unix_ns,
    case when tracekit_phase in ('queue', 'prefill') then src end as scheduled_src,
    case when tracekit_phase in ('prefill', 'queue_or_prefill') then end_unix_ns
        end as prefill_end_unix_ns,
    case when tracekit_phase in ('prefill', 'queue_or_prefill') then src end as prefill_end_src,
    case when is_kv then start_unix_ns end as kv_start_unix_ns,
    case when is_kv then src end as kv_start_src,
    case when is_kv then end_unix_ns end as kv_end_unix_ns,
    case when is_kv then src end as kv_end_src,
    case when tracekit_phase = 'decode' then start_unix_ns end as first_token_unix_ns,
    case when tracekit_phase = 'decode' then src end as first_token_src,
    case when tracekit_phase = 'decode' then end_unix_ns end as last_token_unix_ns,
    case when tracekit_phase = 'decode' then src end as last_token_src,
    case when is_part then end_unix_ns end as leg_end_unix_ns,
    case when is_part then src end as leg_end_src,
    ingested_unix_ns
from p
