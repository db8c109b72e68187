-- Where the chain from caller to server breaks, per source: what came without its counterpart.
-- grain: one row per source that tells of requests
-- inputs: legs, requests
-- source: how the legs were understood (file of sql/sources)
-- requests: requests that it tells of
-- incomplete: requests of which only parts came: the span that they are parts of was sent nowhere
-- without_engine: completed requests that a gateway tells of, and no engine
-- without_gateway: requests of its engines that no gateway and no client tells of
-- without_prefill: completed requests of a decode server whose prefill server said nothing
-- without_decode: completed requests of a prefill server whose decode server said nothing
-- by_id: requests that were put together by an id, across traces
with l as (
    select
        request_key, revision,
        max(case when role in ('gateway', 'router') then 1 else 0 end) as any_gateway,
        max(case when role = 'client' then 1 else 0 end) as any_client,
        max(case when role in ('engine', 'prefill_engine', 'decode_engine') then 1 else 0 end)
            as any_engine,
        max(case when role = 'prefill_engine' then 1 else 0 end) as any_prefill,
        max(case when role = 'decode_engine' then 1 else 0 end) as any_decode,
        max(case when role = 'engine' then 1 else 0 end) as any_whole,
        min(match_score) as score
    from legs
    group by request_key, revision
),

s as (
    select
        source, request_key, revision,
        max(case when role in ('gateway', 'router') then 1 else 0 end) as is_gateway,
        max(case when role in ('engine', 'prefill_engine', 'decode_engine') then 1 else 0 end)
            as is_engine
    from legs
    where span_id is not null
    group by source, request_key, revision
),

j as (
    select
        s.source, s.is_gateway, s.is_engine,
        l.any_gateway, l.any_client, l.any_engine, l.any_prefill, l.any_decode, l.any_whole,
        l.score,
        case when r.quarantine_reason = 'incomplete_trace' then 1 else 0 end as is_incomplete,
        case when r.status = 'ok' then 1 else 0 end as is_ok
    from s
    join l on s.request_key = l.request_key and s.revision = l.revision
    join requests as r on s.request_key = r.request_key and s.revision = r.revision
)

select
    source,
    count(*) as requests,
    count(*) filter (where is_incomplete = 1) as incomplete,
    count(*) filter (where is_incomplete = 0 and is_gateway = 1 and any_engine = 0 and is_ok = 1)
        as without_engine,
    count(*) filter (where is_incomplete = 0 and is_engine = 1 and any_gateway = 0
        and any_client = 0) as without_gateway,
    count(*) filter (where is_incomplete = 0 and is_engine = 1 and any_decode = 1
        and any_prefill = 0 and any_whole = 0 and is_ok = 1) as without_prefill,
    count(*) filter (where is_incomplete = 0 and is_engine = 1 and any_prefill = 1
        and any_decode = 0 and any_whole = 0 and is_ok = 1) as without_decode,
    count(*) filter (where is_incomplete = 0 and score < 1) as by_id
from j
group by source
order by requests desc, source
