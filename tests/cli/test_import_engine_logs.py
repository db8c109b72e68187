"""``import`` of engines' logs, and what the other commands then say of them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run

DATA = Path(__file__).parents[1] / "data" / "llama_cpp"
TRACE = DATA / "trace.server-log.jsonl.gz"
#: Zero of its clock, 1795988694221311548, to the microsecond.
START = "2026-11-29T21:44:54.221311Z"


def test_llama_cpp_from_its_log(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    told = ("--log-start", START, "--service", "llama-a", "--store", store)
    result = run("import", TRACE, *told)
    assert result.exit_code == 0, result.output
    assert "40 rows taken, 0 refused, 0 duplicates" in result.stdout
    assert "lines about no request passed over" in result.stdout
    again = json.loads(run("import", TRACE, *told, "--json").stdout)
    assert (again["taken"], again["duplicates"]) == (0, 40)
    assert again["files"][0]["format"] == "llama-cpp-log"
    rows = [
        json.loads(line) for line in run("requests", "--json", "--store", store).stdout.splitlines()
    ]
    assert len(rows) == 40
    assert {(r["worker"], r["engine"], r["trace_id"]) for r in rows} == {
        ("llama-a", "llama.cpp", None)
    }
    # the first request came 4.331611 s into the log
    assert min(r["start_unix_ns"] for r in rows) == 1_795_988_694_221_311_000 + 4_331_611_000
    # nobody is told to send trace headers, which this server does not read
    doctor = run("doctor", "--store", store).stdout
    assert "llama-a" in doctor
    assert "with a parent" not in doctor and "without a request id" not in doctor


def test_the_start_it_needs_is_asked_for(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    result = run("import", TRACE, "--store", store)
    assert result.exit_code == 3
    assert "--log-start" in result.output
    assert not store.exists()
    wrong = run("import", TRACE, "--log-start", "soon", "--store", store)
    assert wrong.exit_code == 2 and "'soon' is not a time" in wrong.output


def test_a_format_may_be_said(run: Run, tmp_path: Path) -> None:
    result = run("import", TRACE, "--source", "llama-log", "--store", tmp_path / "s")
    assert result.exit_code == 2 and "llama-cpp-log" in result.output
