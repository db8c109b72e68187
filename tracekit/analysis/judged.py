"""Which violations are judged: all of them, or of very many a sample (the relation ``judged``).

Which requests are slow is known of all; which phase, how sure and why, is told of these. Owns the
draw.
"""

from __future__ import annotations

from math import isqrt
from typing import Final

import duckdb

from tracekit.analysis._duck import one

#: Violations that a diagnosis judges at most. A list of verdicts judges all.
JUDGED_MAX: Final = 12_000
_PARTS: Final = 1_000_000


def draw_judged(
    con: duckdb.DuckDBPyConnection, *, at_most: int | None, also: str | None = None
) -> None:
    """Define ``judged``: the rows of ``slow_requests``, or those of requests drawn by a hash.

    All violations of a request are drawn, or none. ``also`` is the key of a request that is drawn
    in any case.
    """
    (rows,) = one(con, "select count(*) from slow_requests")
    where = "true"
    if at_most is not None and rows > at_most:
        # how many are drawn is left to chance: aim five deviations lower
        aim = max(at_most - 5 * isqrt(at_most), 1)
        where = f"hash(request_key) % {_PARTS} < {_PARTS * aim // rows}"
    con.execute(
        "create or replace temp table judged as select * from slow_requests "
        f"where {where} or request_key = $also",
        {"also": also},
    )
