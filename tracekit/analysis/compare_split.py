"""A change of a mean taken apart, exactly: total = mix + cache + cost.

Owns the formula and its arithmetic over draws; decides nothing about what a result means.

Within one kind of traffic g (model and route) the mean cost of a side S is ``m_S = b_S x_S + r_S``:
``b_S`` a least-squares fit of that side on the request's size (tokens, bytes), ``x_S`` the mean
size, ``r_S`` what the fit leaves over. Then, symmetrically (Oaxaca and Blinder, Kitagawa):

    m_B - m_A  = (b_A + b_B)/2 (z_B - z_A)                          shapes
               + (b_A + b_B)/2 ((x_B - z_B) - (x_A - z_A))          cache
               + (x_A + x_B)/2 (b_B - b_A) + (r_B - r_A)            cost at equal size

where ``z`` is the mean size had both sides the same share of cached tokens at each prompt length.
Over the kinds both sides have, with shares w of their requests:

    M_B - M_A  = sum (w_B - w_A) (m_A + m_B)/2                      models and routes
               + sum (w_A + w_B)/2 (m_B - m_A)                      the above, averaged

and requests of kinds that one side lacks (share 1 - c, mean u) add ``(1 - c_B)(u_B - M_B) -
(1 - c_A)(u_A - M_A)``. The fits here are of means, not the low quantiles that judge single
requests: what those leave over grows with size, so a change of sizes would look like one of cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.analysis.compare_stats import slice_sums

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Terms of the size that cost little beside these are not told apart by a fit (relative).
_RANK: Final = 1e-9


@dataclass(frozen=True)
class Part:
    """One side's rows of one cost: ``values`` (ms), sizes ``x`` and ``z`` (rows x terms, the first
    term 1), the ``kinds`` (0..kind_count-1; -1 = the other side lacks it), and their slices.
    """

    values: Floats
    x: Floats
    z: Floats
    kinds: Ints
    slices: Ints
    draws: Floats


@dataclass(frozen=True)
class Drawn:
    """Every term over the draws, (1 + draws) each; row 0 is the data as they are."""

    total: Floats
    models_routes: Floats
    shapes: Floats
    one_sided: Floats
    cache: Floats
    cost: Floats
    a_mean: float
    b_mean: float

    @property
    def mix(self) -> Floats:
        return self.models_routes + self.shapes + self.one_sided

    def __add__(self, other: Drawn) -> Drawn:
        return Drawn(
            total=self.total + other.total,
            models_routes=self.models_routes + other.models_routes,
            shapes=self.shapes + other.shapes,
            one_sided=self.one_sided + other.one_sided,
            cache=self.cache + other.cache,
            cost=self.cost + other.cost,
            a_mean=self.a_mean + other.a_mean,
            b_mean=self.b_mean + other.b_mean,
        )


@dataclass(frozen=True)
class KindMeans:
    """Per kind (arrays of kind_count), from the data as they are: means, cost effect, the fits."""

    a_mean: Floats
    b_mean: Floats
    cost: Floats
    a_fit: Floats


@dataclass(frozen=True)
class _Moments:
    """Of one side: draws x kinds (x terms). ``lacking`` are n and sum of the kinds -1."""

    n: Floats
    mean: Floats
    x: Floats
    z: Floats
    fit: Floats
    lacking_n: Floats
    lacking_sum: Floats


def split(a: Part, b: Part, kind_count: int) -> tuple[Drawn, KindMeans]:
    """Take B - A apart. Needs at least one kind that both sides have rows of."""
    rough = _rough(a, b, kind_count)
    left = _moments(a, rough[: len(a.values)], kind_count)
    right = _moments(b, rough[len(a.values) :], kind_count)
    fits = (left.fit + right.fit) / 2
    shapes = _dot(fits, right.z - left.z)
    cache = _dot(fits, (right.x - right.z) - (left.x - left.z))
    cost = _dot((left.x + right.x) / 2, right.fit - left.fit) + (
        (right.mean - _dot(right.fit, right.x)) - (left.mean - _dot(left.fit, left.x))
    )
    wa, wb = _shares(left.n), _shares(right.n)
    both = (wa + wb) / 2
    mean_a, lacking_a = _with_lacking(left, wa)
    mean_b, lacking_b = _with_lacking(right, wb)
    drawn = Drawn(
        total=mean_b - mean_a,
        models_routes=((wb - wa) * (left.mean + right.mean) / 2).sum(axis=1),
        shapes=(both * shapes).sum(axis=1),
        one_sided=lacking_b - lacking_a,
        cache=(both * cache).sum(axis=1),
        cost=(both * cost).sum(axis=1),
        a_mean=float(mean_a[0]),
        b_mean=float(mean_b[0]),
    )
    return drawn, KindMeans(left.mean[0], right.mean[0], cost[0], left.fit[0])


def _shares(n: Floats) -> Floats:
    """Each kind's share per draw; a draw without any of them has the data's own."""
    total = n.sum(axis=1, keepdims=True)
    out: Floats = np.where(total > 0, n / np.where(total > 0, total, 1), n[:1] / total[:1])
    return out


def _dot(one: Floats, other: Floats) -> Floats:
    out: Floats = (one * other).sum(axis=-1)
    return out


def _with_lacking(side: _Moments, shares: Floats) -> tuple[Floats, Floats]:
    """The side's whole mean, and what its requests of one-sided kinds add to it."""
    common = (shares * side.mean).sum(axis=1)
    n = side.n.sum(axis=1) + side.lacking_n
    share = side.lacking_n / n
    own = side.lacking_sum / np.where(side.lacking_n > 0, side.lacking_n, 1)
    added: Floats = share * (own - common)
    return common + added, added


