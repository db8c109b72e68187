-- What each leg claims of the timeline, for requests whose legs overlap or are out of order.
-- grain: one row per request and claimed interval, path sweep only
-- inputs: request_points, legs, phase_parts
-- An outer leg's queue_or_prefill and decode count only where no engine leg covers the time, so that
-- a client's early role chunk does not turn queueing into decode.
-- Where one server of a P/D pair told nothing, its time is neither routing nor network.
-- request_key: identity of the request
-- revision: [unix ns] settle pass that wrote the row
-- prio: which claim wins an instant, lowest first
-- phase: phase name
-- sub_phase: sub-phase, '' if none
-- start_unix_ns: [unix ns] start, clipped to the wall time
-- end_unix_ns: [unix ns] end, clipped to the wall time
-- src: provenance and field behind the interval, '' if none
-- role: leg that claims it
-- worker: worker of that leg, '' if none
with p as (
    select
        request_key, revision, wall_start, wall_end, c_n, c_intended, c_send, c_first, c_first_src,
        c_last, c_last_src, c_waiting, c_aborted, c_failed, e_incomplete, g_n, g_recv, g_end, p_n, p_end, e_n,
        s_n, in_first, en_first, in_last, is_pd, d_again, wire_start, wire_end, wire_src, e_worker,
        p_recv, p_queued, p_scheduled, p_first, p_first_src, p_queued_src, p_worker, kv_moved,
        wire_told, loads, step_wait, told_beside, e_prefill_end, e_prefill_src,
        e_recv, e_queued, e_scheduled, e_first, e_last, e_queued_src,
        g_first, g_first_src, g_last, g_last_src,
        -- what the servers show of the first token, where no engine stamped it
        case when e_first is null then coalesce(g_first,
            case when e_scheduled is not null then c_first end) end as o_first,
        -- whether a prefill server came before the decode server and told nothing; one called beside
        -- it (which then tells only when the KV cache had come) took no time before it
        case when is_pd = 1 and p_n = 0 and e_n > 0
            and not (kv_moved is not null and e_kv_start is null) then 1 else 0 end as p_unseen,
        -- what a router infers of a first token is when headers came; of a call that is not streamed
        -- these come after its last
        case when e_n > 0 or g_last is not null or g_first_src not like 'inferred%'
            then 1 else 0 end as o_is_token,
        coalesce(g_recv, in_first) as inner_at,
        coalesce(e_recv, e_queued, e_scheduled, e_prefill_end, e_kv_start, e_first) as e_at,
        coalesce(g_recv, p_recv, e_recv) as recv
    from request_points
    where path = 'sweep'
),

-- engine legs, with the phases their role gives the same boundaries
e as (
    select
        l.request_key, l.revision, l.role, coalesce(l.worker, '') as worker,
        case when l.engine = 'vllm' then 'frontend.engine_step_wait' else '' end as wait_sub,
        l.recv_unix_ns as recv, l.queued_unix_ns as queued, l.scheduled_unix_ns as scheduled,
        coalesce(l.prefill_end_unix_ns, l.first_token_unix_ns) as pre_end,
        l.kv_start_unix_ns as kv_start, l.kv_end_unix_ns as kv_end,
        l.first_token_unix_ns as first, l.last_token_unix_ns as last, l.leg_end_unix_ns as stop,
        coalesce(l.queued_src, '') as queued_src,
        coalesce(l.prefill_end_src, l.first_token_src, '') as pre_src,
        coalesce(l.kv_end_src, '') as kv_src,
        coalesce(l.last_token_src, '') as last_src,
        case when l.role = 'decode_engine' then 1 else 0 end as is_decode,
        -- after the KV cache has come a decode server's queue is a queue
        case when l.role = 'decode_engine' and coalesce(p.d_again, 0) = 0
            and (p.kv_moved is null or l.queued_unix_ns < p.kv_moved) then 1 else 0 end as is_kv_wait,
        case when l.kv_start_src like 'measured%' and l.kv_end_src like 'measured%'
            then 1 else 0 end as is_wire,
        p.p_first, p.wire_told, p.e_at, coalesce(p.kv_moved, p.e_first) as d_moved,
        case when l.role = 'decode_engine' then p.d_again end as d_again,
        -- what was told beside it: since when it queued, and whether that and prefill are told apart
        case when p.told_beside = 1 then p.e_queued end as told_queued,
        case when p.told_beside = 1 and p.e_scheduled is not null then 1 else 0 end as is_split
    from legs as l
    join p on l.request_key = p.request_key and l.revision = p.revision
    where l.role in ('engine', 'prefill_engine', 'decode_engine')
),

