"""Measures tracekit's verdicts against known truth, and writes the table and the chart.

    python benchmarks/attribution/run.py [--quick] [--seeds N] [--faults a,b] [--out DIR] [--jobs 2]

Simulates an LLM serving cluster with and without each fault, writes the telemetry that engines and
clients write, asks tracekit, and compares. Writes ``report.md`` and ``report.svg`` (beside this
file, or into DIR) and every raw figure as JSON under ``.artefacts/attribution``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from attribution.faults import FAULTS, INTENSITIES, exists_in  # noqa: E402
from attribution.report import bar_values, markdown, svg  # noqa: E402
from attribution.score import summarize  # noqa: E402
from attribution.task import VARIANTS, Task, run_task  # noqa: E402

TOPOLOGIES: Final = ("agg", "pd")
#: Seeds that are scored. Whoever calibrates confidence uses other ones (`--first-seed 1001`).
FIRST_SEED: Final = 1
_SEEDS: Final = 5
#: Clean runs beside those of the scored seeds: false verdicts are rare and need many.
_MORE_CLEAN: Final = 25
_PAIRS: Final = (
    ("burst", "slow_worker"),
    ("cache_flush", "router_imbalance"),
    ("frontend_stall", "throttled_gpu"),
    ("client_wait", "slow_link"),
)
#: Faults that cannot be told without a field, and the field.
_REMOVED: Final = (
    ("throttled_gpu", "gpu_samples"),
    ("slow_link", "metrics"),
    ("capacity", "engine_spans"),
)
_RAW: Final = ROOT / ".artefacts" / "attribution"


def plan(
    seeds: list[int], faults: tuple[str, ...], levels: tuple[int, ...], *, extra: int
) -> Iterator[Task]:
    """Every run: faults by level, seed and topology; clean ones; pairs; fields removed."""
    whole = faults == FAULTS
    for seed in seeds:
        for topology in TOPOLOGIES:
            for fault in faults:
                if exists_in(fault, topology):
                    for level in levels:
                        yield Task(seed, topology, (fault,), level)
            if not whole:
                continue
            yield Task(seed, topology)
            for pair in _PAIRS:
                if all(exists_in(f, topology) for f in pair):
                    yield Task(seed, topology, pair)
            if seed in seeds[:2]:
                for fault, what in _REMOVED:
                    if exists_in(fault, topology):
                        yield Task(seed, topology, (fault,), 2, removed=what)
    if whole:
        for k in range(extra):
            for topology in TOPOLOGIES:
                yield Task(seeds[-1] + 1 + k, topology)


def run_all(tasks: list[Task], jobs: int) -> Iterator[dict[str, Any]]:
    """Results as they come, with progress on standard error."""
    start = time.monotonic()

    def told(done: int, name: str, result: dict[str, Any]) -> None:
        left = (time.monotonic() - start) / done * (len(tasks) - done)
        rows = len(result.get("rows", ()))
        print(
            f"[{done}/{len(tasks)}] {name}: {rows} rows, {result['cpu_s']:.1f} CPU s; "
            f"{left / 60:.1f} min left",
            file=sys.stderr,
            flush=True,
        )

    if jobs == 1:
        for done, task in enumerate(tasks, 1):
            result = run_task(task)
            told(done, task.name, result)
            yield result
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(run_task, task): task for task in tasks}
        for done, future in enumerate(as_completed(futures), 1):
            try:
                result = future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                print(f"failed: {futures[future].name}", file=sys.stderr)
                raise
            told(done, futures[future].name, result)
            yield result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="one seed, the middle intensity")
    parser.add_argument("--seeds", type=int, default=None, help=f"scored seeds ({_SEEDS})")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--faults", default=",".join(FAULTS), help="a comma-separated part of them")
    parser.add_argument("--out", type=Path, default=None, help="folder of report.md and report.svg")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--from-raw", type=Path, default=None, help="score raw figures, run nothing"
    )
    parser.add_argument("--raw", type=Path, default=None, help="file of the raw figures (JSON)")
    arguments = parser.parse_args()
    unknown = set(arguments.faults.split(",")) - set(FAULTS)
    if unknown:
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}; known: {', '.join(FAULTS)}")
    return arguments


def _seeds(runs: list[dict[str, Any]]) -> str:
    used = sorted({r["seed"] for r in runs if r["kind"] == "fault"})
    return f"{used[0]} to {used[-1]}" if len(used) > 1 else "".join(map(str, used))


def _keep_raw(path: Path | None, runs: list[dict[str, Any]], *, partial: bool) -> None:
    path = path or _RAW / ("quick.json" if partial else "runs.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(runs))


def main() -> None:
    """Plan, run, score, write."""
    arguments = _arguments()
    chosen = arguments.faults.split(",")
    faults = tuple(f for f in FAULTS if f in chosen)
    count = arguments.seeds or (1 if arguments.quick else _SEEDS)
    seeds = [arguments.first_seed + k for k in range(count)]
    levels = (2,) if arguments.quick else INTENSITIES
    extra = 1 if arguments.quick else _MORE_CLEAN
    start = time.monotonic()
    if arguments.from_raw is not None:
        runs = json.loads(arguments.from_raw.read_text())
    else:
        runs = list(run_all(list(plan(seeds, faults, levels, extra=extra)), arguments.jobs))
    runs.sort(
        key=lambda r: (r["kind"], r["seed"], r["topology"], list(r["faults"]), r["intensity"])
    )
    # a part of the faults, or a quick look, must not replace the committed report
    partial = arguments.quick or faults != FAULTS
    out = arguments.out or (_RAW if partial else Path(__file__).resolve().parent)
    out.mkdir(parents=True, exist_ok=True)
    if arguments.from_raw is None:
        _keep_raw(arguments.raw, runs, partial=partial)
    summaries = {v: summarize(runs, v) for v in VARIANTS}
    about = {
        "runs": len(runs),
        "fault_runs": sum(r["kind"] == "fault" for r in runs),
        "two_runs": sum(r["kind"] == "two" for r in runs),
        "clean_runs": sum(r["kind"] == "clean" for r in runs),
        "requests": runs[0]["requests"],
        "seeds": _seeds(runs),
        "command": "benchmarks/attribution/run.py" + (" --quick" if arguments.quick else ""),
        "minutes": (time.monotonic() - start) / 60,
        "cpu_minutes": sum(r["cpu_s"] for r in runs) / 60,
    }
    text = markdown(summaries, about)
    (out / "report.md").write_text(text)
    (out / "report.svg").write_text(svg(summaries["own"]))
    print(text)
    for name, value, bar, met in bar_values(summaries["own"]):
        said = "-" if value is None else f"{value:.3f}"
        print(
            f"{'ok  ' if met else 'MISS' if met is not None else '-   '} {name}: {said} ({bar:g})"
        )


if __name__ == "__main__":
    main()
