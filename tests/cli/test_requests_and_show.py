"""``requests``, ``show`` and ``verdicts``: what the JSON promises, and what people see."""

from __future__ import annotations

import csv
import io
import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli import traffic
from tests.cli.conftest import Run
from tracekit.lake.schema import RECORD_COLUMNS
from tracekit.names import CAUSES, CLASSES, PHASES

SLOW = traffic.request_id(traffic.SLOW_QUEUE)


def test_requests_json_lines_have_the_record_columns(run: Run) -> None:
    result = run("requests", "--json")
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert len(rows) == traffic.REQUESTS
    assert all(list(row) == list(RECORD_COLUMNS) for row in rows)
    starts = [row["start_unix_ns"] for row in rows]
    assert starts == sorted(starts, reverse=True)
    row = next(r for r in rows if r["request_id"].endswith(SLOW))
    expected = traffic.expected_ms(traffic.SLOW_QUEUE)
    assert row["queue_ms"] == pytest.approx(expected["queue"], abs=0.01)
    assert row["prefill_ms"] == pytest.approx(expected["prefill"], abs=0.01)
    assert row["decode_ms"] == pytest.approx(expected["decode"], abs=0.01)
    assert row["network_ms"] == pytest.approx(expected["network"], abs=0.01)
    assert row["frontend_ms"] == pytest.approx(expected["frontend"], abs=0.01)
    assert row["e2e_ms"] == pytest.approx(sum(expected.values()), abs=0.01)


def test_requests_last_key_and_filters(run: Run) -> None:
    rows = run("requests", "--json", "--last", 3, "--key").output.splitlines()
    assert len(rows) == 3
    assert next(iter(json.loads(rows[0]))) == "request_key"
    unknown = run("requests", "--json", "--model", "other")
    assert unknown.stdout == ""
    assert "no request has model=other; known: tiny-llama" in unknown.stderr
    assert run("requests", "--json", "--status", "aborted").output == ""
    assert run("requests", "--status", "nonsense").exit_code == 2
    window = f"{traffic.START_UNIX_NS}..{traffic.START_UNIX_NS + 20_000_000_000}"
    assert len(run("requests", "--json", "--since", window).output.splitlines()) == 10
    assert run("requests", "--since", "yesterday-ish").exit_code == 2


def test_requests_table_says_how_many_there_are(run: Run) -> None:
    total = traffic.REQUESTS
    assert f"(20 of {total} requests; --last {total} shows all)" in run("requests").output
    assert f"({total} requests)" in run("requests", "--last", total).output
    slow = run("requests", "--slow", "--slo", "ttft=1ms", "--last", 1).output
    assert f"(1 of {total} requests; --last {total} shows all)" in slow
    assert "(1 request)" in run("requests", "--slow", "--slo", "ttft=2s").output
    for shape in ("json", "csv"):
        assert " of " not in run("requests", "--last", 3, "--format", shape).output


def test_requests_slow_keeps_only_misses(run: Run) -> None:
    lines = run("requests", "--json", "--slow", "--slo", "ttft=2s").output.splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == [f"chatcmpl-{SLOW}"]
    assert run("requests", "--slo", "ttft=2s").exit_code == 2


def test_requests_csv_reads_back(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(run("requests", "--format", "csv").output)))
    assert len(rows) == traffic.REQUESTS
    assert tuple(rows[0]) == RECORD_COLUMNS


def test_requests_round_trip_through_import(run: Run, tmp_path: Path) -> None:
    """What ``requests --json`` writes, ``import`` takes: the same sizes and times come out."""
    log = tmp_path / "requests.jsonl"
    log.write_text(run("requests", "--json").output)
    store = tmp_path / "store"
    assert run("import", log, "--store", store).exit_code == 0
    before = {json.loads(x)["request_id"]: json.loads(x) for x in log.read_text().splitlines()}
    after = [json.loads(x) for x in run("requests", "--json", "--store", store).output.splitlines()]
    assert len(after) == len(before) == traffic.REQUESTS
    for row in after:
        was = before[row["request_id"]]
        for column in ("start_unix_ns", "input_tokens", "output_tokens", "model", "status"):
            assert row[column] == was[column], column
        for column in ("ttft_ms", "e2e_ms"):
            assert row[column] == pytest.approx(was[column], abs=1e-3), column


def test_requests_table_for_people(run: Run) -> None:
    text = run("requests").output
    assert "(20 of 60 requests" in text
    assert "req-059" in text and "req-039" not in text
    assert "decode" in text


