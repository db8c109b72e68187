"""What is remembered of clocks from one derivation to the next: rows of `clock_offsets`.

Owns which rows are worth keeping; how the settler writes and readers find them is `settle`'s and
`settled`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from tracekit.analysis import _clock_fit as fit
from tracekit.analysis._clock_cells import Aligned, contradicted, gather_cells
from tracekit.analysis._clock_fit import Cell
from tracekit.analysis._clock_rows import WINDOW_NS
from tracekit.lake.schema import CLOCK_OFFSETS

#: A row is news if it takes this share off what an earlier one of its window left open.
_NEWS: Final = 0.1


def learned(
    con: duckdb.DuckDBPyConnection, aligned: Aligned, *, revision: int, keys: str
) -> pa.Table:
    """Rows of `clock_offsets` that the requests named by ``keys`` add to what was known.

    ``keys`` is a relation with a request_key, of requests of the last `align` over ``con``.
    """
    if aligned.cells is None:
        return CLOCK_OFFSETS.schema.empty_table()
    told = con.sql(
        f"select * from clock_nodes where request_key in (select request_key from {keys})"
    ).to_arrow_table()
    cells = gather_cells(told)
    pieces = contradicted(cells)
    rows = []
    for i in range(len(cells.a)):
        key = cells.key(i)
        known = [c for c in aligned.earlier.get(key[:2], ()) if c.start_ns // WINDOW_NS == key[2]]
        for cell in pieces.get(key) or [cells.cell(i)]:
            if not any(_told(cell, earlier) for earlier in known):
                belief = aligned.belief_at(key, cell.start_ns)
                rows.append((key[0], key[1], cell, 0 if belief is None else belief.offset_ns))
    return _lake_rows(rows, revision)


def _told(cell: Cell, earlier: Cell) -> bool:
    """Whether an earlier row of the same window says as much as ``cell`` does, or nearly."""
    if not earlier.is_believed or (cell.violations and earlier.violations < fit.BELIEVED):
        return False
    width = earlier.high - earlier.low
    slack = _NEWS * width if math.isfinite(width) else 0.0
    return cell.low <= earlier.low + slack and cell.high >= earlier.high - slack


def _lake_rows(rows: Sequence[tuple[str, str, Cell, int]], revision: int) -> pa.Table:
    def whole(value: float) -> int | None:
        return round(value) if math.isfinite(value) else None

    return pa.Table.from_pylist(
        [
            {
                "revision": revision,
                "domain_a": a,
                "domain_b": b,
                "window_start_unix_ns": cell.start_ns,
                "window_end_unix_ns": cell.end_ns,
                "low_ns": whole(cell.low),
                "high_ns": whole(cell.high),
                "offset_ns": offset_ns,
                "n": cell.n,
                "violations": cell.violations,
                "date": _day(cell.start_ns),
            }
            for a, b, cell, offset_ns in rows
        ],
        schema=CLOCK_OFFSETS.schema,
    )


def _day(at_unix_ns: int) -> str:
    return str(np.datetime64(at_unix_ns, "ns").astype("datetime64[D]"))
