"""How sure a difference is: slices of time, draws of slices, intervals, corrected p-values.

Owns the resampling and knows nothing of requests. Requests of one burst share their fate, so not
requests are drawn but slices of time with all that arrived in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Where the distribution functions that quantiles of draws are read from have their steps: finer
#: in the tail.
_STEPS: Final = np.unique(np.concatenate([np.linspace(0, 0.9, 301), np.linspace(0.9, 1, 201)]))
_NORMAL: Final = NormalDist()


def time_slices(
    arrival_ns: Floats, *, lasting_ms: float, fewest: int, most: int, seed: int
) -> tuple[Ints, int]:
    """The slice of each row, and how many slices there are (all hold rows).

    Slices are equally long in time, idle gaps cut short, and last at least ``lasting_ms`` unless
    there would be fewer than ``fewest``. Rows without a clock (NaN) fall anywhere.
    """
    n = len(arrival_ns)
    out = np.random.default_rng(seed).integers(0, max(1, min(most, n)), n)
    timed = np.flatnonzero(~np.isnan(arrival_ns))
    if len(timed) >= 2:
        order = timed[np.argsort(arrival_ns[timed], kind="stable")]
        gaps = np.diff(arrival_ns[order]) / 1e6
        at = np.concatenate([[0.0], np.cumsum(np.minimum(gaps, max(lasting_ms, 1e-3)))])
        wanted = int(at[-1] / lasting_ms) if lasting_ms > 0 else most
        count = max(1, min(most, max(fewest, wanted), n))
        slices = np.minimum((at / (at[-1] or 1.0) * count).astype(np.int64), count - 1)
        if len(np.unique(slices)) < min(fewest, len(timed)):
            # hardly any time between them: by order, the same number in each
            slices = np.arange(len(order)) * min(fewest, len(order)) // len(order)
        if len(timed) < n:
            out = np.random.default_rng(seed).integers(0, int(slices.max()) + 1, n)
        out[order] = slices
    kept, index = np.unique(out, return_inverse=True)
    return index.astype(np.int64), len(kept)


def draw_weights(slices: int, *, draws: int, seed: int) -> Floats:
    """How often each slice is in each draw: (1 + draws) x slices; row 0 is the data as they are."""
    if slices == 0:
        return np.ones((1 + draws, 0))
    drawn = np.random.default_rng(seed).multinomial(slices, np.full(slices, 1 / slices), draws)
    return np.vstack([np.ones((1, slices)), drawn.astype(np.float64)])


def slice_sums(
    slices: Ints, count: int, columns: Sequence[Floats], groups: Ints, group_count: int
) -> Floats:
    """Sums of each column by slice and group: count x group_count x columns."""
    cell = slices * group_count + groups
    sums = [np.bincount(cell, weights=c, minlength=count * group_count) for c in columns]
    out: Floats = np.stack(sums, axis=-1).astype(np.float64)
    return out.reshape(count, group_count, len(columns))


def drawn_quantiles(
    values: Floats, slices: Ints, weights: Floats, levels: Sequence[float]
) -> Floats:
    """Quantiles of every draw: (1 + draws) x levels; row 0 is exact."""
    edges = np.unique(np.quantile(values, _STEPS))
    cells = np.clip(np.searchsorted(edges, values, side="left"), 0, len(edges) - 1)
    count = weights.shape[1]
    table = np.bincount(slices * len(edges) + cells, minlength=count * len(edges))
    heap = np.cumsum(weights @ table.reshape(count, len(edges)).astype(np.float64), axis=1)
    out = np.empty((len(weights), len(levels)))
    for i, level in enumerate(levels):
        target = level * heap[:, -1:]
        at = np.argmax(heap >= target, axis=1)
        rows = np.arange(len(heap))
        below = np.where(at > 0, heap[rows, np.maximum(at - 1, 0)], 0.0)
        inside = heap[rows, at] - below
        part = np.where(inside > 0, (target[:, 0] - below) / np.where(inside > 0, inside, 1), 1.0)
        low = edges[np.maximum(at - 1, 0)]
        out[:, i] = low + part * (edges[at] - low)
        out[0, i] = np.quantile(values, level)
    return out


def tail_slices(values: Floats, slices: Ints, level: float) -> float:
    """From how many slices, as if each held as many, the rows at or above a quantile come."""
    tail = slices[values >= np.quantile(values, level)]
    held = np.bincount(tail).astype(np.float64)
    return float(held.sum() ** 2 / (held**2).sum())


def interval(drawn: Floats, *, level: float, freedom: int) -> tuple[float, float, float]:
    """``low``, ``high`` and the two-sided p-value of row 0 against zero.

    The wider of Student's interval around the value and the draws' own quantiles: the first knows
    how few slices there are, the second that draws may be skewed.
    """
    value, draws = float(drawn[0]), drawn[1:]
    spread = float(draws.std(ddof=1)) if len(draws) > 1 else 0.0
    reach = _student_quantile(0.5 + level / 2, freedom) * spread
    tail = (1 - level) / 2
    own_low, own_high = (float(x) for x in np.quantile(draws, [tail, 1 - tail]))
    if spread == 0:
        return value, value, 0.0 if value != 0 else 1.0
    sided = min(float((draws <= 0).mean()), float((draws >= 0).mean()))
    p = max(_student_p(value / spread, freedom), min(1.0, 2 * sided))
    return min(value - reach, own_low), max(value + reach, own_high), p


def _student_p(t: float, freedom: int) -> float:
    """Two-sided tail of Student's t, by Wallace's approximation."""
    v = float(max(1, freedom))
    z = (8 * v + 1) / (8 * v + 3) * math.sqrt(v * math.log1p(t * t / v))
    return math.erfc(z / math.sqrt(2))


def _student_quantile(level: float, freedom: int) -> float:
    v = float(max(1, freedom))
    z = _NORMAL.inv_cdf(level) * (8 * v + 3) / (8 * v + 1)
    return math.sqrt(v * math.expm1(z * z / v))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    out = [1.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(order) - rank) * p_values[i]))
        out[i] = running
    return out
