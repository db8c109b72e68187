"""Clients' rows with `meta_info` of SGLang's native answers, and rows that have none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.sources._recorded import DATA, Row, recorded, sound
from tracekit.analysis.session import Session
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store

FILE = "sglang/unified-edge.responses.jsonl.gz"
MS = 1_000_000


def _calls() -> list[Row]:
    with gzip.open(DATA / FILE, "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.trap("sglang", 9)
def test_native_answers_tell_their_phases() -> None:
    found = recorded(FILE)
    sound(found)
    native = [c for c in _calls() if c["meta_info"]]
    assert len(native) == 9
    for call in native:
        meta = call["meta_info"]
        request = found.by_id()[call["request_id"]]
        assert request["engine"] == "sglang"
        assert request["quarantine_reason"] is None
        # trap 9: queue_time (0.4 ms) leaves out the wait in the scheduler's socket
        queue = (meta["forward_entry_time"] - meta["api_server_dispatch_finish_ts"]) * 1e3
        prefill = (meta["prefill_finished_time"] - meta["forward_entry_time"]) * 1e3
        frontend = (meta["api_server_dispatch_finish_ts"] - meta["request_received_ts"]) * 1e3
        assert request["queue_ms"] == pytest.approx(queue, abs=0.01)
        assert request["queue_ms"] > 5 > 10 * meta["queue_time"] * 1e3
        assert request["prefill_ms"] == pytest.approx(prefill, abs=0.01)
        assert request["frontend_ms"] == pytest.approx(frontend, abs=0.01)
        assert request["input_tokens"] == meta["prompt_tokens"]
        assert request["output_tokens"] == 12
        assert request["finish_reason"] == "length"
        assert request["preemptions"] == 0
        # the client's own clock, on the same machine: sent, and had its last chunk
        last = call["chunk_unix_ns"][-1] if call["stream"] else call["end_unix_ns"]
        assert request["e2e_ms"] == pytest.approx((last - call["send_unix_ns"]) / MS, abs=0.01)
        served = meta["e2e_latency"] * 1e3
        assert request["decode_ms"] == pytest.approx(
            served - meta["first_token_latency"] * 1e3, abs=8
        )
        if call["stream"]:
            ttft = (call["chunk_unix_ns"][0] - call["send_unix_ns"]) / MS
            assert request["ttft_ms"] == pytest.approx(ttft, abs=0.01)
            assert request["ttft_kind"] == "first_chunk"


def test_rows_without_timings_stay_the_clients() -> None:
    others = [c for c in _calls() if not c["meta_info"]]
    assert others
    for call in others:
        request = recorded(FILE).by_id()[call["request_id"]]
        assert request["engine"] is None
        assert request["status"] == "aborted"
        assert request["queue_ms"] is None


def test_exported_metrics_files_as_documented(tmp_path: Path) -> None:
    """`--export-metrics-to-file` writes a line a request: meta_info, and the request as text.

    The times are recorded ones; the form of the line is that of the exporter's source.
    """
    file = tmp_path / "sglang-request-metrics-20261129_21.log"
    secret = "what a user wrote"
    with file.open("w") as out:
        for call in _calls():
            if meta := call["meta_info"]:
                asked = {"rid": meta["id"], "text": secret, "stream": True}
                out.write(json.dumps({"request_parameters": json.dumps(asked), **meta}) + "\n")
    store = Store.open(tmp_path / "s", create=True)
    summary = import_paths(store, [str(file)])
    assert (summary.files[0].taken, summary.files[0].refused) == (9, ())
    with Session.open(store) as session:
        rows = session.frame("select * from requests").to_dicts()
        kept = session.frame("select extra from request_log")["extra"].to_list()
    native = {c["request_id"]: c["meta_info"] for c in _calls() if c["meta_info"]}
    assert {r["request_id"] for r in rows} == set(native)
    for row in rows:
        meta = native[row["request_id"]]
        queue = (meta["forward_entry_time"] - meta["api_server_dispatch_finish_ts"]) * 1e3
        assert row["queue_ms"] == pytest.approx(queue, abs=0.01)
        assert row["e2e_ms"] == pytest.approx(meta["e2e_latency"] * 1e3, abs=0.01)
    assert not any(secret in (extra or "") for extra in kept)


def test_calls_without_a_trace_join_by_the_id_of_the_answer() -> None:
    """The client sent no traceparent with four calls; SGLang knows them by its own rid."""
    log, spans = "sglang/unified-edge.calls.jsonl.gz", "sglang/unified-edge.otlp.jsonl.gz"
    with gzip.open(DATA / log, "rt") as lines:
        calls = {call["request_id"]: call for call in map(json.loads, lines)}
    alone = [c for c in calls.values() if c["trace_id"] is None]
    assert len(alone) == 4
    for files in ((spans, log), (log, spans)):
        found = recorded(*files)
        # as many requests as the client made calls, each under the client's own id
        assert sorted(r["request_id"] for r in found.requests) == sorted(calls)
        for call in alone:
            request = found.by_id()[call["request_id"]]
            assert request["leg_roles"] == "client,engine"
            assert request["output_tokens"] == call["usage"]["completion_tokens"]
            ttft = (call["chunk_unix_ns"][0] - call["send_unix_ns"]) / MS
            assert request["ttft_ms"] == pytest.approx(ttft, abs=0.01)
            assert 0 < request["prefill_ms"] < request["ttft_ms"]
