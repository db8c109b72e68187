"""Recordings of other systems than vLLM, imported as a user would, and what their client saw.

Owns loading; asserts only what holds of every recording (`sound`).
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from tracekit.analysis.session import Session
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store

DATA = Path(__file__).parents[1] / "data"

Row = dict[str, Any]


@dataclass(frozen=True)
class Recorded:
    """Derived rows of one recording; durations in ms.

    ``incomplete`` are parts whose request began or ended outside the recording.
    """

    requests: list[Row]
    phases: list[Row]
    legs: list[Row]
    incomplete: list[Row]

    def by_id(self) -> dict[str, Row]:
        return {r["request_id"]: r for r in self.requests}

    def by_trace(self) -> dict[str, Row]:
        return {r["trace_id"]: r for r in self.requests}

    def count(self, **values: Any) -> int:
        """How many requests have these values."""
        return sum(all(r[k] == v for k, v in values.items()) for r in self.requests)


@cache
def recorded(
    *files: str, source: str | None = None, log_start_unix_ns: int | None = None
) -> Recorded:
    """Imports files of ``tests/data`` into one fresh store and reads what became of them."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "store", create=True)
        import_paths(
            store,
            [str(DATA / name) for name in files],
            source=source,
            log_start_unix_ns=log_start_unix_ns,
        )
        with Session.open(store) as session:
            requests, phases, legs = (
                session.frame(f"select * from {table}").to_dicts()
                for table in ("requests", "phases", "legs")
            )
    cut = [r for r in requests if r["quarantine_reason"] == "incomplete_trace"]
    return Recorded([r for r in requests if r not in cut], phases, legs, cut)


@cache
def client(system: str, scenario: str) -> list[Row]:
    """What the load client wrote down, one row a call."""
    path = DATA / system / f"{scenario}.client.jsonl.gz"
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def call_log(folder: Path, calls: Iterable[tuple[str, int, float, float]]) -> str:
    """A client's own log of (request id, start [unix ns], TTFT [ms], end [ms]), to import too."""
    names = ("request_id", "start_unix_ns", "ttft_ms", "e2e_ms")
    path = folder / "calls.jsonl"
    rows = (json.dumps(dict(zip(names, call, strict=True))) for call in calls)
    path.write_text("".join(f"{row}\n" for row in rows))
    return str(path)


def sound(found: Recorded) -> None:
    """Phases are exclusive, follow each other without a gap, and sum to the wall time, if known."""
    by_key: dict[str, list[Row]] = {}
    for phase in found.phases:
        by_key.setdefault(phase["request_key"], []).append(phase)
    for request in found.requests:
        if request["quarantine_reason"] is not None:
            continue
        phases = sorted(by_key[request["request_key"]], key=lambda p: p["start_unix_ns"])
        for before, after in pairwise(phases):
            assert before["end_unix_ns"] == after["start_unix_ns"], (request["request_id"], before)
        if request["e2e_ms"] is None:
            continue
        total_ns = sum(p["end_unix_ns"] - p["start_unix_ns"] for p in phases)
        assert abs(total_ns / 1e6 - request["e2e_ms"]) < 1e-6, request["request_id"]
