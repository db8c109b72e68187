"""Whether prefills are slow where nothing ran on their worker before: the relation ``after_idle``.

Owns the comparison of slow requests with ordinary ones by the idle time before them. It says that
they go together, not what slept: a GPU's clocks tell that, where they are sampled.
"""

from __future__ import annotations

from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.analysis._arrow import arrow_table, numpy_column
from tracekit.analysis._duck import one
from tracekit.analysis.chance import chance_of
from tracekit.analysis.rules import Rules

_SCHEMA: Final = pa.schema(
    [("suspect_id", pa.int64()), ("idle_ms", pa.float64()), ("usual_share", pa.float64())]
)

#: Slow requests after an idle time that make a relation.
_FEW: Final = 5
#: Requests in service on a worker, as a mean over a slice: below is nothing but rounding.
_NOTHING: Final = 1e-6


def after_idle(con: duckdb.DuckDBPyConnection, rules: Rules) -> pa.Table:
    """Suspects of the phase prefill that came after their worker had stood idle, if that matters.

    ``idle_ms`` [ms] since anything ran there; ``usual_share`` [1] of the ordinary requests came
    after so long. Empty unless slow ones come so clearly more often than chance gives, and most
    of those that come so are slow. Wants load that is counted from every request: of a sample an
    idle time cannot be told.
    """
    (wanted,) = one(
        con,
        "select count(*) from suspect_requests cross join load_rules "
        "where phase = 'prefill' and is_control = 0 and step = 1",
    )
    if wanted < _FEW:
        return _none()
    rows = con.sql(
        "select suspect_id, is_control, worker, start_unix_ns from suspect_load "
        "where phase = 'prefill' and is_control < 2 order by suspect_id"
    ).to_arrow_table()
    (bin_ns,) = one(con, "select bin_ns from load_rules")
    idle_ms = _idle_ms(con, rows, int(bin_ns))
    control = numpy_column(rows["is_control"]) == 1
    at_least_ms = max(rules.min_idle_ms, 2 * int(bin_ns) / 1e6)
    known, long = ~np.isnan(idle_ms), np.nan_to_num(idle_ms) >= at_least_ms
    k, n = int((long & ~control).sum()), int((known & ~control).sum())
    c, m = int((long & control).sum()), int((known & control).sum())
    if k < _FEW or not m:
        return _none()
    share, usual = k / n, max(c, 1) / m
    if share < rules.denser * usual or chance_of(share, usual, n) > rules.chance:
        return _none()
    # controls stand for all ordinary requests
    (ordinary,) = one(
        con,
        "select (select sum(completed) from request_facts) "
        "- (select count(distinct request_key) from slow_requests)",
    )
    if k < c * max(float(ordinary or 0) / m, 1.0):
        return _none()
    found = long & ~control
    return arrow_table(
        {
            "suspect_id": numpy_column(rows["suspect_id"]).astype(np.int64)[found],
            "idle_ms": idle_ms[found],
            "usual_share": np.full(k, c / m),
        },
        _SCHEMA,
    )


def _none() -> pa.Table:
    return arrow_table({name: [] for name in _SCHEMA.names}, _SCHEMA)


def _idle_ms(
    con: duckdb.DuckDBPyConnection, rows: pa.Table, bin_ns: int
) -> npt.NDArray[np.float64]:
    """Time since the last slice in which anything ran on the worker; NaN where nothing did before.

    A slice counts as busy to its end, so this is rather too short.
    """
    con.register("_suspects", rows)
    try:
        busy = con.sql(
            f"""
            select worker, bin_unix_ns from load_bins
            where worker in (select worker from _suspects)
                and waiting + prefilling + decoding + moving > {_NOTHING}
            order by worker, bin_unix_ns
            """
        ).to_arrow_table()
    finally:
        con.unregister("_suspects")
    where = np.asarray(busy["worker"].to_pylist(), dtype=object)
    slices = numpy_column(busy["bin_unix_ns"]).astype(np.int64)
    worker = np.asarray(rows["worker"].to_pylist(), dtype=object)
    start = numpy_column(rows["start_unix_ns"]).astype(np.int64)
    idle = np.full(len(start), np.nan)
    for name in sorted(set(worker)):
        here = worker == name
        mine = slices[where == name]
        first = start[here] - start[here] % bin_ns
        before = np.searchsorted(mine, first) - 1
        last = mine[np.maximum(before, 0)] + bin_ns if len(mine) else first
        idle[here] = np.where(before >= 0, (start[here] - last) / 1e6, np.nan)
    return idle
