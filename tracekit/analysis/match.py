"""Which legs make one request: the matching of design §4, as one relation with a score.

Pure Python over small tuples; reads no tables and writes none. The rules, in order:

1. Within a trace, engine legs of one prompt are one *unit*: sequences of ``n > 1`` (same id, same
   parent, same arrival) and a prefill/decode pair (same id, same prompt length, one token first,
   different instances). A one-token leg whose caller later failed without a token is a prefill leg
   too: the decode server finished nothing, and only what is finished sends a span.
2. A call leg (client, gateway) belongs to the unit below it if it holds only that unit. An
   inference span holding several sequential units of one prompt, or failed calls before the last
   one, holds attempts: it belongs to the last. A call leg with no engine leg and no call leg below
   it is a unit of its own. A call leg above several calls (an agent's endpoint) is a leg of none.
   What a source says itself (roles, the id of a prefill/decode pair, that a span is a part of the
   leg above it) goes before all of this.
3. Across traces, units join by normalised request id where times and token counts agree, by the
   id of a prefill/decode pair, and parts by the request id they name.
4. A log row that names the trace or request id of a traced call is its client leg.
5. A call and an engine's request that found no counterpart so join where somebody had a likeness
   in time and token counts written down.

A trace id alone never merges two calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final

from tracekit.analysis._match_links import LINKS, join_links
from tracekit.analysis._match_logs import join_logs, told_attempts
from tracekit.analysis._match_pairs import join_told_pairs
from tracekit.analysis._match_parts import join_far_parts, role_of_part, serve_by_parts
from tracekit.analysis._match_trace import Trace, pair_prefill_decode
from tracekit.analysis._match_unit import (
    CALL_ROLES,
    CLOCK_SLACK_NS,
    SAME_ARRIVAL_NS,
    Assignment,
    Group,
    LegFacts,
    Unit,
    same_tokens,
)

__all__ = ["Assignment", "Group", "LegFacts", "match", "needs_parents"]


#: Untraced legs of one request id: a pair, or a pair and its retry; more is a constant id.
_SHARED_ID_MAX: Final = 4

#: The source whose spans tell of a server's own request, with phases below them.
REQUESTS: Final = "tracekit_request"

#: Calls that a server makes or serves, and no client of its own.
_SERVER_CALLS: Final = frozenset({"gateway", "router"})


def _contains(outer: Unit, inner: Unit) -> bool:
    return (
        outer.start_ns - CLOCK_SLACK_NS <= inner.start_ns
        and inner.end_ns <= outer.end_ns + CLOCK_SLACK_NS
    )


def _is_servers(unit: Unit) -> bool:
    return all(c.role in _SERVER_CALLS for c in unit.calls)


def _lost_the_trace_of(client: Unit, server: Unit) -> bool:
    """Whether a server began a trace of its own for what may be that client's call."""
    own = {leg.trace_id for leg in client.legs}
    return (
        any(c.role == "client" for c in client.calls)
        and _is_servers(server)
        and own.isdisjoint(leg.trace_id for leg in server.legs)
    )


def _across_traces(units: list[Unit]) -> list[Unit]:
    """Units without a call above them, joined by request id: n > 1, P/D, and an untraced engine."""
    rootless = [u for u in units if u.engines and not u.calls]
    by_id: dict[str, list[Unit]] = defaultdict(list)
    for unit in rootless:
        norm_id = unit.norm_id
        if norm_id:
            by_id[norm_id].append(unit)
    gone: set[int] = set()
    for same in by_id.values():
        if len(same) < 2:
            continue
        same.sort(key=lambda u: (u.start_ns, u.key_leg.leg_id))
        kept: list[Unit] = []
        for unit in same:
            for other in kept:
                a, b = other.engines[0], unit.engines[0]
                if (
                    a.instance == b.instance
                    and abs((a.start_ns or 0) - (b.start_ns or 0)) <= SAME_ARRIVAL_NS
                    and same_tokens(a.input_tokens, b.input_tokens)
                ):
                    other.absorb(unit, score=0.9)
                    gone.add(id(unit))
                    break
            else:
                kept.append(unit)
        before = len(kept)
        # an id that many calls carry names none of them
        paired = pair_prefill_decode(kept) if before <= _SHARED_ID_MAX else kept
        if len(paired) < before:
            for unit in paired:
                if unit.prefill is not None:
                    unit.score = min(unit.score, 0.9)
            left = {id(u) for u in paired}
            gone.update(id(u) for u in kept if id(u) not in left)
    units = [u for u in units if id(u) not in gone]
    # a traced call that holds no engine, and inside it an engine leg of the same id that is not
    # traced, or is in a trace that a server began although it was given one (sglang-router)
    engines: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        if unit.engines and _is_servers(unit):
            for name in unit.names:
                engines[name].append(unit)
    bare = [u for u in units if u.calls and not u.engines and u.names]
    for unit in sorted(bare, key=lambda u: (u.start_ns, u.key_leg.leg_id)):
        inside = {
            id(e): e
            for name in unit.names
            for e in engines.get(name, ())
            if id(e) not in gone
            and (not e.calls or _lost_the_trace_of(unit, e))
            and _contains(unit, e)
            and same_tokens(unit.input_tokens, e.input_tokens)
        }
        if len(inside) == 1:
            (engine,) = inside.values()
            outer = 1 + max(unit.depth_of.get(c.leg_id, 0) for c in unit.calls)
            engine.depth_of = {
                c.leg_id: outer + engine.depth_of.get(c.leg_id, 0) for c in engine.calls
            }
            engine.absorb(unit, score=0.8)
            gone.add(id(unit))
    return [u for u in units if id(u) not in gone]


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


