"""The thirteen faults: what each does to the cluster between two times, at three intensities.

Owns the injections and nothing of how they show. A fault changes conditions (`Condition`) or adds
requests; the requests that were there before stay the same, so that each has a twin in the replay
without the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from attribution.system import AGGREGATED, DISAGGREGATED, KV_BYTES_PER_TOKEN, System
from attribution.traffic import (
    MAX_INPUT_TOKENS,
    MAX_OUTPUT_TOKENS,
    Floats,
    Mix,
    Request,
    draw_shapes,
)

INTENSITIES: Final = (1, 2, 3)
_LONGEST_TOKENS: Final = 16_000


@dataclass(frozen=True)
class Condition:
    """What is different between ``start_s`` and ``end_s``. Defaults change nothing."""

    start_s: float
    end_s: float
    #: worker -> factor on its prefill and on its decode costs
    slow: dict[int, tuple[float, float]] = field(default_factory=dict)
    #: share of the KV memory that is left, on engines that prefill and on decode engines
    kv_share: float = 1.0
    decode_kv_share: float = 1.0
    #: caches are emptied this often
    flush_every_s: float | None = None
    link_factor: float = 1.0
    #: a router that sends this share of the requests to one worker
    stuck_worker: int = 0
    stuck_share: float = 0.0
    client_limit: int | None = None
    #: share of the requests whose KV parameters get lost between the two engines
    double_prefill_share: float = 0.0
    #: the API server's event loop stands still: (start, end)
    stalls: tuple[tuple[float, float], ...] = ()
    #: worker -> SM clock as a share of the usual one, seen by the GPU sampler only
    clock: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """One injected fault: its condition and the requests it adds."""

    name: str
    intensity: int
    condition: Condition
    added: tuple[Request, ...] = ()


_Made = tuple[Condition, Sequence[Request]]


@dataclass(frozen=True)
class _Context:
    """What a fault is made from: the world, and when [s] it begins and ends."""

    system: System
    mix: Mix
    rng: np.random.Generator
    level: int
    start: float
    end: float
    first_index: int

    def pick(self, *values: float) -> float:
        """The value of this intensity."""
        return values[self.level - 1]

    def usual(self, stream: int) -> list[Request]:
        """A sample of the usual shapes."""
        rng = np.random.default_rng((self.system.seed, stream))
        return draw_shapes(self.mix, rng, np.zeros(400), first_index=0)


def _times(c: _Context, start: float, end: float, n: int) -> Floats:
    return np.asarray(np.sort(c.rng.uniform(start, end, n)))


def _more(c: _Context, times: Floats) -> list[Request]:
    """More requests of the usual mixture."""
    return draw_shapes(c.mix, c.rng, times, first_index=c.first_index, added=True)


def _burst(c: _Context) -> _Made:
    """Three spikes, each of as many requests as usually come in 4, 8 or 14 s, within 1.5 s."""
    size = int(c.system.rate_per_s * c.pick(4.0, 8.0, 14.0))
    at = c.start + (c.end - c.start) * (np.arange(3) + c.rng.uniform(0.1, 0.7, 3)) / 3
    times = np.sort(np.concatenate([_times(c, float(t), float(t) + 1.5, size) for t in at]))
    return Condition(c.start, c.end), _more(c, times)


def _capacity(c: _Context) -> _Made:
    """Traffic grows to 1.7, 2 or 2.4 times the usual and stays there."""
    n = int(c.system.rate_per_s * c.pick(0.7, 1.0, 1.4) * (c.end - c.start))
    return Condition(c.start, c.end), _more(c, _times(c, c.start, c.end, n))


def _long_prompts(c: _Context) -> _Made:
    """Prompts of 5,000 to 16,000 tokens, at one in 20, one in 12 or one in 8 of the usual rate."""
    n = int(c.system.rate_per_s * c.pick(0.05, 0.08, 0.13) * (c.end - c.start))
    out = []
    for i, at in enumerate(_times(c, c.start, c.end, max(n, 4))):
        tokens = int(np.clip(c.rng.lognormal(np.log(9_000), 0.45), 5_000, _LONGEST_TOKENS))
        route = c.mix.routes[int(c.rng.integers(len(c.mix.routes)))].name
        out.append(
            Request(
                index=c.first_index + i,
                intended_s=float(at),
                route=route,
                group=-1,
                prefix_tokens=0,
                input_tokens=tokens,
                output_tokens=int(c.rng.integers(40, 200)),
                patience_s=60.0,
                added=True,
            )
        )
    return Condition(c.start, c.end), out


def _cache_flush(c: _Context) -> _Made:
    """The prefix caches are emptied every 6 s, every 2 s, all the time."""
    return Condition(c.start, c.end, flush_every_s=c.pick(6.0, 2.0, 0.2)), ()


def _kv_pressure(c: _Context) -> _Made:
    """KV memory shrinks to 150 % of what the usual load needs, to 120 % and to 95 %."""
    return Condition(c.start, c.end, kv_share=_tight(c)), ()


def _kv_wait(c: _Context) -> _Made:
    """The same on the decode engines: a request waits for memory before its transfer."""
    return Condition(c.start, c.end, decode_kv_share=_tight(c)), ()


def _tight(c: _Context) -> float:
    """The share of KV memory that is so much of the usual need, by Little's law."""
    decoders = c.system.engines - c.system.prefill_engines
    token_s = c.system.cost.base_s * (1.1 if c.system.prefill_engines else 1.5)
    held = [r.output_tokens * token_s * (r.input_tokens + r.output_tokens / 2) for r in c.usual(78)]
    usual = c.system.rate_per_s / decoders * float(np.mean(held))
    # the longest request must fit, or it would wait forever
    needed = max(c.pick(1.5, 1.2, 0.95) * usual, MAX_INPUT_TOKENS + MAX_OUTPUT_TOKENS + 500)
    return needed / c.system.limits.kv_tokens


