"""Traffic of chance for tests of load: arrivals that know nothing of each other."""

from __future__ import annotations

import numpy as np

from tracekit.analysis.fit import PHASES
from tracekit.analysis.offered import Traffic

_START_NS = 1_790_000_000_000_000_000
_LASTS_NS = 300 * 1_000_000_000


def draw(seed: int, *, n: int = 1_500, workers: int = 1, uneven: float = 0.5) -> Traffic:
    """``n`` requests in 300 s, prefills of 20 to 200 ms (``uneven``: the sigma of their logarithm),
    decodes of one to six seconds."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0, _LASTS_NS, n)).astype(np.int64) + _START_NS
    worker = np.array([f"w{i}" for i in rng.integers(0, workers, n)], dtype=object)
    return Traffic(
        key=np.array([f"k{i:05}" for i in range(n)], dtype=object),
        at=at,
        worker=worker,
        prefill_worker=worker.copy(),
        prefill_ms=rng.lognormal(np.log(60), uneven, n),
        decode_ms=rng.lognormal(np.log(2_500), 0.5, n),
        context=rng.lognormal(np.log(1_000), 0.7, n),
        missed=np.zeros(n, dtype=bool),
        hit_known=np.ones(n, dtype=bool),
        lost={p: np.zeros(n) for p in PHASES},
        took_ms={p: np.full(n, 1_000.0) for p in PHASES},
        part=1.0,
    )


def extra(
    traffic: Traffic, seed: int, *, first: float, last: float, n: int, cost: float = 1.0
) -> Traffic:
    """``n`` more between two parts [1] of the time, their prompts ``cost`` times as dear."""
    more = draw(seed + 1_000, n=n)
    since = first * _LASTS_NS + (more.at - _START_NS) * (last - first)
    at = since.astype(np.int64) + _START_NS
    columns = {
        name: np.concatenate([getattr(traffic, name), getattr(more, name)])
        for name in (
            "key",
            "worker",
            "prefill_worker",
            "decode_ms",
            "context",
            "missed",
            "hit_known",
        )
    }
    both = Traffic(
        **columns,
        at=np.concatenate([traffic.at, at]),
        prefill_ms=np.concatenate([traffic.prefill_ms, more.prefill_ms * cost]),
        lost={p: np.concatenate([v, more.lost[p]]) for p, v in traffic.lost.items()},
        took_ms={p: np.concatenate([v, more.took_ms[p]]) for p, v in traffic.took_ms.items()},
        part=1.0,
    )
    return both.loaded()
