"""What causality says of two clocks: intervals of an offset, robustly, and what offset to take.

Arithmetic only: no tables, no SQL. An *offset* [ns] of a pair of clocks is what must be added to
the second one's times to put them on the first. Every request that both stamped bounds it from
below (nothing is received before it was sent) and mostly from above. The rules:

* One span of time, one interval: that of all its requests, less the few that stick out.
* Where no offset suits (nearly) all requests, a clock was stepped or drifts: the time is cut into
  pieces that suit; else the offset that contradicts fewest requests counts.
* What other times say holds too, widened by how far a clock may drift until then; where it
  contradicts what was seen at the time itself, the latter wins, if at least `BELIEVED` requests
  say so.
* Fewer than `BELIEVED` requests that contradict equal clocks are corrupted, not evidence.
* Of the interval the offset nearest to zero is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

#: Requests that must agree before clocks count as different.
BELIEVED: Final = 3

#: Nothing below this is evidence of another clock: spans end a little after their last byte left.
TOLERANCE_NS: Final = 100_000

#: How far two clocks may drift apart, as a share of the time that passes.
DRIFT: Final = 1e-4

#: Requests that stick out of all others by more than this are left out, if they are few.
_STICKS_OUT_NS: Final = 50_000_000
_FEW: Final = 2
_FEW_SHARE: Final = 0.01
_MANY: Final = 20

_PIECES_MAX: Final = 6

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cell:
    """What ``n`` requests between two times say of an offset: it lies in [low, high] [ns].

    Bounds may be infinite. ``violations`` of the requests contradict an offset of zero.
    """

    start_ns: int
    end_ns: int
    low: float
    high: float
    n: int
    violations: int

    @property
    def allows_zero(self) -> bool:
        return self.low <= TOLERANCE_NS and self.high >= -TOLERANCE_NS

    @property
    def is_believed(self) -> bool:
        """Whether enough requests say so: of being equal, or of contradicting that."""
        return (self.n if self.allows_zero else self.violations) >= BELIEVED

    @property
    def bounds(self) -> tuple[float, float]:
        """Where the offset is taken to lie: zero is inside unless enough requests contradict it."""
        if self.allows_zero or not self.is_believed:
            return min(self.low, 0.0), max(self.high, 0.0)
        return self.low, self.high

    @property
    def offset_ns(self) -> int:
        """The offset nearest to zero."""
        return nearest_zero(*self.bounds)


def nearest_zero(low: float, high: float) -> int:
    """The whole number in [low, high] nearest to zero (its middle, if it is empty)."""
    if low > high:
        return round((low + high) / 2)
    if low > 0:
        return math.ceil(low)
    return math.floor(high) if high < 0 else 0


def contradicts_zero(low: Floats, high: Floats) -> npt.NDArray[np.bool_]:
    return (low > TOLERANCE_NS) | (high < -TOLERANCE_NS)


def cells_of(at_ns: Ints, low: Floats, high: Floats) -> list[Cell]:
    """What the requests of one short time say: one cell, or pieces of it in order of time.

    ``at_ns``, ``low`` and ``high`` [ns] hold one element a request.
    """
    order = np.lexsort((high, low, at_ns))
    at_ns, low, high = at_ns[order], low[order], high[order]
    keep = _within(low, high)
    whole = _cell(at_ns, low, high, keep)
    if whole.low <= whole.high + TOLERANCE_NS:
        return [_without_corrupted(whole, low, high, keep)]
    pieces = _pieces(at_ns, low, high, keep)
    if pieces is not None:
        return pieces
    return [_most(at_ns, low, high)]


def _within(low: Floats, high: Floats) -> npt.NDArray[np.bool_]:
    """Requests that contradict neither themselves nor, as one of few, all others by far."""
    keep: npt.NDArray[np.bool_] = low <= high + TOLERANCE_NS
    return keep & ~_sticks_out(low, keep) & ~_sticks_out(-high, keep)


def _sticks_out(low: Floats, keep: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    known = low[keep & np.isfinite(low)]
    if len(known) < _MANY:
        return np.zeros(len(low), dtype=np.bool_)
    few = max(_FEW, int(len(known) * _FEW_SHARE))
    out: npt.NDArray[np.bool_] = low > _STICKS_OUT_NS - np.partition(-known, few)[few]
    return out


def _cell(at_ns: Ints, low: Floats, high: Floats, keep: npt.NDArray[np.bool_]) -> Cell:
    wrong = contradicts_zero(low, high)
    return Cell(
        int(at_ns.min()),
        int(at_ns.max()),
        float(low[keep].max(initial=-math.inf)),
        float(high[keep].min(initial=math.inf)),
        len(at_ns),
        int((wrong & keep).sum()),
    )


def _without_corrupted(whole: Cell, low: Floats, high: Floats, keep: npt.NDArray[np.bool_]) -> Cell:
    """One or two requests that contradict zero say nothing where others do not."""
    if whole.allows_zero or whole.violations >= BELIEVED:
        return whole
    rest = keep & ~contradicts_zero(low, high)
    if not rest.any():
        return whole
    return replace(
        whole,
        low=float(low[rest].max()),
        high=float(high[rest].min()),
        violations=0,
    )


def _pieces(
    at_ns: Ints, low: Floats, high: Floats, keep: npt.NDArray[np.bool_]
) -> list[Cell] | None:
    """As few stretches of time as suit one offset each; None if one is too short to be believed.

    The last one may be: what follows it in time tells.
    """
    rows = np.flatnonzero(keep)
    pieces: list[Cell] = []
    while len(rows):
        clash = np.maximum.accumulate(low[rows]) > np.minimum.accumulate(high[rows]) + TOLERANCE_NS
        length = int(clash.argmax()) if clash.any() else len(rows)
        if (length < BELIEVED and length < len(rows)) or len(pieces) == _PIECES_MAX:
            return None
        part = rows[:length]
        pieces.append(_cell(at_ns[part], low[part], high[part], np.ones(length, dtype=np.bool_)))
        rows = rows[length:]
    return pieces or None


def _most(at_ns: Ints, low: Floats, high: Floats) -> Cell:
    """The offsets that contradict fewest requests, of several such intervals the nearest to 0."""
    sane = low <= high
    low_in, high_in = low[sane], high[sane]
    everyone = _cell(at_ns, low, high, sane)
    if not len(low_in):
        return replace(everyone, low=-math.inf, high=math.inf, violations=0)
    edges = np.concatenate([low_in, high_in])
    opens = np.concatenate([np.ones(len(low_in)), -np.ones(len(high_in))])
    order = np.lexsort((-opens, edges))
    depth = np.cumsum(opens[order])
    edges = edges[order]
    best = np.flatnonzero(depth == depth.max())
    lows = edges[best]
    highs = edges[np.minimum(best + 1, len(edges) - 1)]
    away = np.where(lows > 0, lows, np.where(highs < 0, -highs, 0.0))
    pick = int(np.argmin(away))
    chosen_low, chosen_high = float(lows[pick]), float(highs[pick])
    agree = (low <= chosen_low) & (high >= chosen_high)
    return replace(
        everyone,
        low=chosen_low,
        high=chosen_high,
        violations=int((contradicts_zero(low, high) & agree).sum()),
    )


def pool(cells: Sequence[Cell]) -> list[Cell]:
    """Each cell with what the others say, in the order given (that of their start).

    Two passes, forward and back, each carrying what is believed so far.
    """
    before = _carry(cells)
    back = [replace(c, start_ns=-c.end_ns, end_ns=-c.start_ns) for c in reversed(cells)]
    after = _carry(back)[::-1]
    return [
        _settle(cell, [*earlier, *later])
        for cell, earlier, later in zip(cells, before, after, strict=True)
    ]


def _carry(cells: Sequence[Cell]) -> list[list[Cell]]:
    """For each cell, what those before it say at its time: what is held, and what rivals it."""
    held: Cell | None = None
    rival: Cell | None = None
    out: list[list[Cell]] = []
    for cell in cells:
        held, rival = _widened(held, cell.start_ns), _widened(rival, cell.start_ns)
        out.append([c for c in (held, rival) if c is not None])
        both = None if held is None else _both(held, cell)
        if held is None:
            held = cell
        elif both is not None and (both.is_believed or not held.is_believed):
            held, rival = both, None if cell.is_believed else rival
        elif cell.is_believed or not held.is_believed:
            held, rival = cell, None
        else:  # too few to be believed at once, but they may turn out to be right together
            rival = cell if rival is None else _both(rival, cell) or cell
            if rival.is_believed:
                held, rival = rival, None
    return out


def _settle(cell: Cell, others: Sequence[Cell]) -> Cell:
    """What is believed at the time of ``cell``, given what is said before and after it."""
    agreeing = cell
    for other in sorted(others, key=lambda c: not c.is_believed):
        both = _both(agreeing, other)
        if both is not None and (both.is_believed or not agreeing.is_believed):
            agreeing = both
    if agreeing.is_believed:
        return agreeing
    known = [c for c in others if c.is_believed]
    if not known:
        return agreeing
    belief = (_both(known[0], known[1]) if len(known) > 1 else None) or known[0]
    return replace(belief, start_ns=cell.start_ns, end_ns=cell.end_ns)


def _widened(cell: Cell | None, at_ns: int) -> Cell | None:
    if cell is None:
        return None
    drift = DRIFT * max(at_ns - cell.end_ns, 0)
    return replace(
        cell, low=cell.low - drift, high=cell.high + drift, end_ns=max(at_ns, cell.end_ns)
    )


def _both(one: Cell, other: Cell) -> Cell | None:
    """What both say, at the time of ``one``; None if they contradict each other."""
    low, high = max(one.low, other.low), min(one.high, other.high)
    if low > high + TOLERANCE_NS:
        return None
    return replace(
        one,
        low=low,
        high=high,
        end_ns=max(one.end_ns, other.end_ns),
        n=one.n + other.n,
        violations=one.violations + other.violations,
    )


def closure(upper: Floats) -> Floats:
    """Tightest bounds that follow from each other: ``upper[m, i, j]`` bounds x_j - x_i [ns]."""
    out = upper.copy()
    for k in range(out.shape[-1]):
        np.minimum(out, out[:, :, k, None] + out[:, None, k, :], out=out)
    return out


def offsets_from(root: int, upper: Floats) -> Ints:
    """Offsets [ns] of all clocks against that of ``root``, as few as can be other than zero.

    ``upper[i, j]`` [ns] bounds x_j - x_i. A clock that may stay at zero does; of the others each,
    in their order, gets what is nearest to zero. What contradicts itself gives the middle.
    """
    bounds = closure(upper[None])[0]
    found = np.zeros(len(bounds), dtype=np.int64)
    low, high = -bounds[:, root], bounds[root].copy()
    left = [node for node in range(len(bounds)) if node != root]
    while left:
        node = next(
            (n for n in left if low[n] <= TOLERANCE_NS and high[n] >= -TOLERANCE_NS), left[0]
        )
        if low[node] > TOLERANCE_NS or high[node] < -TOLERANCE_NS:
            found[node] = nearest_zero(float(low[node]), float(high[node]))
        left.remove(node)
        np.maximum(low, found[node] - bounds[:, node], out=low)
        np.minimum(high, found[node] + bounds[node], out=high)
    return found
