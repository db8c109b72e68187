"""Asks tracekit: telemetry in, verdict rows and findings out, through its public path.

Owns the calls and nothing of the method: files are imported into a store of their own, and what
`tracekit diagnose --json` and `tracekit verdicts --json` print for them is what is scored. The
phases that tracekit observed are read too, for the naive rules that are scored beside it.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from attribution.cluster import Replay
from attribution.emit import T0_UNIX_NS, write_telemetry
from attribution.emit_state import gpu_samples, write_metrics
from attribution.truth import PHASES
from tracekit.analysis.attribution import define_attribution
from tracekit.analysis.causes import SUSPECTS_LISTED
from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.session import Session
from tracekit.analysis.slo import parse_slo
from tracekit.analysis.verdicts import VERDICT_COLUMNS, list_verdicts
from tracekit.analysis.window import Window
from tracekit.ingest.importer import import_paths
from tracekit.lake.schema import GPU_SAMPLES
from tracekit.lake.store import Store

Row = dict[str, Any]


@dataclass(frozen=True)
class Judged:
    """What tracekit said: verdict rows (contract columns), ``findings`` of the diagnosis, and the
    phases it observed [ms], one row a request."""

    verdicts: list[Row]
    findings: list[Row]
    requests: Row
    observed: pl.DataFrame


@dataclass(frozen=True)
class Times:
    """CPU seconds of this process: writing, importing (settling included), judging."""

    write_s: float
    import_s: float
    judge_s: float


def store_of(replay: Replay, folder: Path) -> tuple[Store, float, float]:
    """A settled store with the telemetry of ``replay``; CPU s of writing and of importing."""
    start = time.process_time()
    files = write_telemetry(replay, folder)
    if replay.system.has_metrics:
        files += write_metrics(replay, folder)
    gpu = gpu_samples(replay) if replay.system.has_gpu_samples else None
    written = time.process_time()
    store = Store.open(folder / "store", create=True)
    if gpu is not None:
        store.append("gpu_samples", _stamped(gpu))
    import_paths(store, [str(f) for f in files])
    return store, written - start, time.process_time() - written


def _stamped(rows: pa.Table) -> pa.Table:
    n = rows.num_rows
    rows = rows.append_column("origin", pa.array(["import"] * n, pa.string()))
    rows = rows.append_column("ingested_unix_ns", pa.array([T0_UNIX_NS] * n, pa.int64()))
    day = pa.array(["2026-11-29"] * n, pa.string())
    return rows.append_column("date", day).cast(GPU_SAMPLES.schema)


def judge(store: Store, slo_text: str, baseline_s: tuple[float, float] | None = None) -> Judged:
    """The verdicts under an SLO; ``baseline_s`` [s from the start] is declared healthy."""
    baseline = None
    if baseline_s is not None:
        low, high = (T0_UNIX_NS + int(s * 1e9) for s in baseline_s)
        baseline = Window(low, high, "baseline")
    with Session.open(store) as session:
        slo = parse_slo(slo_text)
        said = diagnose(session, slo, baseline=baseline).to_json()
        # diagnose leaves the relations defined: `verdicts` computes the same ones
        rows = list(list_verdicts(session))
        if any(row["cause"] == "unsearched" for row in rows):
            # ... but looks for the cause of more of them
            define_attribution(session.con, slo, baseline=baseline, suspects_max=SUSPECTS_LISTED)
            rows = list(list_verdicts(session))
        verdicts = [{c: row[c] for c in VERDICT_COLUMNS} for row in rows]
        phases = ", ".join(f"{p}_ms" for p in PHASES)
        observed = session.frame(
            f"select request_id, status, ttft_ms, tpot_ms, e2e_ms, {phases} from window_requests "
            "where quarantine_reason is null and coalesce(superseded_attempt, 0) = 0"
        )
    return Judged(verdicts, said["findings"], said["requests"], observed)


def judge_replay(
    replay: Replay, slo_text: str, *, baseline_s: tuple[float, float] | None = None
) -> tuple[list[Judged], Times]:
    """Judge one replay's telemetry, with traffic as its own reference and, if given, with one."""
    with tempfile.TemporaryDirectory(prefix="attribution-") as folder:
        store, write_s, import_s = store_of(replay, Path(folder))
        start = time.process_time()
        out = [judge(store, slo_text)]
        if baseline_s is not None:
            out.append(judge(store, slo_text, baseline_s))
        return out, Times(write_s, import_s, time.process_time() - start)
