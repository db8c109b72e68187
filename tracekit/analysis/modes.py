"""Two kinds of requests under one name: whether what a phase took falls into two groups.

Owns the test. Behind one model name may stand two pools, a cache that nobody reports, speculation
that is on for some: then one cost for all is the cost of nobody, and the slower kind must not be
blamed for not being the quicker one. A worker or a time that is slow is another thing: it is known
which requests are slow, so groups that a worker or a stretch of time explains do not count here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Rows that show two groups, the share that the smaller one has at least, and how many times as
#: long the slower one takes at least.
_ROWS: Final = 60
_SMALLER: Final = 0.2
_APART: Final = 1.5
#: Groups are this many of their own deviations apart, and so few rows lie in the middle between.
_DEVIATIONS: Final = 5.0
_BETWEEN: Final = 0.02
#: Where and when explain the groups if neighbours differ this seldom, beside chance.
_LEFT: Final = 0.45
_SPREAD_MIN: Final = 0.02


@dataclass(frozen=True)
class Modes:
    """Medians of actual / expected in the quicker and the slower group, and the latter's share."""

    quick: float
    slow: float
    slow_share: float


def two_modes(ratio: Floats, worker: npt.NDArray[np.int64], at: Floats) -> Modes | None:
    """The two groups that ``ratio`` (actual / expected, > 0) falls into; None for one group.

    ``worker`` numbers where, ``at`` says when each request ran: groups that go with either are not
    two kinds of requests.
    """
    if len(ratio) < _ROWS:
        return None
    logs = np.log(ratio)
    split = _split(np.sort(logs))
    is_slow = logs > split
    quick, slow = logs[~is_slow], logs[is_slow]
    if min(len(quick), len(slow)) < _SMALLER * len(logs):
        return None
    middle, high = float(np.median(quick)), float(np.median(slow))
    gap = high - middle
    spread = max(_deviation(quick), _deviation(slow), _SPREAD_MIN)
    between = np.abs(logs - (middle + high) / 2) < 0.2 * gap
    if (
        gap < np.log(_APART)
        or gap < _DEVIATIONS * spread
        or between.mean() > _BETWEEN
        or _explained(is_slow, worker, at)
    ):
        return None
    return Modes(float(np.exp(middle)), float(np.exp(high)), float(is_slow.mean()))


def _split(ordered: Floats) -> float:
    """Where to cut so that the two sides differ most (Otsu 1979: largest variance between)."""
    n = len(ordered)
    counts = np.arange(1, n)
    sums = np.cumsum(ordered)[:-1]
    means = sums / counts
    rest = (ordered.sum() - sums) / (n - counts)
    at = int(np.argmax(counts * (n - counts) * (rest - means) ** 2))
    return float((ordered[at] + ordered[at + 1]) / 2)


def _deviation(values: Floats) -> float:
    low, high = np.percentile(values, (25, 75))
    return float(high - low) / 1.349


def _explained(is_slow: npt.NDArray[np.bool_], worker: npt.NDArray[np.int64], at: Floats) -> bool:
    """Whether worker and time tell which requests are slow."""
    order = np.lexsort((np.nan_to_num(at), worker))
    return mixture_left(is_slow[order], worker[order]) < _LEFT


def mixture_left(is_slow: npt.NDArray[np.bool_], series: npt.NDArray[np.int64]) -> float:
    """How often neighbours differ, as a share of what chance gives; 1 if nothing explains it.

    Rows are in order within their ``series``. Whatever lasts (a slow worker, a bad stretch of time,
    a throttle that comes and goes) makes neighbours alike.
    """
    beside = series[1:] == series[:-1]
    if not beside.any():
        return 1.0
    differ = (is_slow[1:] != is_slow[:-1])[beside].mean()
    share = is_slow.mean()
    return float(differ / max(2 * share * (1 - share), 1e-9))
