-- The longest pauses in streams, and which prefills of the same worker ran meanwhile.
-- grain: one row per stall and overlapping prefill, the 50 longest stalls
-- inputs: window_requests, token_gaps, phases
-- request_id: stream that paused
-- worker: worker that decoded it
-- gap_index: which gap of the stream, from 1
-- gap_ms: [ms] length of the pause
-- excess_ms: [ms] part over the stream's median gap
-- prefill_request_id: request whose prefill overlapped, NULL if none did
-- prefill_input_tokens: [tokens] its prompt
-- overlap_ms: [ms] time they share
with stalls as (
    select r.request_id, r.request_key, r.worker, g.gap_index, g.gap_ms, g.excess_ms,
        g.start_unix_ns, g.end_unix_ns
    from token_gaps as g
    join window_requests as r on g.request_key = r.request_key and g.revision = r.revision
    where g.is_stall = 1 and r.has_clock = 1
    order by g.gap_ms desc
    limit 50
),

prefills as (
    select r.request_id, r.request_key, p.worker, r.input_tokens, p.start_unix_ns,
        coalesce(p.whole_end_unix_ns, p.end_unix_ns) as end_unix_ns
    from phases as p
    join window_requests as r on p.request_key = r.request_key and p.revision = r.revision
    where p.phase = 'prefill' and r.has_clock = 1
        -- of a prefill with sub-phases inside, the first part stands for all
        and (p.whole_start_unix_ns is null or p.start_unix_ns = p.whole_start_unix_ns)
)

select
    s.request_id,
    s.worker,
    s.gap_index,
    s.gap_ms,
    s.excess_ms,
    p.request_id as prefill_request_id,
    p.input_tokens as prefill_input_tokens,
    (least(s.end_unix_ns, p.end_unix_ns) - greatest(s.start_unix_ns, p.start_unix_ns)) / 1e6
        as overlap_ms
from stalls as s
left join prefills as p on p.worker = s.worker and p.request_key != s.request_key
    and p.start_unix_ns < s.end_unix_ns and p.end_unix_ns > s.start_unix_ns
order by s.gap_ms desc, overlap_ms desc nulls last