def _emit(unit: Unit) -> tuple[list[Assignment], Group]:
    key = unit.key_leg.leg_id
    score = unit.score
    roles: list[tuple[LegFacts, str]] = [(leg, "client") for leg in unit.logs]
    # below a server leg, an HTTP client span is the proxy's onward call
    under_server = False
    calls = unit.calls
    if len(calls) > 1:
        # by parentage, where it is known: hosts' clocks may differ
        depth = unit.depth_of
        calls = sorted(
            calls,
            key=lambda c: (depth.get(c.leg_id, 0), c.start_ns or 0, -(c.end_ns or 0), c.leg_id),
        )
    for leg in calls:
        roles.append((leg, "gateway" if under_server else leg.role))
        under_server = under_server or leg.role != "client"
    if unit.prefill is not None:
        roles.append((unit.prefill, "prefill_engine"))
    engine = "decode_engine"
    if unit.prefill is None:
        engine = "prefill_engine" if unit.never_decoded else "engine"
    # of which server a leg is, its source may know
    roles.extend((leg, leg.role if engine == "engine" else engine) for leg in unit.engines)
    if unit.phases:
        roles.extend(_roles_of_phases(unit, roles))
    if unit.parts:
        told = {leg.leg_id: role for leg, role in roles}
        roles.extend((leg, role_of_part(leg, unit, told)) for leg in unit.parts)
    told_roles = frozenset([role for _, role in roles])
    roles.extend((leg, leg.role) for leg in unit.links)
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
        choices=_choices(unit, roles),
        legs_count=len(roles),
        leg_roles=_joined(told_roles),
        sources=_joined(frozenset([leg.source for leg, _ in roles])),
        match_score=score,
        is_partial=int(unit.is_partial),
    )


def _roles_of_phases(
    unit: Unit, roles: Sequence[tuple[LegFacts, str]]
) -> list[tuple[LegFacts, str]]:
    """Phases that a server told of its own request are that server's; others stand back where a
    server's own span is there."""
    own = {leg.span_id: role for leg, role in roles if leg.source == REQUESTS}
    above = {leg.span_id: leg.parent_span_id for leg in unit.phases} if own else {}
    any_engine = unit.engines or any(p.role not in CALL_ROLES for p in unit.parts)
    # a client that tells of nothing but the decode that it saw knows no server's phases
    only_seen = any(c.role == "client" and c.answered for c in unit.calls) and all(
        leg.answered for leg in unit.phases
    )
    aside = "provider" if any_engine or only_seen else "engine"
    told = []
    for leg in unit.phases:
        at, seen = leg.parent_span_id, {leg.span_id}
        while at in above and at not in seen:
            seen.add(at)
            at = above[at]
        # a row's word on the gateway stays that, whoever else tells of the call
        told.append((leg, leg.role if leg.role in CALL_ROLES else own.get(at, aside)))
    return told


def _choices(unit: Unit, roles: Sequence[tuple[LegFacts, str]]) -> int:
    told = max((leg.choices for leg in unit.engines if leg.choices), default=None)
    if told is not None and told > 1:
        return told  # the engine may have run more than it was asked for
    # legs of one pair are tries of one answer
    pairs = [leg.pair_id for leg in unit.engines if leg.pair_id]
    answers = len(unit.engines) - max(0, len(pairs) - len(set(pairs)))
    return max(answers, *(leg.choices or 1 for leg, _ in roles))


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
    if engine.role in CALL_ROLES:
        call, engine = engine, call
    if (
        call.role in CALL_ROLES
        and engine.role not in CALL_ROLES
        and engine.source != "tracekit"
        and not call.is_part
        and not engine.is_part
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
    links = [leg for leg in legs if leg.source == LINKS]
    if links:
        legs = [leg for leg in legs if leg.source != LINKS]
    logs = [leg for leg in legs if leg.source == "request_log"]
    units: list[Unit] = []
    for trace_id, members in _by_trace(legs).items():
        if len(members) == 1:
            leg = members[0]
            if leg.is_part:
                units.append(Unit(parts=[leg]))
            elif leg.role in CALL_ROLES:
                units.append(Unit(calls=[leg]))
            elif leg.source == "tracekit":
                units.append(Unit(phases=[leg]))
            else:
                units.append(Unit(engines=[leg]))
            continue
        pair = _call_of_engine(members)
        if pair is not None:
            units.append(Unit(calls=[pair[0]], engines=[pair[1]]))
            continue
        units.extend(Trace(members, parents.get(trace_id, {})).units())
    if any(leg.pair_id for leg in legs):
        units = join_told_pairs(units, score=0.95)
    units = _across_traces(units)
    if any(leg.is_part for leg in legs):
        units = join_far_parts(units)
    if logs:
        units = join_logs(logs, units)
    if any(leg.attempt is not None for leg in legs):
        told_attempts(units)
    if links:
        units = join_links(links, units)
    assignments: list[Assignment] = []
    groups: list[Group] = []
    for unit in units:
        if unit.parts:
            serve_by_parts(unit)
        rows, group = _emit(unit)
        assignments.extend(rows)
        groups.append(group)
    return assignments, groups
