"""Which offset each clock of a request gets, and how sure it is, from bounds of pairs of clocks.

Owns the step from pairs to combinations (client, gateway, prefill and decode server): bounds that
follow from each other, one offset for each pair of clocks at a time, and the +- of each phase
that lies between two clocks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.analysis import _clock_fit as fit
from tracekit.analysis._clock_cells import Aligned, Cells, agreed
from tracekit.analysis._clock_rows import LINKS, NODES

#: Columns of ``request_clocks``: +- [ns] of the clocks on both sides of what lies between hosts.
WIDTHS: Final = (
    "network_in_ns",
    "network_out_ns",
    "route_in_ns",
    "route_out_ns",
    "kv_ns",
    "widest_ns",
)


@dataclass
class _Places:
    """Combinations of clocks, each at one or several times of its window, and their bounds."""

    combo: npt.NDArray[np.int64]
    segment: npt.NDArray[np.int64]
    #: [m, 4, 4]: the most that may lie between clocks i and j
    upper: npt.NDArray[np.float64]


def place(cells: Cells, aligned: Aligned) -> tuple[pa.Table, pa.Table]:
    """What each request of ``cells`` gets: rows of ``request_clocks``, and of its moves.

    Moves are (request_key, dom, move [ns]), of clocks that are moved at all.
    """
    low, high = agreed(cells, aligned.earlier)
    cuts: dict[int, list[int]] = defaultdict(list)
    for (_, _, win), found in aligned.beliefs.items():
        cuts[win] = sorted({*cuts[win], *(c.start_ns for c in found[1:])})
    deepest = max((len(c) for c in cuts.values()), default=0) + 1
    lows, highs = np.tile(low, (deepest, 1)), np.tile(high, (deepest, 1))
    if aligned.beliefs:
        for i in range(len(cells.a)):
            key = cells.key(i)
            if key not in aligned.beliefs:
                continue
            for segment, at_ns in enumerate([aligned.beliefs[key][0].start_ns, *cuts[key[2]]]):
                belief = aligned.belief_at(key, at_ns)
                assert belief is not None
                lows[segment, i], highs[segment, i] = belief.bounds
    places = _bounded(cells, cuts, lows, highs)
    moves = np.zeros((len(places.combo), len(NODES)), dtype=np.int64)
    if any(c.offset_ns for found in aligned.beliefs.values() for c in found):
        _choose(places, cells, moves)
    row = _rows_of(places, cells, cuts)
    return _clocks(places, cells, row), _moves(cells, moves[row])


def _bounded(
    cells: Cells,
    cuts: Mapping[int, Sequence[int]],
    lows: npt.NDArray[np.float64],
    highs: npt.NDArray[np.float64],
) -> _Places:
    """A row for each combination and stretch of its window, with all that bounds its clocks."""
    count = len(cells.window)
    combo = np.arange(count)
    segment = np.zeros(count, dtype=np.int64)
    if any(cuts.values()):
        stretches = np.array([len(cuts.get(win, ())) + 1 for win in cells.window.tolist()])
        combo = np.repeat(combo, stretches)
        segment = np.concatenate([np.arange(n) for n in stretches])
    upper = np.full((len(combo), len(NODES), len(NODES)), math.inf)
    nodes = cells.nodes[combo]
    for i in range(len(NODES)):
        for j in range(len(NODES)):
            # legs of one clock are not moved against each other
            upper[(nodes[:, i] == nodes[:, j]) | (i == j), i, j] = 0.0
    for k, (outer_name, inner_name, _, _) in enumerate(LINKS):
        cell, turn = cells.cell_of[combo, k], cells.flipped[combo, k]
        has = cell >= 0
        low, high = lows[segment[has], cell[has]], highs[segment[has], cell[has]]
        outer, inner = NODES.index(outer_name), NODES.index(inner_name)
        upper[has, outer, inner] = np.where(turn[has], -low, high)
        upper[has, inner, outer] = np.where(turn[has], high, -low)
    # clocks that are not there bound nothing
    absent = nodes < 0
    upper[absent[:, :, None] | absent[:, None, :]] = math.inf
    upper[:, range(len(NODES)), range(len(NODES))] = 0.0
    return _Places(combo, segment, upper)


def _choose(places: _Places, cells: Cells, moves: npt.NDArray[np.int64]) -> None:
    """Fill ``moves`` [ns]: one offset for each clock against each outermost clock at a time."""
    nodes = cells.nodes[places.combo]
    root = _first(nodes)
    groups: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for row, group in enumerate(
        zip(
            cells.window[places.combo].tolist(), places.segment.tolist(), root.tolist(), strict=True
        )
    ):
        groups[group].append(row)
    excluded = np.asarray((places.upper < -fit.TOLERANCE_NS).any(axis=(1, 2)))
    for group, rows in groups.items():
        if not excluded[rows].any():
            continue
        # outer clocks first: what is not bounded by them gives way to them
        order: dict[int, int] = {group[2]: 0}
        for node in range(len(NODES)):
            for clock in np.unique(nodes[rows, node]).tolist():
                if clock >= 0:
                    order.setdefault(clock, len(order))
        upper = np.full((len(order), len(order)), math.inf)
        np.fill_diagonal(upper, 0.0)
        at = np.array([[order.get(c, 0) for c in nodes[row].tolist()] for row in rows])
        for i in range(len(NODES)):
            for j in range(len(NODES)):
                both = (nodes[rows, i] >= 0) & (nodes[rows, j] >= 0)
                np.minimum.at(
                    upper, (at[both, i], at[both, j]), places.upper[np.array(rows)[both], i, j]
                )
        found = fit.offsets_from(0, upper)
        moves[rows] = np.where(nodes[rows] >= 0, found[at], 0)


def _first(nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The outermost clock of each row."""
    found: npt.NDArray[np.int64] = nodes[np.arange(len(nodes)), (nodes >= 0).argmax(axis=1)]
    return found


