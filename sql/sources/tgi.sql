-- Hugging Face TGI's handler spans as engine legs.
-- grain: one row per span `generate`, `generate_stream`, `chat_completions` or `completions` with times,
--   and per `queued` span of TGI's
-- inputs: spans
-- when: name in ('generate', 'generate_stream', 'chat_completions', 'completions') or (name = 'queued' and attributes like '%text_generation_router%')
-- Times are Rust's debug strings ("1.234ms", "2.5s", "300µs"). They follow each other from the start:
-- validation (front end), queue, inference. Inference is prefill and decode together: the first
-- `send_generation` below splits it, and without one nothing tells where prefill ends. It lies some
-- spans deep (`schedule`, `infer` or `waiting`, one of these a step), and an agent's trace has several
-- handlers, so the way up counts and not the time.
-- A handler's span comes when the answer is done, its inner ones as they end: after minutes the first
-- are settled ones' raw rows. So `queued`, the first, is a leg that bounds nothing: its trace stays
-- known, and is read whole when the handler comes. Where no `queued` is there, the first tokens may be
-- missing too: the first that is there is none.
-- time_per_token is inference_time over the tokens made, exact to the ns: that tells how many.
-- Inner spans have the handlers' names, but no times.
-- Times past the year 2200 are cut to it: they are set aside, and must not overflow on the way.
with recursive h as (
    select
        s.* replace (
            case when s.start_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.start_unix_ns end as start_unix_ns,
            case when s.end_unix_ns > 7258118400000000000 then 7258118400000000000
                else s.end_unix_ns end as end_unix_ns
        ),
        json_extract_string(s.attributes, ['$.validation_time', '$.queue_time', '$.inference_time',
            '$.total_time', '$.time_per_token']) as a
    from spans as s
    where s.name in ('generate', 'generate_stream', 'chat_completions', 'completions')
        and s.attributes like '%"inference_time"%' and s.attributes like '%"queue_time"%'
),

d as (
    select
        h.*,
        list_transform(a, lambda x: case
            when regexp_full_match(x, '[0-9]{1,9}(\.[0-9]{1,12})?(ns|us|µs|μs|ms|s)') then
                (round(try_cast(regexp_extract(x, '^[0-9.]+') as double)
                    * case regexp_extract(x, '[a-zµμ]+$') when 's' then 1e9 when 'ms' then 1e6
                        when 'ns' then 1.0 else 1e3 end))::bigint
        end) as ns,
        ns[3] / nullif(ns[5], 0)::double as made
    from h
),

-- what each span has below: when a token was first sent on, and whether the queue's span is there; of
-- many steps one row remains on the way up
steps as (
    select s.trace_id, s.parent_span_id as span_id,
        min(case when s.name = 'send_generation' then s.start_unix_ns end) as at_ns,
        max(case when s.name = 'queued' then 1 else 0 end) as is_whole
    from spans as s
    where s.name in ('send_generation', 'queued') and s.parent_span_id is not null
        and s.trace_id in (select trace_id from d)
    group by s.trace_id, s.parent_span_id
),

below as (
    select s.trace_id, s.parent_span_id as span_id, min(t.at_ns) as at_ns,
        max(t.is_whole) as is_whole, 1 as height
    from steps as t
    join spans as s on t.trace_id = s.trace_id and t.span_id = s.span_id
    group by s.trace_id, s.parent_span_id
    union all
    select u.trace_id, s.parent_span_id, u.at_ns, u.is_whole, u.height + 1
    from below as u
    join spans as s on u.trace_id = s.trace_id and u.span_id = s.span_id
    where u.height < 12 and s.parent_span_id is not null
        and not exists (
            select 1 from d where d.trace_id = u.trace_id and d.span_id = u.span_id)
),

sent as (
    select trace_id, span_id, min(at_ns) as at_ns
    from (
        select trace_id, span_id, at_ns, is_whole from below
        union all
        select trace_id, span_id, at_ns, is_whole from steps
    ) as u
    group by trace_id, span_id
    having max(is_whole) = 1
),

t as (
    select
        d.*,
        start_unix_ns + ns[1] as queued_ns,
        start_unix_ns + coalesce(ns[1], 0) + ns[2] as scheduled_ns,
        start_unix_ns + coalesce(ns[1], 0) + ns[2] + ns[3] as last_ns,
        s.at_ns as sent_ns,
        coalesce(ns[1], 0) + ns[2] + ns[3] > end_unix_ns - start_unix_ns + 50000000 as is_absurd
    from d
    left join sent as s on d.trace_id = s.trace_id and d.span_id = s.span_id
)

select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    'engine' as role,
    'tgi' as source,
    trace_id,
    span_id,
    parent_span_id,
    service_name,
    service_instance_id,
    host_name,
    service_name as worker,
    model,
    'tgi' as engine,
    case when status_code = 2 then 'error' else 'ok' end as status,
    case when status_code = 2 then coalesce(nullif(status_message, ''), 'error') end as error,
    input_tokens,
    -- a number of tokens, or the two times are not of one answer
    coalesce(output_tokens, case when made between 1 and 1e9 and abs(made - round(made)) < 0.01
        then round(made)::bigint end) as output_tokens,
    'server' as tokens_source,
    'server' as ttft_kind,
    1 as has_clock,
    case when is_absurd then 'inconsistent_durations:phases>e2e' end as leg_quarantine,
    start_unix_ns as recv_unix_ns,
    'measured span start' as recv_src,
    case when not is_absurd then queued_ns end as queued_unix_ns,
    case when not is_absurd and queued_ns is not null then 'reported validation_time' end
        as queued_src,
    case when not is_absurd then scheduled_ns end as scheduled_unix_ns,
    case when not is_absurd and scheduled_ns is not null then 'reported queue_time' end
        as scheduled_src,
    case when not is_absurd and sent_ns >= scheduled_ns then sent_ns end as first_token_unix_ns,
    case when not is_absurd and sent_ns >= scheduled_ns then 'measured send_generation' end
        as first_token_src,
    case when not is_absurd then last_ns end as last_token_unix_ns,
    case when not is_absurd and last_ns is not null then 'reported inference_time' end
        as last_token_src,
    end_unix_ns as leg_end_unix_ns,
    'measured span end' as leg_end_src,
    ingested_unix_ns
from t
union all by name
select
    substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, process_id,
        process_rank)), 1, 24) as leg_id,
    'provider' as role,
    'tgi' as source,
    1 as is_part,
    trace_id,
    span_id,
    parent_span_id,
    service_name,
    service_instance_id,
    host_name,
    service_name as worker,
    'tgi' as engine,
    'ok' as status,
    1 as has_clock,
    least(start_unix_ns, 7258118400000000000) as recv_unix_ns,
    'measured span start' as recv_src,
    least(end_unix_ns, 7258118400000000000) as leg_end_unix_ns,
    'measured span end' as leg_end_src,
    ingested_unix_ns
from spans
where name = 'queued' and attributes like '%text_generation_router%'
