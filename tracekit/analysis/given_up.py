"""Slow requests that were killed before their first token, and nothing tells where they waited.

Owns the count and its words. They are often most of what missed a limit, and no phase of them can
be judged: the server writes no span for a request that was taken back.
"""

from __future__ import annotations

from typing import Final

import duckdb

from tracekit.analysis._duck import one
from tracekit.analysis.diagnosis import Misses, MissingEvidence
from tracekit.analysis.sentence import GIVEN_UP_FIELD
from tracekit.analysis.wording import format_ms
from tracekit.words import verb

#: Worth a note from this share [1] of the violations on, and of those without an explanation.
_MANY: Final = 0.1
_MOST: Final = 0.5

_ENDED: Final = {"aborted": "given up", "timeout": "timed out", "error": "failed"}

_QUERY: Final = """
    with dark as (
        select s.request_key as request_key, max(r.status) as status, max(s.e2e_ms) as e2e_ms,
            count(*) as violations
        from slow_requests as s join requests as r on s.request_key = r.request_key
        where s.censored = 1 and r.ttft_ms is null and r.queue_ms is null and r.prefill_ms is null
        group by s.request_key
    )
    select status, count(*) as n, sum(violations) as violations,
        (select median(e2e_ms) from dark) as e2e_ms
    from dark group by status order by n desc, status
"""


def given_up(
    con: duckdb.DuckDBPyConnection,
    misses: Misses,
    *,
    unexplained_share: float | None,
    slow: str,
) -> MissingEvidence | None:
    """The note on them, if they are most of what no finding explains; ``slow``: what misses are."""
    # `requests` are read only where any was killed
    (killed,) = one(con, "select count(*) from slow_requests where censored = 1")
    rows = con.execute(_QUERY).fetchall() if killed else []
    violations = sum(r[2] for r in rows)
    unexplained = (unexplained_share or 0.0) * misses.violations
    if not rows or violations < max(_MANY * misses.violations, _MOST * unexplained):
        return None
    n = sum(r[1] for r in rows)
    if len(rows) == 1:
        ended = _ENDED[rows[0][0]]
        how = ended if ended != "given up" else f"{verb(n, 'was', 'were')} given up"
        how += f" before {verb(n, 'its', 'their')} first token"
    else:
        parts = ", ".join(f"{m:,} {_ENDED[status]}" for status, m, *_ in rows)
        how = f"ended before their first token ({parts})"
    after = "" if rows[0][3] is None else f" after {format_ms(rows[0][3])} (median)"
    return MissingEvidence(
        GIVEN_UP_FIELD,
        f"{n:,} of {misses.total:,} {slow} {how}{after}, and where they waited is not recorded",
        "let the server write a span for a request that ends early, too, or log the columns "
        "queue_ms and prefill_ms with status=aborted (as far as it came)",
    )
