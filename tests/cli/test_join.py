"""``join``: shows pairs, and writes them down only when told to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.analysis.test_likely import engine_spans, log_rows, make_store
from tests.cli.conftest import Run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of twelve calls whose row and engine's span share no id."""
    rows, _ = log_rows("long-prompt")
    make_store(tmp_path / "store", engine_spans("long-prompt"), rows[:12])
    return tmp_path / "store"


def _requests(run: Run, path: Path) -> list[dict[str, object]]:
    listed = run("requests", "--store", path, "--json", "--last", 200).stdout
    return [json.loads(line) for line in listed.splitlines()]


def test_nothing_is_written_unless_told(run: Run, path: Path) -> None:
    result = run("join", "--store", path)
    assert result.exit_code == 0
    assert "12 pairs" in result.stdout
    assert "2 surer" in result.stdout
    assert "--write" in result.stderr
    assert len(_requests(run, path)) == 84


def test_written_pairs_are_requests(run: Run, path: Path) -> None:
    document = json.loads(run("join", "--store", path, "--json", "--write").stdout)
    assert document["schema"] == "tracekit.join/1"
    assert document["written"] == len(document["pairs"]) == 12
    assert document["calls_alone"] == 12
    found = _requests(run, path)
    assert len(found) == 72
    ids = run("sql", "--store", path, "--json", "select * from requests where match_score < 0.9")
    assert [r["sources"] for r in json.loads(ids.stdout)] == ["request_log,tracekit_join,vllm"] * 12
    again = run("join", "--store", path, "--write")
    assert "0 pairs" in again.stdout
    assert again.stderr == ""


def test_doctor_knows_of_them(run: Run, path: Path) -> None:
    told = run("doctor", "--store", path, "--no-probe").stdout
    assert "tracekit join" in told
    run("join", "--store", path, "--write")
    told = run("doctor", "--store", path, "--no-probe").stdout
    assert "--write" not in told
    assert "12 requests joined by likeness" in " ".join(told.split())
    # tracekit's own notes are nobody's service
    services = json.loads(run("doctor", "--store", path, "--no-probe", "--json").stdout)["services"]
    assert [s["service_name"] for s in services] == ["vllm-server"]


def test_a_window_bounds_what_is_paired(run: Run, path: Path) -> None:
    document = json.loads(run("join", "--store", path, "--until", "2000-01-01", "--json").stdout)
    assert document["pairs"] == []


def test_a_bad_slack_is_a_usage_error(run: Run, path: Path) -> None:
    result = run("join", "--store", path, "--clock-slack-ms", "-1")
    assert result.exit_code == 2
    assert "0 or more" in result.output
