-- Phases of requests whose legs are in sequence: differences of ordered boundary points.
-- grain: one row per request and phase interval, path cut or client only
-- inputs: request_points
-- request_key: identity of the request
-- revision: [unix ns] settle pass that wrote the row
-- phase: phase name
-- sub_phase: sub-phase, NULL if none
-- start_unix_ns: [unix ns] start
-- end_unix_ns: [unix ns] end
-- src: provenance and field behind the interval
-- role: leg that claims it
-- worker: worker of that leg
-- uncertainty_ns: [ns] +- of the two clocks that stamped its ends, NULL for one clock or no bound
with k as (
    select
        request_key, revision, path, is_pd, d_again, step_wait,
        -- 1 unless the decode server computed the prompt again: then there was no transfer
        case when is_pd = 1 and coalesce(d_again, 0) = 0 then 1 else 0 end as is_moved,
        c_intended, c_send, c_first, c_first_src, c_last_src, c_waiting,
        g_n, g_recv, p_n, p_recv, p_queued, p_scheduled, p_first, p_end, p_queued_src,
        p_first_src, p_worker,
        case when is_pd = 1 and coalesce(d_again, 0) = 0 then wire_start end as wire_start,
        case when is_pd = 1 and coalesce(d_again, 0) = 0 then wire_end end as wire_end, wire_src,
        e_recv, e_queued, e_scheduled, e_kv_start, e_kv_end, e_first, e_last, e_queued_src,
        e_prefill_src, e_kv_src, e_last_src, e_worker,
        wall_start, wall_end,
        network_in_ns, network_out_ns, route_in_ns, route_out_ns, kv_ns,
        coalesce(c_send, wall_start) as sent,
        coalesce(g_recv, p_recv, e_recv) as recv,
        coalesce(e_recv, e_queued, e_scheduled, e_prefill_end, e_kv_start, e_first) as e_at,
        coalesce(e_prefill_end, e_first) as pre_end,
        case when e_end is null or e_end < e_last then e_last
            when e_end > wall_end then wall_end else e_end end as t1,
        case when g_end > wall_end then wall_end else g_end end as g_stop
    from request_points
    where path in ('cut', 'client')
),

