"""Nonnegative linear quantile regression, solved exactly.

Owns one numerical routine and knows nothing of requests. An interior point method of its own
(Portnoy and Koenker's, with Mehrotra's corrector): the problem has two or three unknowns and takes
a dozen small steps, while a general solver costs more to import than to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_STEPS_MAX: Final = 100
_GAP: Final = 1e-9
_FEASIBLE: Final = 1e-8
#: Steps stop just short of the boundary.
_INSIDE: Final = 0.9995
#: Terms that differ by less than this share are one.
_ALIKE: Final = 1e-9
#: A coefficient this small beside the largest (features scaled to 1) is zero.
_ZERO: Final = 1e-7


def quantile_fit(
    features: Floats, values: Floats, *, tau: float, weights: Floats | None = None
) -> Floats:
    """Coefficients >= 0 that minimise the weighted pinball loss of ``values`` at ``tau``.

    ``features`` is rows x terms (>= 0), ``values`` and ``weights`` (> 0) have a row each. A term
    that is zero everywhere, or a multiple of an earlier one (a size that never varies, beside the
    constant), gets 0. Raises ArithmeticError if the steps do not converge.
    """
    reach = features.max(axis=0, initial=0.0)
    used = reach > 0
    unit = features / np.where(used, reach, 1.0)
    for i in np.flatnonzero(used):
        used[i] = all(np.abs(unit[:, j] - unit[:, i]).max() > _ALIKE for j in range(i) if used[j])
    top = float(np.abs(values).max(initial=0.0))
    out = np.zeros(features.shape[1])
    if top == 0 or not used.any():
        return out
    w = np.ones(len(values)) if weights is None else weights / weights.mean()
    scaled = _solve(unit[:, used], values / top, w, tau)
    scaled[scaled < _ZERO * scaled.max(initial=0.0)] = 0.0
    out[used] = scaled / reach[used] * top
    return out


@dataclass(frozen=True)
class _Point:
    """An interior point of the dual: maximise y'x with a'x + s = b, 0 <= x <= w, s >= 0.

    ``t`` is w - x; ``z``, ``u`` and ``c`` are the multipliers of x >= 0, x <= w and s >= 0, and
    ``free`` those of the equations. At the optimum ``c`` holds the coefficients.
    """

    x: Floats
    t: Floats
    s: Floats
    z: Floats
    u: Floats
    c: Floats
    free: Floats

    @property
    def products(self) -> float:
        """The sum of what must vanish: the duality gap once both sides are feasible."""
        return float(self.x @ self.z + self.t @ self.u + self.s @ self.c)

    def moved(self, step: _Point, primal: float, dual: float) -> _Point:
        """This point plus so much of a step."""
        return _Point(
            x=self.x + primal * step.x,
            t=self.t + primal * step.t,
            s=self.s + primal * step.s,
            z=self.z + dual * step.z,
            u=self.u + dual * step.u,
            c=self.c + dual * step.c,
            free=self.free + dual * step.free,
        )

    def lengths(self, step: _Point) -> tuple[float, float]:
        """How much of a step, at most 1, keeps the primal and the dual side above zero."""
        primal = _length((self.x, step.x), (self.t, step.t), (self.s, step.s))
        return primal, _length((self.z, step.z), (self.u, step.u), (self.c, step.c))


def _solve(a: Floats, y: Floats, w: Floats, tau: float) -> Floats:
    rows, terms = a.shape
    pairs = 2 * rows + terms
    b = (1 - tau) * (a.T @ w)
    at = _Point(
        x=(1 - tau) * w,
        t=tau * w,
        s=np.full(terms, max(1.0, 0.05 * rows)),
        z=np.ones(rows),
        u=np.ones(rows),
        c=np.ones(terms),
        free=np.full(terms, -0.1),
    )
    for _ in range(_STEPS_MAX):
        newton = _Newton.at(at, a, y, b)
        if newton.is_feasible(b) and at.products < _GAP * (1 + abs(float(y @ at.x))):
            return at.c
        # straight ahead first: how far that gets says how much to stay in the middle
        ahead = newton.step(0.0, 0.0, 0.0)
        left = at.moved(ahead, *at.lengths(ahead)).products / at.products
        aim = at.products / pairs * left**3
        step = newton.step(
            aim - ahead.x * ahead.z, aim - ahead.t * ahead.u, aim - ahead.s * ahead.c
        )
        primal, dual = at.lengths(step)
        at = at.moved(step, _INSIDE * primal, _INSIDE * dual)
    raise ArithmeticError(f"the quantile fit did not converge in {_STEPS_MAX} steps")


@dataclass(frozen=True)
class _Newton:
    """The linearised conditions at a point, with their normal matrix (terms x terms)."""

    point: _Point
    a: Floats
    off_primal: Floats
    off_dual: Floats
    off_slack: Floats
    inverse: Floats
    normal: Floats

    @classmethod
    def at(cls, p: _Point, a: Floats, y: Floats, b: Floats) -> _Newton:
        inverse = 1 / (p.z / p.x + p.u / p.t)
        return cls(
            point=p,
            a=a,
            off_primal=b - a.T @ p.x - p.s,
            off_dual=-y - a @ p.free - p.z + p.u,
            off_slack=-p.free - p.c,
            inverse=inverse,
            normal=(a.T * inverse) @ a + np.diag(p.s / p.c),
        )

    def is_feasible(self, b: Floats) -> bool:
        return bool(
            np.abs(self.off_primal).max() < _FEASIBLE * (1 + np.abs(b).max())
            and np.abs(self.off_dual).max() < _FEASIBLE
        )

    def step(self, for_x: Floats | float, for_t: Floats | float, for_s: Floats | float) -> _Point:
        """The step towards these values of the products x z, t u and s c."""
        p = self.point
        g = for_x / p.x - p.z - for_t / p.t + p.u - self.off_dual
        right = (
            self.off_primal
            - self.a.T @ (self.inverse * g)
            - for_s / p.c
            + p.s
            + p.s / p.c * self.off_slack
        )
        free: Floats = np.linalg.solve(self.normal, right).astype(np.float64)
        x = self.inverse * (self.a @ free + g)
        c = self.off_slack - free
        return _Point(
            x=x,
            t=-x,
            s=for_s / p.c - p.s - p.s / p.c * c,
            z=for_x / p.x - p.z - p.z / p.x * x,
            u=for_t / p.t - p.u + p.u / p.t * x,
            c=c,
            free=free,
        )


def _length(*pairs: tuple[Floats, Floats]) -> float:
    """How much of the changes, at most 1, the values (> 0) can take without falling below zero."""
    steepest = min(float((change / values).min()) for values, change in pairs)
    return min(1.0, -1.0 / steepest) if steepest < 0 else 1.0
