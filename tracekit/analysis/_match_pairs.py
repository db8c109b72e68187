"""Engine legs whose source says which of them belong together, and what wraps what.

A source may tell on which server a leg ran, by which id a prefill and a decode server met, and how
many answers a call asked for. Owns what follows from such words; knows no tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tracekit.analysis._match_unit import LegFacts, Unit, same_tokens

#: Legs of one pair overlap, or follow each other by a hand-over; most of it is for clocks.
_PAIR_SLACK_NS: Final = 15_000_000_000

#: Units of one pair id that are near each other: a pair, and tries of either; an id that more have
#: names none of them.
SHARED_ID_MAX: Final = 8


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
        for span_id in way_up(leg.parent_span_id, parents):
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


def way_up(span_id: str | None, parents: Mapping[str, str | None]) -> Iterable[str]:
    seen: set[str] = set()
    while span_id and span_id not in seen:
        seen.add(span_id)
        yield span_id
        span_id = parents.get(span_id)


def join_told_pairs(
    units: list[Unit],
    *,
    score: float = 1.0,
    apart: Callable[[LegFacts, LegFacts], bool] | None = None,
) -> list[Unit]:
    """Units whose engine legs name one P/D id become one: prefill, decode, and tries of either.

    With ``apart``, which says that two legs are of two calls, units are of one trace, where a
    second decode leg is another try; without, they may be of several, where it is another request.
    The last leg that did not fail counts; other tries are parts.
    """
    by_pair: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        pair_id = next((e.pair_id for e in unit.engines if e.pair_id), None)
        if pair_id is not None:
            by_pair[pair_id].append(unit)
    gone: set[int] = set()

    def may_join(a: Unit, b: Unit) -> bool:
        return _are_near(a, b) and (apart is None or not apart(a.engines[0], b.engines[0]))

    for same in by_pair.values():
        same.sort(key=lambda u: (u.start_ns, u.key_leg.leg_id))
        decoding = [u for u in same if any(e.role != "prefill_engine" for e in u.engines)]
        bases = [u for u in decoding if sum(may_join(u, o) for o in same) <= SHARED_ID_MAX]
        if apart is not None:
            bases = _join_tries(bases, may_join, gone)
        for unit in same:
            if id(unit) in gone or unit in decoding:
                continue
            near = [b for b in bases if may_join(unit, b)]
            if near:
                base = min(near, key=lambda b: (abs(b.start_ns - unit.start_ns), b.start_ns))
                base.absorb(unit, score=score)
                gone.add(id(unit))
            elif not decoding:
                bases.append(unit)
        for unit in bases:
            _pick_prefill(unit)
    return [u for u in units if id(u) not in gone]


def _are_near(a: Unit, b: Unit) -> bool:
    return a.start_ns <= b.end_ns + _PAIR_SLACK_NS and b.start_ns <= a.end_ns + _PAIR_SLACK_NS


def _join_tries(
    units: Sequence[Unit], may_join: Callable[[Unit, Unit], bool], gone: set[int]
) -> list[Unit]:
    """One trace's decode legs of one pair: tries of one call, the last of which counts."""
    kept: list[Unit] = []
    for unit in units:
        for other in kept:
            if not may_join(other, unit):
                continue
            mine, theirs = list(other.engines), list(unit.engines)
            other.absorb(unit)
            gone.add(id(unit))
            if all((e.choices or 1) == 1 and e.output_tokens is not None for e in other.engines):
                # what an earlier try answered must not count beside the last one's
                failed = all(e.failed for e in theirs) and not all(e.failed for e in mine)
                other.engines, tries = (mine, theirs) if failed else (theirs, mine)
                other.parts.extend(tries)
            break
        else:
            kept.append(unit)
    return kept


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
        answers = 0
        # the call's own prefill, which has no tokens, may not say how many answers it is for
        for unit in same if first is not None else ():
            assert first is not None
            leg = unit.engines[0]
            told = (leg.choices or 1) > 1 and same_tokens(leg.input_tokens, first.input_tokens)
            if unit is first:
                answers = int(bool(leg.output_tokens))
                continue
            if not (told or not leg.output_tokens):
                continue
            full = bool(leg.output_tokens) and answers >= (first.engines[0].choices or 1)
            if not full and unit.start_ns <= first.end_ns and first.start_ns <= unit.end_ns:
                first.absorb(unit)
                gone.add(id(unit))
                answers += int(bool(leg.output_tokens))
            elif told:
                first, answers = unit, int(bool(leg.output_tokens))
    return [u for u in units if id(u) not in gone]
