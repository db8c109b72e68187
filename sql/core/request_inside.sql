-- What somebody tells of the inside of a request's phases, if only that there was none of it.
-- grain: one row per request of which anything is told
-- inputs: phase_parts, legs, phases
-- request_key: identity of the request
-- revision: [unix ns] settle pass that wrote the row
-- tells_wait: 1 if it is told when its prefill waited between chunks, NULL if not
-- tells_double: 1 if it is told when its prompt was computed again, NULL if not
-- tells_stall: 1 if it is told when it stalled (beside chunk times), NULL if not
-- tells_preempted: 1 if it is told when it was preempted, NULL if not
-- tells_kv_wait: 1 if it is told when it waited for its KV cache, NULL if not
-- tells_wire: 1 if it is told when bytes moved, NULL if not
-- tells_recompute: 1 if it is told when the last token's KV was computed again, NULL if not
-- kv_hidden_ms: [ms] KV transfer that ran beside its prefill; NULL if it was not measured when
with d as (
    select
        request_key, revision,
        max(case when sub_phase = 'prefill.wait' then 1 else 0 end) as tells_wait,
        max(case when sub_phase = 'prefill.double' then 1 else 0 end) as tells_double,
        max(case when sub_phase = 'decode.stall' then 1 else 0 end) as tells_stall,
        max(case when sub_phase = 'decode.preempted' then 1 else 0 end) as tells_preempted,
        max(case when sub_phase = 'kv_transfer.wait' then 1 else 0 end) as tells_kv_wait,
        max(case when sub_phase = 'kv_transfer.wire' then 1 else 0 end) as tells_wire,
        max(case when sub_phase = 'kv_transfer.recompute' then 1 else 0 end) as tells_recompute
    from phase_parts
    where role is not null
    group by request_key, revision
),

-- when KV cache moved, as measured; stretches of several legs do not count twice
m as (
    select
        request_key, revision,
        case when before_ns > kv_start_unix_ns then before_ns else kv_start_unix_ns end
            as start_unix_ns,
        kv_end_unix_ns as end_unix_ns
    from (
        select
            request_key, revision, kv_start_unix_ns, kv_end_unix_ns,
            max(kv_end_unix_ns) over (
                partition by request_key, revision
                order by kv_start_unix_ns nulls last, kv_end_unix_ns nulls last, leg_id nulls last
                rows between unbounded preceding and 1 preceding) as before_ns
        from legs
        where kv_start_src like 'measured %' and kv_end_src like 'measured %'
            and kv_start_unix_ns < kv_end_unix_ns
    ) as k
),

-- and what of it the prefill hid
h as (
    select
        m.request_key, m.revision,
        sum(case when p.start_unix_ns is null then 0
            else (case when p.end_unix_ns < m.end_unix_ns then p.end_unix_ns
                    else m.end_unix_ns end)
                - (case when p.start_unix_ns > m.start_unix_ns then p.start_unix_ns
                    else m.start_unix_ns end) end) / 1e6 as kv_hidden_ms
    from m
    left join phases as p on m.request_key = p.request_key and m.revision = p.revision
        and p.phase = 'prefill' and coalesce(p.sub_phase, '') <> 'prefill.double'
        and p.start_unix_ns < m.end_unix_ns and p.end_unix_ns > m.start_unix_ns
    -- one that lies within an earlier one adds nothing
    where m.start_unix_ns < m.end_unix_ns
    group by m.request_key, m.revision
)

select
    request_key, revision,
    max(tells_wait) as tells_wait, max(tells_double) as tells_double,
    max(tells_stall) as tells_stall, max(tells_preempted) as tells_preempted,
    max(tells_kv_wait) as tells_kv_wait, max(tells_wire) as tells_wire,
    max(tells_recompute) as tells_recompute, max(kv_hidden_ms) as kv_hidden_ms
from (
    select request_key, revision, tells_wait, tells_double, tells_stall, tells_preempted,
        tells_kv_wait, tells_wire, tells_recompute, cast(null as double) as kv_hidden_ms
    from d
    union all
    select request_key, revision, null, null, null, null, null, null, null, kv_hidden_ms from h
) as u
group by request_key, revision
