-- SGLang's own spans: a server's root span as engine leg, its stages as parts of it, KV sends beside.
-- grain: one row per root, thread or stage span of those named below, and one more per P/D root
-- inputs: spans
-- when: scope_name = 'sglang server' and (name in ('api_server_dispatch', 'prefill_bootstrap', 'prefill_forward', 'chunked_prefill', 'prefill_transfer_kv_cache', 'decode_bootstrap', 'decode_transferred', 'decode_waiting', 'decode_forward', 'mooncake_worker_send') or name like '% Req %' or name like '%Scheduler [%' or name like '%Tokenizer(%' or name like 'mooncake transfer %')
-- A root is `<role> Req <rid>` (no role: unified). Below it lie thread spans, one a process and rank,
-- and below these the stages, which carry no attributes: role, ids and counts are the root's. Every
-- rank repeats every stage; the timeline counts an instant once.
-- * A request queues from its dispatch on: a message lies in the scheduler's socket through a step.
-- * prefill_bootstrap and decode_bootstrap wait for KV space on the decode server (queue.kv_alloc).
-- * decode_transferred begins when that space is there, and so holds the remote queue and prefill:
--   only its end is a boundary. Both schedulers see ends late, since they poll between steps; when
--   bytes moved, mooncake_worker_send says (module mooncake, in a trace of its own, joined by room).
-- * A retraction nests: prefill_forward below decode_forward computes again what was thrown away.
-- * What a client left, or what failed, has no span for the stage it was in: its thread is closed
--   with an error and a reason. Without a root a request was refused.
-- * A busy scheduler answers a health check without running it: of one that sent no root (which has
--   its id) there is a tokenizer's thread alone, in a trace that no caller began (64 bits). What is
--   still on its way looks so too, until more of it comes.
-- * n > 1 runs a prefill of its own first, whose root has no tokens, then one root a choice.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with g as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        s.name like '% Req %' as is_root,
        s.name like '%Scheduler [%' or s.name like '%Tokenizer(%'
            or s.name like 'mooncake transfer %' as is_thread
    from spans as s
    where s.scope_name = 'sglang server' and s.name <> 'decode_loop'
),

-- the way up from a span; spans may be there twice
up as (
    select trace_id, span_id, any_value(name) as name, any_value(parent_span_id) as parent_span_id
    from g group by trace_id, span_id
),

r as (
    select
        trace_id, span_id,
        any_value(name) as name,
        any_value(json_extract_string(attributes, [
            '$.rid',
            '$.bootstrap_room',
            '$."gen_ai.usage.prompt_tokens"',
            '$."gen_ai.usage.completion_tokens"',
            '$."gen_ai.usage.cached_tokens"',
            '$."gen_ai.request.n"',
            '$."gen_ai.response.model"',
            '$."gen_ai.response.finish_reasons"',
            '$."gen_ai.request.id"'
        ])) as a
    from g where is_root
    group by trace_id, span_id
),

-- how a thread ended that was not to end so
broken as (
    select
        trace_id,
        parent_span_id as root_id,
        max(case when reason like 'have unclosed span%' then 1 else 0 end) as is_left,
        max(case when reason not like 'have unclosed span%' then reason end) as reason
    from (
        select trace_id, parent_span_id, json_extract_string(attributes, '$.reason') as reason
        from g where is_thread and status_code = 2 and name like '%Scheduler [%'
    ) as t
    group by trace_id, parent_span_id
),

-- the machine, and so the clock: several processes of one server have names of their own; and which
-- of its data-parallel ranks, which a sender's threads name even where there is one only
hosts as (
    select trace_id, parent_span_id as root_id,
        max(json_extract_string(attributes, '$.host_id')) as host_id,
        max(case when name like '%Scheduler [%'
            then json_extract_string(attributes, '$.dp_rank') end) as dp_rank
    from g where is_thread group by trace_id, parent_span_id
),

failed as (
    select trace_id, max(reason) as reason from broken group by trace_id
),

placed as (
    select
        g.*,
        p1.name as above,
        case when is_root then g.span_id when p1.name like '% Req %' then p1.span_id
            when p2.name like '% Req %' then p2.span_id when p3.name like '% Req %' then p3.span_id
        end as root_id,
        -- the thread span that a stage below decode_forward hangs on
        p2.span_id as thread_id
    from g
    left join up as p1 on g.trace_id = p1.trace_id and g.parent_span_id = p1.span_id
    left join up as p2 on g.trace_id = p2.trace_id and p1.parent_span_id = p2.span_id
    left join up as p3 on g.trace_id = p3.trace_id and p2.parent_span_id = p3.span_id
    where is_root or is_thread or g.name in ('api_server_dispatch', 'prefill_bootstrap',
        'prefill_forward', 'chunked_prefill', 'prefill_transfer_kv_cache', 'decode_bootstrap',
        'decode_transferred', 'decode_waiting', 'decode_forward', 'mooncake_worker_send')
),