def _slow_link(c: _Context) -> _Made:
    """The link becomes so slow that the usual load keeps it busy for 45, 70 or 90 % of the time."""
    decoders = c.system.engines - c.system.prefill_engines
    prompt = float(np.mean([r.input_tokens for r in c.usual(80)]))
    offered = c.system.rate_per_s / decoders * prompt * KV_BYTES_PER_TOKEN
    factor = offered / c.pick(0.45, 0.7, 0.9) / c.system.link_bytes_per_s
    return Condition(c.start, c.end, link_factor=min(factor, 0.8)), ()


def _slow_worker(c: _Context) -> _Made:
    """One worker takes 1.3, 1.7 or 2.5 times as long for everything."""
    factor = c.pick(1.3, 1.7, 2.5)
    worker = int(c.rng.integers(c.system.engines))
    return Condition(c.start, c.end, slow={worker: (factor, factor)}), ()


def _throttled_gpu(c: _Context) -> _Made:
    """One GPU's clock falls to 70, 50 or 35 %: prefill suffers in full, decode in part."""
    clock = c.pick(0.70, 0.50, 0.35)
    worker = int(c.rng.integers(c.system.engines))
    factors = (1 / clock, 1 + 0.55 * (1 / clock - 1))
    return Condition(c.start, c.end, slow={worker: factors}, clock={worker: clock}), ()


def _router_imbalance(c: _Context) -> _Made:
    """A router sends 35, 50 or 75 % to one worker, besides that worker's share of the rest."""
    worker = int(c.rng.integers(64))
    share = c.pick(0.35, 0.5, 0.75)
    return Condition(c.start, c.end, stuck_worker=worker, stuck_share=share), ()


def _client_wait(c: _Context) -> _Made:
    """The client allows itself 30 % more calls in flight than the load needs, 10 %, none."""
    token_s = c.system.cost.base_s * (1.15 if c.system.prefill_engines else 1.4)
    seconds = float(np.mean([r.output_tokens for r in c.usual(79)])) * token_s
    limit = max(2, int(c.pick(1.3, 1.1, 1.0) * c.system.rate_per_s * seconds))
    return Condition(c.start, c.end, client_limit=limit), ()


def _double_prefill(c: _Context) -> _Made:
    """30, 60 or all of the requests lose their KV parameters: decode engines prefill again."""
    return Condition(c.start, c.end, double_prefill_share=c.pick(0.3, 0.6, 1.0)), ()


def _frontend_stall(c: _Context) -> _Made:
    """The API servers stand still for 0.3, 0.7 or 1.5 s, about every 5 s."""
    seconds = c.pick(0.3, 0.7, 1.5)
    stalls, at = [], c.start
    while at + seconds < c.end:
        stalls.append((at, at + seconds * float(c.rng.uniform(0.8, 1.2))))
        at += seconds + float(c.rng.uniform(3.0, 6.0))
    return Condition(c.start, c.end, stalls=tuple(stalls)), ()


_MAKERS: Final[dict[str, Callable[[_Context], _Made]]] = {
    "burst": _burst,
    "capacity": _capacity,
    "long_prompts": _long_prompts,
    "cache_flush": _cache_flush,
    "kv_pressure": _kv_pressure,
    "slow_link": _slow_link,
    "kv_wait": _kv_wait,
    "slow_worker": _slow_worker,
    "throttled_gpu": _throttled_gpu,
    "router_imbalance": _router_imbalance,
    "client_wait": _client_wait,
    "double_prefill": _double_prefill,
    "frontend_stall": _frontend_stall,
}
FAULTS: Final = tuple(_MAKERS)

#: Faults of the hand-over between two engines.
_ONLY_PD: Final = frozenset(("slow_link", "kv_wait", "double_prefill"))
#: A prefill engine holds little; where a decode engine's memory is short, the fault is kv_wait.
_ONLY_AGGREGATED: Final = frozenset(("kv_pressure",))


def exists_in(fault: str, topology: str) -> bool:
    """False for faults of a part that the topology lacks."""
    return fault not in (_ONLY_AGGREGATED if topology == DISAGGREGATED else _ONLY_PD)


def make(
    name: str,
    intensity: int,
    *,
    system: System,
    mix: Mix,
    seed: int,
    requests: Sequence[Request],
    first_index: int | None = None,
    window: tuple[float, float] | None = None,
) -> Fault:
    """The fault over a quarter to seven tenths of the run, after a healthy beginning.

    ``window`` overrides that part, as shares of the run.
    """
    rng = np.random.default_rng((seed, FAULTS.index(name), system.topology == AGGREGATED))
    length = requests[-1].intended_s
    begin, share = rng.uniform(0.18, 0.3), rng.uniform(0.25, 0.7)
    low, high = window or (float(begin), float(begin + share))
    count = len(requests) if first_index is None else first_index
    context = _Context(system, mix, rng, intensity, low * length, high * length, count)
    condition, added = _MAKERS[name](context)
    return Fault(name, intensity, condition, tuple(added))
