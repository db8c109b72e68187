"""One metric of two sides over all draws: its statistics and its split by phase.

Owns what is computed for a metric before anybody asks whether it is a change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.analysis.compare_kinds import (
    RECORDED,
    SIZES,
    Kinds,
    Sizes,
    common_kinds,
    phases_known,
    sizes_of,
)
from tracekit.analysis.compare_rules import CompareRules
from tracekit.analysis.compare_side import SideData
from tracekit.analysis.compare_split import Drawn, Floats, Ints, KindMeans, Part, split
from tracekit.analysis.compare_stats import drawn_quantiles, tail_slices
from tracekit.names import PHASES, TTFT_PHASES

#: Metrics in display order, with the phases that make them up.
METRICS: Final[Mapping[str, tuple[str, ...]]] = {
    "ttft_ms": TTFT_PHASES,
    "tpot_ms": ("decode",),
    "e2e_ms": tuple(p for p in PHASES if p != "unexplained"),
}
REST: Final = "rest"
LEVELS: Final[Mapping[str, float]] = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
STATISTICS: Final = ("mean", *LEVELS)
#: A remainder below this on both sides is rounding, not time.
_NOTHING_MS: Final = 1e-6


@dataclass(frozen=True)
class Resampled:
    """A side with the slice of every row and how often each slice is in each draw."""

    data: SideData
    slices: Ints
    draws: Floats


@dataclass(frozen=True)
class Component:
    """One phase of a metric (or ``rest``): its split, and what the split was made from."""

    phase: str
    drawn: Drawn
    kinds: KindMeans
    a: Part
    b: Part
    #: recorded numbers that the split rests on but that hardly overlap, or that a side lacks
    apart: tuple[str, ...]


@dataclass(frozen=True)
class DrawnMetric:
    """``statistics[name]`` are (A, B - A over draws, B); ``a_at_least`` with the killed ones."""

    metric: str
    a_n: int
    b_n: int
    a_values: Mapping[str, float]
    b_values: Mapping[str, float]
    a_at_least: Mapping[str, float]
    b_at_least: Mapping[str, float]
    differences: Mapping[str, Floats]
    #: per quantile, how many slices its tail comes from on the side where they are fewer
    tails: Mapping[str, float]
    kinds: Kinds
    sizes: Sizes
    components: tuple[Component, ...]
    rows_a: npt.NDArray[np.bool_]
    rows_b: npt.NDArray[np.bool_]
    #: (side, phase, share of its rows that know it)
    unknown_phases: tuple[tuple[str, str, float], ...]
    #: the phases both know stand for the metric: its own begin or end differs between the sides
    from_phases: bool

    @property
    def whole(self) -> Drawn:
        """The split of the metric: the sum of its components."""
        return reduce(add, (c.drawn for c in self.components))

    @property
    def kind_means(self) -> KindMeans:
        """Per kind of traffic, the sum over the components (fits left out)."""
        parts = [c.kinds for c in self.components]
        return KindMeans(
            a_mean=np.sum([p.a_mean for p in parts], axis=0),
            b_mean=np.sum([p.b_mean for p in parts], axis=0),
            cost=np.sum([p.cost for p in parts], axis=0),
            a_fit=np.empty(0),
        )


def known_values(side: SideData, metric: str, floor: Sequence[str] | None) -> Floats:
    """The metric per row; as the sum of these phases where ``floor`` names them."""
    if floor is None:
        return side.numbers[metric]
    total: Floats = np.sum([np.nan_to_num(side.numbers[f"{p}_ms"]) for p in floor], axis=0)
    return np.where(np.isnan(side.numbers[metric]), np.nan, total)


def draw_metric(
    metric: str,
    a: Resampled,
    b: Resampled,
    *,
    by: Sequence[str],
    from_phases: bool,
    rules: CompareRules,
) -> DrawnMetric | None:
    """Everything of one metric; None if a side has too few rows, or nothing common to stand for it.

    ``by`` are the columns that kinds of traffic are told apart by.
    """
    rows_a, rows_b = (s.data.completed & ~np.isnan(s.data.numbers[metric]) for s in (a, b))
    if min(int(rows_a.sum()), int(rows_b.sum())) < rules.min_rows:
        return None
    both, unknown = phases_known(a.data, b.data, rows_a, rows_b, METRICS[metric], rules)
    if from_phases and not both:
        return None
    floor = both if from_phases else None
    values_a, values_b = (known_values(s.data, metric, floor) for s in (a, b))
    kinds = common_kinds(a.data, b.data, rows_a, rows_b, by, rules)
    sizes = sizes_of(a.data, b.data, rows_a, rows_b, kinds, rules)

    def component(phase: str, key: str, left: Floats, right: Floats) -> Component:
        return _component(
            phase, key, left, right,
            sides=(a, b), rows=(rows_a, rows_b), kinds=kinds, sizes=sizes, rules=rules,
        )  # fmt: skip

    if metric == "tpot_ms":
        components = [component("decode", "tpot", values_a, values_b)]
    else:
        phases = [(p, *_phase(p, a.data, b.data)) for p in both]
        # what takes part nowhere is no phase of this traffic
        phases = [x for x in phases if x[1][rows_a].any() or x[2][rows_b].any()]
        components = [component(p, p, left, right) for p, left, right in phases]
        rest_a = values_a - sum((left for _, left, _ in phases), np.zeros(a.data.n))
        rest_b = values_b - sum((right for _, _, right in phases), np.zeros(b.data.n))
        largest = max(np.abs(rest_a[rows_a]).max(), np.abs(rest_b[rows_b]).max())
        if not phases or largest > _NOTHING_MS:
            key = f"rest_{metric.removesuffix('_ms')}"
            components.append(component(REST, key, rest_a, rest_b))
    left, right = _quantiles(a, values_a, rows_a), _quantiles(b, values_b, rows_b)
    whole = reduce(add, (c.drawn for c in components))
    differences = {name: right[name] - left[name] for name in LEVELS}
    return DrawnMetric(
        metric=metric,
        a_n=int(rows_a.sum()),
        b_n=int(rows_b.sum()),
        a_values={"mean": whole.a_mean, **{k: float(v[0]) for k, v in left.items()}},
        b_values={"mean": whole.b_mean, **{k: float(v[0]) for k, v in right.items()}},
        a_at_least={} if from_phases else at_least(a.data, metric),
        b_at_least={} if from_phases else at_least(b.data, metric),
        differences={"mean": whole.total, **differences},
        tails={
            name: min(
                tail_slices(values[rows], side.slices[rows], level)
                for side, values, rows in ((a, values_a, rows_a), (b, values_b, rows_b))
            )
            for name, level in LEVELS.items()
        },
        kinds=kinds,
        sizes=sizes,
        components=tuple(components),
        rows_a=rows_a,
        rows_b=rows_b,
        unknown_phases=unknown,
        from_phases=from_phases,
    )


def _phase(phase: str, a: SideData, b: SideData) -> tuple[Floats, Floats]:
    left, right = (np.nan_to_num(s.numbers[f"{phase}_ms"]) for s in (a, b))
    return left, right


def _component(
    phase: str,
    key: str,
    values_a: Floats,
    values_b: Floats,
    *,
    sides: tuple[Resampled, Resampled],
    rows: tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]],
    kinds: Kinds,
    sizes: Sizes,
    rules: CompareRules,
) -> Component:
    wanted = SIZES[key]
    used = [name for name in wanted if name in sizes.known]
    # a size that a side lacks, or two sides that share no range: mix and cost look alike
    lacking = {field for _, field in sizes.lacking}
    needed = dict.fromkeys(RECORDED[name] for name in wanted)
    apart = tuple(
        f for f in needed if f in lacking or sizes.support[f] < rules.support_share
    )  # fmt: skip

    def part(i: int, values: Floats, x: Mapping[str, Floats], z: Mapping[str, Floats]) -> Part:
        mask, side = rows[i], sides[i]
        one = np.ones(int(mask.sum()))
        return Part(
            values=values[mask],
            x=np.column_stack([one, *(x[name][mask] for name in used)]),
            z=np.column_stack([one, *(z[name][mask] for name in used)]),
            kinds=(kinds.a, kinds.b)[i][mask],
            slices=side.slices[mask],
            draws=side.draws,
        )

    left = part(0, values_a, sizes.x_a, sizes.z_a)
    right = part(1, values_b, sizes.x_b, sizes.z_b)
    drawn, means = split(left, right, kinds.count)
    return Component(phase, drawn, means, left, right, apart)


def _quantiles(side: Resampled, values: Floats, rows: npt.NDArray[np.bool_]) -> dict[str, Floats]:
    drawn = drawn_quantiles(values[rows], side.slices[rows], side.draws, tuple(LEVELS.values()))
    return {name: drawn[:, i] for i, name in enumerate(LEVELS)}


def plain_statistics(side: SideData, metric: str) -> tuple[int, dict[str, float]]:
    """n, mean and quantiles of one side by itself."""
    values = side.numbers[metric][side.completed]
    values = values[~np.isnan(values)]
    if not len(values):
        return 0, {}
    quantiles = {k: float(np.quantile(values, q)) for k, q in LEVELS.items()}
    return len(values), {"mean": float(values.mean()), **quantiles}


def at_least(side: SideData, metric: str) -> dict[str, float]:
    """Quantiles with the killed requests in, each at the time it had lasted; {} if there are none.

    Time per token says nothing of a request that was killed.
    """
    if metric == "tpot_ms" or side.completed.all():
        return {}
    values = side.numbers[metric]
    values = values[~np.isnan(values)]
    return {k: float(np.quantile(values, q)) for k, q in LEVELS.items()} if len(values) else {}


def worker_shifts(
    component: Component, a: SideData, b: SideData, metric: DrawnMetric, rules: CompareRules
) -> list[tuple[str, int, float]]:
    """(worker, its requests on B, how much more they cost than their sizes did on A) [ms].

    A worker that A has too is held against itself, so that a slow old worker is no news.
    """
    column = "prefill_worker" if component.phase in TTFT_PHASES else "worker"
    fit = component.kinds.a_fit
    off: list[Floats] = []
    for part in (component.a, component.b):
        kinds = np.maximum(part.kinds, 0)
        off.append(part.values - (part.x * fit[kinds]).sum(axis=1))
    names_a = np.asarray(a.texts[column], dtype=object)[a.codes[column][metric.rows_a]]
    names_b = np.asarray(b.texts[column], dtype=object)[b.codes[column][metric.rows_b]]
    out: list[tuple[str, int, float]] = []
    for worker in sorted({*names_b} - {""}):
        on_b = (names_b == worker) & (component.b.kinds >= 0)
        on_a = (names_a == worker) & (component.a.kinds >= 0)
        if int(on_b.sum()) < rules.min_worker_rows:
            continue
        before = float(off[0][on_a].mean()) if int(on_a.sum()) >= rules.min_worker_rows else 0.0
        out.append((str(worker), int(on_b.sum()), float(off[1][on_b].mean()) - before))
    return sorted(out, key=lambda w: (-abs(w[2]), w[0]))
