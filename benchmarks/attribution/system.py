"""Draws the hardware and the deployment: step costs, limits, hosts, clocks, links.

Owns constants only. The sizes are those of an 8B model on one accelerator a worker; they vary by
seed, so that no rule of the method can lean on one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from attribution.traffic import Mix, draw_shapes

#: KV cache of Llama-3.1-8B in bf16.
KV_BYTES_PER_TOKEN: Final = 131_072
AGGREGATED: Final = "agg"
DISAGGREGATED: Final = "pd"


@dataclass(frozen=True)
class StepCost:
    """Seconds of one engine step: ``base + per prefilled token + attention + batch + context``."""

    base_s: float
    prefill_s_per_token: float
    attention_s_per_pair: float
    sequence_s: float
    context_s_per_token: float
    jitter: float


@dataclass(frozen=True)
class EngineLimits:
    """What one engine may hold and do in one step."""

    step_tokens: int
    sequences: int
    kv_tokens: int
    cache_tokens: int


@dataclass(frozen=True)
class System:
    """One deployment. Workers 0..engines-1; under P/D the first ``prefill_engines`` prefill."""

    topology: str
    seed: int
    engines: int
    prefill_engines: int
    cost: StepCost
    limits: EngineLimits
    prefill_limits: EngineLimits
    router: str
    one_way_s: float
    link_bytes_per_s: float
    handover_s: float
    rate_per_s: float
    lost_share: float
    skew_s: tuple[float, ...]
    client_spans: bool
    has_gpu_samples: bool = True
    has_metrics: bool = True
    has_engine_spans: bool = True
    host_prefix: str = "gpu"


def draw_system(rng: np.random.Generator, seed: int, topology: str, mix: Mix) -> System:
    """The deployment of one seed, loaded to a bit under half of what it can serve."""
    cost = StepCost(
        base_s=float(rng.uniform(7.5e-3, 11e-3)),
        prefill_s_per_token=float(rng.uniform(28e-6, 50e-6)),
        attention_s_per_pair=float(rng.uniform(0.8e-9, 1.6e-9)),
        sequence_s=float(rng.uniform(30e-6, 70e-6)),
        context_s_per_token=float(rng.uniform(0.03e-6, 0.05e-6)),
        jitter=float(rng.uniform(0.02, 0.05)),
    )
    limits = EngineLimits(
        step_tokens=int(rng.choice([2048, 4096])),
        sequences=int(rng.choice([24, 32, 48])),
        kv_tokens=int(rng.uniform(110e3, 200e3)),
        cache_tokens=int(rng.uniform(250e3, 500e3)),
    )
    prefill_limits = EngineLimits(
        step_tokens=8192,
        sequences=limits.sequences,
        kv_tokens=limits.kv_tokens,
        cache_tokens=limits.cache_tokens,
    )
    pd = topology == DISAGGREGATED
    prefill_engines = int(rng.integers(2, 4)) if pd else 0
    engines = prefill_engines + 2 if pd else int(rng.integers(2, 5))
    load = float(rng.uniform(0.36, 0.5))
    shapes = draw_shapes(mix, np.random.default_rng((seed, 77)), np.zeros(400), first_index=0)
    # about nine in ten of the shared prefixes are found in the cache
    uncached = float(np.mean([r.input_tokens - 0.9 * r.prefix_tokens for r in shapes]))
    output = float(np.mean([r.output_tokens for r in shapes]))
    prefill_s = uncached * cost.prefill_s_per_token + cost.base_s
    token_s = cost.base_s * 1.35
    if pd:
        rate = min(
            load * prefill_engines / prefill_s, load * 2 * limits.sequences / (output * token_s)
        )
    else:
        # prefill stretches decode, and decode takes the slots
        share = min(load * 0.75, 0.35)
        slots = load * limits.sequences / (output * token_s / (1 - share))
        rate = engines * min(share / prefill_s, slots)
    kind = int(rng.integers(0, 3))
    spread = (0.0, 2e-3, 30e-3)[kind]
    return System(
        topology=topology,
        seed=seed,
        engines=engines,
        prefill_engines=prefill_engines,
        cost=cost,
        limits=limits,
        prefill_limits=prefill_limits,
        router=str(rng.choice(["round_robin", "least_loaded"])),
        one_way_s=float(rng.uniform(0.5e-3, 3e-3)),
        link_bytes_per_s=float(rng.uniform(8e9, 20e9)),
        handover_s=float(rng.uniform(10e-3, 40e-3)),
        rate_per_s=rate,
        lost_share=0.01,
        # the last clock is the router's; the client's own is the reference
        skew_s=tuple((rng.normal(0.0, 1.0, engines + 1) * spread).tolist()),
        client_spans=seed % 2 == 0,
    )
