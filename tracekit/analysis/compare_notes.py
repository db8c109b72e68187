"""What a comparison says beside its numbers: where an empty side's requests are, what is shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracekit.analysis.compare_side import SideData, known_values
from tracekit.analysis.comparison import SideInfo
from tracekit.analysis.session import Session
from tracekit.analysis.window import format_time
from tracekit.errors import UsageError
from tracekit.words import plural, verb

#: Values of a label that are named at most.
_NAMED: Final = 5


def elsewhere(session: Session, name: str, labels: Sequence[tuple[str, str]]) -> list[str]:
    """Where the requests are that an empty side missed, and what values its labels may have."""
    ((n, first, last),) = session.con.execute(
        "select count(*), min(start_unix_ns), max(start_unix_ns) from requests"
    ).fetchall()
    when = "" if first is None else f", from {format_time(first)} to {format_time(last)}"
    notes = [f"{name} is empty; its store holds {plural(n, 'request')}{when}"]
    return notes + unknown_labels(session, labels)


def unknown_labels(session: Session, labels: Sequence[tuple[str, str]]) -> list[str]:
    """A note for each (label, value) that no request of the store has, with those it has."""
    notes = []
    for column, value in labels:
        rows = session.con.execute(
            f"select v from ({known_values(column)}) group by v order by count(*) desc, v"
        ).fetchall()
        values = [v for (v,) in rows]
        if value not in values:
            named = ", ".join(values[:_NAMED]) + (", ..." if len(values) > _NAMED else "")
            known = f"known: {named}" if values else "no request has one"
            notes.append(f"no request has {column}={value}; {known}")
    return notes


def shared(session: Session, sides: Sequence[SideData]) -> list[str]:
    ((shared,),) = session.con.execute(
        "select count(*) from compare_a as a join compare_b as b on a.request_key = b.request_key"
    ).fetchall()
    usable = [_usable(s.info) for s in sides]
    if shared and shared == usable[0] == usable[1]:
        raise UsageError(
            f"A ({sides[0].info.text}) and B ({sides[1].info.text}) are the same requests"
        )
    if not shared:
        return []
    on = f"{plural(shared, 'request')} {verb(shared, 'is', 'are')} on both sides"
    return [f"{on}: the change is diluted"]


def _usable(info: SideInfo) -> int:
    counts = info.requests
    return counts.completed + counts.aborted + counts.errored + counts.timeout
