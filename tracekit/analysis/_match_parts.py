"""Legs that tell a part of a leg: where they belong, and which role they have there.

Some systems spread one server's work over many spans, tell a part of it from outside, or write it
to a log. Owns who gets such parts; knows no tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tracekit.analysis._match_pairs import SHARED_ID_MAX, way_up
from tracekit.analysis._match_unit import CALL_ROLES, LegFacts, Unit

#: A part from another trace lies within its request, but for clocks that differ by this much.
_PART_SLACK_NS: Final = 10_000_000_000

#: A proxy sees its prefill call's end, and makes the next, by this much late at most.
_PROXY_SLACK_NS: Final = 20_000_000


def attach_parts(
    parts: Iterable[LegFacts],
    units: list[Unit],
    *,
    engine_of_span: Mapping[str, tuple[LegFacts, Unit]],
    held: Callable[[str], Sequence[Unit]],
    parents: Mapping[str, str | None],
) -> None:
    """Give each part of one trace to the unit above it; ``units`` gets units of what has none.

    ``held`` gives the units that the call with a span id holds.
    """
    loose: dict[str, Unit] = {}
    parts = list(parts)
    #: calls that may stand alone: what hangs on one is a part of it
    whole = {p.span_id for p in parts if p.is_part == 2 and p.role in CALL_ROLES and p.span_id}
    for part in parts:
        top = part.span_id or part.leg_id
        own = part.span_id if part.span_id in whole else None
        for span_id in way_up(part.parent_span_id, parents):
            top = span_id
            own = span_id if span_id in whole else own
            if span_id in engine_of_span:
                owner, unit = engine_of_span[span_id]
                unit.parts.append(part)
                unit.owner_of[part.leg_id] = owner
                break
            if near := held(span_id):
                at = part.start_ns or 0
                near_unit = min(near, key=lambda u: (abs(u.start_ns - at), u.key_leg.leg_id))
                near_unit.parts.append(part)
                break
        else:
            beside = [u for u in units if _is_beside(part, u)]
            top = own or top
            if len(beside) == 1:
                # its own root was never sent, as of the answers that n > 1 gave up
                beside[0].parts.append(part)
            elif top in loose:
                loose[top].parts.append(part)
            else:
                loose[top] = Unit(parts=[part])
                units.append(loose[top])


def _is_beside(part: LegFacts, unit: Unit) -> bool:
    """Whether a unit of the same trace ran while the part did."""
    return (
        bool(unit.engines)
        and part.start_ns is not None
        and unit.start_ns <= (part.end_ns or part.start_ns)
        and part.start_ns <= unit.end_ns
    )


def join_far_parts(units: list[Unit]) -> list[Unit]:
    """Parts that came in a trace of their own go to the request whose id they name."""
    alone = [u for u in units if u.has_parts_only]
    if not alone:
        return units
    of_id: Mapping[str, list[Unit]] = defaultdict(list)
    lone = set(map(id, alone))
    for unit in units:
        if id(unit) not in lone:
            for name in unit.names:
                of_id[name].append(unit)
    of_id = {name: found for name, found in of_id.items() if len(found) <= SHARED_ID_MAX}
    gone: set[int] = set()
    # what belongs to nobody else is one request, where one tells what the other does not
    lone_of: dict[str, list[Unit]] = defaultdict(list)
    for unit in sorted(alone, key=lambda u: (u.start_ns, u.key_leg.leg_id)):
        ids = sorted(unit.names)
        near = {
            id(u): u
            for norm_id in ids
            for u in of_id.get(norm_id, ())
            if unit.start_ns <= u.end_ns + _PART_SLACK_NS
            and u.start_ns - _PART_SLACK_NS <= unit.end_ns
        }
        if near:
            at = unit.start_ns
            found = min(near.values(), key=lambda u: (abs(u.start_ns - at), u.key_leg.leg_id))
            found.absorb(unit, score=0.9 if len(near) == 1 else 0.7)
            gone.add(id(unit))
            continue
        others = {id(u): u for norm_id in ids for u in lone_of[norm_id]}
        fitting = [
            u
            for u in others.values()
            if unit.start_ns <= u.end_ns + _PART_SLACK_NS and _complement(u, unit)
        ]
        if fitting:
            at = unit.start_ns
            first = min(fitting, key=lambda u: (abs(u.start_ns - at), u.key_leg.leg_id))
            first.absorb(unit, score=0.9 if len(fitting) == 1 else 0.7)
            gone.add(id(unit))
            ids, unit = sorted(first.names), first
        for norm_id in ids:
            if unit not in lone_of[norm_id]:
                lone_of[norm_id].append(unit)
    return [u for u in units if id(u) not in gone]


def _complement(a: Unit, b: Unit) -> bool:
    """Whether neither tells what the other does: two whole records of one kind are two requests."""
    if a.is_partial or b.is_partial:
        return True
    kinds = {(p.source, p.role) for p in a.parts if p.is_part == 2}
    return kinds.isdisjoint((p.source, p.role) for p in b.parts if p.is_part == 2)


def role_of_part(part: LegFacts, unit: Unit, role_of: Mapping[str, str]) -> str:
    """The role of a part: that of the leg it is a part of, else its own, unless one says more."""
    if part.role == "provider":
        return part.role  # it bounds nothing of the engine's, whosever part it is
    owner = unit.owner_of.get(part.leg_id)
    if owner is not None and owner.leg_id in role_of:
        return role_of[owner.leg_id]
    if part.role == "gateway" and any(c.role in CALL_ROLES - {"client"} for c in unit.calls):
        return "provider"
    if part.role in ("engine", "decode_engine") and unit.engines:
        decoded_here = any(e.role != "prefill_engine" for e in unit.engines)
        return "provider" if decoded_here or part.role == "engine" else part.role
    if part.role == "prefill_engine" and unit.prefill is not None:
        # a server's own spans know better than a proxy's or its log, unless they are a wrapper's
        own = unit.prefill
        if part.source == own.source:
            return part.role
        knows = own.answered or any(o.leg_id == own.leg_id for o in unit.owner_of.values())
        return "provider" if knows or part.source == f"{own.source}_log" else part.role
    if part.role == "engine" and any(p.role == "prefill_engine" for p in unit.parts):
        return "decode_engine"
    return part.role


def serve_by_parts(unit: Unit) -> None:
    """A proxy's word on a prefill says which of two servers the only engine leg is of."""
    if len(unit.engines) != 1 or unit.prefill is not None or unit.engines[0].role != "engine":
        return
    (engine,) = unit.engines
    for part in unit.parts:
        if part.role != "prefill_engine" or part.failed or None in (part.start_ns, part.end_ns):
            continue
        if (part.end_ns or 0) <= (engine.start_ns or 0) + _PROXY_SLACK_NS:
            unit.engines = [engine._replace(role="decode_engine")]
            return
        if engine.output_tokens == 1 and (engine.end_ns or 0) <= (part.end_ns or 0):
            unit.engines = [engine._replace(role="prefill_engine")]
            return
