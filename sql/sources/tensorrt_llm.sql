-- TensorRT-LLM's spans (trtllm-serve): one a request and server, and the disaggregation server's.
-- grain: one row per `llm_request` span that is TensorRT-LLM's, and per disaggregation server's span
-- inputs: spans
-- when: name in ('llm_request', 'disaggregated_request') or (kind = 2 and events like '%_server.selected%')
-- vLLM's spans have the same name (`vllm.sql` takes those): what tells them apart is the scope, else
-- the transfer's key, or the name of the service. Durations are seconds, 0 means not recorded.
-- * A generation server's time_in_queue holds the transfer: the transfer is cut out of it, by the
--   events kv_cache_transfer_start and _end, else it is placed at the end of that time. A context
--   server's does not: what it sent is known by its events only.
-- * Its transfer includes the wait for a buffer.
-- * The context and the generation server of a request lie below one disaggregation server's span. A
--   server alone there that loaded nothing served the whole request (conditional disaggregation).
-- * That span ends when the handler returns, which a stream outlives: its servers' ends are later.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with v as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        s.name = 'llm_request' as is_engine,
        json_extract_string(s.attributes, [
            '$."gen_ai.latency.time_in_queue"',
            '$."gen_ai.latency.time_to_first_token"',
            '$."gen_ai.latency.e2e"',
            '$."gen_ai.latency.kv_cache_transfer_time"',
            '$."gen_ai.usage.prompt_tokens"',
            '$."gen_ai.usage.completion_tokens"',
            '$."gen_ai.response.model"',
            '$."gen_ai.response.finish_reasons"[0]'
        ]) as a,
        case when s.events is not null then list_transform(
            from_json(s.events, '[{"name":"VARCHAR","time_unix_ns":"BIGINT"}]'),
            lambda e: case when e.name in ('kv_cache_transfer_start', 'kv_cache_transfer_end')
                and e.time_unix_ns between s.start_unix_ns and s.end_unix_ns
                then {'n': e.name, 't': e.time_unix_ns} end) end as moves
    from spans as s
    where (s.kind = 2 and (s.name = 'disaggregated_request' or s.events like '%_server.selected%'))
        or (s.name = 'llm_request' and case
            when s.scope_name = 'trt.llm' then true
            when s.scope_name like 'vllm%' then false
            when s.attributes like '%gen_ai.latency.kv_cache_transfer_time%' then true
            when lower(concat_ws(' ', s.scope_name, s.service_name)) like '%tensorrt%' then true
            when lower(concat_ws(' ', s.scope_name, s.service_name)) like '%trtllm%' then true
            else false
        end)
),

m as (
    select
        v.*,
        list_transform(list_transform(a[1:4], lambda x: try_cast(x as double)),
            lambda x: case when x > 0 and x <= 86400 then (round(x * 1e9))::bigint end) as ns,
        list_min(list_transform(list_filter(moves, lambda m: m.n = 'kv_cache_transfer_start'),
            lambda m: m.t)) as moved_from_ns,
        list_max(list_transform(list_filter(moves, lambda m: m.n = 'kv_cache_transfer_end'),
            lambda m: m.t)) as moved_to_ns,
        try_cast(a[6] as bigint) as made
    from v
),

-- the servers below each disaggregation server's span; a span may have come twice
pairs as (
    select
        g.trace_id, g.span_id,
        max(case when g.events like '%ctx_server.selected%' then 1 else 0 end) as has_context,
        count(distinct e.span_id) as servers,
        max(e.made) as most_made,
        arg_min(e.span_id, e.start_unix_ns) as first_span_id,
        max(e.end_unix_ns) as last_end_ns
    from m as g
    join m as e on e.is_engine and g.trace_id = e.trace_id and g.span_id = e.parent_span_id
    where not g.is_engine
    group by g.trace_id, g.span_id
),

n as (
    select m.*, p.span_id as disaggregator, p.has_context, p.servers, p.most_made,
        p.first_span_id, p.last_end_ns
    from m
    left join pairs as p on m.trace_id = p.trace_id
        and case when m.is_engine then m.parent_span_id else m.span_id end = p.span_id
),