s as (
    select request_key, revision, 'client_wait' as phase, null as sub_phase,
        c_intended as start_unix_ns, c_send as end_unix_ns,
        'measured client send' as src, 'client' as role, null as worker,
        cast(null as bigint) as uncertainty_ns
    from k where c_intended is not null and c_send is not null
    union all
    -- a client alone: before the first token nothing tells queue from prefill
    select request_key, revision,
        case when c_first is null and c_waiting = 0 then 'unexplained' else 'queue_or_prefill' end,
        null, sent, coalesce(c_first, wall_end),
        case when c_first is not null then c_first_src
            when c_waiting = 1 then 'inferred no token before the client gave up' end,
        'client', null, null
    from k where path = 'client'
    union all
    select request_key, revision, 'decode', null, c_first, wall_end, c_last_src, 'client', null,
        null
    from k where path = 'client' and c_first is not null
    union all
    select request_key, revision,
        case when recv is null then 'unexplained' else 'network' end,
        null, sent, coalesce(recv, e_at),
        case when recv is not null then 'measured server arrival' end, 'client', null,
        network_in_ns
    from k where path = 'cut'
    union all
    select request_key, revision, 'route', null, g_recv, coalesce(p_recv, e_at),
        'measured engine arrival', 'gateway', null, route_in_ns
    from k where path = 'cut' and g_recv is not null
    union all
    select request_key, revision, 'frontend',
        case when step_wait = 1 then 'frontend.engine_step_wait' end,
        p_recv, p_queued, 'inferred arrival until queued', 'prefill_engine', p_worker, null
    from k where path = 'cut' and p_n > 0
    union all
    select request_key, revision, 'queue', null, p_queued, p_scheduled, p_queued_src,
        'prefill_engine', p_worker, null
    from k where path = 'cut' and p_n > 0
    union all
    select request_key, revision, 'prefill', null, p_scheduled, p_first, p_first_src,
        'prefill_engine', p_worker, null
    from k where path = 'cut' and p_n > 0
    union all
    select request_key, revision, 'frontend', null, p_first, p_end, 'measured span end',
        'prefill_engine', p_worker, null
    from k where path = 'cut' and p_n > 0
    union all
    select request_key, revision, 'route', null, p_end, e_at, 'measured decode server arrival',
        case when g_n > 0 then 'gateway' else 'decode_engine' end, null, kv_ns
    from k where path = 'cut' and p_n > 0
    union all
    select request_key, revision,
        case when e_queued is not null then 'frontend'
            when e_scheduled is not null then 'unexplained' else 'queue_or_prefill' end,
        case when e_queued is not null and step_wait = 1 then 'frontend.engine_step_wait' end,
        e_recv, coalesce(e_queued, e_scheduled, pre_end),
        case when e_queued is not null then 'inferred arrival until queued'
            when e_scheduled is null then e_prefill_src end,
        case when is_pd = 1 then 'decode_engine' else 'engine' end, e_worker, null
    from k where path = 'cut' and e_recv is not null
    union all
    select request_key, revision,
        case when e_scheduled is null then 'queue_or_prefill'
            when is_moved = 1 then 'kv_transfer' else 'queue' end,
        case when is_moved = 1 and e_scheduled is not null then 'kv_transfer.wait' end,
        e_queued, coalesce(wire_start, e_scheduled, pre_end),
        case when e_scheduled is null then e_prefill_src
            when is_moved = 1 then 'inferred queue time of the decode server' else e_queued_src end,
        case when is_pd = 1 then 'decode_engine' else 'engine' end, e_worker, null
    from k where path = 'cut' and e_queued is not null
    union all
    -- while bytes moved it was no wait
    select request_key, revision, 'kv_transfer', 'kv_transfer.wire', wire_start, wire_end, wire_src,
        'decode_engine', e_worker, null
    from k where path = 'cut' and wire_start is not null
    union all
    select request_key, revision, 'kv_transfer', 'kv_transfer.wait', wire_end, e_scheduled,
        'inferred queue time of the decode server', 'decode_engine', e_worker, null
    from k where path = 'cut' and wire_start is not null
    union all
    select request_key, revision,
        case when is_moved = 1 then 'kv_transfer' else 'prefill' end,
        case when d_again = 1 then 'prefill.double'
            when d_again = 0 then 'kv_transfer.recompute' end,
        e_scheduled, pre_end,
        case when is_pd = 1 then 'inferred prefill time of the decode server'
            else e_prefill_src end,
        case when is_pd = 1 then 'decode_engine' else 'engine' end, e_worker, null
    from k where path = 'cut' and e_scheduled is not null
    union all
    select request_key, revision, 'unexplained', null, pre_end, coalesce(e_kv_start, e_first),
        null, case when is_pd = 1 then 'decode_engine' else 'engine' end, e_worker, null
    from k where path = 'cut'
    union all
    select request_key, revision, 'kv_transfer', case when is_pd = 1 then 'kv_transfer.wire' end,
        e_kv_start, e_kv_end, e_kv_src,
        case when is_pd = 1 then 'decode_engine' else 'engine' end, e_worker, null
    from k where path = 'cut' and e_kv_start is not null
    union all
    select request_key, revision, 'unexplained', null, e_kv_end, e_first,
        null, case when is_pd = 1 then 'decode_engine' else 'engine' end, e_worker, null
    from k where path = 'cut' and e_kv_end is not null
    union all
    select request_key, revision, 'decode', null, e_first, e_last, e_last_src,
        case when is_pd = 1 then 'decode_engine' else 'engine' end, e_worker, null
    from k where path = 'cut'
    union all
    select request_key, revision, 'frontend', null, e_last, t1, 'measured span end',
        case when is_pd = 1 then 'decode_engine' else 'engine' end, e_worker, null
    from k where path = 'cut'
    union all
    select request_key, revision, 'route', null, t1, g_stop, 'measured span end', 'gateway', null,
        route_out_ns
    from k where path = 'cut' and g_stop > t1
    union all
    select request_key, revision,
        case when recv is null then 'unexplained' else 'network' end, null,
        case when g_stop > t1 then g_stop else t1 end, wall_end,
        case when recv is not null then c_last_src end, 'client', null, network_out_ns
    from k where path = 'cut'
)

select
    request_key, revision, phase, sub_phase, start_unix_ns, end_unix_ns, src, role, worker,
    uncertainty_ns
from s
where end_unix_ns > start_unix_ns
