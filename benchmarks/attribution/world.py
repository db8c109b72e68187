"""One seed's world: traffic, deployment and luck, the same for every replay of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from attribution.cluster import Placement, Replay, simulate
from attribution.faults import Fault
from attribution.system import System, draw_system
from attribution.traffic import Luck, Mix, Request, draw_luck, draw_mix, draw_shapes, poisson_times

REQUESTS: Final = 1_500


@dataclass(frozen=True)
class World:
    """What every replay of one seed and topology shares."""

    seed: int
    system: System
    mix: Mix
    requests: tuple[Request, ...]


@lru_cache(maxsize=4)
def make_world(seed: int, topology: str, requests: int = REQUESTS) -> World:
    """The world of a seed. Streams of chance are apart, so that changing one leaves the others."""
    mix = draw_mix(np.random.default_rng((seed, 1)))
    system = draw_system(np.random.default_rng((seed, 2)), seed, topology, mix)
    times = poisson_times(np.random.default_rng((seed, 3)), system.rate_per_s, requests)
    shapes = draw_shapes(mix, np.random.default_rng((seed, 4)), times, first_index=0)
    return World(seed, system, mix, tuple(shapes))


def replay(
    world: World,
    faults: tuple[Fault, ...] = (),
    *,
    without: int | None = None,
    placed: Placement | None = None,
) -> Replay:
    """Run the world's requests under ``faults`` (and those they add), but for one request.

    The request ``without`` is left out as if it had never been sent; the luck of the others does
    not change. ``placed``: requests go to the engines that they went to in another replay, instead
    of where the router would send them now.
    """
    added = [r for f in faults for r in f.added]
    requests = [r for r in (*world.requests, *added) if r.index != without]
    requests.sort(key=lambda r: (r.intended_s, r.index))
    return simulate(
        world.system,
        requests,
        _luck(world, added),
        world.mix.sizes_of_groups(),
        tuple(f.condition for f in faults),
        placed,
    )


def _luck(world: World, added: list[Request]) -> Luck:
    own = _draw(world, world.requests, 6)
    if not added:
        return own
    more = _draw(world, tuple(sorted(added, key=lambda r: r.index)), 7)
    return Luck(
        *(
            np.concatenate([getattr(own, name), getattr(more, name)])
            for name in ("uplink_s", "downlink_s", "tokenise_s", "route_s", "lost")
        )
    )


def _draw(world: World, requests: tuple[Request, ...], stream: int) -> Luck:
    return draw_luck(
        np.random.default_rng((world.seed, stream)),
        len(requests),
        one_way_s=world.system.one_way_s,
        input_tokens=np.array([float(r.input_tokens) for r in requests]),
        lost_share=world.system.lost_share,
    )