t as (
    select
        n.*,
        -- of a pair the generation server is the one that makes more than the first token
        case
            when disaggregator is null then 'engine'
            when servers > 1 and most_made > 1
                then case when made > 1 then 'decode_engine' else 'prefill_engine' end
            when servers > 1
                then case when span_id = first_span_id then 'prefill_engine'
                    else 'decode_engine' end
            when made > 1 and (ns[4] is not null or moved_from_ns < moved_to_ns or has_context = 1)
                then 'decode_engine'
            when made = 1 and has_context = 1 then 'prefill_engine'
            else 'engine'
        end as server,
        ns[2] > end_unix_ns - start_unix_ns + 1000000000
            or coalesce(ns[1], 0) > coalesce(ns[2], end_unix_ns - start_unix_ns) + 50000000
        as is_absurd
    from n
),

k as (
    select
        t.*,
        case when moved_from_ns < moved_to_ns then moved_from_ns
            when server <> 'prefill_engine' and ns[4] <= ns[1] then start_unix_ns + ns[1] - ns[4]
        end as kv_from_ns,
        case when moved_from_ns < moved_to_ns then moved_to_ns
            when server <> 'prefill_engine' and ns[4] <= ns[1] then start_unix_ns + ns[1]
        end as kv_to_ns
    from t
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    case when is_engine then server else 'gateway' end as role,
    'tensorrt_llm' as source,
    case when is_engine then trace_id || '/' || disaggregator end as pair_id,
    trace_id,
    span_id,
    parent_span_id,
    request_id,
    -- the executor numbers its requests: every server has a request 1
    case when not regexp_full_match(request_id, '\d{1,12}') then request_id end as norm_request_id,
    service_name,
    service_instance_id,
    host_name,
    concat_ws('/', service_name, case
        when length(service_instance_id) > 16 then substr(service_instance_id, 1, 8)
        else service_instance_id
    end) as worker,
    coalesce(model, a[7]) as model,
    case when is_engine then 'tensorrt_llm' end as engine,
    case when status_code = 2 then 'error' else 'ok' end as status,
    case when status_code = 2 then coalesce(nullif(status_message, ''), 'error') end as error,
    a[8] as finish_reason,
    coalesce(try_cast(a[5] as bigint), input_tokens) as input_tokens,
    coalesce(try_cast(a[6] as bigint), output_tokens) as output_tokens,
    'server' as tokens_source,
    'server' as ttft_kind,
    1 as has_clock,
    case when is_engine and is_absurd then 'inconsistent_durations:queue+prefill>ttft' end
        as leg_quarantine,
    start_unix_ns as recv_unix_ns,
    'measured span start' as recv_src,
    case when is_engine and not coalesce(is_absurd, false) and ns[1] is not null
        then start_unix_ns end as queued_unix_ns,
    case when is_engine and not coalesce(is_absurd, false) and ns[1] is not null
        then 'reported gen_ai.latency.time_in_queue' end as queued_src,
    case when is_engine and not coalesce(is_absurd, false) and ns[1] is not null
        then start_unix_ns + ns[1] end as scheduled_unix_ns,
    case when is_engine and not coalesce(is_absurd, false) and ns[1] is not null
        then 'reported gen_ai.latency.time_in_queue' end as scheduled_src,
    case when is_engine and not coalesce(is_absurd, false) then kv_from_ns end as kv_start_unix_ns,
    case when is_engine and not coalesce(is_absurd, false) and kv_from_ns is not null
        then case when moved_from_ns < moved_to_ns then 'measured event kv_cache_transfer_start'
            else 'reported gen_ai.latency.kv_cache_transfer_time' end end as kv_start_src,
    case when is_engine and not coalesce(is_absurd, false) then kv_to_ns end as kv_end_unix_ns,
    case when is_engine and not coalesce(is_absurd, false) and kv_to_ns is not null
        then case when moved_from_ns < moved_to_ns then 'measured event kv_cache_transfer_end'
            else 'reported gen_ai.latency.kv_cache_transfer_time' end end as kv_end_src,
    case when is_engine and not coalesce(is_absurd, false) then start_unix_ns + ns[2] end
        as first_token_unix_ns,
    case when is_engine and not coalesce(is_absurd, false) and ns[2] is not null
        then 'reported gen_ai.latency.time_to_first_token' end as first_token_src,
    case when is_engine and not coalesce(is_absurd, false) then start_unix_ns + ns[3] end
        as last_token_unix_ns,
    case when is_engine and not coalesce(is_absurd, false) and ns[3] is not null
        then 'reported gen_ai.latency.e2e' end as last_token_src,
    case when not is_engine and last_end_ns > end_unix_ns then last_end_ns
        else end_unix_ns end as leg_end_unix_ns,
    case when not is_engine and last_end_ns > end_unix_ns then 'inferred end of its servers'
        else 'measured span end' end as leg_end_src,
    ingested_unix_ns
from k
