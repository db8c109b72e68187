"""The diagnosis over a million settled requests, and what starting the command costs.

* generates spans of N requests (a client and an engine span each), appends and settles them, and
  reports the CPU time from raw spans to settled requests beside the rest;
* runs `tracekit diagnose --json` on it in a process of its own: CPU seconds and peak memory;
* runs `tracekit diagnose` over the bundled demo store and `tracekit --help`: wall time, start
  included, medians of five.

Goals: 10 CPU s and 2 GiB for a million requests; 2 s over the demo store; 0.3 s for --help.

    python benchmarks/diagnose.py [REQUESTS]
"""

from __future__ import annotations

import multiprocessing as mp
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _traffic import spans

from tracekit.analysis.settle import settle_after_import
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store

_DEMO = Path(__file__).resolve().parent.parent / "tracekit" / "demo_data"
_CHUNK = 100_000
_TRACEKIT = [sys.executable, "-m", "tracekit"]


def _run(arguments: list[str]) -> tuple[float, float, float]:
    """(CPU s, peak MiB, wall s) of one command; it must succeed."""
    start = time.perf_counter()
    process = subprocess.Popen(_TRACEKIT + arguments, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    assert status == 0, f"{arguments} ended with {status}"
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, wall


def _settled_store(path: str, requests: int) -> None:
    """Make a store of that many requests, raw spans included, and settle it."""
    store = Store.open(path, create=True)
    for first in range(0, requests, _CHUNK):
        part = spans(min(_CHUNK, requests - first), first=first, ingested_unix_ns=time.time_ns())
        store.append("spans", part)
    start = time.process_time()
    report = settle_after_import(store)
    raw = time.process_time() - start
    assert report is not None and report.settled == requests, report
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{requests:,} requests from {2 * requests:,} raw spans to settled: {raw:.1f} CPU s, "
        f"peak {peak:.2f} GiB with generating"
    )


def main() -> None:
    """Run and print."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/store"
        # not here: a child's peak memory counts from what its parent held
        made = mp.get_context("spawn").Process(target=_settled_store, args=(path, requests))
        made.start()
        made.join()
        assert made.exitcode == 0
        cpu, peak, wall = _run(["diagnose", "--json", "--store", path])
        print(f"diagnose --json: {cpu:.1f} CPU s, {wall:.1f} s, peak {peak / 1024:.2f} GiB")
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(f"{folder}/store", create=True)
        import_paths(store, [str(_DEMO)])
        demo = [_run(["diagnose", "--store", str(store.path)]) for _ in range(5)]
        print(
            f"diagnose over the demo store: {statistics.median(w for _, _, w in demo):.2f} s wall"
        )
    starts = [_run(["--help"]) for _ in range(5)]
    print(f"tracekit --help: {statistics.median(w for _, _, w in starts):.2f} s wall")


if __name__ == "__main__":
    main()
