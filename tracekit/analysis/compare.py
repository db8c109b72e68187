"""Composes the comparison of two sides: what changed, in which phase, by mix or by cost.

Owns the composition and the decision what counts as a change (`CompareRules`). The arithmetic is in
`compare_split` and `compare_stats`, the words in `compare_words`, the shape in `comparison`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from tracekit.analysis import compare_evidence as evidence
from tracekit.analysis import compare_words as words
from tracekit.analysis.compare_changes import Key, Tests, add_metric, could_matter
from tracekit.analysis.compare_metric import (
    METRICS,
    STATISTICS,
    DrawnMetric,
    Resampled,
    at_least,
    draw_metric,
    plain_statistics,
    worker_shifts,
)
from tracekit.analysis.compare_notes import elsewhere, shared
from tracekit.analysis.compare_rules import CompareRules
from tracekit.analysis.compare_side import (
    SideData,
    SideSpec,
    condition,
    read_side,
)
from tracekit.analysis.compare_split import Drawn, Floats
from tracekit.analysis.compare_stats import draw_weights, time_slices
from tracekit.analysis.comparison import (
    Comparison,
    Effect,
    Metric,
    PhaseSplit,
    ShareChange,
    Split,
    Statistic,
    Stratum,
    StratumMeans,
    WorkerShift,
)
from tracekit.analysis.diagnosis import SloInfo
from tracekit.analysis.session import Session
from tracekit.analysis.slo import GIVEN, Slo
from tracekit.analysis.window import ALL, Window, format_time

#: Columns that kinds of traffic are told apart by, unless they are what is compared.
_BY: Final = ("model", "route")


def compare(
    a: SideSpec,
    b: SideSpec,
    *,
    store: Path,
    window: Window = ALL,
    model: str | None = None,
    route: str | None = None,
    slo: Slo | None = None,
    rules: CompareRules | None = None,
) -> Comparison:
    """What changed from side ``a`` to side ``b``.

    ``store`` and ``window`` are those of a side that names none; ``model`` and ``route`` narrow
    both. Raises UsageError where the two sides are the same requests, or there is no such store.
    """
    rules = rules or CompareRules()
    sides: list[SideData] = []
    notes: list[str] = []
    with ExitStack() as stack:
        paths = [(s.store or store).resolve() for s in (a, b)]
        sessions: dict[Path, Session] = {}
        for path in paths:
            if path not in sessions:
                sessions[path] = stack.enter_context(Session.open(path))
        by_window = paths[0] == paths[1] and any(s.window is not None for s in (a, b))
        for name, spec, path in zip(("A", "B"), (a, b), paths, strict=True):
            session = sessions[path]
            session.focus(window=spec.window or window, model=model, route=route)
            sides.append(
                read_side(
                    session.con,
                    name=name,
                    text=_readable(spec.text),
                    store=str(spec.store or store),
                    where=condition(spec.labels),
                    needs_clock=by_window,
                    rules=rules,
                )
            )
            if not sides[-1].info.requests.total:
                notes += elsewhere(session, name, spec.labels)
        if paths[0] == paths[1]:
            notes += shared(sessions[paths[0]], sides)
    labels = {name for spec in (a, b) for name, _ in spec.labels}
    by = tuple(c for c in _BY if c not in labels)
    return compare_sides(sides[0], sides[1], slo=slo, rules=rules, by=by, notes=notes)


def _readable(text: str) -> str:
    """A side as it was written, unix ns as times."""
    return re.sub(r"\b\d{16,19}\b", lambda m: format_time(int(m.group())), text)


def compare_sides(
    a: SideData,
    b: SideData,
    *,
    slo: Slo | None = None,
    rules: CompareRules | None = None,
    by: Sequence[str] = _BY,
    notes: Sequence[str] = (),
) -> Comparison:
    """`compare` on two sides already read; ``by`` are the columns that tell kinds apart."""
    rules, slo = rules or CompareRules(), slo or Slo()
    left, right = _resampled(a, rules, 0), _resampled(b, rules, 1)
    a, b = left.data, right.data
    enough = min(a.info.requests.completed, b.info.requests.completed) >= rules.min_rows
    tests = Tests(rules, freedom=max(1, min(a.info.slices, b.info.slices) - 1))
    apart = evidence.measured_apart(a, b)
    drawn: dict[str, DrawnMetric] = {}
    for metric in METRICS if enough else ():
        made = draw_metric(
            metric, left, right, by=by,
            from_phases=metric in apart, rules=rules,
        )  # fmt: skip
        if made is not None:
            add_metric(tests, made, drawn.get("ttft_ms"))
            drawn[metric] = made
    if enough:
        tests.share(("completed",), _share_draws(left, right, *(s.completed for s in (a, b))))
        if slo.source == GIVEN:
            tests.share(("goodput",), _goodput_draws(left, right, slo))
    tests.settle()
    metrics = tuple(_metric(m, a, b, drawn.get(m), tests, apart, rules) for m in METRICS)
    workers = tuple(w for m in drawn.values() for w in _workers(m, a, b, tests, rules))
    first = next((drawn[m] for m in ("e2e_ms", "ttft_ms", "tpot_ms") if m in drawn), None)
    result = Comparison(
        verdict="",
        sentence="",
        a=a.info,
        b=b.info,
        slo=SloInfo(**slo.to_json()),
        completed=_share(a.completed, b.completed, tests.effects.get(("completed",))),
        goodput=_goodput(a, b, slo, tests.effects.get(("goodput",)))
        if slo.source == GIVEN
        else None,
        metrics=metrics,
        stratified_by=tuple(by),
        strata=_strata(drawn, first),
        workers=workers,
        simpson=None,
        missing_evidence=evidence.missing(a, b, metrics, list(drawn.values()), rules),
        notes=(*notes, *evidence.notes(a, b, list(drawn.values()), apart, by, rules)),
        method={
            "rules": rules.to_json(),
            "tests": len(tests.tested),
            "decomposition": "total = mix + cache + cost",
            "interval": rules.interval,
        },
    )
    result = replace(result, simpson=words.simpson(result))
    verdict, sentence = words.conclude(result, rules)
    return replace(result, verdict=verdict, sentence=sentence)


def _resampled(side: SideData, rules: CompareRules, number: int) -> Resampled:
    wall = side.numbers["e2e_ms"][side.completed]
    wall = wall[~np.isnan(wall)]
    lasting = rules.slice_walls * float(np.quantile(wall, 0.95)) if len(wall) else 0.0
    seed = rules.seed + number
    slices, count = time_slices(
        side.numbers["arrival_unix_ns"],
        lasting_ms=lasting,
        fewest=rules.min_slices,
        most=rules.max_slices,
        seed=seed,
    )
    data = replace(side, info=replace(side.info, slices=count))
    return Resampled(data, slices, draw_weights(count, draws=rules.draws, seed=seed))


def _split(drawn: Drawn, key: Key, effects: Mapping[Key, Effect], apart: Sequence[str]) -> Split:
    return Split(
        total=effects[(*key, "total")],
        mix=effects[(*key, "mix")],
        models_routes_ms=float(drawn.models_routes[0]),
        shapes_ms=float(drawn.shapes[0]),
        one_sided_ms=float(drawn.one_sided[0]),
        cache=effects[(*key, "cache")],
        cost=effects[(*key, "cost")],
        apart=tuple(apart),
    )


def _metric(
    name: str,
    a: SideData,
    b: SideData,
    drawn: DrawnMetric | None,
    tests: Tests,
    apart: Mapping[str, str],
    rules: CompareRules,
) -> Metric:
    effects = tests.effects
    a_values: Mapping[str, float]
    b_values: Mapping[str, float]
    a_least: Mapping[str, float]
    b_least: Mapping[str, float]
    if drawn is None:
        a_n, a_values = plain_statistics(a, name)
        b_n, b_values = plain_statistics(b, name)
        a_least, b_least = at_least(a, name), at_least(b, name)
    else:
        a_n, b_n, a_values, b_values = drawn.a_n, drawn.b_n, drawn.a_values, drawn.b_values
        a_least, b_least = drawn.a_at_least, drawn.b_at_least

    def value(values: Mapping[str, float], n: int, statistic: str) -> float | None:
        return values.get(statistic) if n >= rules.needed(statistic) else None

    statistics = tuple(
        Statistic(
            statistic=s,
            a_ms=value(a_values, a_n, s),
            b_ms=value(b_values, b_n, s),
            a_at_least_ms=value(a_least, a_n, s),
            b_at_least_ms=value(b_least, b_n, s),
            effect=effects.get((name, s)),
        )
        for s in STATISTICS
    )
    if drawn is None:
        return Metric(
            name,
            a_n,
            b_n,
            statistics,
            None,
            (),
            evidence.not_compared(name, a_n, b_n, apart, rules),
        )
    whole = drawn.whole
    phases = tuple(
        PhaseSplit(
            phase=c.phase,
            a_ms=c.drawn.a_mean,
            b_ms=c.drawn.b_mean,
            cost_share=float(c.drawn.cost[0]) / c.drawn.a_mean if c.drawn.a_mean > 0 else None,
            split=_split(c.drawn, (name, c.phase), effects, c.apart)
            if len(drawn.components) > 1
            else _split(c.drawn, (name, "split"), effects, c.apart),
        )
        for c in drawn.components
    )
    apart_by = (f for c in drawn.components if could_matter(c.drawn, name, rules) for f in c.apart)
    split = _split(whole, (name, "split"), effects, tuple(dict.fromkeys(apart_by)))
    # the change of the mean is tested once, as a statistic
    split = replace(split, total=effects[(name, "mean")])
    return Metric(name, a_n, b_n, statistics, split, phases, None)


def _share_draws(
    left: Resampled, right: Resampled, a_good: np.ndarray, b_good: np.ndarray
) -> Floats:
    shares: list[Floats] = []
    for side, good in ((left, a_good), (right, b_good)):
        count = side.draws.shape[1]
        n = side.draws @ np.bincount(side.slices, minlength=count)
        k = side.draws @ np.bincount(side.slices, weights=good.astype(float), minlength=count)
        shares.append(k / np.maximum(n, 1))
    return shares[1] - shares[0]


def _met(side: SideData, slo: Slo) -> tuple[np.ndarray, np.ndarray]:
    """(can be judged, met every limit): as ``goodput.sql`` has it."""
    judged = np.ones(side.n, dtype=bool)
    met = side.completed.copy()
    for metric in slo.metrics:
        values = side.numbers[f"{metric}_ms"]
        if metric != "tpot":
            judged &= ~np.isnan(values) | ~side.completed
        met &= np.isnan(values) | (values <= (slo.limit_ms(metric) or np.inf))
    return judged, met & judged


def _goodput_draws(left: Resampled, right: Resampled, slo: Slo) -> Floats:
    kept: list[Resampled] = []
    good: list[np.ndarray] = []
    for side in (left, right):
        judged, met = _met(side.data, slo)
        kept.append(replace(side, slices=side.slices[judged]))
        good.append(met[judged])
    return _share_draws(kept[0], kept[1], good[0], good[1])


def _share(a_good: np.ndarray, b_good: np.ndarray, effect: Effect | None) -> ShareChange:
    return ShareChange(
        a_share=float(a_good.mean()) if len(a_good) else None,
        b_share=float(b_good.mean()) if len(b_good) else None,
        a_n=len(a_good),
        b_n=len(b_good),
        effect=effect,
    )


def _goodput(a: SideData, b: SideData, slo: Slo, effect: Effect | None) -> ShareChange:
    (judged_a, met_a), (judged_b, met_b) = _met(a, slo), _met(b, slo)
    return _share(met_a[judged_a], met_b[judged_b], effect)


def _strata(drawn: Mapping[str, DrawnMetric], first: DrawnMetric | None) -> tuple[Stratum, ...]:
    if first is None or first.kinds.pooled:
        return ()
    counts = [
        np.bincount(k[rows][k[rows] >= 0], minlength=first.kinds.count)
        for k, rows in ((first.kinds.a, first.rows_a), (first.kinds.b, first.rows_b))
    ]
    out: list[Stratum] = []
    for i, (model, route) in enumerate(first.kinds.labels):
        means: dict[str, StratumMeans] = {}
        for name, metric in drawn.items():
            kinds = metric.kind_means
            if (model, route) not in metric.kinds.labels:
                continue
            at = metric.kinds.labels.index((model, route))
            means[name] = StratumMeans(
                float(kinds.a_mean[at]), float(kinds.b_mean[at]), float(kinds.cost[at])
            )
        out.append(
            Stratum(
                model=model,
                route=route,
                a_n=int(counts[0][i]),
                b_n=int(counts[1][i]),
                a_share=float(counts[0][i]) / first.a_n,
                b_share=float(counts[1][i]) / first.b_n,
                means=means,
            )
        )
    return tuple(sorted(out, key=lambda s: (-(s.a_n + s.b_n), s.model or "", s.route or "")))


def _workers(
    metric: DrawnMetric, a: SideData, b: SideData, tests: Tests, rules: CompareRules
) -> list[WorkerShift]:
    """Per phase that costs more or less at equal mix: which workers hold the change."""
    out: list[WorkerShift] = []
    for component in metric.components:
        alone = len(metric.components) == 1
        key = (metric.metric, "split" if alone else component.phase, "cost")
        effect = tests.effects[key]
        if not effect.is_change or component.apart:
            continue
        shifts = worker_shifts(component, a, b, metric, rules)
        named = _named(shifts, effect.change, metric.b_n, rules)
        out += [
            WorkerShift(metric.metric, component.phase, worker, n, change, worker in named)
            for worker, n, change in shifts
        ]
    return out


def _named(
    shifts: Sequence[tuple[str, int, float]], cost: float, rows: int, rules: CompareRules
) -> set[str]:
    """The few workers that hold the change; none where it is everywhere."""
    if len(shifts) < 2:
        return set()
    top = shifts[0][2]
    few = [s for s in shifts if s[2] * top > 0 and abs(s[2]) >= abs(top) / 2]
    others = [s[2] for s in shifts if s not in few]
    held = sum(n * change for _, n, change in few) / rows
    if (
        len(few) > len(shifts) / 2
        or held * cost <= 0
        or abs(held) < rules.worker_share * abs(cost)
        or abs(float(np.median(others))) > rules.worker_others * abs(top)
    ):
        return set()
    return {s[0] for s in few}
