"""SGLang's ReqTimeStats lines: alone, and beside the spans of the same requests."""

from __future__ import annotations

import gzip
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

import pytest

from tests.sources._recorded import DATA, Recorded, client, recorded, sound
from tracekit.analysis.session import Session
from tracekit.ingest.engine_logs import BY_FORMAT, BadLine, Facts, lines_of
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store


def _logs(name: str, *processes: str) -> Recorded:
    return recorded(*(f"sglang/{name}.log_{p}.txt.gz" for p in processes))


def test_lines_alone_tell_the_queue_and_no_more() -> None:
    """forward_duration is prefill and decode together: neither is guessed."""
    found = _logs("unified-baseline", "server")
    assert len(found.requests) == 40
    sound(found)
    request = found.by_id()["0e70540b1a864cb7908b9916c7b60023"]
    # ReqTimeStats(rid=0e70.., input_len=40, cached_input_len=1, output_len=10, ...):
    # queue_duration=0.69ms, forward_duration=247.01ms
    assert request["queue_ms"] == pytest.approx(0.69)
    assert (request["input_tokens"], request["cached_tokens"], request["output_tokens"]) == (
        40,
        1,
        10,
    )
    assert request["e2e_ms"] == pytest.approx(0.69 + 247.01)
    assert request["prefill_ms"] is None
    assert request["decode_ms"] is None
    assert request["ttft_ms"] is None


@pytest.mark.trap("sglang", 1)
def test_two_servers_meet_by_their_room() -> None:
    """Their rids differ; bootstrap_room is decimal in the log and hexadecimal in spans."""
    found = _logs("pd-chunked", "prefill", "decode")
    assert len(found.requests) == 36
    assert found.count(leg_roles="prefill_engine,decode_engine") == 36
    sound(found)
    request = next(r for r in found.requests if r["input_tokens"] == 1586)
    # decode: transfer_duration=3366.78ms holds the remote queue and prefill; forward 185.54ms
    assert request["decode_ms"] == pytest.approx(185.54)
    assert request["kv_transfer_ms"] is None
    assert request["prefill_ms"] is None
    assert request["queue_or_prefill_ms"] > 2000
    # transfer_total=12.39 MB, of 2^20 bytes
    assert request["kv_bytes"] == round(12.39 * 2**20)


@pytest.mark.trap("sglang", 2)
def test_a_full_decode_pool_is_queue_in_the_log_too() -> None:
    found = _logs("pd-decode-full", "prefill", "decode")
    waits = {p["request_key"] for p in found.phases if p["sub_phase"] == "queue.kv_alloc"}
    late = [r for r in found.requests if r["status"] == "ok" and r["ttft_ms"] > 5000]
    assert len(late) >= 10
    for request in late:
        assert request["queue_ms"] > 0.7 * request["ttft_ms"]
        assert request["request_key"] in waits


def test_what_a_failed_transfer_lost_is_counted() -> None:
    """A failed transfer prints zeros for what was not reached."""
    found = _logs("pd-decode-full", "prefill", "decode")
    lost = sum(c["failed"] for c in client("sglang", "pd-decode-full"))
    assert found.count(status="error") == lost == 7


@pytest.mark.parametrize("name", ["pd-chunked", "pd-decode-full"])
def test_beside_spans_lines_add_bytes_and_move_nothing(name: str) -> None:
    spans = recorded(f"sglang/{name}.otlp.jsonl.gz").by_id()
    both = recorded(
        f"sglang/{name}.otlp.jsonl.gz",
        f"sglang/{name}.log_prefill.txt.gz",
        f"sglang/{name}.log_decode.txt.gz",
    )
    assert sorted(both.by_id()) == sorted(spans)
    sound(both)
    for request_id, request in both.by_id().items():
        assert "sglang_log" in request["sources"]
        assert request["kv_bytes"] is not None
        for phase in ("queue_ms", "prefill_ms", "kv_transfer_ms", "decode_ms", "ttft_ms", "e2e_ms"):
            assert request[phase] == pytest.approx(spans[request_id][phase], abs=1e-6), phase


@pytest.mark.trap("sglang", 5)
def test_a_retracted_requests_line_tells_no_queue_of_seconds() -> None:
    """Its queue was 4 ms (spans); its line says 3011, of all waits, and an end 3 s after it.

    Two of 24 lines, told by the second in which they were written.
    """
    found = _logs("unified-retract", "server")
    spans = recorded("sglang/unified-retract.otlp.jsonl.gz")
    retracted = {r["request_id"] for r in spans.requests if r["preemptions"]}
    assert len(retracted) == 2
    assert set(found.by_id()) == set(spans.by_id()) - retracted
    for request_id, request in found.by_id().items():
        # the log's queue begins after the message has lain in the scheduler's socket
        assert request["queue_ms"] <= spans.by_id()[request_id]["queue_ms"] + 1
        # a line tells whole ms of its entry
        end_ms = (request["end_unix_ns"] - spans.by_id()[request_id]["end_unix_ns"]) / 1e6
        assert abs(end_ms) < 100


@pytest.mark.parametrize("zone_h", [0, 9, -3.5])
def test_the_zone_of_the_machine_does_not_matter(zone_h: float) -> None:
    (line,) = [
        line
        for line in gzip.open(DATA / "sglang/unified-retract.log_server.txt.gz", "rt")
        if "rid=4bfa308fa8ed42f18bf987b29cd5ea27" in line
    ]
    at = datetime.fromisoformat(line[1:20])
    told = (at + timedelta(hours=zone_h)).isoformat(" ")
    moved = line.replace(line[1:20], told)
    for text, is_refused in ((moved, True), (moved.replace(f"[{told}]", ""), False)):
        ((_, found),) = BY_FORMAT["sglang-log"].read(lines_of([text.encode()]), Facts())
        assert isinstance(found, BadLine) is is_refused
        if isinstance(found, BadLine):
            assert found.reason == "overlapping_durations"


def test_a_retraction_stays_with_the_spans() -> None:
    """After one, entry_time is of the last entry and durations overlap: spans are not moved."""
    spans = recorded("sglang/unified-retract.otlp.jsonl.gz")
    both = recorded(
        "sglang/unified-retract.otlp.jsonl.gz", "sglang/unified-retract.log_server.txt.gz"
    )
    assert sum(r["preemptions"] for r in both.requests) == 2
    assert median(r["queue_ms"] for r in both.requests) == pytest.approx(
        median(r["queue_ms"] for r in spans.requests)
    )


@pytest.mark.parametrize("service", ["another", "sglang-prefill"])
def test_lines_find_their_request_whatever_the_log_is_called(service: str, tmp_path: Path) -> None:
    """By rid and room: the servers' spans are sglang-prefill's and sglang-decode's."""
    name = DATA / "sglang" / "pd-chunked"
    store = Store.open(tmp_path / "s", create=True)
    import_paths(store, [f"{name}.otlp.jsonl.gz"])
    import_paths(
        store, [f"{name}.log_prefill.txt.gz", f"{name}.log_decode.txt.gz"], service=service
    )
    with Session.open(store) as session:
        rows = session.frame(
            "select worker, prefill_worker, kv_bytes, sources from requests "
            "where quarantine_reason is null"
        ).to_dicts()
    assert len(rows) == len(client("sglang", "pd-chunked"))
    for row in rows:
        assert (row["worker"], row["prefill_worker"]) == ("sglang-decode", "sglang-prefill")
        # told by a log only
        assert row["kv_bytes"] > 0
