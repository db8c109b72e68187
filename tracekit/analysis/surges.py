"""When the traffic itself was other than usual: stretches of time in which load gathers.

Arrivals do not know of each other, so what gathers among them beyond chance did not come by itself:
more requests, more prompt or answer to work on, more prompts that missed the cache, or more of the
traffic on one worker. Nothing here looks at how anybody was served. Owns these tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.analysis.gathering import PLACE_MAX, Bools, Floats, Ints, place_chance, stretches
from tracekit.analysis.offered import Texts, Traffic

#: More than usual: this many times as dense as in the rest of the time.
_DENSER: Final = 1.3
#: Parts of a part, for how arrivals cluster; how many of them are looked at together, and below
#: which dispersion of their counts they do not.
FINE: Final = 10
_WIDTHS: Final = (1, 2, 5)
_CLUSTERED: Final = 2.0
#: The median of a squared normal deviate.
_MEDIAN_CHI2: Final = 0.455
#: Chernoff's bound of a sum of unequal parts: groups of like size, and the slopes that are tried,
#: in units of what the largest hundredth costs.
_GROUPS: Final = 64
_SLOPES: Final = 60
_STEEPEST: Final = 6.0
_TINY: Final = 1e-12


@dataclass(frozen=True)
class Surge:
    """A stretch of time (``first`` part to before ``end``), on all workers or on one."""

    first: int
    end: int
    worker: str | None = None


def surges(traffic: Traffic, fine: Ints, parts: int, chance: float) -> list[Surge]:
    """Stretches in which load gathers, where chance would find any so seldom, for each family.

    ``fine`` (from 0): in which `FINE`-th of a part each request of ``traffic`` came. The families:
    load of all workers, and the share that single ones get.
    """
    if not len(fine):
        return []
    part = fine // FINE
    clustered = _clustered(np.bincount(fine, minlength=parts * FINE))

    here = np.bincount(part, minlength=parts)
    even = np.full(parts, 1.0 / parts)

    # of those of which it is known: where fewer are, that is no less load
    def due(known: Bools) -> Floats:
        return np.asarray(np.bincount(part[known], minlength=parts) / known.sum())

    def due_in_time(known: Bools) -> Floats:
        of = np.bincount(part[known], minlength=parts)
        time = np.where(here > 0, of / np.maximum(here, 1), 1.0)
        return np.asarray(time / time.sum())

    fleet = [_count(part, even)]
    works = (v for v in (traffic.prefill_ms, traffic.decode_ms) if v.any())
    fleet += [_work(part, v, due_in_time(v > 0)) for v in works]
    if traffic.missed.any():
        fleet.append(_count(part[traffic.missed], due(traffic.hit_known)))
    found = [Surge(i, j) for p, i, j in fleet if _less(p, clustered) * parts * len(fleet) < chance]
    roles = [traffic.prefill_worker]
    if (traffic.worker != traffic.prefill_worker).any():
        roles.append(traffic.worker)
    single = [
        (name, _count(part[names == name], due(names != "")))
        for names in roles
        for name in _several(names)
    ]
    for name, (p, i, j) in single:
        if _less(p, clustered) * parts * len(single) < chance:
            found.append(Surge(i, j, name))
    return found


def _clustered(counts: Ints) -> float:
    """How much more the counts of neighbours differ than those of independent arrivals; 1 if not.

    Sessions and retries know of each other: so many of them count as one. By the median, so that
    the edges of a surge do not look like it.
    """
    most = 1.0
    for width in _WIDTHS:
        together = counts.reshape(-1, width).sum(axis=1)
        apart = float(np.median(np.diff(together) ** 2)) / _MEDIAN_CHI2
        most = max(most, apart / max(2.0 * float(together.mean()), 1e-9))
    return most if most >= _CLUSTERED else 1.0


def _less(chance: float, clustered: float) -> float:
    """A chance where so many are one: its exponent is so much smaller."""
    return float(chance ** (1.0 / clustered))


def _several(names: Texts) -> list[str]:
    known = sorted(set(names.tolist()) - {""})
    return known if len(known) > 1 else []


def _count(part: Ints, share: Floats) -> tuple[float, int, int]:
    """The stretch that so many in it are least likely for: (chance, first part, after the last)."""
    first, end, inside, p = _stretches(np.bincount(part, minlength=len(share)), share)
    n = len(part)
    q, r = (np.clip(v, _TINY, 1 - _TINY) for v in (inside / n, p))
    # the least by Chernoff's bound: a sum of the tail for every stretch would cost seconds
    bound = n * (q * np.log(q / r) + (1 - q) * np.log((1 - q) / (1 - r)))
    k = int(np.where(_are_denser(inside, n, p), bound, 0.0).argmax())
    chance = place_chance(n, int(inside[k]), float(p[k]), _DENSER)
    return chance, int(first[k]), int(end[k])


def _stretches(of: Floats | Ints, share: Floats) -> tuple[Ints, Ints, Floats, Floats]:
    """Of every stretch: first part, after the last, how much of what is in it, its share [1]."""
    first, end = np.array(list(stretches(len(share)))).T
    sums, shares = (np.concatenate([[0.0], np.cumsum(v)]) for v in (of, share))
    return first, end, sums[end] - sums[first], shares[end] - shares[first]


def _are_denser(inside: Floats, total: float, p: Floats) -> Bools:
    # a stretch in which nobody was has no share
    known = (p > 0) & (p <= PLACE_MAX)
    p = np.where(known, p, 0.5)
    return known & (inside / p >= _DENSER * (total - inside) / (1 - p))


def _work(part: Ints, cost: Floats, share: Floats) -> tuple[float, int, int]:
    """As `_count` for a sum of costs: each falls into a stretch or not, whatever it costs.

    Chernoff: P(sum >= s) <= exp(log E exp(t sum) - t s) for any t >= 0.
    """
    part, cost = part[cost > 0], cost[cost > 0] / cost[cost > 0].mean()
    first, end, inside, p = _stretches(np.bincount(part, cost, minlength=len(share)), share)
    edges = np.unique(np.quantile(cost, np.linspace(0, 1, _GROUPS + 1)))
    group = np.clip(np.searchsorted(edges, cost, side="right") - 1, 0, len(edges) - 1)
    n = np.bincount(group, minlength=len(edges))
    size = np.bincount(group, cost, minlength=len(edges)) / np.maximum(n, 1)
    best = np.zeros(len(p))
    steepest = _STEEPEST / float(np.quantile(cost, 0.99))
    for t in np.linspace(0, steepest, _SLOPES + 1)[1:]:
        log_mean = np.log1p(p[:, None] * np.expm1(t * size)) @ n
        best = np.maximum(best, t * inside - log_mean)
    best = np.where(_are_denser(inside, float(cost.sum()), p), best, 0.0)
    k = int(best.argmax())
    return float(np.exp(-best[k])), int(first[k]), int(end[k])