def _rough(a: Part, b: Part, kind_count: int) -> Floats:
    """What each row roughly costs, fitted on both sides at once: noise grows with it."""
    values = np.concatenate([a.values, b.values])
    x = np.vstack([a.x, b.x])
    kinds = np.concatenate([a.kinds, b.kinds])
    out = np.ones(len(values))
    for kind in range(kind_count):
        rows = kinds == kind
        floor = max(1.0, 0.1 * float(np.median(np.abs(values[rows]))))
        scale = np.abs(x[rows]).max(axis=0)
        scaled = x[rows] / np.where(scale > 0, scale, 1.0)
        fit = np.linalg.lstsq(scaled, values[rows], rcond=_RANK)[0]
        out[rows] = np.maximum(scaled @ fit, 0.0) + floor
    return out


def _moments(part: Part, rough: Floats, kind_count: int) -> _Moments:
    terms = part.x.shape[1]
    scale = np.abs(part.x).max(axis=0, initial=0.0)
    scale = np.where(scale > 0, scale, 1.0)
    x = part.x / scale
    weights = rough.mean() / rough
    pairs = [(i, j) for i in range(terms) for j in range(i, terms)]
    columns: list[Floats] = [np.ones(len(x)), part.values]
    columns += [x[:, i] for i in range(terms)]
    columns += [part.z[:, i] / scale[i] for i in range(terms)]
    columns += [weights * x[:, i] * part.values for i in range(terms)]
    columns += [weights * x[:, i] * x[:, j] for i, j in pairs]
    groups = np.where(part.kinds < 0, kind_count, part.kinds)
    count = part.draws.shape[1]
    sums = slice_sums(part.slices, count, columns, groups, kind_count + 1)
    drawn = np.tensordot(part.draws, sums, axes=(1, 0))
    own, lacking = drawn[:, :kind_count], drawn[:, kind_count]
    n = own[:, :, 0]
    # a draw may hold no request of a rare kind: it then weighs nothing, at the data's own means
    full = np.where(n > 0, n, 1)[:, :, None]
    means = np.where(n[:, :, None] > 0, own / full, own[:1] / own[:1, :, :1])
    normal = np.empty((*n.shape, terms, terms))
    for at, (i, j) in enumerate(pairs):
        normal[:, :, i, j] = normal[:, :, j, i] = means[:, :, 2 + 3 * terms + at]
    right = means[:, :, 2 + 2 * terms : 2 + 3 * terms]
    fit = np.einsum("dkij,dkj->dki", _inverse(normal), right)
    return _Moments(
        n=n,
        mean=means[:, :, 1],
        x=means[:, :, 2 : 2 + terms] * scale,
        z=means[:, :, 2 + terms : 2 + 2 * terms] * scale,
        fit=fit / scale,
        lacking_n=lacking[:, 0],
        lacking_sum=lacking[:, 1],
    )


def _inverse(normal: Floats) -> Floats:
    """Pseudo-inverses: terms that do not vary share what they cannot be told apart in."""
    if normal.shape[-1] == 1:
        return 1 / normal
    size = np.sqrt(np.einsum("dkii->dki", normal))
    size = np.where(size > 0, size, 1.0)
    outer = size[..., :, None] * size[..., None, :]
    out: Floats = np.linalg.pinv(normal / outer, rcond=_RANK, hermitian=True) / outer
    return out


def common_cache(
    prompts: Sequence[Floats], uncached: Sequence[Floats], kinds: Sequence[Ints], kind_count: int
) -> tuple[Floats, ...]:
    """Uncached tokens of each request, had both sides the same cache hits at each prompt length.

    Per kind a straight line of uncached over prompt tokens through both sides' rows.
    """
    p, u, k = np.concatenate(prompts), np.concatenate(uncached), np.concatenate(kinds)
    out = u.copy()
    for kind in range(kind_count):
        rows = k == kind
        if not rows.any():
            continue
        line = np.column_stack([np.ones(int(rows.sum())), p[rows]])
        fit = np.linalg.lstsq(line, u[rows], rcond=_RANK)[0]
        out[rows] = np.clip(line @ fit, 0.0, p[rows])
    ends = np.cumsum([len(x) for x in prompts])[:-1]
    return tuple(np.split(out, ends))
