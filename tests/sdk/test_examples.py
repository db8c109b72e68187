"""The examples run without a network, and their diagnosis names what their server really did."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tracekit.analysis.session import Session
from tracekit.cli._app import app
from tracekit.lake.store import Store

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Expected:
    """By what the example's scripts make the fake server do."""

    name: str
    slo: str
    calls: int
    #: calls that the server (or the limit) surely makes slower than the SLO
    slow: int
    phase: str
    cause: str | None
    #: [ms] of that phase in a slow call, at least
    least_ms: float
    sentence: str


EXAMPLES = [
    # ten calls wait 400 ms in the provider's queue, which tells so
    Expected("chat_app", "ttft=300ms", 50, 10, "queue", None, 400, "lost their time in the queue"),
    # number 3, 10, 17, ... of 50 have 30,050 prompt tokens, fifty a millisecond
    Expected(
        "rag_app", "ttft=400ms", 50, 7, "queue_or_prefill", "long_prompt", 601, "prompt tokens take"
    ),
    # forty at once, four at a time, each at least 40 + 9 * 3 ms: the last sixteen wait for six
    # rounds or more before them
    Expected(
        "async_gateway",
        "ttft=300ms",
        60,
        16,
        "client_wait",
        "client_concurrency",
        300,
        "lost their time in waiting in the client",
    ),
]


def _diagnosis(store: Path, slo: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["diagnose", "--store", str(store), "--slo", slo, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("of", EXAMPLES, ids=lambda of: of.name)
def test_an_example_names_its_phase(of: Expected, tmp_path: Path) -> None:
    store = tmp_path / "store"
    paths = os.pathsep.join(str(ROOT / p) for p in (".", "collectors", "dashboards"))
    ran = subprocess.run(
        [sys.executable, f"examples/{of.name}.py", "--store", str(store), "--demo"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "2000"},
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert f"$ tracekit diagnose --store {store} --slo {of.slo}" in ran.stdout
    assert of.sentence in ran.stdout

    found = _diagnosis(store, of.slo)
    assert found["requests"]["total"] == found["requests"]["completed"] == of.calls
    assert found["misses"]["total"] >= of.slow
    first = found["findings"][0]
    assert (first["phase"], first["metric"]) == (of.phase, "ttft")
    if of.cause is not None:
        assert first["cause"] == of.cause
    assert first["n"] >= of.slow

    with Session.open(Store.open(store)) as session:
        rows = session.frame("select * from requests").to_dicts()
    slow = [row for row in rows if (row[f"{of.phase}_ms"] or 0) >= of.least_ms]
    assert len(slow) >= of.slow
    if of.name == "rag_app":
        assert {row["input_tokens"] for row in slow} == {30_050}


@pytest.mark.parametrize("of", EXAMPLES, ids=lambda of: of.name)
def test_an_example_is_two_lines_and_ordinary_code(of: Expected) -> None:
    text = (ROOT / "examples" / f"{of.name}.py").read_text()
    used = re.findall(r"\btracekit\.(\w+)\(", text)
    assert used == ["limiter"] * (of.name == "async_gateway") + ["configure", "instrument"]
