"""Matching inside one trace: sequences, prefill/decode pairs, calls around calls, attempts.

Owns rules 1 and 2 of `match`; knows nothing of other traces or of log rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from tracekit.analysis._match_pairs import innermost_engines, join_choices, join_told_pairs
from tracekit.analysis._match_parts import attach_parts
from tracekit.analysis._match_unit import (
    CALL_ROLES,
    SAME_ARRIVAL_NS,
    LegFacts,
    Unit,
    number_attempts,
    same_tokens,
)

#: A decode leg starts at most this long after its prefill leg ended.
_HANDOFF_NS: Final = 5_000_000_000

#: Sources whose spans each are one call of a model: what lies below in sequence are attempts.
_ONE_CALL: Final = frozenset({"genai_client", "sglang_router", "dynamo", "llm_d"})

#: The clocks of two hosts differ by this much at most.
_CLOCKS_APART_NS: Final = 10_000_000_000


def merge_sequences(engines: Sequence[LegFacts]) -> list[Unit]:
    """Engine legs → units: the n sequences of one call are one unit.

    Two calls do not arrive in the same microsecond: what is above such legs need not be one span.
    """
    groups: dict[tuple[str, str], list[Unit]] = defaultdict(list)
    units: list[Unit] = []
    for leg in sorted(engines, key=lambda e: (e.start_ns or 0, e.leg_id)):
        if leg.norm_request_id:
            key = (leg.norm_request_id, leg.instance)
            for unit in groups[key]:
                first = unit.engines[0]
                if abs(
                    (leg.start_ns or 0) - (first.start_ns or 0)
                ) <= SAME_ARRIVAL_NS and same_tokens(leg.input_tokens, first.input_tokens):
                    unit.engines.append(leg)
                    break
            else:
                unit = Unit(engines=[leg])
                groups[key].append(unit)
                units.append(unit)
        else:
            units.append(Unit(engines=[leg]))
    return units


def pair_prefill_decode(
    units: list[Unit], *, apart: Callable[[LegFacts, LegFacts], bool] | None = None
) -> list[Unit]:
    """A one-token leg and the decode leg after it, on different instances, become one unit.

    ``apart`` says that two legs belong to two calls, whatever ids they share.
    """
    by_id: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        first = unit.engines[0]
        if len(unit.engines) == 1 and first.norm_request_id and unit.prefill is None:
            by_id[first.norm_request_id].append(unit)
    gone: set[int] = set()
    for same in by_id.values():
        if len(same) < 2:
            continue
        same.sort(key=lambda u: (u.start_ns, u.engines[0].leg_id))
        for i, early in enumerate(same):
            p = early.engines[0] if early.engines else None
            if p is None or id(early) in gone or (p.output_tokens or 0) > 1:
                continue
            if early.prefill is not None:
                continue
            for late in same[i + 1 :]:
                d = late.engines[0]
                if id(late) in gone or late.prefill is not None or d.instance == p.instance:
                    continue
                if p.input_tokens is None or p.input_tokens != d.input_tokens:
                    continue
                if (d.start_ns or 0) - (p.end_ns or p.start_ns or 0) > _HANDOFF_NS:
                    continue
                if apart is not None and apart(p, d):
                    continue
                late.prefill = p
                late.tell_with(early)
                gone.add(id(early))
                break
        left = [u for u in same if id(u) not in gone and u.prefill is None]
        if len(same) == len(left) == 2:
            gone.update(id(u) for u in _pair_by_shape(*left, apart=apart))
    return [u for u in units if id(u) not in gone]


def _pair_by_shape(*units: Unit, apart: Callable[[LegFacts, LegFacts], bool] | None) -> list[Unit]:
    """Two legs alone with an id that only the clocks of their hosts keep apart become one unit.

    Returns what is gone into the other.
    """
    p_unit, d_unit = sorted(units, key=lambda u: u.engines[0].output_tokens != 1)
    p, d = p_unit.engines[0], d_unit.engines[0]
    if (
        p.output_tokens != 1
        or (d.output_tokens or 0) <= 1
        or d.instance == p.instance
        or p.input_tokens is None
        or p.input_tokens != d.input_tokens
        or abs((p.start_ns or 0) - (d.start_ns or 0)) > _CLOCKS_APART_NS + _HANDOFF_NS
        or (apart is not None and apart(p, d))
    ):
        return []
    d_unit.prefill = p
    d_unit.tell_with(p_unit)
    return [p_unit]


class Trace:
    """The candidate legs of one trace and the way up from each."""

    def __init__(self, legs: Sequence[LegFacts], parents: Mapping[str, str | None]) -> None:
        legs = sorted(legs, key=lambda leg: leg.leg_id)  # the result must not depend on their order
        whole = [leg for leg in legs if not leg.is_part]
        self.parts = [leg for leg in legs if leg.is_part]
        self.phases = [leg for leg in whole if leg.source == "tracekit"]
        self.engines, outer = innermost_engines(
            [leg for leg in whole if leg.role not in CALL_ROLES and leg.source != "tracekit"],
            parents,
        )
        self.calls = [leg for leg in whole if leg.role in CALL_ROLES and leg.span_id] + outer
        self._phases_by_span = {leg.span_id: leg for leg in self.phases if leg.span_id}
        self._parents = parents
        self._calls_by_span: dict[str, list[LegFacts]] = defaultdict(list)
        for leg in self.calls:
            self._calls_by_span[leg.span_id or ""].append(leg)

    def ancestors(self, leg: LegFacts) -> list[LegFacts]:
        """Call legs above ``leg``, innermost first; a broken or circular chain just ends."""
        out: list[LegFacts] = []
        seen: set[str] = set()
        at = leg.parent_span_id
        while at and at not in seen:
            seen.add(at)
            out.extend(c for c in self._calls_by_span.get(at, ()) if c is not leg)
            at = self._parents.get(at)
        return out

    def _outermost_phase(self, leg: LegFacts) -> tuple[LegFacts, str | None]:
        """The phase span around ``leg`` that no other is around, and the span that holds it."""
        seen: set[str] = set()
        while (above := leg.parent_span_id) in self._phases_by_span and above not in seen:
            seen.add(above or "")
            leg = self._phases_by_span[above or ""]
        return leg, leg.parent_span_id

    def _apart(self, a: LegFacts, b: LegFacts) -> bool:
        """Under two inference spans of an application, not under one proxy that made two calls."""
        above_a, above_b = self.ancestors(a), self.ancestors(b)

        def inference(chain: list[LegFacts]) -> str | None:
            return next((c.leg_id for c in chain if c.source == "genai_client"), None)

        if inference(above_a) == inference(above_b):
            return False
        servers = {c.leg_id for c in above_a if c.role != "client"}
        return not any(c.leg_id in servers for c in above_b)

    def _told_apart(self, a: LegFacts, b: LegFacts) -> bool:
        """Below two gateways' calls that have a pair id of their own, whatever id those share."""
        above_a, above_b = (
            {c.leg_id for c in self.ancestors(leg) if c.role == "gateway" and c.pair_id}
            for leg in (a, b)
        )
        return bool(above_a and above_b) and above_a.isdisjoint(above_b)

    def _prefilled_before(
        self, call: LegFacts, units: Iterable[Unit], above: Mapping[str, Sequence[LegFacts]]
    ) -> Unit | None:
        """What a proxy had prefilled when it made this call, which failed with no engine below."""
        servers = {c.leg_id for c in self.ancestors(call) if c.role != "client"}
        if not call.failed or not servers:
            return None
        found = []
        for unit in units:
            if len(unit.engines) != 1 or unit.prefill is not None:
                continue
            (p,) = unit.engines
            late_ns = (call.start_ns or 0) - (p.end_ns or p.start_ns or 0)
            if p.output_tokens == 1 and not p.failed and abs(late_ns) <= _HANDOFF_NS:
                found += [unit for c in above.get(p.leg_id, ()) if c.leg_id in servers][:1]
        return found[0] if len(found) == 1 else None

    def units(self) -> list[Unit]:
        units = join_choices(merge_sequences(self.engines))
        units = join_told_pairs(units, apart=self._told_apart)
        units = pair_prefill_decode(units, apart=self._apart)
        above: dict[str, list[LegFacts]] = {}
        holds: dict[str, set[int]] = defaultdict(set)
        by_unit: dict[int, Unit] = {}

        def place(unit: Unit, legs: Iterable[LegFacts]) -> None:
            by_unit[id(unit)] = unit
            for leg in legs:
                chain = self.ancestors(leg)
                above[leg.leg_id] = chain
                for call in chain:
                    holds[call.leg_id].add(id(unit))

        for unit in units:
            place(unit, unit.legs)
        # tracekit's phase spans: a unit under their call, unless an engine is there too
        unit_of_span = {
            leg.span_id: unit
            for unit in units
            for leg in (*unit.engines, *filter(None, (unit.prefill,)))
            if leg.span_id
        }
        by_parent: dict[str, list[LegFacts]] = defaultdict(list)
        loose: list[Unit] = []
        for leg in self.phases:
            top, above_it = self._outermost_phase(leg)
            if above_it in unit_of_span:
                unit_of_span[above_it].phases.append(leg)
            else:
                by_parent[above_it or top.leg_id].append(leg)
        for legs in by_parent.values():
            chain = self.ancestors(legs[0])
            inside = holds[chain[0].leg_id] if chain else set()
            if len(inside) == 1:
                by_unit[next(iter(inside))].phases.extend(legs)
            else:
                unit = Unit(phases=list(legs))
                loose.append(unit)
                place(unit, legs)
        units = units + loose
        # calls with nothing below them are requests of their own (aborted, refused, client-only);
        # then those that nobody holds yet: they hold each other in a circle
        with_calls_below = {c.leg_id for leg in self.calls for c in self.ancestors(leg)}
        innermost = [c for c in self.calls if c.leg_id not in with_calls_below]
        for call in (*innermost, *self.calls):
            if not holds[call.leg_id]:
                before = self._prefilled_before(call, units, above)
                if before is not None:
                    holds[call.leg_id].add(id(before))
                    continue
                unit = Unit(calls=[call])
                units.append(unit)
                by_unit[id(unit)] = unit
                holds[call.leg_id].add(id(unit))
                for up in self.ancestors(call):
                    holds[up.leg_id].add(id(unit))
        if self.parts:
            self._add_parts(units, unit_of_span, holds, by_unit)
        _add_outer_calls([(c, [by_unit[i] for i in holds[c.leg_id]]) for c in self.calls])
        for unit in units:
            if len(unit.calls) > 1:
                unit.depth_of = {c.leg_id: len(self.ancestors(c)) for c in unit.calls}
        return units

    def _add_parts(
        self,
        units: list[Unit],
        unit_of_span: Mapping[str, Unit],
        holds: Mapping[str, set[int]],
        by_unit: Mapping[int, Unit],
    ) -> None:
        def held(span_id: str) -> list[Unit]:
            calls = self._calls_by_span.get(span_id, ())
            return [by_unit[i] for call in calls for i in holds[call.leg_id]]

        engines = {leg.span_id: leg for leg in self.engines if leg.span_id}
        attach_parts(
            self.parts,
            units,
            engine_of_span={
                span_id: (engines[span_id], unit)
                for span_id, unit in unit_of_span.items()
                if span_id in engines
            },
            held=held,
            parents=self._parents,
        )


