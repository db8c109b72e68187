-- What is known of the inside of phases: stretches of time that a sub-phase names.
-- grain: one row per request and stretch
-- inputs: token_gaps, request_points
-- A stall is what of a gap lies over the stream's median gap: the end of it, since until then a
-- token was not late. Gaps are stamped where the chunks were, mostly at the client, and cut to the
-- decode phase, whoever claims that.
-- request_key: identity of the request
-- revision: [unix ns] settle pass that wrote the row
-- phase: phase that it is part of; the stretch counts only where the request is in that phase
-- sub_phase: what it is
-- place: which of a phase's sub-phases wins an instant, lowest first
-- start_unix_ns: [unix ns] start
-- end_unix_ns: [unix ns] end
-- src: provenance and field behind it
-- uncertainty_ns: [ns] +- against the clock of the engine, NULL for one clock or no bound
select
    g.request_key, g.revision, 'decode' as phase, 'decode.stall' as sub_phase, 2 as place,
    g.end_unix_ns - cast(floor(g.excess_ms * 1e6 + 0.5) as bigint) as start_unix_ns,
    g.end_unix_ns, 'measured chunk_times' as src,
    case when p.c_n > 0 and p.e_n > 0 then p.widest_ns end as uncertainty_ns
from token_gaps as g
join request_points as p on g.request_key = p.request_key and g.revision = p.revision
where g.is_stall = 1 and g.excess_ms > 0
