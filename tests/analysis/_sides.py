"""Two sides of a comparison made from `factory` traffic, whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.analysis import factory
from tests.analysis.factory import Traffic
from tracekit.analysis.compare import compare_sides
from tracekit.analysis.compare_rules import CompareRules
from tracekit.analysis.compare_side import SideData, read_side
from tracekit.analysis.comparison import Comparison, Metric, PhaseSplit

#: Fewer draws than a user gets: the tests are many.
RULES = CompareRules(draws=300)


def side(traffic: Traffic, name: str, *, where: str = "true") -> SideData:
    """The traffic as side ``name``."""
    return read_side(
        traffic.connect(),
        name=name,
        text=f"side {name}",
        store="store",
        where=where,
        needs_clock=False,
        rules=RULES,
    )


def compared(a: Traffic, b: Traffic, **options: Any) -> Comparison:
    """`compare_sides` over two traffics."""
    return compare_sides(side(a, "A"), side(b, "B"), **{"rules": RULES, **options})


def metric(result: Comparison, name: str) -> Metric:
    found = result.metric(name)
    assert found is not None and found.split is not None
    return found


def phase(result: Comparison, name: str, of: str = "ttft_ms") -> PhaseSplit:
    (found,) = [p for p in metric(result, of).phases if p.phase == name]
    return found


def two_models(seed: int, share_large: float, factor: float, n: int = 800) -> Traffic:
    """A small and a large model (5 times the prefill, 3 times the decode), both times a factor."""
    small = factory.clean(n - int(n * share_large), seed=seed, model="m8b")
    large = factory.clean(int(n * share_large), seed=seed + 50, model="m70b")
    large.phases["prefill"] *= 5
    large.phases["decode"] *= 3
    for part in (small, large):
        part.phases["prefill"] *= factor
        part.phases["decode"] *= factor
    return factory.join(small, large)


def bursty(traffic: Traffic, seed: int, *, bursts: float = 6) -> Traffic:
    """Queueing in a few bursts that whole stretches of requests share."""
    rng = np.random.default_rng(seed)
    start = np.asarray(traffic.columns["start_unix_ns"], dtype=np.int64)
    for _ in range(rng.poisson(bursts)):
        at = rng.integers(start.min(), start.max())
        hit = (start >= at) & (start < at + rng.exponential(5e9))
        traffic.phases["queue"][hit] += rng.exponential(800)
    return traffic
