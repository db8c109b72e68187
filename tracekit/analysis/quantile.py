"""Nonnegative linear quantile regression, solved exactly.

Owns one numerical routine and knows nothing of requests. An interior point method of its own
(Portnoy and Koenker's, with a Mehrotra corrector): the problem has two or three unknowns, takes a
few dozen small steps, and a general solver would cost more to import than to run.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_STEPS_MAX: Final = 100
_GAP: Final = 1e-9
_FEASIBLE: Final = 1e-8
#: Steps stop just short of the boundary.
_INSIDE: Final = 0.9995
#: A coefficient this small beside the largest (features scaled to 1) is zero.
_ZERO: Final = 1e-7


def quantile_fit(
    features: Floats, values: Floats, *, tau: float, weights: Floats | None = None
) -> Floats:
    """Coefficients >= 0 that minimise the weighted pinball loss of ``values`` at ``tau``.

    ``features`` is rows x terms (>= 0), ``values`` and ``weights`` (> 0) have a row each. A term
    that is zero everywhere gets 0. Raises ArithmeticError if the steps do not converge.
    """
    reach = features.max(axis=0, initial=0.0)
    used = reach > 0
    top = float(np.abs(values).max(initial=0.0))
    out = np.zeros(features.shape[1])
    if top == 0 or not used.any():
        return out
    w = np.ones(len(values)) if weights is None else weights / weights.mean()
    scaled = _solve(features[:, used] / reach[used], values / top, w, tau)
    scaled[scaled < _ZERO * scaled.max(initial=0.0)] = 0.0
    out[used] = scaled / reach[used] * top
    return out


def _solve(a: Floats, y: Floats, w: Floats, tau: float) -> Floats:
    """The dual: maximise y'x with a'x + s = b, 0 <= x <= w, s >= 0; its multipliers of s are the
    coefficients. Names: t = w - x; z, u and c are the multipliers of x >= 0, x <= w and s >= 0."""
    rows, terms = a.shape
    b = (1 - tau) * (a.T @ w)
    x = (1 - tau) * w
    t = w - x
    s = np.full(terms, max(1.0, 0.05 * rows))
    free = np.full(terms, -0.1)
    z, u, c = np.ones(rows), np.ones(rows), np.ones(terms)
    for _ in range(_STEPS_MAX):
        off_primal = b - a.T @ x - s
        off_dual = -y - a @ free - z + u
        off_slack = -free - c
        gap = float(x @ z + t @ u + s @ c)
        if (
            gap < _GAP * (1 + abs(float(y @ x)))
            and np.abs(off_primal).max() < _FEASIBLE * (1 + np.abs(b).max())
            and np.abs(off_dual).max() < _FEASIBLE
        ):
            return c
        mean = gap / (2 * rows + terms)
        inverse = 1 / (z / x + u / t)
        normal = (a.T * inverse) @ a + np.diag(s / c)

        def direction(
            for_x: Floats | float, for_t: Floats | float, for_s: Floats | float
        ) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
            """The Newton step towards these products x z, t u and s c."""
            g = for_x / x - z - for_t / t + u - off_dual  # noqa: B023
            right = off_primal - a.T @ (inverse * g) - for_s / c + s + s / c * off_slack  # noqa: B023
            d_free = np.linalg.solve(normal, right)  # noqa: B023
            d_x = inverse * (a @ d_free + g)  # noqa: B023
            d_z = for_x / x - z - z / x * d_x  # noqa: B023
            d_u = for_t / t - u + u / t * d_x  # noqa: B023
            d_c = off_slack - d_free  # noqa: B023
            d_s = for_s / c - s - s / c * d_c  # noqa: B023
            return d_free, d_x, d_z, d_u, d_s, d_c

        # straight ahead first: how far that gets says how much to stay in the middle
        _, d_x, d_z, d_u, d_s, d_c = direction(0.0, 0.0, 0.0)
        primal = _reach((x, d_x), (t, -d_x), (s, d_s))
        dual = _reach((z, d_z), (u, d_u), (c, d_c))
        ahead = (
            (x + primal * d_x) @ (z + dual * d_z)
            + (t - primal * d_x) @ (u + dual * d_u)
            + (s + primal * d_s) @ (c + dual * d_c)
        ) / (2 * rows + terms)
        aim = mean * (ahead / mean) ** 3
        d_free, d_x, d_z, d_u, d_s, d_c = direction(
            aim - d_x * d_z, aim + d_x * d_u, aim - d_s * d_c
        )
        primal = _INSIDE * _reach((x, d_x), (t, -d_x), (s, d_s))
        dual = _INSIDE * _reach((z, d_z), (u, d_u), (c, d_c))
        x = x + primal * d_x
        t = w - x
        s = s + primal * d_s
        free = free + dual * d_free
        z, u, c = z + dual * d_z, u + dual * d_u, c + dual * d_c
    raise ArithmeticError(f"the quantile fit did not converge in {_STEPS_MAX} steps")


def _reach(*pairs: tuple[Floats, Floats]) -> float:
    """The longest step, at most 1, that keeps every value above zero."""
    out = 1.0
    for values, change in pairs:
        falling = change < 0
        if falling.any():
            out = min(out, float((-values[falling] / change[falling]).min()))
    return out
