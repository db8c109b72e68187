"""Whether something gathers in a place: a scan of stretches of time, or of workers.

For every place the number of what is counted (losses, mostly) inside it against the share that is
due there, by the binomial tail, times the number of parts or workers. Owns the scan and nothing of
what is counted, nor why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, lgamma, log, log1p
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.analysis.chance import chance_of

#: What holds more of the requests is no place where losses gather: the rest is one where they lack.
PLACE_MAX: Final = 0.75
#: What takes place on one worker within so long has one reason.
_CLUSTER_NS: Final = 2_000_000_000
#: Where it is known that something was wrong, these losses are of it if so many of them would be
#: there by chance this seldom.
THERE: Final = 0.1
#: More than this are not counted exactly.
_EXACT_MAX: Final = 2_000

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cells:
    """Where losses may gather: the cell of each loss (0 is none), and what the cells are.

    ``share`` [1] of what is due in each cell; cells of one ``world`` (a role of workers, or the
    time) hold all of it together. ``places`` are ranges of cells (first, after the last), ``tests``
    how many independent ones there are.
    """

    cell: Ints
    share: Floats
    world: Ints
    places: list[tuple[int, int]]
    tests: int


def stretches(parts: int) -> Iterator[tuple[int, int]]:
    """The stretches (first part, after the last) of a time in ``parts``, but for all of it."""
    return ((i, j) for i in range(parts) for j in range(i + 1, parts + 1) if j - i < parts)


def gathered(
    cells: Cells, weights: Floats, taken: Bools | None, *, chance: float, denser: float
) -> Bools:
    """In which cells losses gather; ``taken`` are cells whose losses have been found already.

    What was found leaves, with its share of the requests: a second burst is looked for in the rest
    of the time, and that the rest holds all other losses is no burst.
    """
    total = counted(cells, weights)
    found = np.zeros(len(total), dtype=bool)
    gone = found.copy() if taken is None else taken.copy()
    while True:
        left, share = np.where(gone, 0.0, total), np.where(gone, 0.0, cells.share)
        sums, shares = (np.concatenate([[0.0], np.cumsum(v)]).tolist() for v in (left, share))
        worlds = {
            w: (float(left[cells.world == w].sum()), float(share[cells.world == w].sum()))
            for w in set(cells.world[1:].tolist())
        }
        chances = []
        for low, high in cells.places:
            n, all_share = worlds[int(cells.world[low])]
            part = (shares[high] - shares[low]) / all_share if all_share > 0 else 0.0
            chances.append(place_chance(int(n), int(sums[high] - sums[low]), part, denser))
        best = int(np.argmin(chances)) if chances else -1
        if best < 0 or chances[best] * cells.tests >= chance:
            return found
        low, high = cells.places[best]
        found[low:high] |= ~gone[low:high]
        gone[low:high] = True


def counted(cells: Cells, weights: Floats) -> Floats:
    """How much there is in each cell, by weight."""
    total = np.bincount(cells.cell, weights, minlength=len(cells.share))
    total[0] = 0.0
    return np.asarray(total)


def is_there(cells: Cells, mine: Bools, found: Bools, *, denser: float) -> bool:
    """Whether these losses, too, are denser in the cells that were found for all of them."""
    inside = found[cells.cell]
    where = cells.world[cells.cell[mine & inside]]
    if not len(where):
        return False
    share = float(cells.share[found & (cells.world == where[0])].sum())
    k, n = int((mine & inside).sum()), int(mine.sum())
    return place_chance(n, k, share, denser) < THERE


def episodes(at: Ints, worker: Ints, lasts_ns: int) -> Floats:
    """What each of them counts: those on one worker within ``lasts_ns`` [ns], one together."""
    return np.asarray(1.0 / _together(at, worker, max(_CLUSTER_NS, lasts_ns)))


def weights_of(at: Ints, worker: Ints) -> Floats:
    """What each loss counts: those within two seconds on one worker sqrt(k) together.

    One long engine step slows many streams.
    """
    return np.asarray(_together(at, worker, _CLUSTER_NS) ** -0.5)


def _together(at: Ints, worker: Ints, span_ns: int) -> Floats:
    """With how many it is on its worker in its span; without a clock each is by itself."""
    each = at // span_ns * (int(worker.max(initial=0)) + 1) + worker
    keys = np.where(at >= 0, each, -1 - np.arange(len(at)))
    _, group, count = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(count[group], dtype=np.float64)


def place_chance(
    n: int, k: int, share: float, denser: float, *, place_max: float = PLACE_MAX
) -> float:
    """How likely k of n fall into a place of this share; 1 if they are not so much denser there."""
    if not 0 < share <= place_max or k <= n * share:
        return 1.0
    outside = (n - k + 0.5) / (1 - share)
    if (k / share) < denser * outside:
        return 1.0
    return binomial_tail(n, k, share)


def binomial_tail(n: int, k: int, p: float) -> float:
    """P(X >= k) of a binomial; for many, Chernoff's bound of it."""
    if n > _EXACT_MAX and 0 < p < k / n:
        return chance_of(k / n, p, n)
    terms = (
        lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) + i * log(p) + (n - i) * log1p(-p)
        for i in range(k, n + 1)
    )
    return min(sum(exp(t) for t in terms), 1.0)