rooted as (
    select trace_id, 1 as any_root from r group by trace_id
),

-- what no scheduler took up, and nobody's trace holds
unscheduled as (
    select trace_id
    from g
    where trace_id like '0000000000000000%'
    group by trace_id
    having max(case when is_root or name like '%Scheduler [%' or name like 'mooncake transfer %'
            or (is_thread and status_code = 2) then 1 else 0 end) = 0
        and max(case when is_thread then 1 else 0 end) = 1
),

retractions as (
    select trace_id, span_id,
        list_transform(
            list_filter(from_json(any_value(events), '[{"name":"VARCHAR","time_unix_ns":"BIGINT"}]'),
                lambda e: e.name = 'retract'),
            lambda e: e.time_unix_ns) as at_ns
    from g where is_thread and events is not null
    group by trace_id, span_id
),

x as (
    select
        p.*,
        coalesce(r.name, '') as root_name,
        r.a,
        (try_cast(r.a[2] as ubigint))::varchar as room,
        try_cast(r.a[4] as bigint) as completion_tokens,
        -- stages below decode_forward are what a retraction made of them
        p.above = 'decode_forward' as is_again,
        case when p.above = 'decode_forward' then
            list_max(list_filter(v.at_ns, lambda t: t <= p.start_unix_ns)) end as retracted_ns,
        case when p.is_thread then len(w.at_ns) end as retracted,
        b.is_left, b.reason, f.reason as failure, o.any_root, h.host_id,
        h.dp_rank
    from placed as p
    left join r on p.trace_id = r.trace_id and p.root_id = r.span_id
    left join retractions as v on p.trace_id = v.trace_id and p.thread_id = v.span_id
    left join retractions as w on p.trace_id = w.trace_id and p.span_id = w.span_id
    left join broken as b on p.is_root and p.trace_id = b.trace_id and p.span_id = b.root_id
    left join failed as f on p.is_root and p.trace_id = f.trace_id
    left join rooted as o on p.trace_id = o.trace_id
    left join hosts as h on p.trace_id = h.trace_id and p.root_id = h.root_id
    left join unscheduled as n on p.trace_id = n.trace_id
    where (r.a[9] is null or r.a[9] not like 'HEALTH_CHECK%') and n.trace_id is null
),

t as (
    select
        x.*,
        root_name like 'Sender %' as is_sender,
        case
            when root_name like 'prefill %' or root_name like 'Sender %' then 'prefill_engine'
            when root_name like 'decode %' then 'decode_engine'
            when root_name = '' and name like 'Prefill%' then 'prefill_engine'
            when root_name = '' and name like 'Decode%' then 'decode_engine'
            else 'engine'
        end as server,
        is_thread and root_id is null and any_root is null and status_code = 2 as is_refused,
        case
            when is_root and (a[8] like '%abort%' or is_left = 1 or reason is not null)
                then case when failure is not null then 'error' else 'aborted' end
            when is_thread and root_id is null and any_root is null and status_code = 2 then 'error'
            -- how a call ended its root says, no stage of it
            when is_root and not is_sender then 'ok'
        end as outcome,
        name in ('prefill_forward', 'chunked_prefill') and not coalesce(is_again, false)
            and (name = 'prefill_forward' or above not in ('prefill_forward', 'chunked_prefill'))
            as is_prefill,
        name in ('prefill_forward', 'chunked_prefill') and is_again as is_recompute,
        name = 'decode_forward' and not coalesce(is_again, false) as is_decode,
        name = 'decode_waiting' and not coalesce(is_again, false) as is_decode_wait
    from x
),

