"""``diagnose`` and ``table``: one object behind text, Markdown and JSON, and the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli import traffic
from tests.cli.conftest import Run
from tracekit.names import CAUSES, PHASES

CONTRACT = [
    "schema",
    "window",
    "slo",
    "requests",
    "percentiles",
    "chunks",
    "goodput",
    "coverage",
    "phases",
    "prefix_cache",
    "kv_loads",
    "prefix_reuse",
    "engine_versions",
    "misses",
    "findings",
    "over_limit",
    "fleet",
    "fleet_totals",
    "unexplained_share",
    "unexplained_reasons",
    "missing_evidence",
    "sentence",
]


def _diagnosis(run: Run, *arguments: object) -> dict[str, Any]:
    result = run("diagnose", "--json", *arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_json_is_the_contract(run: Run) -> None:
    document = _diagnosis(run, "--slo", "ttft=2s,e2e=10s")
    assert list(document) == CONTRACT
    assert document["slo"]["ttft_ms"] == 2000 and document["slo"]["source"] == "given"
    assert document["requests"]["total"] == document["requests"]["completed"] == 60
    for metric in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        assert {"p50", "p95", "p99", "n"} <= set(document["percentiles"][metric])
    assert {p["phase"] for p in document["phases"]} <= set(PHASES)
    assert sum(p["share"] for p in document["phases"]) == pytest.approx(1, abs=1e-6)
    assert document["misses"]["total"] == 1
    (finding,) = document["findings"]
    assert finding["phase"] == "queue" and finding["metric"] == "ttft"
    assert finding["cause"] in CAUSES
    assert finding["excess_ms"] == pytest.approx(2_999, abs=5)
    assert finding["n"] == 1
    assert document["sentence"]


def test_one_object_behind_every_format(run: Run) -> None:
    document = _diagnosis(run, "--slo", "ttft=2s")
    text = " ".join(run("diagnose", "--slo", "ttft=2s").stdout.split())
    markdown = run("diagnose", "--slo", "ttft=2s", "--format", "md").stdout
    for sentence in (document["sentence"], *(f["sentence"] for f in document["findings"])):
        assert " ".join(sentence.split()) in text
        assert " ".join(sentence.split()) in " ".join(markdown.split())
    for finding in document["findings"]:
        for line in (*finding["evidence"], finding["action"]):
            assert " ".join(line.split()) in text
            assert line in markdown
    for missing in document["missing_evidence"]:
        assert missing["field"] in text and missing["field"] in markdown
    assert json.loads(run("diagnose", "--format", "json").stdout)["schema"] == document["schema"]


def test_gate(run: Run) -> None:
    missed = run("diagnose", "--slo", "ttft=2s", "--fail")
    assert missed.exit_code == 1
    assert "queue" in missed.stdout
    assert run("diagnose", "--slo", "ttft=60m", "--fail").exit_code == 0
    assert run("diagnose", "--fail").exit_code == 2, "a gate needs a limit"
    assert run("diagnose", "--slo", "ttft=fast").exit_code == 2


def test_window_filters_and_baseline(run: Run) -> None:
    start = traffic.START_UNIX_NS
    first = _diagnosis(run, "--since", f"{start}..{start + 20_000_000_000}")
    assert first["requests"]["total"] == 10
    assert first["window"]["since_unix_ns"] == start
    assert _diagnosis(run, "--model", "other")["requests"]["total"] == 0
    healthy = f"{start}..{start + 60_000_000_000}"
    document = _diagnosis(run, "--slo", "ttft=2s", "--baseline", healthy)
    assert document["findings"][0]["phase"] == "queue"
    assert run("diagnose", "--baseline", "1..2").exit_code == 2, "an empty baseline"


def test_explain_shows_the_cost_model(run: Run) -> None:
    document = _diagnosis(run, "--explain")
    assert document["cost_model"][0]["model"] == traffic.MODEL
    explained = run("diagnose", "--explain").stdout.split("what was expected")[1]
    assert "per uncached token" in explained and "NULL" not in explained
    assert "## What was expected" in run("diagnose", "--explain", "--format", "md").stdout


def test_empty_store_abstains(run: Run, empty_store: Path) -> None:
    document = _diagnosis(run, "--store", empty_store)
    assert document["requests"]["total"] == 0 and document["findings"] == []
    assert run("diagnose", "--store", empty_store).stdout.strip()
    assert run("diagnose", "--store", empty_store, "--format", "md").exit_code == 0


@pytest.fixture
def twenty_rows(run: Run, tmp_path: Path) -> Path:
    """The article's table of twenty requests, imported as it stands."""
    file = tmp_path / "ten-minutes.csv"
    file.write_text(traffic.TWENTY, encoding="utf-8")
    assert run("import", file, "--store", tmp_path / "store").exit_code == 0
    return tmp_path / "store"


def test_table_of_twenty_spreadsheet_rows(run: Run, twenty_rows: Path) -> None:
    document = json.loads(run("table", "--store", twenty_rows, "--json").stdout)
    assert len(document["rows"]) == 20
    first = document["rows"][0]
    assert {
        "request",
        "input_tokens",
        "output_tokens",
        "ttft_ms",
        "total_ms",
        "tokens_per_s",
        "note",
    } <= set(first)
    text = run("table", "--store", twenty_rows).stdout
    flat = " ".join(text.split())
    assert flat.endswith(" ".join(document["sentence"].split()))
    assert "RAG 문서 포함" in text
    for finding in document["findings"]:
        assert finding["n"] == 20
        assert " ".join(finding["text"].split()) in flat
    markdown = run("table", "--store", twenty_rows, "--format", "md").stdout
    assert "| request | input | output | TTFT | E2E | tokens/s | marks | note |" in markdown
    assert document["sentence"] in markdown


def test_table_says_that_rows_without_a_time_are_in_every_window(
    run: Run, twenty_rows: Path
) -> None:
    told = "20 requests without a start time are in every window"
    for form in ("text", "md", "json"):
        table = ("table", "--store", twenty_rows, "--format", form)
        assert told in run(*table, "--since", "10m").stdout
        assert told not in run(*table).stdout


def test_table_marks_long_ttft_and_low_rate_apart(run: Run) -> None:
    document = json.loads(run("table", "--last", 30, "--json").stdout)
    rows = {r["request"]: r for r in document["rows"]}
    assert len(rows) == 30
    slow = rows["chatcmpl-slow-queue"]
    assert slow["long_ttft"] is True
    long_prompt = rows["chatcmpl-req-040"]
    assert long_prompt["long_ttft"] is True
    lines = run("table", "--last", 30).stdout.splitlines()
    marked = next(line for line in lines if "slow-queue" in line)
    assert marked.rstrip().endswith(("T", "TR", "Tr"))
    assert not next(line for line in lines if "req-059" in line).rstrip().endswith("T")


def test_table_of_the_last_n(run: Run) -> None:
    rows = json.loads(run("table", "--last", 3, "--json").stdout)["rows"]
    assert [r["request"] for r in rows] == [f"chatcmpl-req-{n:03d}" for n in (57, 58, 59)]
    assert run("table", "--last", 0).exit_code == 2


def test_table_of_nothing(run: Run, empty_store: Path) -> None:
    assert run("table", "--store", empty_store).exit_code == 0
    assert run("table", "--store", empty_store, "--format", "md").exit_code == 0
    assert json.loads(run("table", "--store", empty_store, "--json").stdout)["rows"] == []