def _rows_of(
    places: _Places, cells: Cells, cuts: Mapping[int, Sequence[int]]
) -> npt.NDArray[np.int64]:
    """The row of ``places`` for each request."""
    first = np.searchsorted(places.combo, np.arange(len(cells.window)))
    rows: npt.NDArray[np.int64] = first[cells.combo]
    window = cells.window[cells.combo]
    for win, edges in cuts.items():
        if edges:
            inside = np.flatnonzero(window == win)
            rows[inside] += np.searchsorted(edges, cells.at_ns[inside], side="right")
    return rows


def _clocks(places: _Places, cells: Cells, row: npt.NDArray[np.int64]) -> pa.Table:
    tight = fit.closure(places.upper)
    half = np.maximum(tight + tight.transpose(0, 2, 1), 0.0) / 2
    nodes = cells.nodes[places.combo]
    known = nodes >= 0
    c, g, p, e = range(len(NODES))

    def between(i: int, j: int) -> npt.NDArray[np.float64]:
        apart = known[:, i] & known[:, j] & (nodes[:, i] != nodes[:, j])
        return np.where(apart, half[:, i, j], math.nan)

    def either(when: npt.NDArray[np.bool_], i: int, j: int, k: int) -> npt.NDArray[np.float64]:
        return np.where(when, between(i, j), between(i, k))

    outermost = known.argmax(axis=1)
    to_outermost = np.where(known, half[np.arange(len(nodes)), outermost], 0.0)
    widths = {
        "network_in_ns": np.where(known[:, g], between(c, g), either(known[:, p], c, p, e)),
        "network_out_ns": either(known[:, g], c, g, e),
        "route_in_ns": either(known[:, p], g, p, e),
        "route_out_ns": between(g, e),
        "kv_ns": between(p, e),
        "widest_ns": to_outermost.max(axis=1),
    }
    columns: dict[str, pa.Array] = {"request_key": cells.keys}
    for name in WIDTHS:
        ns = widths[name][row]
        bounded = np.isfinite(ns)
        columns[name] = pa.array(np.where(bounded, ns, 0).round().astype(np.int64), mask=~bounded)
    return pa.table(columns)


def _moves(cells: Cells, moves: npt.NDArray[np.int64]) -> pa.Table:
    names = pa.array(cells.names, pa.string())
    parts = []
    for node in range(len(NODES)):
        moved = np.flatnonzero(moves[:, node])
        clock = cells.nodes[cells.combo[moved], node]
        parts.append(
            pa.table(
                {
                    "request_key": cells.keys.take(pa.array(moved)),
                    "dom": names.take(pa.array(clock)),
                    "move": pa.array(moves[moved, node]),
                }
            )
        )
    return pa.concat_tables(parts)