-- a prefill that computes for n > 1 answers makes no token
k as (
    select
        t.*,
        is_prefill and server = 'engine' and coalesce(completion_tokens, 1) > 0
            and not (a is not null and a[9] is null and is_left is null and a[8] is null
                and completion_tokens is null and any_root = 1) as gives_token
    from t
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    server as role,
    'sglang' as source,
    case when is_root and not is_sender then 0 else 1 end as is_part,
    case when is_root and not is_sender then room end as pair_id,
    trace_id,
    span_id,
    parent_span_id,
    case when is_root and not is_sender then a[9] end as request_id,
    case when is_root and not is_sender then coalesce(a[9], a[1])
        when is_sender then room end as norm_request_id,
    service_name,
    service_instance_id,
    coalesce(host_name, host_id) as host_name,
    concat_ws('/', service_name, 'DP' || dp_rank) as worker,
    case when is_root then a[7] end as model,
    'sglang' as engine,
    outcome as status,
    case when is_root then json_extract_string(try_cast(a[8] as json), '$[0]') end as finish_reason,
    case when outcome = 'error' then coalesce(failure,
        case when is_refused then 'refused before it was scheduled' end,
        'error') end as error,
    case when is_root and not is_sender then try_cast(a[3] as bigint) end as input_tokens,
    case when is_root and not is_sender then try_cast(a[5] as bigint) end as cached_tokens,
    case when is_root and not is_sender then completion_tokens end as output_tokens,
    case when is_root and not is_sender then try_cast(a[6] as integer) end as choices,
    case when is_root and completion_tokens is not null then 'server' end as tokens_source,
    case when retracted > 0 then retracted when is_thread and name like '%Scheduler [%' then 0 end
        as preemptions,
    'server' as ttft_kind,
    1 as has_clock,
    case when is_recompute then 'decode.preempted'
        when name in ('prefill_bootstrap', 'decode_bootstrap') then 'queue.kv_alloc'
    end as sub_phase,
    case
        when is_recompute then coalesce(retracted_ns, start_unix_ns)
        when is_root or is_thread
            or name in ('api_server_dispatch', 'prefill_bootstrap', 'decode_bootstrap')
            or (name in ('chunked_prefill', 'decode_waiting', 'decode_forward')
                and not is_prefill and not is_decode and not is_decode_wait)
            then start_unix_ns
    end as recv_unix_ns,
    case
        when is_recompute then 'measured event retract'
        when is_root or is_thread then 'measured span start'
        when name in ('api_server_dispatch', 'prefill_bootstrap', 'decode_bootstrap')
            then 'measured ' || name
    end as recv_src,
    case when name = 'api_server_dispatch' then end_unix_ns
        when is_decode_wait and server = 'decode_engine' then start_unix_ns end as queued_unix_ns,
    case when name = 'api_server_dispatch' then 'measured api_server_dispatch'
        when is_decode_wait and server = 'decode_engine' then 'measured decode_waiting' end
        as queued_src,
    case when is_prefill then start_unix_ns
        when is_decode_wait and server = 'decode_engine' then end_unix_ns end as scheduled_unix_ns,
    case when is_prefill then 'measured ' || name
        when is_decode_wait and server = 'decode_engine' then 'measured decode_waiting' end
        as scheduled_src,
    case when is_prefill then end_unix_ns end as prefill_end_unix_ns,
    case when is_prefill then 'measured ' || name end as prefill_end_src,
    case when name in ('mooncake_worker_send', 'prefill_transfer_kv_cache') then start_unix_ns end
        as kv_start_unix_ns,
    case when name = 'mooncake_worker_send' then 'measured mooncake_worker_send'
        when name = 'prefill_transfer_kv_cache' then 'inferred prefill_transfer_kv_cache' end
        as kv_start_src,
    case when name in ('mooncake_worker_send', 'prefill_transfer_kv_cache', 'decode_transferred')
        then end_unix_ns end as kv_end_unix_ns,
    case when name = 'mooncake_worker_send' then 'measured mooncake_worker_send'
        when name = 'prefill_transfer_kv_cache' then 'inferred prefill_transfer_kv_cache'
        when name = 'decode_transferred' then 'measured decode_transferred' end as kv_end_src,
    case
        when gives_token then end_unix_ns
        when is_decode or (is_decode_wait and server = 'engine') then start_unix_ns
    end as first_token_unix_ns,
    case
        when gives_token then 'measured ' || name
        when is_decode or (is_decode_wait and server = 'engine') then 'measured ' || name
    end as first_token_src,
    case
        when is_decode or (is_decode_wait and server = 'engine') then end_unix_ns
        when gives_token and completion_tokens = 1 then end_unix_ns
    end as last_token_unix_ns,
    case
        when is_decode or (is_decode_wait and server = 'engine') then 'measured ' || name
        when gives_token and completion_tokens = 1 then 'measured ' || name
    end as last_token_src,
    case when is_recompute or (is_root and not is_sender) or is_refused
        or name in ('prefill_bootstrap', 'decode_bootstrap') then end_unix_ns end as leg_end_unix_ns,
    case when is_recompute or (is_root and not is_sender) or is_refused
        or name in ('prefill_bootstrap', 'decode_bootstrap') then 'measured span end' end
        as leg_end_src,
    ingested_unix_ns
from k
union all by name
-- the room once more, as an id to look a request up by: the other server's rid is another
select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) || '-room' as leg_id,
    server as role,
    'sglang' as source,
    1 as is_part,
    trace_id,
    span_id as parent_span_id,
    room as norm_request_id,
    service_name,
    service_instance_id,
    coalesce(host_name, host_id) as host_name,
    concat_ws('/', service_name, 'DP' || dp_rank) as worker,
    'sglang' as engine,
    1 as has_clock,
    start_unix_ns as recv_unix_ns,
    'measured span start' as recv_src,
    ingested_unix_ns
from k
where is_root and not is_sender and room is not null
