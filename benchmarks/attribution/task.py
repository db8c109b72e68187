"""One run of the benchmark, start to end: simulate, write, ask, compare. Its result is plain data.

Owns what is recorded of a run; what the numbers mean together is `score`'s.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from attribution.cluster import Replay
from attribution.culprits import judge_culprits, savings
from attribution.emit import request_id
from attribution.faults import Fault, make
from attribution.judge import Judged, judge_replay
from attribution.naive import NaiveRules
from attribution.system import System
from attribution.truth import (
    ACCEPTED,
    INJECTED,
    METRICS,
    PHASES,
    Limits,
    Outcome,
    Truth,
    limits,
    outcome,
    population,
)
from attribution.world import World, make_world, replay

#: On clean traffic: an SLO that three in a hundred requests miss.
_TIGHT: Final = (97.0, 1.0)
#: How much of a run without a fault is declared its healthy beginning.
_CLEAN_BASELINE: Final = 0.35
#: A named culprit that is no request of the run: named, and wrong.
_NOBODY: Final = -1
VARIANTS: Final = ("own", "baseline")
_MIDDLE: Final = 2


def slo_of(seed: int, clean: Outcome) -> Limits:
    """The SLO of a seed: as people set them, what 97.5 to 99 % of healthy traffic keeps, and up
    to a fifth on top of it."""
    rng = np.random.default_rng((seed, 9))
    return limits(clean, float(rng.choice([97.5, 98.5, 99.0])), float(rng.uniform(1.0, 1.2)))


@dataclass(frozen=True)
class Task:
    """What to run. ``faults`` empty: a clean run. ``removed``: gpu, metrics or engine_spans."""

    seed: int
    topology: str
    faults: tuple[str, ...] = ()
    intensity: int = 2
    removed: str = ""
    requests: int = 1_500

    @property
    def kind(self) -> str:
        if self.removed:
            return "removed"
        return ("clean", "fault", "two")[min(len(self.faults), 2)]

    @property
    def has_baseline(self) -> bool:
        """Whether it is asked with a declared baseline, too: at one intensity, to spare time."""
        return self.kind != "fault" or self.intensity == _MIDDLE

    @property
    def name(self) -> str:
        what = "+".join(self.faults) or "clean"
        level = f" {self.intensity}" if self.faults else ""
        less = f" without {self.removed}" if self.removed else ""
        return f"{what}{level}, {self.topology}, seed {self.seed}{less}"


def run_task(task: Task) -> dict[str, Any]:
    """Run ``task``; everything that was true, said, and spent."""
    start = time.process_time()
    world = make_world(task.seed, task.topology, task.requests)
    if task.removed:
        world = replace(world, system=_without(world.system, task.removed))
    base = replay(world)
    clean = outcome(base, len(world.requests))
    result: dict[str, Any] = {**asdict(task), "kind": task.kind}
    if not task.faults:
        _clean(result, world, base, clean)
    else:
        _faulty(result, task, world, clean)
    result["cpu_s"] = round(time.process_time() - start, 2)
    return result


def _without(system: System, what: str) -> System:
    """The same deployment, whose operators do not record ``what``."""
    return replace(
        system,
        has_gpu_samples=what != "gpu_samples",
        has_metrics=what != "metrics",
        has_engine_spans=what != "engine_spans",
    )


def _clean(result: dict[str, Any], world: World, base: Replay, clean: Outcome) -> None:
    slo = limits(clean, *_TIGHT)
    until = world.requests[-1].intended_s * _CLEAN_BASELINE
    judged, times = judge_replay(base, slo.text(), baseline_s=(0.0, until))
    result["slo"] = slo.text()
    result["times"] = asdict(times)
    result["variants"] = {
        name: {"verdicts": [_said(v) for v in j.verdicts], "findings": _findings(j)}
        for name, j in zip(VARIANTS, judged, strict=True)
    }


def _make_faults(task: Task, world: World) -> tuple[Fault, ...]:
    if len(task.faults) == 1:
        (name,) = task.faults
        return (_fault(task, world, name, len(world.requests), None),)
    # two at once: one in the middle, the other begins a little later and ends with the run
    first = _fault(task, world, task.faults[0], len(world.requests), (0.35, 0.68))
    count = len(world.requests) + len(first.added)
    return (first, _fault(task, world, task.faults[1], count, (0.5, 0.85)))


def _fault(
    task: Task, world: World, name: str, first_index: int, window: tuple[float, float] | None
) -> Fault:
    return make(
        name,
        task.intensity,
        system=world.system,
        mix=world.mix,
        seed=task.seed,
        requests=world.requests,
        first_index=first_index,
        window=window,
    )


def _faulty(result: dict[str, Any], task: Task, world: World, clean: Outcome) -> None:
    faults = _make_faults(task, world)
    run = replay(world, faults)
    count = len(world.requests)
    faulty = outcome(run, count)
    slo = slo_of(task.seed, clean)
    rows = population(clean, faulty, slo, task.faults)
    if len(faults) > 1:
        rows = _which_fault(world, faults, faulty, rows)
    healthy_s = min(f.condition.start_s for f in faults)
    baseline_s = (0.0, healthy_s) if task.has_baseline else None
    judged, times = judge_replay(run, slo.text(), baseline_s=baseline_s)
    result["slo"] = slo.text()
    result["times"] = asdict(times)
    result["censored"] = int((clean.answered & ~faulty.answered).sum())
    result["misses"] = _misses(faulty, slo)
    result["added"] = sum(len(f.added) for f in faults)
    result["rows"] = [_row(t, clean, faulty, run) for t in rows]
    result["variants"] = {}
    for name, j in zip(VARIANTS[: len(judged)], judged, strict=True):
        result["variants"][name] = {
            "said": _match(rows, run, j),
            "findings": _findings(j),
            "naive": _naive(rows, run, j),
        }
    if task.faults == ("long_prompts",) and not task.removed:
        _culprits(result, world, faults[0], faulty, rows, run)


def _row(t: Truth, clean: Outcome, faulty: Outcome, run: Replay) -> dict[str, Any]:
    return {
        "index": t.index,
        "metric": t.metric,
        "phase": t.phase,
        "excess_ms": round(t.excess_s * 1e3, 2),
        "runner_up_ms": round(t.runner_up_s * 1e3, 2),
        "causes": sorted(t.causes),
        "injected": sorted(t.injected),
        "value_ms": round(float(faulty.metric_s(t.metric)[t.index]) * 1e3, 3),
        "clean_ms": round(float(clean.metric_s(t.metric)[t.index]) * 1e3, 3),
        "lost": bool(run.luck.lost[t.index]),
        "preempted": bool(faulty.preemptions[t.index]),
    }


def _misses(faulty: Outcome, slo: Limits) -> dict[str, int]:
    return {m: int((faulty.metric_s(m)[faulty.answered] > slo.of(m)).sum()) for m in METRICS}


def _said(verdict: dict[str, Any]) -> dict[str, Any]:
    return {
        key: verdict[key]
        for key in ("metric", "class", "phase", "cause", "confidence", "confidence_label", "worker")
    } | {"culprits": list(verdict["culprit_request_ids"] or ())[:3]}


def _match(rows: Sequence[Truth], run: Replay, judged: Judged) -> list[dict[str, Any] | None]:
    by_key = {(v["request_id"], v["metric"]): v for v in judged.verdicts}
    found = (by_key.get((request_id(run, t.index), t.metric)) for t in rows)
    return [None if v is None else _said(v) for v in found]


def _naive(rows: Sequence[Truth], run: Replay, judged: Judged) -> list[dict[str, str | None]]:
    rules = NaiveRules(judged.observed)
    return [rules.blame(request_id(run, t.index), t.metric) for t in rows]


def _findings(judged: Judged) -> list[dict[str, Any]]:
    keys = ("phase", "cause", "metric", "share_of_misses", "placebo_share", "confidence",
            "confidence_label", "n")  # fmt: skip
    attributed = {
        (v["phase"], v["cause"], v["metric"]) for v in judged.verdicts if v["class"] == "attributed"
    }
    return [
        {k: f[k] for k in keys}
        | {"is_attributed": (f["phase"], f["cause"], f["metric"]) in attributed}
        for f in judged.findings
    ]


def _which_fault(
    world: World, faults: tuple[Fault, ...], faulty: Outcome, rows: list[Truth]
) -> list[Truth]:
    """Of two faults, the one whose removal spares a row most (and any that spares half of that)."""
    spared = []
    for left_out in faults:
        rest = tuple(f for f in faults if f is not left_out)
        spared.append(outcome(replay(world, rest), len(world.requests)).phases)
    out = []
    for t in rows:
        k = PHASES.index(t.phase)
        saved = [float(faulty.phases[t.index, k] - s[t.index, k]) for s in spared]
        guilty = [
            f.name
            for f, s in zip(faults, saved, strict=True)
            if not s < 0.5 * max(saved)  # NaN: cut short without it, so not told apart
        ]
        injected = frozenset(INJECTED[g] for g in guilty)
        causes = injected.union(*(ACCEPTED[g].get(t.phase, ()) for g in guilty))
        out.append(replace(t, injected=injected, causes=causes if t.causes else frozenset()))
    return out


def _culprits(
    result: dict[str, Any],
    world: World,
    fault: Fault,
    faulty: Outcome,
    rows: list[Truth],
    run: Replay,
) -> None:
    index_of = {request_id(run, r.index): r.index for r in run.requests}
    named = {}
    for variant in result["variants"]:
        said = result["variants"][variant]["said"]
        named[variant] = [
            index_of.get(v["culprits"][0], _NOBODY)
            if v and v["cause"] == "prefill_interference" and v["culprits"]
            else None
            for v in said
        ]
    candidates = {r.index for r in fault.added}
    candidates |= {n for names in named.values() for n in names if n not in (None, _NOBODY)}
    saved = savings(world, fault, faulty, rows, candidates, run)
    for variant in named:
        result["variants"][variant]["culprits"] = judge_culprits(rows, named[variant], saved)
