-- When each suspect lost its time: the stalls of its token stream where they are known, else the
-- whole interval of the phase. Controls are ordinary requests, there to tell what is usual.
-- grain: one row per suspect request, phase and interval.
-- inputs: suspect_requests, stall_phases, token_gaps
-- suspect_id: the row of suspect_requests
-- request_key: identity of the request
-- phase: frontend, prefill or decode
-- is_control: 1 for an ordinary request, 0 for one to explain
-- worker: worker that the phase ran on
-- start_unix_ns: [unix ns] start of the interval
-- end_unix_ns: [unix ns] end of the interval
-- is_stall: 1 if the interval is a stall, 0 if it is the whole phase
with asked as (
    select distinct phase from suspect_requests where is_control = 0
),

spans as (
    select
        s.suspect_id as suspect_id,
        s.request_key as request_key,
        s.phase as phase,
        s.is_control as is_control,
        p.worker as worker,
        p.start_unix_ns as start_unix_ns,
        p.end_unix_ns as end_unix_ns
    from suspect_requests as s
    join stall_phases as p on s.request_key = p.request_key and s.phase = p.phase
    join asked as a on s.phase = a.phase
    where p.worker is not null and p.phase in ('frontend', 'queue', 'prefill', 'decode')
        and s.is_control < 2
),

decoding as (
    select suspect_id, request_key, max(worker) as worker
    from spans
    where phase = 'decode' and is_control = 0
    group by suspect_id, request_key
),

stalls as (
    select
        d.suspect_id as suspect_id,
        d.request_key as request_key,
        d.worker as worker,
        g.start_unix_ns as start_unix_ns,
        g.end_unix_ns as end_unix_ns
    from decoding as d
    join token_gaps as g on d.request_key = g.request_key
    where g.is_stall = 1 and g.end_unix_ns > g.start_unix_ns
),

stalled as (
    select distinct suspect_id from stalls
)

select
    suspect_id,
    request_key,
    'decode' as phase,
    cast(0 as bigint) as is_control,
    worker,
    start_unix_ns,
    end_unix_ns,
    cast(1 as bigint) as is_stall
from stalls
union all
select
    s.suspect_id as suspect_id,
    s.request_key as request_key,
    s.phase as phase,
    s.is_control as is_control,
    s.worker as worker,
    s.start_unix_ns as start_unix_ns,
    s.end_unix_ns as end_unix_ns,
    cast(0 as bigint) as is_stall
from spans as s
left join stalled as t on s.suspect_id = t.suspect_id
where t.suspect_id is null
