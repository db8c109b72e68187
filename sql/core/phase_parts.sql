-- What is known of the inside of phases: stretches of time that a sub-phase names.
-- grain: one row per request and stretch
-- inputs: token_gaps, legs, request_points
-- * A stall is what of a gap lies over the stream's median gap: the end of it, since until then a
--   token was not late. Gaps are stamped where the chunks were, mostly at the client, and cut to the
--   decode phase, whoever claims that.
-- * Between the chunks of a prefill the request waits for its turn: from the end of what was computed
--   to the next chunk, on one worker, up to the first token. Chunks are legs that tell of a prefill
--   alone.
-- * Other stretches are told by who knows: legs with a sub-phase.
-- A stretch names time that its phase has. It claims time for its phase too (`prio`), unless an
-- engine's own span is there, beside which what others tell stands back.
-- request_key: identity of the request
-- revision: [unix ns] settle pass that wrote the row
-- phase: phase that it is part of
-- sub_phase: what it is
-- place: which of a phase's sub-phases wins an instant, lowest first
-- start_unix_ns: [unix ns] start
-- end_unix_ns: [unix ns] end; not after the start where it is told that there was none
-- src: provenance and field behind it
-- prio: as `claims.prio`, NULL if it claims nothing
-- role: leg that tells it, NULL for stalls
-- worker: worker of that leg
-- uncertainty_ns: [ns] +- against the clock of the engine, NULL for one clock or no bound
with chunks as (
    select
        request_key, revision, role, worker,
        lead(scheduled_unix_ns, 1, -1) over (
            partition by request_key, revision, role, worker
            order by scheduled_unix_ns nulls last, prefill_end_unix_ns nulls last, leg_id nulls last
        ) as next_unix_ns,
        max(prefill_end_unix_ns) over (
            partition by request_key, revision, role, worker
            order by scheduled_unix_ns nulls last, prefill_end_unix_ns nulls last, leg_id nulls last
            rows between unbounded preceding and current row) as done_unix_ns,
        prefill_end_src as src
    from legs
    where scheduled_unix_ns is not null and prefill_end_unix_ns is not null
        and queued_unix_ns is null and first_token_unix_ns is null and has_clock = 1
        and role in ('engine', 'prefill_engine', 'decode_engine', 'provider')
),

s as (
    select
        g.request_key, g.revision, 'decode' as phase, 'decode.stall' as sub_phase, 2 as place,
        g.end_unix_ns - cast(floor(g.excess_ms * 1e6 + 0.5) as bigint) as start_unix_ns,
        g.end_unix_ns as end_unix_ns, 'measured chunk_times' as src,
        cast(null as bigint) as prio, null as role, null as worker,
        case when p.c_n > 0 and p.e_n > 0 then p.widest_ns end as uncertainty_ns
    from token_gaps as g
    join request_points as p on g.request_key = p.request_key and g.revision = p.revision
    where g.is_stall = 1 and g.excess_ms > 0
    union all
    select
        c.request_key, c.revision, 'prefill', 'prefill.wait', 1, c.done_unix_ns, c.next_unix_ns,
        'inferred between ' || substr(c.src, 10), case when c.role <> 'provider' then 4 end,
        c.role, c.worker, null
    from chunks as c
    join request_points as p on c.request_key = p.request_key and c.revision = p.revision
    -- the last chunk has none after it
    where c.next_unix_ns >= 0 and c.next_unix_ns <= coalesce(p.e_first, c.next_unix_ns)
    union all
    select
        request_key, revision,
        case when sub_phase like 'decode.%' then 'decode'
            when sub_phase like 'prefill.%' then 'prefill'
            when sub_phase like 'queue.%' then 'queue'
            when sub_phase like 'kv_transfer.%' then 'kv_transfer' else 'frontend' end,
        sub_phase,
        case when sub_phase in ('decode.stall', 'prefill.double', 'kv_transfer.recompute') then 2
            when sub_phase = 'kv_transfer.wait' then 3 else 1 end,
        coalesce(recv_unix_ns, kv_start_unix_ns), coalesce(leg_end_unix_ns, kv_end_unix_ns),
        coalesce(recv_src, kv_end_src),
        -- the transfer itself is claimed as every transfer is
        case when role = 'provider' or kv_start_unix_ns is not null then null
            when sub_phase like 'decode.%' then 1 when sub_phase like 'prefill.%' then 2
            when sub_phase like 'queue.%' then 3 when sub_phase like 'kv_transfer.%' then 6
            else 7 end,
        role, worker, null
    from legs
    where sub_phase is not null
)

select
    request_key, revision, phase, sub_phase, place, start_unix_ns, end_unix_ns, src, prio, role,
    worker, uncertainty_ns
from s
