"""Legs that say themselves what they are: roles, shared P/D ids, and parts of a leg.

Some systems tell on which server a leg ran, by which id a prefill and a decode server met, or
spread one server's work over many spans. Owns what follows from such words; knows no tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tracekit.analysis._match_unit import CALL_ROLES, LegFacts, Unit, same_tokens

#: A part from another trace lies within its request, but for clocks that differ by this much.
_PART_SLACK_NS: Final = 10_000_000_000

#: Requests of one id: a pair, and tries of either; an id that more have names none of them.
_SHARED_ID_MAX: Final = 8


def innermost_engines(
    engines: Sequence[LegFacts], parents: Mapping[str, str | None]
) -> tuple[list[LegFacts], list[LegFacts]]:
    """(engine legs, what turns out to be a call) of one trace.

    A server's wrapper around an engine of another source (Dynamo's worker around vLLM) knows less
    than the engine: it becomes a call, and its word on role and pair goes to the engine.
    """
    by_span: dict[str, LegFacts] = {leg.span_id: leg for leg in engines if leg.span_id}
    if len({leg.source for leg in engines}) < 2:
        return list(engines), []
    outer: set[str] = set()
    inner = []
    for leg in engines:
        for span_id in _way_up(leg.parent_span_id, parents):
            above = by_span.get(span_id)
            if above is None or above.source == leg.source:
                continue
            outer.add(above.leg_id)
            if leg.role == "engine":
                leg = leg._replace(role=above.role)
            if leg.pair_id is None:
                leg = leg._replace(pair_id=above.pair_id)
        inner.append(leg)
    return (
        [leg for leg in inner if leg.leg_id not in outer],
        [leg._replace(role="router") for leg in inner if leg.leg_id in outer],
    )


def _way_up(span_id: str | None, parents: Mapping[str, str | None]) -> Iterable[str]:
    seen: set[str] = set()
    while span_id and span_id not in seen:
        seen.add(span_id)
        yield span_id
        span_id = parents.get(span_id)


def join_told_pairs(units: list[Unit], *, score: float = 1.0) -> list[Unit]:
    """Units whose engine legs name one P/D id become one: prefill, decode, and tries of either.

    The prefill leg is the last that did not fail; other prefill legs are parts.
    """
    by_pair: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        pair_id = next((e.pair_id for e in unit.engines if e.pair_id), None)
        if pair_id is not None:
            by_pair[pair_id].append(unit)
    gone: set[int] = set()
    for same in by_pair.values():
        same.sort(key=lambda u: (u.start_ns, u.key_leg.leg_id))
        decoding = [u for u in same if any(e.role != "prefill_engine" for e in u.engines)]
        first = decoding[0] if decoding else same[0]
        for unit in same:
            if unit is not first:
                first.absorb(unit, score=score)
                gone.add(id(unit))
        _pick_prefill(first)
    return [u for u in units if id(u) not in gone]


def _pick_prefill(unit: Unit) -> None:
    prefills = [e for e in unit.engines if e.role == "prefill_engine"]
    rest = [e for e in unit.engines if e.role != "prefill_engine"]
    if unit.prefill is not None:
        prefills.append(unit.prefill)
    if not prefills or not rest:
        return
    prefills.sort(key=lambda e: (not e.failed, e.start_ns or 0, e.leg_id))
    unit.prefill = prefills[-1]
    unit.engines = rest
    unit.parts.extend(prefills[:-1])


def join_choices(units: list[Unit]) -> list[Unit]:
    """One call with n > 1 answers that the engine ran as requests of their own ids is one unit."""
    if not any((u.engines[0].choices or 1) > 1 for u in units):
        return units
    groups: dict[tuple[object, ...], list[Unit]] = defaultdict(list)
    for unit in sorted(units, key=lambda u: (u.start_ns, u.key_leg.leg_id)):
        leg = unit.engines[0]
        if len(unit.engines) == 1 and leg.parent_span_id is not None:
            groups[(leg.source, leg.role, leg.instance, leg.parent_span_id)].append(unit)
    gone: set[int] = set()
    for same in groups.values():
        first = next((u for u in same if (u.engines[0].choices or 1) > 1), None)
        # the call's own prefill, which has no tokens, may not say how many answers it is for
        for unit in same if first is not None else ():
            assert first is not None
            leg = unit.engines[0]
            told = (leg.choices or 1) > 1 and same_tokens(leg.input_tokens, first.input_tokens)
            if unit is first or not (told or not leg.output_tokens):
                continue
            if unit.start_ns <= first.end_ns and first.start_ns <= unit.end_ns:
                first.absorb(unit)
                gone.add(id(unit))
            elif told:
                first = unit
    return [u for u in units if id(u) not in gone]


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
    for part in parts:
        top = part.span_id or part.leg_id
        for span_id in _way_up(part.parent_span_id, parents):
            top = span_id
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
            for name in _names(unit):
                of_id[name].append(unit)
    of_id = {name: found for name, found in of_id.items() if len(found) <= _SHARED_ID_MAX}
    gone: set[int] = set()
    # what belongs to nobody else is one request, if it has one id
    first_of: dict[str, Unit] = {}
    for unit in sorted(alone, key=lambda u: (u.start_ns, u.key_leg.leg_id)):
        ids = sorted(_names(unit))
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
        for norm_id in ids:
            first = first_of.setdefault(norm_id, unit)
            if first is not unit and unit.start_ns <= first.end_ns + _PART_SLACK_NS:
                first.absorb(unit, score=0.9)
                gone.add(id(unit))
                break
    return [u for u in units if id(u) not in gone]


def _names(unit: Unit) -> set[str]:
    """Every id that a leg of it has: of the request, and of its P/D pair."""
    return unit.norm_ids | {leg.pair_id for leg in unit.legs if leg.pair_id}


def role_of_part(part: LegFacts, unit: Unit, role_of: Mapping[str, str]) -> str:
    """The role of a part: that of the leg it is a part of, else its own, unless one says more."""
    owner = unit.owner_of.get(part.leg_id)
    if owner is not None and owner.leg_id in role_of:
        return role_of[owner.leg_id]
    if part.role == "gateway" and any(c.role in CALL_ROLES - {"client"} for c in unit.calls):
        return "provider"
    if part.role in ("engine", "decode_engine") and unit.engines:
        return "provider"
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
