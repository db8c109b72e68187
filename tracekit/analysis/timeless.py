"""Requests that were stored without any time: what a diagnosis of them lacks is not more of them.

Owns when they are worth saying, and the words: they are set aside as ``no_wall_time``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracekit.analysis.diagnosis import MissingEvidence, RequestCounts
from tracekit.words import plural, verb

#: Why they are set aside, as `requests.quarantine_reason` has it.
NO_WALL_TIME: Final = "no_wall_time"
#: The name of what is missing.
TIMES_FIELD: Final = "ttft_ms, e2e_ms"
#: How times come into the store.
RECORD_TIMES: Final = (
    "record ttft_ms and e2e_ms, or start_unix_ns and end_unix_ns, of each request; times that the "
    "file has under other names are read with `tracekit import --map THEIRS=OURS`"
)
#: So many of all requests are worth a word.
_SHARE: Final = 0.1


def with_times(
    missing: Sequence[MissingEvidence], counts: RequestCounts, *, min_rows: int
) -> tuple[MissingEvidence, ...]:
    """``missing`` with the times that requests lack first; without "more requests" then, where
    there would be enough of them with times."""
    n = counts.quarantined.get(NO_WALL_TIME, 0)
    if not n or n < _SHARE * counts.total:
        return tuple(missing)
    of, it, they = (
        plural(counts.total, "request"),
        verb(n, "it", "they"),
        verb(n, "it is", "they are"),
    )
    times = MissingEvidence(
        TIMES_FIELD,
        f"{n:,} of {of} {verb(n, 'has', 'have')} no time that says how long {it} took, so {they} "
        "set aside",
        RECORD_TIMES,
    )
    enough = counts.completed < min_rows <= counts.completed + n
    return (times, *(m for m in missing if m.field != "requests" or not enough))
