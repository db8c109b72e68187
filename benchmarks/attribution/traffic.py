"""Draws the traffic: who asks for what, when, and what is common to both replays of a request.

Owns requests and their luck (network times, losses), never how they are served. One seed, one
traffic; requests that a fault adds have luck of their own, so the others keep theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BLOCK_TOKENS: Final = 16
MAX_INPUT_TOKENS: Final = 12_000
MAX_OUTPUT_TOKENS: Final = 1_200


@dataclass(frozen=True, slots=True)
class Request:
    """One generation. ``group`` is the shared prefix it starts with (-1: none).

    ``patience_s`` is when its client gives up, counted from its sending; ``added`` says that the
    fault brought it, so that it has no twin in the replay without the fault.
    """

    index: int
    intended_s: float
    route: str
    group: int
    prefix_tokens: int
    input_tokens: int
    output_tokens: int
    patience_s: float
    added: bool = False


@dataclass(frozen=True)
class Luck:
    """Per request, by index: what chance decides outside the servers. Seconds."""

    uplink_s: Floats
    downlink_s: Floats
    tokenise_s: Floats
    route_s: Floats
    lost: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Route:
    name: str
    weight: float
    input_median: float
    input_sigma: float
    output_median: float
    output_sigma: float
    groups: int
    prefix_median: float
    grouped_share: float


#: A chat product, retrieval over documents, an agent with a long fixed preamble.
_ROUTES: Final = (
    _Route("/chat", 0.5, 380, 1.1, 170, 0.7, 6, 350, 0.7),
    _Route("/rag", 0.3, 1_200, 0.9, 110, 0.5, 8, 1_500, 0.55),
    _Route("/agent", 0.2, 450, 1.0, 70, 0.9, 4, 2_800, 0.9),
)


@dataclass(frozen=True)
class Mix:
    """Routes with the sizes of their shared prefixes, drawn once a seed."""

    routes: tuple[_Route, ...]
    prefixes: tuple[tuple[int, ...], ...]
    first_group: tuple[int, ...]

    def sizes_of_groups(self) -> tuple[int, ...]:
        """Tokens of each shared prefix, by group."""
        return tuple(tokens for route in self.prefixes for tokens in route)


def draw_mix(rng: np.random.Generator) -> Mix:
    """A traffic mixture: weights and sizes vary by a third around the typical ones."""
    routes, prefixes, first, count = [], [], [], 0
    for r in _ROUTES:
        wobble = rng.uniform(0.75, 1.3, 3)
        routes.append(
            _Route(
                r.name,
                r.weight * wobble[0],
                r.input_median * wobble[1],
                r.input_sigma,
                r.output_median * wobble[2],
                r.output_sigma,
                r.groups,
                r.prefix_median,
                r.grouped_share,
            )
        )
        drawn = r.prefix_median * rng.lognormal(0.0, 0.35, r.groups)
        prefixes.append(tuple(int(t) // BLOCK_TOKENS * BLOCK_TOKENS for t in drawn))
        first.append(count)
        count += r.groups
    return Mix(tuple(routes), tuple(prefixes), tuple(first))


def draw_shapes(
    mix: Mix, rng: np.random.Generator, times_s: Floats, *, first_index: int, added: bool = False
) -> list[Request]:
    """One request of the mixture at each of ``times_s``; indices count from ``first_index``."""
    n = len(times_s)
    weights = np.array([r.weight for r in mix.routes])
    routes = rng.choice(len(mix.routes), n, p=weights / weights.sum())
    normal = rng.standard_normal((n, 2))
    uniform = rng.uniform(size=(n, 4))
    out = []
    for i in range(n):
        route = mix.routes[routes[i]]
        group, prefix = -1, 0
        if uniform[i, 0] < route.grouped_share:
            # a few prefixes are much more common than the others
            which = int(len(mix.prefixes[routes[i]]) * uniform[i, 1] ** 1.7)
            group = mix.first_group[routes[i]] + which
            prefix = mix.prefixes[routes[i]][which]
        own = route.input_median * np.exp(route.input_sigma * normal[i, 0])
        tokens = min(max(int(own), 8) + prefix, MAX_INPUT_TOKENS)
        output = route.output_median * np.exp(route.output_sigma * normal[i, 1])
        # one client in seventy hangs up early, the others wait for a minute
        patience = 0.3 + 8.0 * uniform[i, 3] if uniform[i, 2] < 1 / 70 else 60.0
        out.append(
            Request(
                index=first_index + i,
                intended_s=float(times_s[i]),
                route=route.name,
                group=group,
                prefix_tokens=prefix,
                input_tokens=tokens,
                output_tokens=min(max(int(output), 1), MAX_OUTPUT_TOKENS),
                patience_s=float(patience),
                added=added,
            )
        )
    return out


def poisson_times(rng: np.random.Generator, rate_per_s: float, n: int) -> Floats:
    """``n`` arrivals of a Poisson process, whose rate wanders by a tenth as real traffic does."""
    gaps = rng.exponential(1.0 / rate_per_s, n)
    at = np.cumsum(gaps)
    swing = 1.0 + 0.1 * np.sin(2 * np.pi * at / (at[-1] / 2.5) + rng.uniform(0, 6.3))
    return np.asarray(np.cumsum(gaps / swing))


def draw_luck(
    rng: np.random.Generator, n: int, *, one_way_s: float, input_tokens: Floats, lost_share: float
) -> Luck:
    """Luck of ``n`` requests: lognormal network times, tokenising by prompt length, lost spans."""
    return Luck(
        uplink_s=one_way_s * rng.lognormal(0.0, 0.35, n),
        downlink_s=one_way_s * rng.lognormal(0.0, 0.35, n),
        tokenise_s=1.2e-3 * rng.lognormal(0.0, 0.4, n) + 1.5e-6 * input_tokens,
        route_s=0.6e-3 * rng.lognormal(0.0, 0.3, n),
        lost=rng.uniform(size=n) < lost_share,
    )