def _add_outer_calls(calls: Sequence[tuple[LegFacts, list[Unit]]]) -> None:
    """Calls with what lies below each: one unit gets it as outer leg, of attempts the last one."""
    for call, units in calls:
        if len(units) == 1 and call not in units[0].calls:
            units[0].calls.append(call)
    last_of: dict[frozenset[int], Unit] = {}
    for call, units in calls:
        held = frozenset(map(id, units))
        if len(held) > 1 and call.source in _ONE_CALL and held not in last_of:
            last = _last_attempt(units)
            if last is not None:
                last_of[held] = last
    for call, units in calls:
        if len(units) > 1:
            found = last_of.get(frozenset(map(id, units)))
            if found is not None:
                found.calls.append(call)


def _last_attempt(units: Sequence[Unit]) -> Unit | None:
    """The last of the attempts that an inference span's library made; None if they are none."""
    units = sorted(units, key=lambda u: (u.start_ns, u.key_leg.leg_id))
    if not all(_is_retry(a, b) for a, b in pairwise(units)):
        return None
    number_attempts(units)
    return units[-1]


def _is_retry(a: Unit, b: Unit) -> bool:
    # a client that gave up does not wait for the engine to notice
    over_ns = max((c.end_ns or 0 for c in a.calls), default=a.end_ns)
    if over_ns > b.start_ns or not same_tokens(a.input_tokens, b.input_tokens):
        return False
    if a.engines and b.engines:
        return a.input_tokens is not None and b.input_tokens is not None
    return any(call.failed for call in a.calls)