c as (
    select request_key, revision, 99 as prio, 'unexplained' as phase, '' as sub_phase,
        wall_start as start_unix_ns, wall_end as end_unix_ns, '' as src, '' as role, '' as worker
    from p
    union all
    select request_key, revision, 10, 'client_wait', '', c_intended, c_send,
        'measured client send', 'client', ''
    from p
    union all
    select request_key, revision, 9, 'network', '', c_send, inner_at,
        'measured server arrival', 'client', ''
    from p where recv is not null and (p_unseen = 0 or g_recv is not null)
    union all
    select request_key, revision, 9, 'network', '', in_last, wall_end,
        coalesce(c_last_src, ''), 'client', ''
    from p where recv is not null and e_n > 0 and c_n > 0
    union all
    select request_key, revision, 8, 'route', '', g_recv, en_first,
        'measured engine arrival', 'gateway', ''
    from p where p_unseen = 0
    union all
    select request_key, revision, 8, 'route', '', in_last, g_end,
        'measured span end', 'gateway', ''
    from p where e_n > 0
    union all
    -- before a decode server's arrival, if nobody saw the prefill server: all that came before it
    select request_key, revision, 4, 'queue_or_prefill', '', coalesce(g_recv, c_send), e_at,
        'inferred the prefill server told nothing',
        case when g_recv is not null then 'gateway' else 'client' end, ''
    from p where p_unseen = 1
    union all
    select request_key, revision, 8, 'route', '', p_end, e_at, 'measured decode server arrival',
        case when g_n > 0 then 'gateway' else 'decode_engine' end, ''
    from p where p_n > 0
    union all
    -- the client's own view, where no engine leg covers the time
    select request_key, revision, case when s_n > 0 then 12 else 4 end, 'queue_or_prefill', '',
        case when g_recv > c_send then g_recv else c_send end,
        coalesce(c_first, wall_end),
        case when c_first is not null then coalesce(c_first_src, '')
            else 'inferred no token before the client gave up' end, 'client', ''
    from p where e_n + p_n = 0 and (c_first is not null or c_waiting = 1)
    union all
    select request_key, revision, 4, 'queue_or_prefill', '', in_last, c_first,
        coalesce(c_first_src, ''), 'client', ''
    from p where e_n + p_n > 0 and e_incomplete = 1
    union all
    select request_key, revision, case when s_n > 0 and e_n + p_n = 0 then 11 else 1 end,
        'decode', '',
        case when in_last > c_first then in_last else c_first end, wall_end,
        coalesce(c_last_src, ''), 'client', ''
    from p where c_first is not null and (e_n + p_n = 0 or e_incomplete = 1)
    union all
    select request_key, revision, 7, 'frontend', wait_sub, recv, queued,
        'inferred arrival until queued', role, worker
    from e
    union all
    select request_key, revision, 4, 'queue_or_prefill', '', coalesce(queued, told_queued, recv),
        pre_end, pre_src, role, worker
    from e where scheduled is null and is_split = 0
    union all
    -- a decode server's queue time is its wait for the KV cache, unless none came over
    select request_key, revision,
        case when is_kv_wait = 1 then 6 else 3 end,
        case when is_kv_wait = 1 then 'kv_transfer' else 'queue' end,
        case when is_kv_wait = 1 then 'kv_transfer.wait' else '' end,
        queued, scheduled,
        case when is_kv_wait = 1
            then 'inferred queue time of the decode server' else queued_src end, role, worker
    from e
    union all
    -- and its prefill time is the last token's, unless it computed the prompt again
    select request_key, revision,
        case when is_decode = 1 and coalesce(d_again, 0) = 0 then 6 else 2 end,
        case when is_decode = 1 and coalesce(d_again, 0) = 0 then 'kv_transfer' else 'prefill' end,
        case when d_again = 1 then 'prefill.double'
            when d_again = 0 then 'kv_transfer.recompute' else '' end,
        scheduled, pre_end,
        case when is_decode = 1 then 'inferred prefill time of the decode server'
            else pre_src end, role, worker
    from e
    union all
    select request_key, revision, 5, 'kv_transfer',
        case when role = 'engine' then '' else 'kv_transfer.wire' end,
        kv_start, kv_end, kv_src, role, worker
    from e where role <> 'prefill_engine' or is_wire = 1
    union all
    -- a prefill server that polls sees the end of a transfer late: not after its decode server did
    select request_key, revision, 6, 'kv_transfer',
        case when wire_told = 1 then 'kv_transfer.wait' else '' end,
        kv_start, case when d_moved < kv_end then d_moved else kv_end end, kv_src, role, worker
    from e where role = 'prefill_engine' and is_wire = 0
    union all
    -- a decode server that tells only when the KV cache had come: what follows the remote prefill is
    -- transfer, and where that prefill is not known nothing tells them apart
    select request_key, revision,
        case when p_first is null then 4 else 6 end,
        case when p_first is null then 'queue_or_prefill' else 'kv_transfer' end,
        case when p_first is not null and wire_told = 1 then 'kv_transfer.wait' else '' end,
        coalesce(p_first, e_at), kv_end, kv_src, role, worker
    from e where role = 'decode_engine' and kv_start is null
    union all
    -- what a client saw of tokens, where a prefill server told of it and the decode server did not:
    -- what lies between the two is not known
    select request_key, revision, 1, 'decode', '', c_first, wall_end, coalesce(c_last_src, ''),
        'client', ''
    from p where p_n > 0 and e_n = 0 and c_first >= p_first
    union all
    -- handed over, and given up by a client that waited for a first token
    select request_key, revision, 6, 'kv_transfer', 'kv_transfer.wait', p_end, wall_end,
        'inferred no token after the prefill server was done', 'decode_engine', ''
    from p where p_n > 0 and e_n = 0 and c_first is null and c_last is null and c_failed = 1
        and c_aborted = 0
    union all
    -- broken off, perhaps in the middle of the answer: neither network nor routing took that time
    select request_key, revision, 6, 'unexplained', '', p_end, wall_end, '', '', ''
    from p where p_n > 0 and e_n = 0 and c_first is null and c_last is null and c_aborted = 1
    union all
    -- while bytes moved it was no wait
    select request_key, revision, 5, 'kv_transfer', 'kv_transfer.wire', wire_start, wire_end,
        coalesce(wire_src, ''), 'decode_engine', coalesce(e_worker, '')
    from p where is_pd = 1 and coalesce(d_again, 0) = 0
    union all
    select request_key, revision, 1, 'decode', '', first, last, last_src, role, worker
    from e where role <> 'prefill_engine'
    union all
    select request_key, revision, 7, 'frontend', '',
        case when role = 'prefill_engine' then pre_end else last end, stop,
        'measured span end', role, worker
    from e
    union all
    -- what several spans of one server tell together
    select request_key, revision, 7, 'frontend', '', p_recv, p_queued,
        'inferred arrival until queued', 'prefill_engine', coalesce(p_worker, '')
    from p where p_n > 1
    union all
    select request_key, revision, 3, 'queue', '', p_queued, p_scheduled,
        coalesce(p_queued_src, ''), 'prefill_engine', coalesce(p_worker, '')
    from p where p_n > 1
    union all
    select request_key, revision, 7, 'frontend', '', e_recv, e_queued,
        'inferred arrival until queued', case when is_pd = 1 then 'decode_engine' else 'engine' end,
        coalesce(e_worker, '')
    from p where (e_n > 1 and step_wait = 0) or told_beside = 1
    union all
    select request_key, revision, 3, 'queue', '', e_queued, e_scheduled,
        coalesce(e_queued_src, ''), 'engine', coalesce(e_worker, '')
    from p where (e_n > 1 and is_pd = 0) or told_beside = 1
    union all
    -- what was told beside the engine's own word
    select request_key, revision, 2, 'prefill', '', e_scheduled, coalesce(e_prefill_end, e_first),
        coalesce(e_prefill_src, ''), 'engine', coalesce(e_worker, '')
    from p where told_beside = 1
    union all
    -- a prefill server that is called beside the decode server, and later
    select request_key, revision, 8, 'route', '', g_recv, p_recv, 'measured engine arrival',
        'gateway', ''
    from p
    union all
    -- broken off before anything more was heard of it
    select request_key, revision, 4, 'queue_or_prefill', '', e_queued, in_last,
        'inferred no token before it was broken off', 'engine', coalesce(e_worker, '')
    from p where e_n > 1 and p_n = 0 and e_first is null and e_scheduled is null
    union all
    -- broken off while it decoded
    select request_key, revision, 1, 'decode', '', e_first, in_last,
        'inferred until it was broken off', 'engine', coalesce(e_worker, '')
    from p where e_n > 1 and e_first is not null and e_last is null and is_pd = 0
    union all
    -- what an engine waits for before it schedules a request, and no wait for a slot
    select l.request_key, l.revision, 2, 'kv_transfer', 'kv_transfer.wire',
        case when l.kv_start_unix_ns > p.e_queued then l.kv_start_unix_ns else p.e_queued end,
        case when l.kv_end_unix_ns < p.e_scheduled then l.kv_end_unix_ns else p.e_scheduled end,
        coalesce(l.kv_end_src, ''), 'engine', coalesce(p.e_worker, '')
    from legs as l
    join p on l.request_key = p.request_key and l.revision = p.revision
    where p.loads = 1 and l.role = 'provider' and l.sub_phase = 'kv_transfer.wire'
        and l.kv_start_src like 'measured%'
    union all
    -- a gateway's own queue
    select l.request_key, l.revision, 3, 'queue', '', l.queued_unix_ns, l.scheduled_unix_ns,
        coalesce(l.queued_src, ''), l.role, coalesce(l.worker, '')
    from legs as l
    join p on l.request_key = p.request_key and l.revision = p.revision
    where l.role in ('gateway', 'router')
    union all
    -- what a gateway saw of tokens, where no engine's own word covers the time; while nobody knows
    -- when a prefill server was done, the transfer cannot be told from what came before it
    select request_key, revision, 4, 'queue_or_prefill', '',
        coalesce(p_recv, e_recv, g_recv),
        coalesce(p_first, o_first), coalesce(p_first_src, g_first_src, ''),
        case when p_n > 0 then 'prefill_engine' when e_n > 0 then 'engine' else 'gateway' end,
        case when p_n > 0 then coalesce(p_worker, '') when e_n > 0 then coalesce(e_worker, '')
            else '' end
    from p where o_first is not null and p_scheduled is null and e_scheduled is null
        and (c_first is null or c_first >= o_first)
    union all
    -- an engine that tells when it began, and somebody else when the first token came
    select request_key, revision, 2, 'prefill', '', e_scheduled, o_first,
        'inferred first token after it was scheduled', 'engine', coalesce(e_worker, '')
    from p where is_pd = 0 and e_scheduled is not null and o_first is not null
    union all
    -- from the end of the prefill to the first token: an upper bound of the transfer
    select request_key, revision, 6, 'kv_transfer', '', p_first, o_first,
        'inferred first token after the prefill server was done', 'decode_engine',
        coalesce(e_worker, '')
    from p where is_pd = 1 and o_first is not null and o_is_token = 1
    union all
    select request_key, revision, 1, 'decode', '', o_first, coalesce(g_last, in_last),
        coalesce(g_last_src, ''), case when e_n > 0 and is_pd = 1 then 'decode_engine'
            when e_n > 0 then 'engine' else 'gateway' end, coalesce(e_worker, '')
    from p where o_first is not null
    union all
    -- what a sub-phase tells is its phase's time; which sub-phase it was, the split says
    select request_key, revision, prio, phase, '', start_unix_ns, end_unix_ns,
        coalesce(src, ''), role, coalesce(worker, '')
    from phase_parts where prio is not null
)

select
    c.request_key, c.revision, c.prio, c.phase, c.sub_phase,
    case when c.start_unix_ns < p.wall_start then p.wall_start else c.start_unix_ns end
        as start_unix_ns,
    case when c.end_unix_ns > p.wall_end then p.wall_end else c.end_unix_ns end as end_unix_ns,
    c.src, c.role, c.worker
from c
join p on c.request_key = p.request_key and c.revision = p.revision
where c.start_unix_ns < c.end_unix_ns
    and c.start_unix_ns < p.wall_end and c.end_unix_ns > p.wall_start
