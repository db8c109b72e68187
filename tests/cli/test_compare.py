"""``compare``: windows, labels and stores through the real command, one object behind each form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.analysis import factory
from tests.analysis.factory import START_NS, Traffic
from tests.cli.conftest import Run, RunProcess
from tracekit.analysis.comparison import SCHEMA
from tracekit.cli._app import app

#: Requests of the second hour start here.
LATER_NS: Final = START_NS + 3_600_000_000_000
FIRST: Final = f"{START_NS}..{LATER_NS}"
SECOND: Final = f"{LATER_NS}.."
_COLUMNS: Final = (
    "request_id",
    "start_unix_ns",
    "model",
    "route",
    "tenant",
    "worker",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "status",
    "ttft_ms",
    "ttft_kind",
    "tpot_ms",
    "e2e_ms",
    "frontend_ms",
    "queue_ms",
    "prefill_ms",
    "decode_ms",
)


def _import(folder: Path, name: str, *parts: Traffic) -> Path:
    rows = [r for part in parts for r in part.requests().to_pylist()]
    log = folder / f"{name}.jsonl"
    log.write_text(
        "\n".join(json.dumps({c: r[c] for c in _COLUMNS if r[c] is not None}) for r in rows),
        encoding="utf-8",
    )
    store = folder / name
    result = CliRunner().invoke(app, ["import", str(log), "--store", str(store)])
    assert result.exit_code == 0, result.output
    return store


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """``whole``: an hour as ever, then one in which w1 prefills three times as long, and 20 of 400
    time out; ``before`` and ``after`` are its halves. ``m70b`` is on route rag.
    """
    folder = tmp_path_factory.mktemp("compare")
    before = [
        factory.clean(300, seed=1),
        factory.clean(100, seed=2, model="m70b", route="rag", cached_share=0.5),
    ]
    after = [
        factory.clean(300, seed=3),
        factory.clean(100, seed=4, model="m70b", route="rag", cached_share=0.5),
    ]
    for part in after:
        part.columns["start_unix_ns"] = part.columns["start_unix_ns"] + LATER_NS - START_NS
        part.phases["prefill"][np.asarray(part.columns["worker"]) == "w1"] *= 3
    late = np.arange(0, 300, 15)
    after[0].add("queue", late, 20_000)
    after[0].set("status", late, "timeout")
    return {
        "whole": _import(folder, "whole", *before, *after),
        "before": _import(folder, "before", *before),
        "after": _import(folder, "after", *after),
    }


def _json(run: Run, *arguments: object) -> dict[str, Any]:
    result = run("compare", *arguments, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def _phase(document: dict[str, Any], phase: str) -> dict[str, Any]:
    (metric,) = [m for m in document["metrics"] if m["metric"] == "ttft_ms"]
    (found,) = [p for p in metric["phases"] if p["phase"] == phase]
    split: dict[str, Any] = found["split"]
    return split


def test_two_windows_of_one_store(run: Run, stores: dict[str, Path]) -> None:
    document = _json(run, FIRST, SECOND, "--store", stores["whole"])
    assert document["schema"] == SCHEMA
    assert [document[s]["requests"]["total"] for s in "ab"] == [400, 400]
    assert document["b"]["requests"]["timeout"] == 20
    assert document["verdict"] == "fewer_completed"
    assert _phase(document, "prefill")["cost"]["is_change"] is True
    named = {w["worker"] for w in document["workers"] if w["named"]}
    assert named == {"w1"}
    assert "2026-11-29 21:00:00 UTC" in document["b"]["text"], "unix ns are no reading matter"
    assert {(s["model"], s["route"]) for s in document["strata"]} == {
        ("m8b", "chat"),
        ("m70b", "rag"),
    }


def test_two_stores_say_what_two_windows_say(run: Run, stores: dict[str, Path]) -> None:
    windows = _json(run, FIRST, SECOND, "--store", stores["whole"])
    paths = _json(run, stores["before"], stores["after"])
    mixed = _json(run, f"{stores['whole']}@{FIRST}", stores["after"])
    for document in (paths, mixed):
        assert document["metrics"] == windows["metrics"]
        assert document["verdict"] == windows["verdict"]
    assert paths["a"]["store"] == str(stores["before"])


def test_two_labels(run: Run, stores: dict[str, Path]) -> None:
    store = ("--store", stores["whole"])
    document = _json(run, "worker=w0", "worker=w1", *store, "--since", LATER_NS)
    assert document["a"]["requests"]["total"] == document["b"]["requests"]["total"] == 200
    assert _phase(document, "prefill")["cost"]["is_change"] is True
    assert document["stratified_by"] == ["model", "route"]
    document = _json(run, "model=m8b", "model=m70b", *store, "--until", LATER_NS)
    assert document["stratified_by"] == ["route"], "what is compared tells no kinds apart"
    assert document["a"]["requests"]["total"] == 300
    both = _json(run, f"{FIRST},worker=w1", f"{SECOND},worker=w1", *store, "--model", "m70b")
    assert [both[s]["requests"]["total"] for s in "ab"] == [50, 50]
    assert _phase(both, "prefill")["cost"]["is_change"] is True
    none = _json(run, "tenant=acme", "tenant=other", *store)
    assert none["verdict"] == "not_enough_evidence"
    assert any("A is empty; its store holds 800 requests" in note for note in none["notes"])
    assert "no request has tenant=acme; no request has one" in none["notes"]
    wrong = _json(run, "worker=w9", "worker=w0", *store)
    assert "no request has worker=w9; known: w0, w1" in wrong["notes"]
    assert not any("worker=w0" in note for note in wrong["notes"])


def test_route_and_slo(run: Run, stores: dict[str, Path]) -> None:
    document = _json(
        run, FIRST, SECOND, "--store", stores["whole"], "--route", "chat", "--slo", "ttft=10s"
    )
    assert document["a"]["requests"]["total"] == 300
    assert document["slo"]["ttft_ms"] == 10_000
    assert document["goodput"]["a_share"] == 1
    assert document["goodput"]["b_share"] == pytest.approx(280 / 300)


def test_one_object_behind_every_form(run: Run, stores: dict[str, Path]) -> None:
    arguments = (FIRST, SECOND, "--store", stores["whole"])
    document = _json(run, *arguments)
    assert json.loads(run("compare", *arguments, "--format", "json").stdout) == document
    text = run("compare", *arguments).stdout
    assert " ".join(text.split()).startswith(" ".join(document["sentence"].split()))
    assert "20 timed out" in text and "m70b, rag" in text
    markdown = run("compare", *arguments, "--format", "md").stdout
    assert markdown.startswith(f"# {document['sentence']}")
    assert "## What the change of the mean is made of" in markdown


def test_the_process_stays_narrow(run_process: RunProcess, stores: dict[str, Path]) -> None:
    done = run_process("compare", stores["before"], stores["after"], COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    table = [line for line in done.stdout.splitlines() if line.startswith("TTFT p95")]
    assert len(table) == 1 and "(>=" in table[0], "survivorship beside the percentile"


@pytest.mark.parametrize(
    ("sides", "words"),
    [
        ((FIRST, FIRST), "are the same requests"),
        ((FIRST, "colour=red"), "unknown label 'colour'"),
        ((FIRST, "nowhere/at/all"), "no tracekit store"),
        ((FIRST, "soon"), "no window, label or folder"),
        ((FIRST,), "Missing argument"),
    ],
)
def test_usage_errors(
    run: Run, stores: dict[str, Path], sides: tuple[str, ...], words: str
) -> None:
    result = run("compare", *sides, "--store", stores["whole"])
    assert result.exit_code == 2
    assert words in result.output
    assert run("compare", FIRST, SECOND, "--slo", "ttft=fast").exit_code == 2


def test_requests_on_both_sides_are_noted(run: Run, stores: dict[str, Path]) -> None:
    document = _json(run, "worker=w0", FIRST, "--store", stores["whole"])
    assert any("200 requests are on both sides" in note for note in document["notes"])


def test_rows_without_a_clock_lie_in_no_window(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "sheet.csv"
    log.write_text(
        "request_id,input_tokens,output_tokens,ttft_ms,e2e_ms\n"
        + "".join(f"q{i},{100 + i},10,{50 + i % 7},{500 + i % 11}\n" for i in range(80)),
        encoding="utf-8",
    )
    store = tmp_path / "store"
    assert run("import", log, "--store", store).exit_code == 0
    document = _json(run, "2h..1h", "1h", "--store", store)
    assert document["a"]["left_out_without_clock"] == 80
    assert document["verdict"] == "not_enough_evidence"
    assert any("without a start time lie in no window" in note for note in document["notes"])
    # as a store of its own it can be compared
    assert _json(run, store, store_copy(run, log, tmp_path))["verdict"] == "no_change"


def store_copy(run: Run, log: Path, folder: Path) -> Path:
    """The same log in a store of its own."""
    store = folder / "copy"
    assert run("import", log, "--store", store).exit_code == 0
    return store


def test_an_empty_store(run: Run, empty_store: Path, stores: dict[str, Path]) -> None:
    document = _json(run, stores["before"], empty_store)
    assert document["verdict"] == "not_enough_evidence"
    for form in ("text", "md"):
        assert run("compare", stores["before"], empty_store, "--format", form).exit_code == 0
