-- Calls of clients that found no engine, and requests of engines that found no client, that are one
-- by time and token counts: the engine ran inside the call, both count the same tokens in and out,
-- and neither fits any other.
-- grain: one row per pair
-- inputs: window_requests, legs
-- client_key: request of the client
-- server_key: request of the engine
-- client_leg_id: leg that the client's request is found by
-- trace_id: trace of the engine's span
-- span_id: the engine's span
-- start_unix_ns: [unix ns] start of the engine's request
-- input_tokens: [tokens] that both count
-- output_tokens: [tokens] that both count
-- call_ms: [ms] how long the call lasted
-- outside_ms: [ms] how much of it the engine did not
-- alike: calls, or engine's requests, of these token counts that have no counterpart; the larger number
-- chance: [1] how likely another such request would lie in the call by accident: how often they come,
--     times the room that it has there
-- score: [1] how sure the join is: below that of a shared id
-- Parameters: slack_ns [ns] by how much the clocks may differ, chance_max [1].
-- Two hosts' clocks differ by less than the slack, or nothing is found. Calls that failed or were
-- given up count other tokens than their engine, and are left out. Only a minute's calls are compared
-- with each other: an engine's request starts in a minute that the call touches.
with l as (
    select
        request_key,
        revision,
        max(case when role = 'client' then 1 else 0 end) as any_client,
        max(case when role in ('client', 'gateway', 'router') then 1 else 0 end) as any_call,
        max(case when role in ('engine', 'prefill_engine', 'decode_engine')
            and span_id is not null then 1 else 0 end) as any_engine,
        min(case when role in ('client', 'gateway', 'router') and leg_id not like '%-%'
            then (case when role = 'client' then '0' else '1' end) || leg_id end) as call_leg,
        -- the last one decoded
        arg_max(trace_id, (role <> 'prefill_engine', leg_id))
            filter (where role in ('engine', 'prefill_engine', 'decode_engine')
                and span_id is not null and trace_id is not null) as trace_id,
        arg_max(span_id, (role <> 'prefill_engine', leg_id))
            filter (where role in ('engine', 'prefill_engine', 'decode_engine')
                and span_id is not null and trace_id is not null) as span_id
    from legs
    group by request_key, revision
),

r as (
    select
        w.request_key, w.start_unix_ns, w.end_unix_ns, w.input_tokens, w.output_tokens,
        w.e2e_ms, w.settled_unix_ns is not null as is_settled,
        lower(regexp_extract(w.model, '([^/]*)/*$', 1)) as model,
        l.any_engine = 0 and l.any_call = 1 and l.call_leg is not null as is_call,
        l.any_engine = 1 and l.any_client = 0 and l.span_id is not null as is_served,
        substr(l.call_leg, 2) as call_leg, l.trace_id, l.span_id
    from window_requests as w
    join l on l.request_key = w.request_key and l.revision = w.revision
    where w.has_clock = 1 and w.status = 'ok' and w.quarantine_reason is null
        and w.superseded_attempt = 0 and w.input_tokens > 0 and w.output_tokens > 0
        and w.end_unix_ns >= w.start_unix_ns
),

-- how often requests of these token counts come that have no counterpart
rates as (
    select
        input_tokens, output_tokens,
        greatest(count(*) filter (where is_call), count(*) filter (where is_served)) as alike
    from r
    where is_call or is_served
    group by input_tokens, output_tokens
),

-- the time in which both sides are seen
seen as (
    select
        least(max(end_unix_ns) filter (where is_call), max(end_unix_ns) filter (where is_served))
        - greatest(min(start_unix_ns) filter (where is_call),
            min(start_unix_ns) filter (where is_served)) as seen_ns
    from r
),

calls as (
    select
        r.*, rates.alike, seen.seen_ns,
        unnest(range(
            (r.start_unix_ns - $slack_ns) // 60000000000,
            least((r.end_unix_ns + $slack_ns) // 60000000000,
                (r.start_unix_ns - $slack_ns) // 60000000000 + 1440) + 1
        )) as minute
    from r
    join rates on r.input_tokens = rates.input_tokens and r.output_tokens = rates.output_tokens
    cross join seen
    -- what is so frequent can never be told apart
    where r.is_call and rates.alike * 2.0 * $slack_ns < $chance_max * seen.seen_ns
),

fits as (
    select
        c.request_key as client_key,
        s.request_key as server_key,
        c.call_leg as client_leg_id,
        s.trace_id, s.span_id, s.start_unix_ns, c.input_tokens, c.output_tokens,
        c.e2e_ms as call_ms,
        c.e2e_ms - s.e2e_ms as outside_ms,
        c.alike,
        c.is_settled and s.is_settled as is_settled,
        c.alike * greatest((c.end_unix_ns - c.start_unix_ns) - (s.end_unix_ns - s.start_unix_ns)
            + 2.0 * $slack_ns, 0) / c.seen_ns as chance,
        count(*) over (partition by c.request_key) as calls_fits,
        count(*) over (partition by s.request_key) as servers_fits
    from calls as c
    join r as s on s.is_served and s.start_unix_ns // 60000000000 = c.minute
        and s.input_tokens = c.input_tokens and s.output_tokens = c.output_tokens
        and s.start_unix_ns >= c.start_unix_ns - $slack_ns
        and s.end_unix_ns <= c.end_unix_ns + $slack_ns
        and coalesce(s.model = c.model, true)
)

select
    client_key, server_key, client_leg_id, trace_id, span_id, start_unix_ns, input_tokens,
    output_tokens, call_ms, outside_ms, alike, chance,
    0.9 * (1 - chance) as score
from fits
where calls_fits = 1 and servers_fits = 1 and chance <= $chance_max and is_settled
order by start_unix_ns, client_key
