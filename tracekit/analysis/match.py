"""Which legs make one request: the matching of design §4, as one relation with a score.

Pure Python over small tuples; reads no tables and writes none. The rules, in order:

1. Within a trace, engine legs of one prompt are one *unit*: sequences of ``n > 1`` (same id, same
   parent, same arrival) and a prefill/decode pair (same id, same prompt length, one token first,
   different instances).
2. A call leg (client, gateway) belongs to the unit below it if it holds only that unit. An
   inference span holding several sequential units of one prompt, or failed calls before the last
   one, holds attempts: it belongs to the last. A call leg with no engine leg and no call leg below
   it is a unit of its own. A call leg above several calls (an agent's endpoint) is a leg of none.
3. Across traces, units join by normalised request id where times and token counts agree.
4. A log row that names the trace or request id of a traced call is its client leg.

A trace id alone never merges two calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Final, NamedTuple

#: The sequences of one n > 1 call carry one arrival time; this much is rounding.
_SAME_ARRIVAL_NS: Final = 1_000
#: A decode leg starts at most this long after its prefill leg ended.
_HANDOFF_NS: Final = 5_000_000_000
#: Slack when a call of one clock must contain a leg of another.
_CLOCK_SLACK_NS: Final = 2_000_000_000

_CALL_ROLES: Final = frozenset({"client", "gateway", "router"})


class LegFacts(NamedTuple):
    """What the matching needs of a leg; times in unix ns (or from the request's start)."""

    leg_id: str
    role: str
    source: str
    trace_id: str | None
    span_id: str | None
    parent_span_id: str | None
    norm_request_id: str | None
    instance: str
    input_tokens: int | None
    output_tokens: int | None
    start_ns: int | None
    end_ns: int | None
    has_clock: int
    failed: int = 0
    attempt: int | None = None


class Assignment(NamedTuple):
    """One row of the relation ``leg_request``."""

    leg_id: str
    request_key: str
    role: str
    match_score: float


class Group(NamedTuple):
    """One row of the relation ``request_groups``.

    Of a client's later attempt, ``first_start_ns`` is when the first one started and
    ``attempt_start_ns`` when it started itself; both are None for first attempts.
    """

    request_key: str
    attempt: int
    superseded_attempt: int
    first_start_ns: int | None
    attempt_start_ns: int | None
    choices: int
    legs_count: int
    leg_roles: str
    sources: str
    match_score: float


@dataclass(eq=False)
class _Unit:
    """Legs of one generation while they are gathered."""

    engines: list[LegFacts] = field(default_factory=list)
    prefill: LegFacts | None = None
    calls: list[LegFacts] = field(default_factory=list)
    phases: list[LegFacts] = field(default_factory=list)
    logs: list[LegFacts] = field(default_factory=list)
    score: float = 1.0
    attempt: int = 1
    superseded: bool = False
    first_start_ns: int | None = None
    attempt_start_ns: int | None = None

    @property
    def norm_id(self) -> str | None:
        for leg in (*self.engines, *self.calls, *self.logs):
            if leg.norm_request_id:
                return leg.norm_request_id
        return None

    @property
    def norm_ids(self) -> set[str]:
        """Every id that a leg of it has: a gateway may give the call one of its own."""
        return {leg.norm_request_id for leg in self.legs if leg.norm_request_id}

    @property
    def input_tokens(self) -> int | None:
        for leg in (*self.engines, *self.calls, *self.logs):
            if leg.input_tokens is not None:
                return leg.input_tokens
        return None

    @property
    def legs(self) -> list[LegFacts]:
        head = [self.prefill] if self.prefill else []
        return [*self.logs, *self.calls, *head, *self.engines, *self.phases]

    @property
    def start_ns(self) -> int:
        starts = [leg.start_ns for leg in self.legs if leg.start_ns is not None]
        return min(starts) if starts else 0

    @property
    def end_ns(self) -> int:
        ends = [leg.end_ns for leg in self.legs if leg.end_ns is not None]
        return max(ends) if ends else self.start_ns

    @property
    def key_leg(self) -> LegFacts:
        """The leg that names the request: the engine's, so that a late client changes nothing."""
        spans = [e for e in self.engines if e.source != "request_log"]
        if len(spans) == 1 and self.prefill is None:
            return spans[0]
        calls = [c for c in self.calls if c.source != "request_log"]
        for legs in ([self.prefill] if self.prefill else [], spans, calls, self.phases):
            if legs and not (legs is self.phases and self.logs):
                return min(legs, key=lambda leg: (leg.start_ns or 0, leg.leg_id))
        return min(self.logs, key=lambda leg: (leg.start_ns or 0, leg.leg_id))


def _same_tokens(a: int | None, b: int | None) -> bool:
    return a is None or b is None or a == b


def _merge_sequences(engines: Sequence[LegFacts]) -> list[_Unit]:
    """Engine legs → units: the n sequences of one call are one unit."""
    groups: dict[tuple[str | None, str | None, str], list[_Unit]] = defaultdict(list)
    units: list[_Unit] = []
    for leg in sorted(engines, key=lambda e: (e.start_ns or 0, e.leg_id)):
        if leg.norm_request_id:
            key = (leg.norm_request_id, leg.parent_span_id, leg.instance)
            for unit in groups[key]:
                first = unit.engines[0]
                if abs(
                    (leg.start_ns or 0) - (first.start_ns or 0)
                ) <= _SAME_ARRIVAL_NS and _same_tokens(leg.input_tokens, first.input_tokens):
                    unit.engines.append(leg)
                    break
            else:
                unit = _Unit(engines=[leg])
                groups[key].append(unit)
                units.append(unit)
        else:
            units.append(_Unit(engines=[leg]))
    return units


def _pair_prefill_decode(units: list[_Unit]) -> list[_Unit]:
    """A one-token leg and the decode leg after it, on different instances, become one unit."""
    by_id: dict[str, list[_Unit]] = defaultdict(list)
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
                late.prefill = p
                gone.add(id(early))
                break
    return [u for u in units if id(u) not in gone]


class _Trace:
    """The candidate legs of one trace and the way up from each."""

    def __init__(self, legs: Sequence[LegFacts], parents: Mapping[str, str | None]) -> None:
        legs = sorted(legs, key=lambda leg: leg.leg_id)  # the result must not depend on their order
        self.calls = [leg for leg in legs if leg.role in _CALL_ROLES and leg.span_id]
        self.engines = [
            leg for leg in legs if leg.role not in _CALL_ROLES and leg.source != "tracekit"
        ]
        self.phases = [leg for leg in legs if leg.source == "tracekit"]
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

    def units(self) -> list[_Unit]:
        units = _pair_prefill_decode(_merge_sequences(self.engines))
        above: dict[str, list[LegFacts]] = {}
        holds: dict[str, set[int]] = defaultdict(set)
        by_unit: dict[int, _Unit] = {}

        def place(unit: _Unit, legs: Iterable[LegFacts]) -> None:
            by_unit[id(unit)] = unit
            for leg in legs:
                chain = self.ancestors(leg)
                above[leg.leg_id] = chain
                for call in chain:
                    holds[call.leg_id].add(id(unit))

        for unit in units:
            place(unit, unit.legs)
        # tracekit's phase spans: a unit under their call, unless an engine is there too
        by_parent: dict[str, list[LegFacts]] = defaultdict(list)
        for leg in self.phases:
            by_parent[leg.parent_span_id or leg.leg_id].append(leg)
        loose: list[_Unit] = []
        for legs in by_parent.values():
            chain = self.ancestors(legs[0])
            inside = holds[chain[0].leg_id] if chain else set()
            if len(inside) == 1:
                by_unit[next(iter(inside))].phases.extend(legs)
            else:
                unit = _Unit(phases=list(legs))
                loose.append(unit)
                place(unit, legs)
        units = units + loose
        # calls with nothing below them are requests of their own (aborted, refused, client-only);
        # then those that nobody holds yet: they hold each other in a circle
        with_calls_below = {c.leg_id for leg in self.calls for c in self.ancestors(leg)}
        innermost = [c for c in self.calls if c.leg_id not in with_calls_below]
        for call in (*innermost, *self.calls):
            if not holds[call.leg_id]:
                unit = _Unit(calls=[call])
                units.append(unit)
                by_unit[id(unit)] = unit
                holds[call.leg_id].add(id(unit))
                for up in self.ancestors(call):
                    holds[up.leg_id].add(id(unit))
        _add_outer_calls([(c, [by_unit[i] for i in holds[c.leg_id]]) for c in self.calls])
        return units


def _add_outer_calls(calls: Sequence[tuple[LegFacts, list[_Unit]]]) -> None:
    """Calls with what lies below each: one unit gets it as outer leg, of attempts the last one."""
    for call, units in calls:
        if len(units) == 1 and call not in units[0].calls:
            units[0].calls.append(call)
    last_of: dict[frozenset[int], _Unit] = {}
    for call, units in calls:
        held = frozenset(map(id, units))
        if len(held) > 1 and call.source == "genai_client" and held not in last_of:
            last = _last_attempt(units)
            if last is not None:
                last_of[held] = last
    for call, units in calls:
        if len(units) > 1:
            found = last_of.get(frozenset(map(id, units)))
            if found is not None:
                found.calls.append(call)


def _last_attempt(units: Sequence[_Unit]) -> _Unit | None:
    """The last of the attempts that an inference span's library made; None if they are none."""
    units = sorted(units, key=lambda u: (u.start_ns, u.key_leg.leg_id))
    if not all(_is_retry(a, b) for a, b in pairwise(units)):
        return None
    _number_attempts(units)
    return units[-1]


def _is_retry(a: _Unit, b: _Unit) -> bool:
    # a client that gave up does not wait for the engine to notice
    over_ns = max((c.end_ns or 0 for c in a.calls), default=a.end_ns)
    if over_ns > b.start_ns or not _same_tokens(a.input_tokens, b.input_tokens):
        return False
    if a.engines and b.engines:
        return a.input_tokens is not None and b.input_tokens is not None
    return any(call.failed for call in a.calls)


def _number_attempts(units: Sequence[_Unit]) -> None:
    first, last = units[0], units[-1]
    for number, unit in enumerate(units, start=1):
        unit.attempt = max(number, unit.attempt)
        unit.superseded = unit.superseded or unit is not last
        if unit is not first:
            unit.first_start_ns = first.start_ns
            unit.attempt_start_ns = unit.start_ns


def _contains(outer: _Unit, inner: _Unit) -> bool:
    return (
        outer.start_ns - _CLOCK_SLACK_NS <= inner.start_ns
        and inner.end_ns <= outer.end_ns + _CLOCK_SLACK_NS
    )


def _across_traces(units: list[_Unit]) -> list[_Unit]:
    """Units without a call above them, joined by request id: n > 1, P/D, and an untraced engine."""
    rootless = [u for u in units if u.engines and not u.calls]
    by_id: dict[str, list[_Unit]] = defaultdict(list)
    for unit in rootless:
        norm_id = unit.norm_id
        if norm_id:
            by_id[norm_id].append(unit)
    if not by_id:
        return units
    gone: set[int] = set()
    for same in by_id.values():
        if len(same) < 2:
            continue
        same.sort(key=lambda u: (u.start_ns, u.key_leg.leg_id))
        kept: list[_Unit] = []
        for unit in same:
            for other in kept:
                a, b = other.engines[0], unit.engines[0]
                if (
                    a.instance == b.instance
                    and abs((a.start_ns or 0) - (b.start_ns or 0)) <= _SAME_ARRIVAL_NS
                    and _same_tokens(a.input_tokens, b.input_tokens)
                ):
                    other.engines.extend(unit.engines)
                    other.score = min(other.score, 0.9)
                    gone.add(id(unit))
                    break
            else:
                kept.append(unit)
        before = len(kept)
        paired = _pair_prefill_decode(kept)
        if len(paired) < before:
            for unit in paired:
                if unit.prefill is not None:
                    unit.score = min(unit.score, 0.9)
            left = {id(u) for u in paired}
            gone.update(id(u) for u in kept if id(u) not in left)
    units = [u for u in units if id(u) not in gone]
    # a traced call that holds no engine, and an untraced engine leg of the same id inside it
    engines: dict[str, list[_Unit]] = defaultdict(list)
    for unit in units:
        if unit.engines and not unit.calls and unit.norm_id:
            engines[unit.norm_id].append(unit)
    bare = [u for u in units if u.calls and not u.engines and u.norm_id]
    for unit in sorted(bare, key=lambda u: (u.start_ns, u.key_leg.leg_id)):
        inside = [
            e
            for norm_id in sorted(unit.norm_ids)
            for e in engines.get(norm_id, ())
            if id(e) not in gone
            and not e.calls
            and _contains(unit, e)
            and _same_tokens(unit.input_tokens, e.input_tokens)
        ]
        if len(inside) == 1:
            inside[0].calls.extend(unit.calls)
            inside[0].phases.extend(unit.phases)
            inside[0].score = min(inside[0].score, 0.8)
            gone.add(id(unit))
    return [u for u in units if id(u) not in gone]


def _join_logs(logs: Sequence[LegFacts], units: list[_Unit]) -> list[_Unit]:
    """Log rows become client legs of the calls they name; the rest are requests of their own."""
    by_trace: dict[str, list[_Unit]] = defaultdict(list)
    by_id: dict[str, list[_Unit]] = defaultdict(list)
    for unit in units:
        for trace_id in {leg.trace_id for leg in unit.legs if leg.trace_id}:
            by_trace[trace_id].append(unit)
        for norm_id in unit.norm_ids:
            by_id[norm_id].append(unit)
    taken: set[int] = set()
    out = list(units)
    # what a row tells of engine and gateway goes with the row
    own_of: dict[str, list[LegFacts]] = defaultdict(list)
    rows = []
    for leg in logs:
        row_id, _, part = leg.leg_id.partition("-")
        if part:
            own_of[row_id].append(leg)
        else:
            rows.append(leg)
    rows.sort(key=lambda r: (r.start_ns or 0, r.leg_id))
    # rows that lie beside a call choose first: the slack for clocks must not give it to another
    for slack_ns in (0, _CLOCK_SLACK_NS):
        left = []
        for row in rows:
            found, score = _find(row, by_trace, by_id, taken, slack_ns)
            if found is None:
                left.append(row)
                continue
            taken.add(id(found))
            found.logs.append(row)
            found.phases.extend(own_of.get(row.leg_id, ()))
            found.score = min(found.score, score)
        rows = left
    for row in rows:
        # phase columns of a row that matched nothing are its legs
        own = own_of.get(row.leg_id, ())
        engines = [leg for leg in own if leg.role not in _CALL_ROLES]
        gateways = [leg for leg in own if leg.role in _CALL_ROLES]
        out.append(_Unit(logs=[row], engines=engines, calls=gateways))
    return out


def _find(
    row: LegFacts,
    by_trace: Mapping[str, list[_Unit]],
    by_id: Mapping[str, list[_Unit]],
    taken: set[int],
    slack_ns: int,
) -> tuple[_Unit | None, float]:
    """The call that a log row names, and how surely; ``(None, 0)`` if there is none."""

    def fits(unit: _Unit) -> bool:
        if id(unit) in taken or unit.superseded:
            return False
        if not _same_tokens(row.input_tokens, unit.input_tokens):
            return False
        if not row.has_clock or row.start_ns is None:
            return True
        return (
            row.start_ns - slack_ns <= unit.end_ns
            and unit.start_ns <= (row.end_ns or row.start_ns) + slack_ns
        )

    def nearest(near: list[_Unit], score: float) -> tuple[_Unit | None, float]:
        """One call is sure; of several the row's start tells, if it has one."""
        if len(near) == 1:
            return near[0], score
        if not near or row.start_ns is None or not row.has_clock:
            return None, 0.0
        start = row.start_ns
        return min(near, key=lambda u: (abs(u.start_ns - start), u.key_leg.leg_id)), 0.7

    if row.trace_id:
        near = [u for u in by_trace.get(row.trace_id, ()) if fits(u)]
        named = [u for u in near if row.norm_request_id in u.norm_ids]
        unit, score = nearest(named if row.norm_request_id and named else near, 1.0)
        if unit is not None:
            return unit, score
    if row.norm_request_id:
        return nearest([u for u in by_id.get(row.norm_request_id, ()) if fits(u)], 0.95)
    return None, 0.0


def _told_attempts(units: Iterable[_Unit]) -> None:
    """Attempts that the sources number themselves: of one request id, a higher one supersedes."""
    by_id: dict[str, list[_Unit]] = defaultdict(list)
    for unit in units:
        told = max((leg.attempt for leg in unit.legs if leg.attempt is not None), default=None)
        if told is not None:
            unit.attempt = max(unit.attempt, told)
            if unit.norm_id:
                by_id[unit.norm_id].append(unit)
    for same in by_id.values():
        if len(same) < 2:
            continue
        same.sort(key=lambda u: (u.start_ns, u.attempt, u.key_leg.leg_id))
        run = [same[0]]
        for unit in same[1:]:
            if unit.attempt <= run[-1].attempt:
                _number_attempts(run)
                run = []
            run.append(unit)
        _number_attempts(run)


_ROLE_ORDER: Final = (
    "client",
    "gateway",
    "router",
    "prefill_engine",
    "decode_engine",
    "engine",
    "provider",
)


_ROLE_RANK: Final = {role: rank for rank, role in enumerate(_ROLE_ORDER)}


@cache
def _joined(words: frozenset[str]) -> str:
    """Roles outermost first, sources alphabetically; cached, since few combinations exist."""
    return ",".join(sorted(words, key=lambda w: (_ROLE_RANK.get(w, 0), w)))


def _emit(unit: _Unit) -> tuple[list[Assignment], Group]:
    key = unit.key_leg.leg_id
    score = unit.score
    roles: list[tuple[LegFacts, str]] = [(leg, "client") for leg in unit.logs]
    # below a server leg, an HTTP client span is the proxy's onward call
    under_server = False
    calls = unit.calls
    if len(calls) > 1:
        calls = sorted(calls, key=lambda c: (c.start_ns or 0, -(c.end_ns or 0), c.leg_id))
    for leg in calls:
        roles.append((leg, "gateway" if under_server else leg.role))
        under_server = under_server or leg.role != "client"
    if unit.prefill is not None:
        roles.append((unit.prefill, "prefill_engine"))
    engine = "engine" if unit.prefill is None else "decode_engine"
    roles.extend((leg, engine) for leg in unit.engines)
    # reported phases stand back where a server's own span is there
    aside = "provider" if unit.engines else "engine"
    roles.extend((leg, aside) for leg in unit.phases)
    first_ns, own_ns = unit.first_start_ns, unit.attempt_start_ns
    if first_ns is not None:
        if all(leg.has_clock for leg, _ in roles) and any(role == "client" for _, role in roles):
            first_ns = min(first_ns, unit.start_ns)
        else:
            first_ns = own_ns = None
    return [Assignment(leg.leg_id, key, role, score) for leg, role in roles], Group(
        request_key=key,
        attempt=unit.attempt,
        superseded_attempt=int(unit.superseded),
        first_start_ns=first_ns,
        attempt_start_ns=own_ns,
        choices=max(len(unit.engines), 1),
        legs_count=len(roles),
        leg_roles=_joined(frozenset([role for _, role in roles])),
        sources=_joined(frozenset([leg.source for leg, _ in roles])),
        match_score=score,
    )


def _by_trace(legs: Iterable[LegFacts]) -> dict[str, list[LegFacts]]:
    traces: dict[str, list[LegFacts]] = defaultdict(list)
    for leg in legs:
        if leg.source != "request_log":
            traces[leg.trace_id or leg.leg_id].append(leg)
    return traces


def _call_of_engine(members: Sequence[LegFacts]) -> tuple[LegFacts, LegFacts] | None:
    """(call, engine) if a trace is just that, the engine right below the call: nearly all are."""
    if len(members) != 2:
        return None
    call, engine = members
    if engine.role in _CALL_ROLES:
        call, engine = engine, call
    if (
        call.role in _CALL_ROLES
        and engine.role not in _CALL_ROLES
        and engine.source != "tracekit"
        and call.span_id
        and engine.parent_span_id == call.span_id
    ):
        return call, engine
    return None


def needs_parents(legs: Iterable[LegFacts]) -> list[str]:
    """Traces whose matching must know the way up through spans that are no legs."""
    return [
        trace_id
        for trace_id, members in _by_trace(legs).items()
        if len(members) > 1 and _call_of_engine(members) is None
    ]


def match(
    legs: Iterable[LegFacts], parents: Mapping[str, Mapping[str, str | None]]
) -> tuple[list[Assignment], list[Group]]:
    """Group legs into requests.

    ``parents`` maps trace id → span id → parent span id, for every span of the traces at hand
    (spans that are no legs too: they carry the way up). A leg is assigned at most once, engine and
    log legs exactly once; the result does not depend on the order of ``legs``.
    """
    legs = list(legs)
    logs = [leg for leg in legs if leg.source == "request_log"]
    units: list[_Unit] = []
    for trace_id, members in _by_trace(legs).items():
        if len(members) == 1:
            leg = members[0]
            if leg.role in _CALL_ROLES:
                units.append(_Unit(calls=[leg]))
            elif leg.source == "tracekit":
                units.append(_Unit(phases=[leg]))
            else:
                units.append(_Unit(engines=[leg]))
            continue
        pair = _call_of_engine(members)
        if pair is not None:
            units.append(_Unit(calls=[pair[0]], engines=[pair[1]]))
            continue
        units.extend(_Trace(members, parents.get(trace_id, {})).units())
    units = _across_traces(units)
    if logs:
        units = _join_logs(logs, units)
    if any(leg.attempt is not None for leg in legs):
        _told_attempts(units)
    assignments: list[Assignment] = []
    groups: list[Group] = []
    for unit in units:
        rows, group = _emit(unit)
        assignments.extend(rows)
        groups.append(group)
    return assignments, groups
