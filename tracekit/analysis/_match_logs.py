"""Log rows and the calls that they name; attempts that the sources number themselves.

Owns rule 4 of `match`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set

from tracekit.analysis._match_unit import (
    CALL_ROLES,
    CLOCK_SLACK_NS,
    LegFacts,
    Unit,
    number_attempts,
    same_tokens,
)


def join_logs(logs: Sequence[LegFacts], units: list[Unit]) -> list[Unit]:
    """Log rows become client legs of the calls they name; the rest are requests of their own."""
    by_trace: dict[str, list[Unit]] = defaultdict(list)
    by_id: dict[str, list[Unit]] = defaultdict(list)
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
    for slack_ns in (0, CLOCK_SLACK_NS):
        left = []
        for row in rows:
            told = {leg.norm_request_id for leg in own_of.get(row.leg_id, ())}
            found, score = _find(row, by_trace, by_id, taken, slack_ns, told)
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
        engines = [leg for leg in own if leg.role not in CALL_ROLES]
        gateways = [leg for leg in own if leg.role in CALL_ROLES]
        out.append(Unit(logs=[row], engines=engines, calls=gateways))
    return out


def _find(
    row: LegFacts,
    by_trace: Mapping[str, list[Unit]],
    by_id: Mapping[str, list[Unit]],
    taken: set[int],
    slack_ns: int,
    told: Set[str | None],
) -> tuple[Unit | None, float]:
    """The call that a log row names, and how surely; ``(None, 0)`` if there is none.

    ``told`` are names that what it says of the server gives: the server's own numbers of the call.
    """

    def fits(unit: Unit) -> bool:
        if id(unit) in taken or unit.superseded:
            return False
        if not same_tokens(row.input_tokens, unit.input_tokens):
            return False
        if not row.has_clock or row.start_ns is None:
            return True
        return (
            row.start_ns - slack_ns <= unit.end_ns
            and unit.start_ns <= (row.end_ns or row.start_ns) + slack_ns
        )

    def nearest(near: list[Unit], score: float) -> tuple[Unit | None, float]:
        """One call is sure; of several the row's start tells, if it has one."""
        if len(near) == 1:
            return near[0], score
        if not near or row.start_ns is None or not row.has_clock:
            return None, 0.0
        start = row.start_ns
        return min(near, key=lambda u: (abs(u.start_ns - start), u.key_leg.leg_id)), 0.7

    if row.trace_id:
        near = [u for u in by_trace.get(row.trace_id, ()) if fits(u)]
        if len(near) > 1 and row.norm_request_id:
            near = [u for u in near if row.norm_request_id in u.norm_ids] or near
        unit, score = nearest(near, 1.0)
        if unit is not None:
            return unit, score
    # the client's id of the call, which gateways pass on; then the server's, which engines know
    for name in (row.norm_request_id, row.norm_response_id):
        unit, score = nearest([u for u in by_id.get(name or "", ()) if fits(u)], 0.95)
        if unit is not None:
            return unit, score
    for name in sorted(n for n in told if n and n != row.norm_request_id):
        near = [u for u in by_id.get(name, ()) if fits(u)]
        if len(near) == 1:  # numbers that two calls share name neither
            return near[0], 0.9
    return None, 0.0


def told_attempts(units: Iterable[Unit]) -> None:
    """Attempts that the sources number themselves: of one request id, a higher one supersedes."""
    by_id: dict[str, list[Unit]] = defaultdict(list)
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
                number_attempts(run)
                run = []
            run.append(unit)
        number_attempts(run)
