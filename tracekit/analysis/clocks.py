"""Clocks of hosts: legs are put on the clock of their request's outermost leg before the cut.

Owns which offset a host gets (one per pair of clocks and window, never one per request), how it
is applied to ``legs``, how sure it is, and what of it is kept for later passes. What causality
says is `_clock_rows`', the arithmetic of intervals `_clock_fit`'s. Legs of one clock are never
moved against each other; where no request contradicts equal clocks nothing moves at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import duckdb
import pyarrow as pa

from tracekit.analysis._arrow import numpy_column
from tracekit.analysis._clock_cells import (
    Aligned,
    Cells,
    Earlier,
    believe,
    gather_cells,
    remember,
)
from tracekit.analysis._clock_memory import learned
from tracekit.analysis._clock_place import WIDTHS, place
from tracekit.analysis._clock_rows import DOMAIN, gather_nodes
from tracekit.analysis._duck import one
from tracekit.names import BOUNDARIES

__all__ = ["Aligned", "Recall", "align", "learned"]

#: What was learned this long before or after a window is looked at.
REACH_NS: Final = 3600 * 1_000_000_000

#: SELECT of earlier rows of `clock_offsets` between two times [unix ns]; None if there are none.
Recall = Callable[[int, int], str | None]


def align(
    con: duckdb.DuckDBPyConnection,
    *,
    recall: Recall | None = None,
    beside: str | None = None,
    summed: str | None = None,
) -> Aligned:
    """Put the rows of the table ``legs`` on the clocks of their requests' outermost legs.

    Fills ``legs.clock_offset_ns``, moves boundaries (and starts of ``request_groups``) where
    clocks contradict each other. Leaves ``request_clocks`` (what the core needs) and
    ``clock_nodes`` (what each request says). ``recall`` gives what was learned before; ``beside``
    names a relation of further rows of `clock_nodes`, seen but not moved, and ``summed`` one of
    their sums (`sum_nodes`), none of the requests at hand among them.
    """
    gather_nodes(con)
    found = None
    if summed is not None:
        found = _see(con, f" union all by name select *, false as own from {summed}", recall)
    if found is None or not _is_plain(*found[1:]):
        # who contradicts equal clocks is looked at request by request
        more = "" if beside is None else _BESIDE.format(beside)
        found = _see(con, more, recall)
    rows, cells, earlier = found
    if cells is None:
        _replace(con, "request_clocks", _NO_CLOCKS.empty_table())
        return Aligned()
    aligned = Aligned(cells, earlier, believe(cells, earlier))
    clocks, moves = place(cells, aligned)
    _replace(con, "request_clocks", clocks.filter(rows["own"]))
    if moves.num_rows:
        _replace(con, "clock_moves", moves)
        _move(con)
    return aligned


def _see(
    con: duckdb.DuckDBPyConnection, more: str, recall: Recall | None
) -> tuple[pa.Table, Cells | None, Earlier]:
    """Rows of ``clock_nodes`` and ``more``, their cells (None without own rows), what was known."""
    rows = con.sql(f"select *, true as own from clock_nodes{more}").to_arrow_table()
    own = numpy_column(rows.filter(rows["own"])["at_ns"])
    if not len(own):
        return rows, None, {}
    cells = gather_cells(rows)
    first, last = int(own.min()), int(own.max())
    known = None if recall is None else recall(first - REACH_NS, last + REACH_NS)
    return rows, cells, remember(con, cells, known)


def _is_plain(cells: Cells | None, earlier: Earlier) -> bool:
    """Whether nobody contradicts equal clocks: then bounds are all that is asked of requests."""
    return (cells is None or not cells.violations.any()) and not any(
        c.violations for known in earlier.values() for c in known
    )


_BESIDE: Final = (
    " union all by name select *, false as own from {} "
    "where request_key not in (select request_key from clock_nodes)"
)

_NO_CLOCKS: Final = pa.schema(
    [("request_key", pa.string()), *((name, pa.int64()) for name in WIDTHS)]
)


def _replace(con: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    con.register("incoming", rows)
    con.execute(f"create or replace temp table {name} as select * from incoming")
    con.unregister("incoming")


def _move(con: duckdb.DuckDBPyConnection) -> None:
    """Add the offsets to all boundaries of the legs that their clocks stamped."""
    con.execute(
        "create or replace temp table clock_moves as "
        "select request_key, dom, max(move) as move from clock_moves "
        "where request_key in (select request_key from request_clocks) group by request_key, dom"
    )
    moved = ", ".join(f"{b}_unix_ns = {b}_unix_ns + m.move" for b in BOUNDARIES)
    con.execute(
        f"""
        update legs set clock_offset_ns = m.move, {moved}
        from clock_moves as m
        where legs.request_key = m.request_key and legs.has_clock = 1
            and legs.source <> 'request_log' and {DOMAIN} = m.dom
        """
    )
    if one(
        con,
        "select count(*) from request_groups where attempt_start_ns is not null "
        "and request_key in (select request_key from clock_moves)",
    )[0]:
        _move_attempts(con)


def _move_attempts(con: duckdb.DuckDBPyConnection) -> None:
    """Starts of attempts that moved legs gave; a leg of another attempt moves as one here does."""
    con.execute(
        f"""
        create or replace temp table leg_moves as
        select l.stamped_ns, m.request_key, max(m.move) as move
        from (
            select {DOMAIN} as dom, trace_id, coalesce(recv_unix_ns, send_unix_ns, queued_unix_ns,
                scheduled_unix_ns, kv_start_unix_ns, first_token_unix_ns) - clock_offset_ns
                as stamped_ns
            from legs where has_clock = 1 and source <> 'request_log'
        ) as l
        join clock_moves as m on m.dom = l.dom
        join request_groups as g on g.request_key = m.request_key
            and l.stamped_ns in (g.attempt_start_ns, g.first_start_ns)
        group by l.stamped_ns, m.request_key
        """
    )
    for column in ("attempt_start_ns", "first_start_ns"):
        con.execute(
            f"update request_groups set {column} = {column} + m.move from leg_moves as m "
            f"where request_groups.request_key = m.request_key and {column} = m.stamped_ns"
        )
    con.execute(
        """
        update request_groups set first_start_ns = least(first_start_ns, o.start_ns)
        from (
            select request_key, min(coalesce(recv_unix_ns, send_unix_ns, queued_unix_ns,
                scheduled_unix_ns, kv_start_unix_ns, first_token_unix_ns)) as start_ns
            from legs where request_key in (select request_key from clock_moves)
            group by request_key
        ) as o
        where request_groups.request_key = o.request_key and first_start_ns is not null
        """
    )
