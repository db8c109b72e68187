-- The boundary points of each request, gathered from its legs, and which way its timeline is cut.
-- grain: one row per (request_key, revision)
-- inputs: legs, request_groups, request_clocks
-- What a decode server calls prefill is one step that computes the prompt's last token, unless no
-- KV cache came over and it computed the whole prompt again (`d_again`). The data tell, in this order:
-- * bytes moved, or a span shows when: it came over;
-- * prompt tokens that it did not compute, beyond those that the prefill server found cached too;
-- * time: less than half of what the prompt took on the prefill server, or than two of this
--   request's own decode steps, is about the last token. More is the prompt again if no bytes
--   moved, or if the decode server waited for none (1 ms; a pulled KV cache takes a step of the
--   engine at least). If it waited, up to four steps are one that other requests made longer;
--   beyond that it is unknown, as it is where one of these times is.
-- A connector that loads within the step, slowly and without telling bytes, reads as again.
-- Where a span tells when bytes moved, that is the part of the decode server's queue time that was
-- no wait (`wire_start`, `wire_end`); what of it lies outside that time is not exposed, or another
-- clock's, and left out.
-- A point that the server's own legs do not know is taken from what was told beside them (a log row's
-- phase columns, an application's phase spans), if it lies where it must: between the points before
-- and after it. What was told may reach 50 ms beyond the arrival: two views of a busy machine.
-- request_key: identity of the request
-- revision: [unix ns] settle pass that wrote the row
-- has_clock: 1 if times are unix times, 0 if they count from the request's start
-- is_pd: 1 if a prefill and a decode server shared the request, or were to
-- d_again: 1 if the decode server computed the prompt again, 0 if its last token, NULL unknown
-- c_n: client legs
-- c_intended: [unix ns] when the client meant to send
-- c_send: [unix ns] when it sent
-- c_first: [unix ns] first token at the client
-- c_first_src: provenance and field of c_first
-- c_kind: kind of c_first
-- c_answer: [unix ns] first visible answer token at the client
-- c_last: [unix ns] last token at the client
-- c_last_src: provenance and field of c_last
-- c_end: [unix ns] end of the client's call
-- c_waiting: 1 if the client gave up a stream before any token came
-- c_aborted: 1 if the client broke it off, which it may have done in the middle of an answer
-- c_failed: 1 if a stream failed at the client, or lasted too long for it
-- g_n: gateway and router legs
-- g_recv: [unix ns] arrival at the outermost gateway
-- g_end: [unix ns] end at the outermost gateway
-- g_first: [unix ns] first token that a gateway passed on
-- g_first_src: provenance and field of g_first
-- g_last: [unix ns] last token that it passed on
-- g_last_src: provenance and field of g_last
-- g_queued: [unix ns] queued in a gateway or router
-- p_n: prefill-server legs
-- p_recv: [unix ns] arrival at the prefill server
-- p_queued: [unix ns] queued there
-- p_scheduled: [unix ns] first scheduled there
-- p_first: [unix ns] prefill done there
-- p_end: [unix ns] end of its leg
-- p_queued_src: provenance and field of p_queued
-- p_first_src: provenance and field of p_first
-- p_worker: prefill worker
-- e_n: engine legs (the decode server's under P/D)
-- e_recv: [unix ns] arrival at the engine
-- e_queued: [unix ns] queued
-- e_scheduled: [unix ns] first scheduled
-- e_prefill_end: [unix ns] prefill done, where it is not the first token
-- e_kv_start: [unix ns] KV transfer began
-- e_kv_end: [unix ns] KV transfer ended
-- kv_moved: [unix ns] last time that a leg saw the KV cache's arrival end, NULL if none did
-- loads: 1 if somebody measured when KV cache was loaded for an engine that prefills itself
-- wire_told: 1 if the prefill server measured when bytes moved
-- wire_start: [unix ns] KV bytes began to move while the decode server's queue time ran
-- wire_end: [unix ns] they had moved
-- wire_src: provenance and field of wire_end
-- wire_known: 1 if it is told when bytes moved
-- e_prefilled: 1 if a leg knows both ends of prefill
-- e_first: [unix ns] first token
-- e_last: [unix ns] last token
-- e_end: [unix ns] end of the engine's leg
-- e_queued_src: provenance and field of e_queued
-- e_prefill_src: provenance and field of the end of prefill
-- e_kv_src: provenance and field of e_kv_end
-- e_last_src: provenance and field of e_last
-- e_worker: worker of the engine leg
-- told_beside: 1 if a point of the engine's is one that was told beside its own legs
-- step_wait: 1 if the engine stamps QUEUED only between steps (vLLM)
-- s_n: legs that tell of a stretch inside a phase, where no engine's own span is
-- e_incomplete: 1 if the client saw more tokens than the engine legs account for
-- in_first: [unix ns] first point any server leg knows
-- in_last: [unix ns] last point any engine leg knows
-- network_in_ns: [ns] +- between the clocks of the client and of the first server
-- network_out_ns: [ns] +- between the clocks of the client and of the last server
-- route_in_ns: [ns] +- between the clocks of the gateway and of the first engine
-- route_out_ns: [ns] +- between the clocks of the gateway and of the last engine
-- kv_ns: [ns] +- between the clocks of the prefill and of the decode server
-- widest_ns: [ns] +- between the outermost clock and the one least sure of it
-- wall_start: [unix ns] start of the wall time
-- wall_end: [unix ns] end of the wall time (the first token, where nothing later is known)
-- end_known: 1 if a leg knows when the request ended
-- path: cut (legs in sequence), client (a client alone), sweep (all else)
with known as (
    select
        request_key, revision, has_clock, status, streaming, engine, worker, leg_quarantine,
        ttft_kind,
        -- what can be no count is not known; `requests` sets such a request aside
        case when input_tokens between 0 and 1000000000000 then input_tokens end as input_tokens,
        case when cached_tokens between 0 and 1000000000000 then cached_tokens end as cached_tokens,
        case when output_tokens between 0 and 1000000000000 then output_tokens end as output_tokens,
        case when kv_bytes between 0 and 1000000000000000000 then kv_bytes end as kv_bytes,
        intended_start_unix_ns, send_unix_ns, recv_unix_ns, queued_unix_ns, queued_src,
        scheduled_unix_ns, prefill_end_unix_ns, prefill_end_src, kv_start_unix_ns, kv_end_unix_ns,
        kv_start_src, kv_end_src, first_token_unix_ns, first_token_src, first_answer_unix_ns,
        last_token_unix_ns,
        last_token_src, leg_end_unix_ns,
        case when sub_phase = 'kv_transfer.wire' and kv_start_src like 'measured%' then 1 else 0 end
            as is_wire,
        case when role = 'provider' and source in ('request_log', 'tracekit')
            and sub_phase is null then 1 else 0 end as is_beside,
        -- a stretch inside a phase bounds no phase
        case when sub_phase is not null and kv_start_unix_ns is null and role <> 'provider'
            then 'stretch' else role end as role
    from legs
),

w as (
    select
        request_key, revision,
        min(has_clock) as has_clock,
        max(case when role in ('prefill_engine', 'decode_engine') then 1 else 0 end) as is_pd,
        sum(case when role = 'client' then 1 else 0 end) as c_n,
        min(case when role = 'client' then intended_start_unix_ns end) as c_intended,
        min(case when role = 'client' then send_unix_ns end) as c_send,
        max(case when role = 'client' and first_token_src like 'measured%'
            then first_token_unix_ns end) as c_first_measured,
        max(case when role = 'client' and first_token_src like 'measured%'
            then first_token_src end) as c_first_measured_src,
        max(case when role = 'client' and first_token_src like 'measured%'
            then ttft_kind end) as c_kind_measured,
        max(case when role = 'client' then first_token_unix_ns end) as c_first_any,
        max(case when role = 'client' then first_token_src end) as c_first_any_src,
        max(case when role = 'client' then ttft_kind end) as c_kind_any,
        max(case when role = 'client' then first_answer_unix_ns end) as c_answer,
        max(case when role = 'client' and last_token_src like 'measured%'
            then last_token_unix_ns end) as c_last_measured,
        max(case when role = 'client' and last_token_src like 'measured%'
            then last_token_src end) as c_last_measured_src,
        max(case when role = 'client' then last_token_unix_ns end) as c_last_any,
        max(case when role = 'client' then last_token_src end) as c_last_any_src,
        max(case when role = 'client' then leg_end_unix_ns end) as c_end,
        max(case when role = 'client' then output_tokens end) as c_output,
        max(case when role = 'client' and status in ('aborted', 'timeout') and streaming = 1
            then 1 else 0 end) as c_gave_up,
        max(case when role = 'client' and status = 'aborted' then 1 else 0 end) as c_aborted,
        max(case when role = 'client' and status in ('error', 'timeout') and streaming = 1
            then 1 else 0 end) as c_failed,
        sum(case when role in ('gateway', 'router') then 1 else 0 end) as g_n,
        min(case when role in ('gateway', 'router') then recv_unix_ns end) as g_recv,
        max(case when role in ('gateway', 'router') then leg_end_unix_ns end) as g_end,
        min(case when role in ('gateway', 'router') then first_token_unix_ns end) as g_first,
        max(case when role in ('gateway', 'router') then first_token_src end) as g_first_src,
        max(case when role in ('gateway', 'router') then last_token_unix_ns end) as g_last,
        max(case when role in ('gateway', 'router') then last_token_src end) as g_last_src,
        min(case when role in ('gateway', 'router') then queued_unix_ns end) as g_queued,
        max(case when role = 'decode_engine' then kv_end_unix_ns end) as kv_moved,
        max(case when role = 'prefill_engine' and kv_start_unix_ns is not null then 1 else 0 end)
            as p_moves,
        max(case when role = 'prefill_engine'
            and kv_start_src like 'measured%' and kv_end_src like 'measured%'
            and kv_start_unix_ns < kv_end_unix_ns then 1 else 0 end) as wire_told,
        sum(case when role = 'prefill_engine' then 1 else 0 end) as p_n,
        min(case when role = 'prefill_engine' then recv_unix_ns end) as p_recv,
        min(case when role = 'prefill_engine' then queued_unix_ns end) as p_queued,
        min(case when role = 'prefill_engine' then scheduled_unix_ns end) as p_scheduled,
        max(case when role = 'prefill_engine'
            then coalesce(prefill_end_unix_ns, first_token_unix_ns) end) as p_first,
        max(case when role = 'prefill_engine'
            then coalesce(leg_end_unix_ns, first_token_unix_ns) end) as p_end,
        max(case when role = 'prefill_engine' and status in ('aborted', 'error', 'timeout')
            then 1 else 0 end) as p_failed,
        max(case when role = 'prefill_engine' then queued_src end) as p_queued_src,
        max(case when role = 'prefill_engine'
            then coalesce(prefill_end_src, first_token_src) end) as p_first_src,
        max(case when role = 'prefill_engine' then worker end) as p_worker,
        sum(case when role in ('engine', 'decode_engine') then 1 else 0 end) as e_n,
        sum(case when role = 'stretch' then 1 else 0 end) as s_n,
        min(case when role = 'stretch' then recv_unix_ns end) as s_first,
        max(case when role = 'stretch' then leg_end_unix_ns end) as s_last,
        min(case when role in ('engine', 'decode_engine') then recv_unix_ns end) as e_recv,
        max(case when role in ('engine', 'decode_engine') then recv_unix_ns end) as e_recv_max,
        min(case when role in ('engine', 'decode_engine') then queued_unix_ns end) as e_queued,
        max(case when role in ('engine', 'decode_engine') then queued_unix_ns end) as e_queued_max,
        min(case when role in ('engine', 'decode_engine') then scheduled_unix_ns end) as e_scheduled,
        max(case when role in ('engine', 'decode_engine') then scheduled_unix_ns end)
            as e_scheduled_max,
        min(case when role in ('engine', 'decode_engine') then prefill_end_unix_ns end)
            as e_prefill_end,
        max(case when role in ('engine', 'decode_engine') then prefill_end_unix_ns end)
            as e_prefill_end_max,
        min(case when role in ('engine', 'decode_engine') then kv_start_unix_ns end) as e_kv_start,
        max(case when role in ('engine', 'decode_engine') then kv_start_unix_ns end)
            as e_kv_start_max,
        min(case when role in ('engine', 'decode_engine') then kv_end_unix_ns end) as e_kv_end,
        max(case when role in ('engine', 'decode_engine') then kv_end_unix_ns end) as e_kv_end_max,
        min(case when role in ('engine', 'decode_engine') then first_token_unix_ns end) as e_first,
        max(case when role in ('engine', 'decode_engine') then first_token_unix_ns end)
            as e_first_max,
        min(case when role in ('engine', 'decode_engine') then last_token_unix_ns end) as e_last_min,
        max(case when role in ('engine', 'decode_engine') then last_token_unix_ns end) as e_last,
        max(case when role in ('engine', 'decode_engine') then leg_end_unix_ns end) as e_end,
        max(case when role in ('engine', 'decode_engine') then queued_src end) as e_queued_src,
        max(case when role in ('engine', 'decode_engine')
            then coalesce(prefill_end_src, first_token_src) end) as e_prefill_src,
        max(case when role in ('engine', 'decode_engine') then kv_end_src end) as e_kv_src,
        max(case when role in ('engine', 'decode_engine') then last_token_src end) as e_last_src,
        max(case when role in ('engine', 'decode_engine') then worker end) as e_worker,
        max(case when role in ('engine', 'decode_engine') and leg_quarantine is not null
            then 1 else 0 end) as e_bad,
        max(case when role in ('engine', 'decode_engine') and scheduled_unix_ns is not null
            and coalesce(prefill_end_unix_ns, first_token_unix_ns) is not null
            then 1 else 0 end) as e_prefilled,
        -- which points a leg knows: legs that know different ones are not cut as if they were one
        max(case when role in ('engine', 'decode_engine')
            then (case when recv_unix_ns is null then 0 else 1 end)
                + (case when queued_unix_ns is null then 0 else 2 end)
                + (case when scheduled_unix_ns is null then 0 else 4 end)
                + (case when prefill_end_unix_ns is null then 0 else 8 end)
                + (case when kv_start_unix_ns is null then 0 else 16 end)
                + (case when kv_end_unix_ns is null then 0 else 32 end)
                + (case when first_token_unix_ns is null then 0 else 64 end)
                + (case when last_token_unix_ns is null then 0 else 128 end) end)
        - min(case when role in ('engine', 'decode_engine')
            then (case when recv_unix_ns is null then 0 else 1 end)
                + (case when queued_unix_ns is null then 0 else 2 end)
                + (case when scheduled_unix_ns is null then 0 else 4 end)
                + (case when prefill_end_unix_ns is null then 0 else 8 end)
                + (case when kv_start_unix_ns is null then 0 else 16 end)
                + (case when kv_end_unix_ns is null then 0 else 32 end)
                + (case when first_token_unix_ns is null then 0 else 64 end)
                + (case when last_token_unix_ns is null then 0 else 128 end) end) as e_shapes,
        max(case when role in ('engine', 'decode_engine', 'prefill_engine') and engine = 'vllm'
            then 1 else 0 end) as step_wait,
        sum(case when role in ('engine', 'decode_engine') then output_tokens end) as e_output,
        max(case when role in ('decode_engine', 'prefill_engine') then input_tokens end)
            as pd_input,
        max(case when role = 'decode_engine' then cached_tokens end) as d_cached,
        max(case when role = 'prefill_engine' then cached_tokens end) as p_cached,
        max(kv_bytes) as kv_bytes,
        -- stated beside the engines' own spans
        min(case when role = 'provider' then kv_start_unix_ns end) as a_kv_start,
        max(case when role = 'provider' then kv_end_unix_ns end) as a_kv_end,
        max(case when role = 'provider' then kv_end_src end) as a_kv_src,
        max(case when role = 'provider' and is_wire = 1 then 1 else 0 end) as a_loads,
        min(case when is_beside = 1 then recv_unix_ns end) as b_recv,
        min(case when is_beside = 1 then queued_unix_ns end) as b_queued,
        max(case when is_beside = 1 then queued_src end) as b_queued_src,
        min(case when is_beside = 1 then scheduled_unix_ns end) as b_scheduled,
        min(case when role in ('gateway', 'router', 'engine', 'prefill_engine', 'decode_engine')
            then coalesce(recv_unix_ns, queued_unix_ns, scheduled_unix_ns, kv_start_unix_ns,
                prefill_end_unix_ns, first_token_unix_ns) end) as in_first,
        min(case when role in ('engine', 'prefill_engine', 'decode_engine')
            then coalesce(recv_unix_ns, queued_unix_ns, scheduled_unix_ns, kv_start_unix_ns,
                prefill_end_unix_ns, first_token_unix_ns) end) as en_first,
        max(case when role in ('engine', 'prefill_engine', 'decode_engine')
            then coalesce(last_token_unix_ns, leg_end_unix_ns, first_token_unix_ns, kv_end_unix_ns,
                prefill_end_unix_ns, scheduled_unix_ns, queued_unix_ns, recv_unix_ns) end) as in_last,
        max(case when role in ('engine', 'prefill_engine', 'decode_engine')
            then coalesce(leg_end_unix_ns, last_token_unix_ns) end) as in_end
    from known
    group by request_key, revision
),

-- when bytes moved: the decode server's own word, else what stands beside it, cut to its queue time
v as (
    select
        request_key, revision,
        case when e_kv_start is not null then case when is_own = 1 then e_kv_start end
            when a_kv_start > e_queued then a_kv_start else e_queued end as wire_start,
        case when e_kv_start is not null then case when is_own = 1 then e_kv_end end
            when a_kv_end < e_scheduled then a_kv_end else e_scheduled end as wire_end,
        case when e_kv_start is not null then e_kv_src else a_kv_src end as wire_src,
        is_own
    from (
        select
            request_key, revision, e_queued, e_scheduled, e_kv_start, e_kv_end, e_kv_src,
            a_kv_start, a_kv_end, a_kv_src,
            case when e_queued <= e_kv_start and e_kv_start < e_kv_end and e_kv_end <= e_scheduled
                then 1 else 0 end as is_own
        from w
        where is_pd = 1 and (e_kv_start is not null or a_kv_start < a_kv_end)
    ) as u
),

-- what was told beside the legs of an engine that prefills and decodes, where they do not tell it;
-- durations count back from what they know: one clock's length, and no difference of two clocks
b as (
    select
        request_key, revision, scheduled, queued_src,
        case when queued >= least_ns and queued <= coalesce(scheduled, pre_end)
            then case when queued < floor_ns then floor_ns else queued end end as queued,
        case when recv >= least_ns and recv <= coalesce(queued, scheduled, pre_end)
            then case when recv < floor_ns then floor_ns else recv end end as recv
    from (
        select
            request_key, revision, floor_ns, least_ns, pre_end, queued_src,
            case when e_scheduled is null then scheduled end as scheduled,
            case when e_queued is null then coalesce(scheduled - (b_scheduled - b_queued), b_queued)
                end as queued,
            case when e_recv is null then coalesce(
                e_queued - (b_queued - b_recv), scheduled - (b_scheduled - b_recv), b_recv) end
                as recv
        from (
            select
                request_key, revision, floor_ns, least_ns, pre_end, e_recv, e_queued, e_scheduled,
                b_recv, b_queued, b_scheduled, b_queued_src as queued_src,
                coalesce(e_scheduled, case when b_scheduled >= coalesce(e_queued, floor_ns)
                    and b_scheduled <= pre_end then b_scheduled end) as scheduled
            from (
                select
                    request_key, revision, e_recv, e_queued, e_scheduled,
                    b_recv, b_queued, b_queued_src, b_scheduled,
                    coalesce(e_prefill_end, e_first, c_first_measured, c_first_any) as pre_end,
                    coalesce(e_recv, g_recv, c_send) as floor_ns,
                    -- a wait that began before the server was reached was not there; one from
                    -- before the sending holds the way back of an answer that came in one piece
                    coalesce(e_recv - 50000000, g_recv - 50000000, 0) as least_ns
                from w
                where is_pd = 0 and e_n > 0
                    and coalesce(b_recv, b_queued, b_scheduled) is not null
            ) as u
        ) as u
    ) as u
    where floor_ns <= coalesce(scheduled, pre_end)
),

-- a call that was retried was meant to start with its first attempt
x as (
    select
        w.request_key, w.revision, has_clock, is_pd,
        case when v.wire_start < v.wire_end then v.wire_start end as wire_start,
        case when v.wire_start < v.wire_end then v.wire_end end as wire_end,
        case when v.wire_start < v.wire_end then v.wire_src end as wire_src,
        case when v.wire_start < v.wire_end or (is_pd = 1 and w.e_kv_start < w.e_kv_end)
            then 1 else 0 end as wire_known,
        c_n,
        case when g.first_start_ns < coalesce(c_intended, g.first_start_ns + 1)
            then g.first_start_ns else c_intended end as c_intended,
        coalesce(g.attempt_start_ns, c_send) as c_send,
        coalesce(c_first_measured, c_first_any) as c_first,
        coalesce(c_first_measured_src, c_first_any_src) as c_first_src,
        coalesce(c_kind_measured, c_kind_any) as c_kind,
        c_answer,
        coalesce(c_last_measured, c_last_any) as c_last,
        coalesce(c_last_measured_src, c_last_any_src) as c_last_src,
        c_end,
        case when c_gave_up = 1 and c_first_any is null then 1 else 0 end as c_waiting, c_aborted, c_failed,
        g_n, g_recv, g_end,
        -- what a router only infers is no token if the engine knows of none
        case when not (g_first_src like 'inferred%' and e_n > 0 and e_first is null)
            then g_first end as g_first,
        g_first_src, g_last, g_last_src, g_queued,
        kv_moved, p_moves, wire_told, case when is_pd = 0 then a_loads else 0 end as loads,
        p_n, p_recv, p_queued, p_scheduled, p_first, p_end, p_queued_src, p_first_src, p_worker,
        e_n, s_n, coalesce(e_recv, b.recv) as e_recv, coalesce(e_queued, b.queued) as e_queued,
        coalesce(e_scheduled, b.scheduled) as e_scheduled, e_prefill_end,
        case when coalesce(b.recv, b.queued, b.scheduled) is not null then 1 else 0 end
            as told_beside,
        case when v.is_own = 1 then null else e_kv_start end as e_kv_start,
        case when v.is_own = 1 then null else e_kv_end end as e_kv_end, e_prefilled,
        e_first, e_last,
        e_end, coalesce(e_queued_src, b.queued_src) as e_queued_src,
        e_prefill_src, e_kv_src, e_last_src, e_worker, step_wait, e_bad,
        case when c_output > e_output then 1 else 0 end as e_incomplete,
        kv_bytes,
        coalesce(e_prefill_end, e_first) - e_scheduled as d_prefill_ns,
        p_first - p_scheduled as p_prefill_ns,
        w.e_scheduled - w.e_queued as d_wait_ns,
        case when e_output > e_n and e_n > 0
            then (e_last - e_first) / (e_output / cast(e_n as double) - 1) end as d_step_ns,
        case when d_cached > p_cached and 2 * (pd_input - d_cached) < pd_input - p_cached
            then 1 else 0 end as d_found,
        coalesce(e_shapes, 0)
        + coalesce(e_recv_max - e_recv, 0) + coalesce(e_queued_max - e_queued, 0)
        + coalesce(e_scheduled_max - e_scheduled, 0)
        + coalesce(e_prefill_end_max - e_prefill_end, 0)
        + coalesce(e_kv_start_max - e_kv_start, 0) + coalesce(e_kv_end_max - e_kv_end, 0)
        + coalesce(e_first_max - e_first, 0) + coalesce(e_last - e_last_min, 0) as e_spread,
        in_first, en_first, in_last, in_end,
        k.network_in_ns, k.network_out_ns, k.route_in_ns, k.route_out_ns, k.kv_ns, k.widest_ns,
        case
            when g.first_start_ns < coalesce(c_intended, g.first_start_ns + 1)
                then g.first_start_ns
            when c_n > 0 then coalesce(c_intended, c_send, in_first, c_first, c_end)
            else coalesce(in_first, s_first)
        end as wall_start,
        case
            when c_n > 0 then coalesce(c_last_measured, c_last_any, c_end, g_last, e_last, in_end,
                g_end, coalesce(c_first_measured, c_first_any))
            -- a gateway that passes the first token on when the engine was done ends no earlier
            when e_n > 0 and g_last is null and e_first is not null
                and g_first > coalesce(e_last, in_end, in_last) then g_first
            when e_n > 0 then coalesce(g_last, e_last, in_end, in_last)
            when p_n > 0 then coalesce(g_last, g_end, in_end, in_last)
            when g_n > 0 then coalesce(g_last, g_end, g_first)
            else s_last
        end as wall_end,
        case
            -- a prefill server that did its part is done before the answer begins
            when c_n = 0 and p_n > 0 and e_n = 0 and p_failed = 0
                and coalesce(g_last, g_end) is null then 0
            when coalesce(c_last_any, c_end, g_last, e_last, in_end, g_end, in_last,
                case when c_n = 0 then s_last end) is not null
            then 1 else 0 end as end_known
    from w
    left join v on w.request_key = v.request_key and w.revision = v.revision
    left join b on w.request_key = b.request_key and w.revision = b.revision
    left join request_groups as g on w.request_key = g.request_key
    left join request_clocks as k on w.request_key = k.request_key
),

-- the chain of points a request in sequence passes, unknown ones taking the next one known
o as (
    select
        request_key, revision, has_clock, is_pd, kv_bytes, wire_known, d_found,
        d_prefill_ns, p_prefill_ns, d_step_ns, d_wait_ns, c_n, c_intended, c_send, c_first,
        c_first_src, c_kind, c_answer, c_last, c_last_src, c_end, c_waiting, c_aborted, c_failed, g_n,
        g_recv, g_end, g_first, g_first_src, g_last, g_last_src, g_queued, kv_moved, p_moves, wire_told,
        loads, p_n, p_recv, p_queued, p_scheduled, p_first, p_end, p_queued_src,
        p_first_src, p_worker, e_n, s_n, e_recv, e_queued, e_scheduled, e_prefill_end,
        e_kv_start, e_kv_end, wire_start, wire_end, wire_src, e_prefilled, e_first, e_last,
        e_end, e_queued_src, e_prefill_src, e_kv_src, e_last_src, e_worker, step_wait, told_beside,
        e_incomplete, in_first, en_first, in_last, network_in_ns, network_out_ns,
        route_in_ns, route_out_ns, kv_ns, widest_ns, wall_start, wall_end, end_known, e_bad,
        e_spread,
        coalesce(c_send, wall_start) as x1,
        coalesce(g_recv, p_recv, e_recv, e_queued, e_scheduled, e_prefill_end, e_kv_start, e_first)
            as x2,
        coalesce(p_recv, e_recv, e_queued, e_scheduled, e_prefill_end, e_kv_start, e_first) as x3,
        coalesce(e_recv, e_queued, e_scheduled, e_prefill_end, e_kv_start, e_first) as x4,
        coalesce(e_queued, e_scheduled, e_prefill_end, e_kv_start, e_first) as x5,
        coalesce(e_scheduled, e_prefill_end, e_kv_start, e_first) as x6,
        coalesce(e_prefill_end, e_kv_start, e_first) as x7,
        coalesce(e_kv_start, e_first) as x8,
        coalesce(e_kv_end, e_first) as x9
    from x
)

select
    o.request_key, o.revision, o.has_clock, o.is_pd,
    case
        when o.is_pd = 0 then null
        when o.kv_bytes > 0 or (o.kv_bytes is null and o.wire_known = 1) or o.d_found = 1 then 0
        when o.d_prefill_ns * 2 < o.p_prefill_ns or o.d_prefill_ns < 2 * o.d_step_ns then 0
        when o.d_prefill_ns is null or o.p_prefill_ns is null then null
        when o.kv_bytes = 0 then 1
        when o.d_step_ns is null or o.d_wait_ns is null then null
        when o.d_wait_ns < 1000000 then 1
        when o.d_prefill_ns < 4 * o.d_step_ns then 0
    end as d_again,
    o.c_n, o.c_intended, o.c_send, o.c_first, o.c_first_src, o.c_kind, o.c_answer, o.c_last,
    o.c_last_src, o.c_end, o.c_waiting, o.c_aborted, o.c_failed,
    o.g_n, o.g_recv, o.g_end, o.g_first, o.g_first_src, o.g_last, o.g_last_src, o.g_queued,
    o.kv_moved, o.wire_told, o.loads,
    o.p_n, o.p_recv, o.p_queued, o.p_scheduled, o.p_first, o.p_end, o.p_queued_src,
    o.p_first_src, o.p_worker,
    o.e_n, o.s_n, o.e_recv, o.e_queued, o.e_scheduled, o.e_prefill_end, o.e_kv_start, o.e_kv_end,
    o.wire_start, o.wire_end, o.wire_src, o.wire_known,
    o.e_prefilled, o.e_first, o.e_last, o.e_end, o.e_queued_src, o.e_prefill_src, o.e_kv_src, o.e_last_src,
    o.e_worker, o.told_beside, o.step_wait, o.e_incomplete, o.in_first, o.en_first, o.in_last,
    o.network_in_ns, o.network_out_ns, o.route_in_ns, o.route_out_ns, o.kv_ns, o.widest_ns,
    o.wall_start,
    case when o.wall_end > o.wall_start then o.wall_end else o.wall_start end as wall_end,
    o.end_known,
    case
        when o.e_n = 0 and o.p_n = 0 and o.g_n = 0 and o.c_n > 0 and o.s_n = 0
            and o.c_send >= o.wall_start and o.c_send <= o.wall_end
            and coalesce(o.c_first, o.c_send) >= o.c_send
            and coalesce(o.c_first, o.wall_end) <= o.wall_end
            then 'client'
        when o.e_n > 0 and (o.c_n = 0 or o.c_send is not null)
            and o.s_n = 0 and o.e_bad = 0 and o.e_spread = 0 and o.e_incomplete = 0
            and o.g_queued is null and o.p_moves = 0 and o.loads = 0
            and (o.is_pd = 0 or o.p_n > 0)
            and o.e_first is not null and o.e_last is not null
            and ((o.e_kv_start is null and (o.e_kv_end is null or o.wire_known = 1))
                or (o.e_kv_end is not null and o.e_prefill_end is not null))
            and (o.p_n = 0 or (
                o.p_recv is not null and o.p_queued is not null and o.p_scheduled is not null
                and o.p_first is not null and o.p_end is not null
                and o.p_recv <= o.p_queued and o.p_queued <= o.p_scheduled
                and o.p_scheduled <= o.p_first and o.p_first <= o.p_end and o.p_end <= o.x4))
            and o.wall_start <= o.x1 and o.x1 <= o.x2 and o.x2 <= o.x3 and o.x3 <= o.x4
            and o.x4 <= o.x5 and o.x5 <= o.x6 and o.x6 <= o.x7 and o.x7 <= o.x8 and o.x8 <= o.x9
            and o.x9 <= o.e_first and o.e_first <= o.e_last and o.e_last <= o.wall_end
            then 'cut'
        else 'sweep'
    end as path
from o
where o.wall_start is not null
