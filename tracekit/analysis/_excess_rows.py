"""How far each phase went beyond its expectation over all requests: the window's, and a baseline's.

In milliseconds for waits, in multiples of the expectation for what grows with a request's size.
Owns the draws only. The baseline's rows come from the same files of ``sql/attribution``: a name in
WITH hides the relation of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt

from tracekit.analysis import sqlfiles
from tracekit.analysis._arrow import numpy_column
from tracekit.analysis.fit import PHASE_TERMS, PHASES

Floats = npt.NDArray[np.float64]

_ROWS: Final = 50_000


def unit_of(phase: str, expected: str) -> str:
    """SQL: what the excess of ``phase`` is divided by, given the column of its expectation."""
    if len(PHASE_TERMS[phase]) == 1:
        return "1.0"
    return f"case when {expected} > 1 then {expected} else 1.0 end"


def draw_excess(
    con: duckdb.DuckDBPyConnection, facts: str = "request_facts"
) -> Mapping[str, Floats]:
    """Phase → how far its completed requests went, at most some 50,000 drawn by a hash."""
    ((rows,),) = con.sql(f"select count(*) from {facts} where completed = 1").fetchall()
    columns = ", ".join(
        f"({p}_ms - {p}_expected_ms) / {unit_of(p, f'{p}_expected_ms')} as {p}" for p in PHASES
    )
    table = con.sql(
        f"""
        with drawn as (
            select * from {facts}
            where completed = 1 and hash(request_key) % {1 + int(rows) // _ROWS} = 0
        ),
        request_facts as (select * from drawn)
        select {columns} from ({sqlfiles.load("attribution", "request_costs").body})
        """
    ).to_arrow_table()
    out = {}
    for phase in PHASES:
        values = numpy_column(table[phase]).astype(np.float64)
        out[phase] = values[~np.isnan(values)]
    return out
