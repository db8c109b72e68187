"""Bounds of offsets by pair of clocks and window: what all requests say together.

Owns the arrays between the rows of `_clock_rows` and the decisions of `_clock_place`, and what
is believed of each pair: the requests at hand, with what earlier derivations learned. Arrays, not
SQL: a reader's refresh does this for a handful of requests, an import for 150,000.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.analysis import _clock_fit as fit
from tracekit.analysis._clock_fit import Cell
from tracekit.analysis._clock_rows import LINKS, NODES, WINDOW_NS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: (clock a, clock b, window number)
Key = tuple[str, str, int]

#: Earlier rows of `clock_offsets`, by pair of clocks.
Earlier = Mapping[tuple[str, str], Sequence[Cell]]


@dataclass(frozen=True)
class Cells:
    """r requests, their m combinations of clocks and window, and the n cells that bound those.

    A cell is a pair of clocks in a window. ``names`` are the clocks in order; ``nodes[m, 4]``
    their numbers (-1: none). ``cell_of[m, 6]`` is the cell of each link (-1: none), ``flipped``
    whether the link runs from the pair's second clock to its first. Of a cell, ``low`` and
    ``high`` [ns] bound what must be added to the second clock's times; ``request_low[r, 6]`` and
    ``request_high`` are those of each request and link, as the link runs.
    """

    keys: pa.ChunkedArray
    at_ns: Ints
    combo: Ints
    request_low: Floats
    request_high: Floats
    names: tuple[str, ...]
    nodes: Ints
    window: Ints
    cell_of: Ints
    flipped: npt.NDArray[np.bool_]
    a: Ints
    b: Ints
    cell_window: Ints
    start_ns: Ints
    end_ns: Ints
    low: Floats
    high: Floats
    n: Ints
    violations: Ints

    def key(self, cell: int) -> Key:
        return self.names[self.a[cell]], self.names[self.b[cell]], int(self.cell_window[cell])

    def cell(self, cell: int) -> Cell:
        return Cell(
            int(self.start_ns[cell]),
            int(self.end_ns[cell]),
            float(self.low[cell]),
            float(self.high[cell]),
            int(self.n[cell]),
            int(self.violations[cell]),
        )


@dataclass(frozen=True)
class Aligned:
    """What an alignment found: cells, what was known before, and what is believed of pairs.

    ``beliefs`` holds the pairs that anything contradicts, by window and in order of time.
    """

    cells: Cells | None = None
    earlier: Earlier = field(default_factory=dict)
    beliefs: Mapping[Key, Sequence[Cell]] = field(default_factory=dict)

    def belief_at(self, key: Key, at_ns: int) -> Cell | None:
        """What is believed of a pair at a time of its window, None if nothing contradicts zero."""
        cells = self.beliefs.get(key)
        if cells is None:
            return None
        return cells[max(bisect_right([c.start_ns for c in cells], at_ns) - 1, 0)]


def gather_cells(rows: pa.Table) -> Cells:
    """The cells of the requests in ``rows`` (of the shape of `clock_nodes`)."""
    import pyarrow.compute as pc  # 0.05 s that a settled store need not pay

    columns = [rows[c] for c in NODES]
    names = sorted({n for c in columns for n in c.unique().to_pylist() if n is not None})
    known = pa.array(names, pa.string())
    numbers = np.stack(
        [pc.index_in(c, value_set=known).fill_null(-1).to_numpy() for c in columns], axis=1
    ).astype(np.int64)
    at_ns = rows["at_ns"].to_numpy()
    low = np.stack([_floats(rows[f"low{k}"], -math.inf) for k in range(len(LINKS))], axis=1)
    high = np.stack([_floats(rows[f"high{k}"], math.inf) for k in range(len(LINKS))], axis=1)
    first, combo = _alike(at_ns // WINDOW_NS, numbers, len(names))
    nodes, window = numbers[first], at_ns[first] // WINDOW_NS
    parts: dict[str, list[npt.NDArray[np.int64]]] = defaultdict(list)
    flipped = np.zeros((len(first), len(LINKS)), dtype=np.bool_)
    for k, (outer, inner, _, _) in enumerate(LINKS):
        o, i = nodes[:, NODES.index(outer)], nodes[:, NODES.index(inner)]
        bound = np.isfinite(low[:, k]) | np.isfinite(high[:, k])
        wrong = fit.contradicts_zero(low[:, k], high[:, k])
        count = np.bincount(combo[bound], minlength=len(first))
        linked = np.flatnonzero((o >= 0) & (i >= 0) & (o != i) & (count > 0))
        flipped[linked, k] = (o > i)[linked]
        parts["combo"].append(linked)
        parts["link"].append(np.full(len(linked), k, dtype=np.int64))
        parts["a"].append(np.minimum(o, i)[linked])
        parts["b"].append(np.maximum(o, i)[linked])
        parts["n"].append(count[linked])
        parts["v"].append(np.bincount(combo[wrong], minlength=len(first))[linked])
    joined = {name: np.concatenate(values) for name, values in parts.items()}
    row, link = joined["combo"], joined["link"]
    pair = np.stack([joined["a"], joined["b"]], axis=1)
    origin, cell = _alike(window[row], pair, len(names))
    cell_of = np.full((len(first), len(LINKS)), -1, dtype=np.int64)
    cell_of[row, link] = cell
    # two bounds that a request gives of one pair are one request
    total = max(len(origin), 1)
    distinct, inverse = np.unique(row * total + cell, return_inverse=True)
    counts = {}
    for name in ("n", "v"):
        most = np.zeros(len(distinct), dtype=np.int64)
        np.maximum.at(most, inverse.reshape(-1), joined[name])
        counts[name] = np.zeros(len(origin), dtype=np.int64)
        np.add.at(counts[name], distinct % total, most)
    cells = Cells(
        keys=rows["request_key"],
        at_ns=at_ns,
        combo=combo,
        request_low=low,
        request_high=high,
        names=tuple(names),
        nodes=nodes,
        window=window,
        cell_of=cell_of,
        flipped=flipped,
        a=pair[origin, 0],
        b=pair[origin, 1],
        cell_window=window[row[origin]],
        start_ns=np.full(len(origin), 2**63 - 1, dtype=np.int64),
        end_ns=np.full(len(origin), -(2**63), dtype=np.int64),
        low=np.full(len(origin), -math.inf),
        high=np.full(len(origin), math.inf),
        n=counts["n"],
        violations=counts["v"],
    )
    for k in range(len(LINKS)):
        at, low_k, high_k, requests = _oriented(cells, k)
        np.maximum.at(cells.low, at, low_k)
        np.minimum.at(cells.high, at, high_k)
        np.minimum.at(cells.start_ns, at, at_ns[requests])
        np.maximum.at(cells.end_ns, at, at_ns[requests])
    return cells


def _floats(column: pa.ChunkedArray, missing: float) -> Floats:
    found: Floats = column.cast(pa.float64()).fill_null(missing).to_numpy()
    return found


def _alike(window: Ints, numbers: Ints, size: int) -> tuple[Ints, Ints]:
    """Rows of the same window and numbers (-1 to ``size`` - 1): first of each, and which it is."""
    if not len(window):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    key = window - window.min()
    for column in numbers.T:
        if int(key.max()) >= 2**62 // (size + 1):
            key = np.unique(key, return_inverse=True)[1].reshape(-1)
        key = key * (size + 1) + column + 1
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def _oriented(cells: Cells, link: int) -> tuple[Ints, Floats, Floats, Ints]:
    """Cell, low, high [ns] and request of all bounds that requests give by a link."""
    cell = cells.cell_of[cells.combo, link]
    low, high = cells.request_low[:, link], cells.request_high[:, link]
    requests = np.flatnonzero((cell >= 0) & (np.isfinite(low) | np.isfinite(high)))
    turn = cells.flipped[cells.combo[requests], link]
    low, high = low[requests], high[requests]
    return cell[requests], np.where(turn, -high, low), np.where(turn, -low, high), requests


def remember(con: duckdb.DuckDBPyConnection, cells: Cells, earlier: str | None) -> Earlier:
    """What earlier passes learned of the pairs at hand; ``earlier`` selects it."""
    if earlier is None:
        return {}
    known = set(
        zip(
            (cells.names[a] for a in cells.a.tolist()),
            (cells.names[b] for b in cells.b.tolist()),
            strict=True,
        )
    )
    table = con.sql(earlier).to_arrow_table()
    low, high = _floats(table["low_ns"], -math.inf), _floats(table["high_ns"], math.inf)
    out: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for row, (pair, *rest) in enumerate(
        zip(
            zip(table["domain_a"].to_pylist(), table["domain_b"].to_pylist(), strict=True),
            table["window_start_unix_ns"].to_pylist(),
            table["window_end_unix_ns"].to_pylist(),
            table["n"].to_pylist(),
            table["violations"].to_pylist(),
            strict=True,
        )
    ):
        if pair in known:
            start_ns, end_ns, n, v = rest
            out[pair].append(Cell(start_ns, end_ns, float(low[row]), float(high[row]), n, v))
    return out


def contradicted(cells: Cells) -> dict[Key, list[Cell]]:
    """The cells of which a request contradicts equal clocks, looked at request by request."""
    bad = cells.violations > 0
    if not bad.any():
        return {}
    parts = [_oriented(cells, k) for k in range(len(LINKS))]
    cell, low, high, request = (np.concatenate(column) for column in zip(*parts, strict=True))
    chosen = bad[cell]
    each, which = np.unique(cell[chosen] * len(cells.at_ns) + request[chosen], return_inverse=True)
    lows, highs = np.full(len(each), -math.inf), np.full(len(each), math.inf)
    np.maximum.at(lows, which.reshape(-1), low[chosen])
    np.minimum.at(highs, which.reshape(-1), high[chosen])
    owner, at_ns = each // len(cells.at_ns), cells.at_ns[each % len(cells.at_ns)]
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    return {
        cells.key(int(owner[rows[0]])): fit.cells_of(at_ns[rows], lows[rows], highs[rows])
        for rows in np.split(np.arange(len(each)), starts[1:])
    }


def believe(cells: Cells, earlier: Earlier) -> dict[Key, list[Cell]]:
    """What is believed of the pairs of which a request here or before contradicts equal clocks."""
    a, b = cells.a.tolist(), cells.b.tolist()
    bad = {(a[i], b[i]) for i in np.flatnonzero(cells.violations).tolist()}
    number = {name: i for i, name in enumerate(cells.names)}
    bad |= {
        (number[pair[0]], number[pair[1]])
        for pair, known in earlier.items()
        if any(c.violations and not c.allows_zero for c in known)
    }
    if not bad:
        return {}
    pieces = contradicted(cells)
    by_pair: dict[tuple[str, str], list[tuple[Cell, int | None]]] = defaultdict(list)
    for i in range(len(a)):
        if (a[i], b[i]) in bad:
            key = cells.key(i)
            for cell in pieces.get(key) or [cells.cell(i)]:
                by_pair[key[:2]].append((cell, key[2]))
    out: dict[Key, list[Cell]] = defaultdict(list)
    for pair, own in by_pair.items():
        every = [*own, *((cell, None) for cell in earlier.get(pair, ()))]
        every.sort(key=lambda c: (c[0].start_ns, c[0].end_ns, c[1] is not None, c[0].low))
        for pooled, (_, win) in zip(fit.pool([c for c, _ in every]), every, strict=True):
            if win is not None:
                out[(*pair, win)].append(pooled)
    return dict(out)


def agreed(cells: Cells, earlier: Earlier) -> tuple[Floats, Floats]:
    """low and high [ns] of every cell with what other times say of its pair, zero inside.

    For pairs that nothing contradicts: their intervals cannot be empty.
    """
    low, high = cells.low.copy(), cells.high.copy()
    order = np.lexsort((cells.start_ns, cells.b, cells.a))
    starts = np.flatnonzero(
        np.diff(cells.a[order], prepend=-1).astype(bool)
        | np.diff(cells.b[order], prepend=-1).astype(bool)
    )
    for rows in np.split(order, starts[1:]):
        if not len(rows):
            continue
        known = earlier.get((cells.names[cells.a[rows[0]]], cells.names[cells.b[rows[0]]]), ())
        if len(rows) + len(known) > 1:
            low[rows], high[rows] = _with_others(cells, rows, known)
    return np.minimum(low, 0.0), np.maximum(high, 0.0)


def _with_others(cells: Cells, rows: Ints, known: Sequence[Cell]) -> tuple[Floats, Floats]:
    t0 = int(cells.start_ns[rows[0]])
    start = np.concatenate([cells.start_ns[rows] - t0, [c.start_ns - t0 for c in known]])
    end = np.concatenate([cells.end_ns[rows] - t0, [c.end_ns - t0 for c in known]])
    low = np.concatenate([cells.low[rows], [c.low for c in known]])
    high = np.concatenate([cells.high[rows], [c.high for c in known]])
    # each side's bounds, widened by what the clocks may have drifted until then
    for shown in (fit.DRIFT * start, -fit.DRIFT * end):
        order = np.argsort(shown, kind="stable")
        at = shown[order]
        low[order] = np.maximum.accumulate(low[order] + at) - at
        high[order] = np.minimum.accumulate(high[order] - at) + at
    return low[: len(rows)], high[: len(rows)]