def test_chunks_come_out_as_they_went_in(run: Run, tmp_path: Path) -> None:
    row = {
        "request_id": "stream",
        "start_unix_ns": traffic.START_UNIX_NS,
        "input_tokens": 10,
        "output_tokens": 5,
        "chunk_offsets_ms": [100.0, 110.0, 120.0, 420.0],
        "chunk_tokens": [1, 1, 1, 2],
    }
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(row) + "\n")
    store = tmp_path / "store"
    assert run("import", log, "--store", store).exit_code == 0
    (line,) = run("requests", "--json", "--chunks", "--store", store).output.splitlines()
    assert json.loads(line)["chunk_offsets_ms"] == row["chunk_offsets_ms"]
    assert json.loads(line)["chunk_tokens"] == row["chunk_tokens"]
    shown = json.loads(run("show", "stream", "--json", "--store", store).output)
    assert shown["chunks"] == {"offsets_ms": row["chunk_offsets_ms"], "tokens": row["chunk_tokens"]}
    (stall,) = [gap for gap in shown["gaps"] if gap["is_stall"]]
    assert stall["ms"] == pytest.approx(300)
    text = run("show", "stream", "--store", store).output
    assert "1 stall" in text and "300 ms" in text
    # no limit, no deadline
    assert shown["fluidity"] is None and "fluidity" not in text
    limit = ("--slo", "tpot=50ms", "--store", store)
    judged = json.loads(run("show", "stream", "--json", *limit).output)["fluidity"]
    # due at 100, 150, 200 and 250 ms; the fourth comes at 420: four deadlines are missed
    assert (judged["missed"], judged["deadlines"]) == (4, 8)
    told = " ".join(run("show", "stream", *limit).output.split())
    # eight deadlines of five tokens: it is not said that they are tokens
    assert (
        "fluidity 0.500: 4 of 8 deadlines missed, one token due every 50.0 ms, the latest" in told
    )
    assert "token by 170 ms (a token misses one deadline, and one more for each further" in told


def test_show_json_is_the_contract(run: Run) -> None:
    shown = json.loads(run("show", SLOW, "--json", "--slo", "ttft=2s").output)
    assert list(shown) == [
        "schema",
        "request",
        "boundaries",
        "phases",
        "gaps",
        "chunks",
        "verdict",
        "verdict_reason",
        "gpu",
        "fluidity",
        "inferred",
    ]
    assert shown["request"]["request_id"] == f"chatcmpl-{SLOW}"
    assert set(RECORD_COLUMNS) <= set(shown["request"])
    for boundary in shown["boundaries"]:
        assert {"name", "at_unix_ns", "provenance", "field"} <= set(boundary)
        assert boundary["provenance"] in ("measured", "reported", "inferred")
    assert [b["at_unix_ns"] for b in shown["boundaries"]] == sorted(
        b["at_unix_ns"] for b in shown["boundaries"]
    )
    phases = shown["phases"]
    assert all({"phase", "start_unix_ns", "end_unix_ns", "ms"} <= set(p) for p in phases)
    assert {p["phase"] for p in phases} <= set(PHASES)
    for one, two in pairwise(phases):
        assert one["end_unix_ns"] == two["start_unix_ns"]
    assert sum(p["ms"] for p in phases) == pytest.approx(shown["request"]["e2e_ms"], abs=1e-3)
    assert sum(p["share"] for p in phases) == pytest.approx(1)
    verdict = shown["verdict"]
    assert {
        "class",
        "phase",
        "cause",
        "excess_ms",
        "expected_ms",
        "confidence",
        "culprits",
        "evidence",
    } <= set(verdict)
    assert verdict["class"] == "attributed"
    assert verdict["phase"] == "queue"
    assert verdict["excess_ms"] == pytest.approx(2_999, abs=5)
    assert shown["verdict_reason"] is None
    assert shown["gpu"] == []


def test_show_finds_by_request_id_trace_id_key_and_beginning(run: Run) -> None:
    by_id = json.loads(run("show", f"chatcmpl-{SLOW}", "--json").output)["request"]
    assert json.loads(run("show", by_id["trace_id"], "--json").output)["request"] == by_id
    assert json.loads(run("show", by_id["request_key"], "--json").output)["request"] == by_id
    beginning = by_id["request_key"][:12]
    assert json.loads(run("show", beginning, "--json").output)["request"] == by_id
    assert json.loads(run("show", "slow-q", "--json").output)["request"] == by_id


def test_show_lists_candidates_of_an_ambiguous_beginning(run: Run) -> None:
    result = run("show", "chatcmpl-req-01")
    assert result.exit_code == 2
    assert "is several requests" in result.output
    assert "chatcmpl-req-010" in result.output
    assert run("show", "no-such-id").exit_code == 2
    assert run("show", "").exit_code == 2


