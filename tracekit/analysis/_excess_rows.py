"""How far each phase went beyond its expectation over all requests: the window's, and a baseline's.

In milliseconds for waits, in multiples of the expectation for what grows with a request's size.
Owns the draws only. The baseline's rows come from the same files of ``sql/attribution``: a name in
WITH hides the relation of that name.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import numpy as np
import numpy.typing as npt

from tracekit.analysis import sqlfiles
from tracekit.analysis._arrow import numpy_column
from tracekit.analysis._drawn import DRAWN_MAX
from tracekit.analysis._duck import one
from tracekit.analysis.fit import PHASE_TERMS, PHASES

Floats = npt.NDArray[np.float64]


def unit_of(phase: str, expected: str) -> str:
    """SQL: what the excess of ``phase`` is divided by, given the column of its expectation."""
    if len(PHASE_TERMS[phase]) == 1:
        return "1.0"
    return f"case when {expected} > 1 then {expected} else 1.0 end"


def draw_excess(con: duckdb.DuckDBPyConnection, facts: str | None = None) -> Mapping[str, Floats]:
    """Phase → how far its completed requests went, some 25,000 of them.

    Of the window's requests (``drawn_costs``), or of those in the relation ``facts``.
    """
    columns = ", ".join(
        f"({p}_ms - {p}_expected_ms) / {unit_of(p, f'{p}_expected_ms')} as {p}" for p in PHASES
    )
    costs = "drawn_costs" if facts is None else f"({_costs_of(con, facts)})"
    query = f"select {columns} from {costs} where completed = 1"
    table = con.sql(query).to_arrow_table()
    out = {}
    for phase in PHASES:
        values = numpy_column(table[phase]).astype(np.float64)
        out[phase] = values[~np.isnan(values)]
    return out


def _costs_of(con: duckdb.DuckDBPyConnection, facts: str) -> str:
    (rows,) = one(con, f"select count(*) from {facts} where completed = 1")
    return f"""
        with drawn as (
            select * from {facts}
            where completed = 1 and hash(request_key) % {1 + int(rows) // DRAWN_MAX} = 0
        ),
        request_facts as (select * from drawn)
        select * from ({sqlfiles.load("attribution", "request_costs").body})
        """
