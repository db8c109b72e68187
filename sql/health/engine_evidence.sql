-- What the engines' spans leave out: each column is something a flag or a header would mend.
-- grain: one row per engine
-- inputs: legs, spans, requests
-- engine: serving engine
-- legs: engine legs
-- requests: requests they belong to
-- without_request_id: legs without a request id
-- roots: legs whose span has no parent: the caller sent no traceparent; records of logs have none
-- parents_missing: legs whose parent span is not in the store
-- split_ids: request ids that appear on several servers in several traces
-- without_queue: legs that do not tell queue from prefill
-- without_client: requests that no client reported
-- without_cached_tokens: requests whose cached tokens are unknown
with e as (
    select *, coalesce(trace_id like '746b726563%', false) as is_record
    from legs
    where role in ('engine', 'prefill_engine', 'decode_engine') and span_id is not null
        and sub_phase is null
        -- a span that tells a part of a server's work is no leg of its own here
        and (source = 'tracekit' or trace_id like '746b726563%'
            or (recv_unix_ns is not null and leg_end_unix_ns is not null))
),

told as (
    select distinct request_key, revision
    from legs
    where scheduled_unix_ns is not null
        and role in ('engine', 'prefill_engine', 'decode_engine')
),

split as (
    select engine, count(*) as split_ids
    from (
        select coalesce(engine, '') as engine, norm_request_id
        from e
        -- a record of a log is in no trace of its server's
        where norm_request_id is not null and not is_record
        group by 1, 2
        -- one server alone makes several traces of one id: n > 1 choices without a traceparent
        having count(distinct trace_id) > 1
            and count(distinct concat_ws('/', service_name, service_instance_id)) > 1
    ) as ids
    group by engine
),

orphans as (
    select leg_id
    from e
    where parent_span_id is not null
        and not exists (
            select 1 from spans as p
            where p.trace_id = e.trace_id and p.span_id = e.parent_span_id
        )
),

clients as (
    select distinct request_key, revision from legs where role = 'client'
)

select
    coalesce(e.engine, '') as engine,
    count(*) as legs,
    count(distinct e.request_key) as requests,
    count(*) filter (where e.request_id is null and e.norm_request_id is null and not e.is_record)
        as without_request_id,
    count(*) filter (where e.parent_span_id is null and not e.is_record) as roots,
    count(o.leg_id) as parents_missing,
    coalesce(max(split.split_ids), 0) as split_ids,
    count(*) filter (where t.request_key is null and e.leg_quarantine is null
        and e.status = 'ok')
        as without_queue,
    count(distinct e.request_key) filter (where c.request_key is null) as without_client,
    count(distinct e.request_key) filter (where r.cached_tokens is null) as without_cached_tokens
from e
left join orphans as o on o.leg_id = e.leg_id
left join told as t on t.request_key = e.request_key and t.revision = e.revision
left join clients as c on c.request_key = e.request_key and c.revision = e.revision
left join requests as r on r.request_key = e.request_key and r.revision = e.revision
left join split on split.engine = coalesce(e.engine, '')
group by 1
order by legs desc