def test_show_for_people_reads_without_colour(run: Run) -> None:
    text = run("show", SLOW, "--slo", "ttft=2s").output
    bar = next(line for line in text.splitlines() if "QQQ" in line)
    beneath = next(line for line in text.splitlines() if line.startswith("too short to draw"))
    named = {phase[0] for phase in beneath.partition("): ")[2].split(", ")}
    assert set(bar) | named == set("NFQPD"), "every phase is drawn or named"
    assert bar.index("Q") < bar.index("D")
    assert bar.count("Q") > bar.count("D"), "the queue is the longest"
    assert "Q queue" in text and "3.00 s" in text
    assert "gen_ai.latency.time_in_" in text and "reported" in text
    assert "verdict attributed: queue" in text


def test_show_says_why_there_is_no_verdict(run: Run) -> None:
    fast = json.loads(run("show", "req-001", "--json", "--slo", "ttft=2s").output)
    assert fast["verdict"] is None
    assert fast["verdict_reason"] == "none: it meets the SLO"
    few = json.loads(run("show", "req-001", "--json", "--no-verdict").output)
    assert few["verdict"] is None and few["verdict_reason"] == "not asked for"


def test_verdicts_json_lines(run: Run) -> None:
    result = run("verdicts", "--json", "--slo", "ttft=2s,e2e=2s")
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert {(r["request_id"], r["metric"]) for r in rows} == {
        (f"chatcmpl-{SLOW}", "ttft"),
        (f"chatcmpl-{SLOW}", "e2e"),
    }
    for row in rows:
        assert list(row) == [
            "request_key",
            "request_id",
            "trace_id",
            "metric",
            "class",
            "phase",
            "cause",
            "excess_ms",
            "expected_ms",
            "confidence",
            "confidence_label",
            "culprit_request_ids",
            "worker",
        ]
        assert row["class"] in CLASSES and row["phase"] == "queue"
        assert row["cause"] in CAUSES
        assert isinstance(row["culprit_request_ids"], list)


def test_verdicts_without_slo_take_the_slowest(run: Run) -> None:
    rows = [json.loads(line) for line in run("verdicts", "--json").output.splitlines()]
    assert any(r["request_id"] == f"chatcmpl-{SLOW}" for r in rows)
    assert len(run("verdicts", "--json", "--last", 1).output.splitlines()) == 1
    assert "queue" in run("verdicts").output


def test_empty_store_is_no_error(run: Run, empty_store: Path) -> None:
    assert run("requests", "--store", empty_store).output.strip() == "no requests in this window"
    assert run("requests", "--json", "--store", empty_store).output == ""
    header = run("requests", "--format", "csv", "--store", empty_store).output
    assert header.strip().split(",") == list(RECORD_COLUMNS)
    assert run("verdicts", "--store", empty_store).exit_code == 0
    assert run("show", "x", "--store", empty_store).exit_code == 2


@pytest.mark.parametrize("shape", [("--json",), ("--json", "--chunks"), ("--format", "csv")])
def test_an_export_comes_back_as_it_was(run: Run, tmp_path: Path, shape: tuple[str, ...]) -> None:
    def exported(store: Path) -> list[dict[str, object]]:
        lines = run("requests", "--json", "--store", store).stdout.splitlines()
        rows: list[dict[str, object]] = [json.loads(line) for line in lines]
        return sorted(rows, key=lambda r: (str(r["request_id"]), r["start_unix_ns"]))

    data = Path(__file__).parent.parent / "data" / "vllm"
    first, second = tmp_path / "first", tmp_path / "second"
    for file in (data / "edge.otlp.pb.gz", data / "edge.requests.jsonl.gz"):
        assert run("import", file, "--store", first).exit_code == 0
    log = tmp_path / ("log.csv" if "csv" in shape else "log.jsonl")
    log.write_text(run("requests", *shape, "--store", first).stdout)
    assert run("import", log, "--store", second).exit_code == 0

    before, after = exported(first), exported(second)
    assert len(before) == len(after) > 20
    assert {row["choices"] for row in before} > {1}
    assert "aborted" in {row["status"] for row in before}
    for old, new in zip(before, after, strict=True):
        for column, value in old.items():
            if isinstance(value, float):
                assert new[column] == pytest.approx(value, abs=1e-3), (column, old["request_id"])
            else:
                assert new[column] == value, (column, old["request_id"])


def test_an_unknown_label_names_the_known_ones(run: Run) -> None:
    known = {json.loads(line)["model"] for line in run("requests", "--json").stdout.splitlines()}
    result = run("requests", "--model", "bogus")
    assert "no request has model=bogus; known: " in result.stderr
    assert all(str(model) in result.stderr for model in known)
    assert "no request has worker=bogus; " in run("requests", "--worker", "bogus").stderr
    assert not run("requests", "--model", known.pop()).stderr
