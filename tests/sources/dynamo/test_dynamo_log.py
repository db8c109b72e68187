"""Dynamo's JSON-lines logs: the spans that their lines were written in, given back."""

from __future__ import annotations

import gzip
import json
from statistics import median

import pytest

from tests.sources._recorded import DATA, client, recorded, sound
from tracekit.ingest.engine_logs import BY_FORMAT, Facts, Record, lines_of

LOGS = {
    "pd_slow_kv": ("frontend", "prefill", "decode"),
    "agg_baseline": ("frontend", "worker"),
}
PHASES = ("route_ms", "queue_or_prefill_ms", "decode_ms", "ttft_ms", "e2e_ms")


def _files(name: str) -> tuple[str, ...]:
    return tuple(f"dynamo/{name}.log_{p}.jsonl.gz" for p in LOGS[name])


@pytest.mark.parametrize("name", LOGS)
def test_logs_alone_are_the_same_requests_as_the_spans(name: str) -> None:
    found = recorded(*_files(name), source="dynamo-log")
    spans = recorded(f"dynamo/{name}.otlp.jsonl.gz").by_id()
    assert sorted(found.by_id()) == sorted(spans)
    sound(found)
    assert not found.incomplete
    for request_id, request in found.by_id().items():
        assert request["trace_id"] == spans[request_id]["trace_id"]
        assert request["prefill_ms"] is None
        # lines are written within a ms of the span's ends, but for a starved machine
        assert request["ttft_ms"] == spans[request_id]["ttft_ms"]
    off = [abs(r["e2e_ms"] - spans[i]["e2e_ms"]) for i, r in found.by_id().items()]
    assert median(off) < 1


@pytest.mark.parametrize("name", LOGS)
def test_logs_beside_spans_change_nothing(name: str) -> None:
    spans = recorded(f"dynamo/{name}.otlp.jsonl.gz").by_id()
    both = recorded(f"dynamo/{name}.otlp.jsonl.gz", *_files(name))
    assert sorted(both.by_id()) == sorted(spans)
    sound(both)
    for request_id, request in both.by_id().items():
        assert request["choices"] == 1
        for phase in PHASES:
            assert request[phase] == pytest.approx(spans[request_id][phase], abs=1e-6), phase


@pytest.mark.trap("dynamo", 7)
def test_the_headers_time_is_no_calls_end() -> None:
    """`http response sent` says 195 ms of a call of 398 ms: its headers, about the prefill."""
    path = DATA / "dynamo" / "pd_slow_kv.log_frontend.jsonl.gz"
    said: dict[str, dict[str, float]] = {"latency_ms": {}, "elapsed_ms": {}}
    with gzip.open(path, "rt") as lines:
        for told in map(json.loads, lines):
            for name in said:
                if name in told and told["span_name"] == "http-request":
                    said[name][told["x_request_id"]] = float(told[name])
    assert len(said["latency_ms"]) == len(said["elapsed_ms"]) == 40
    found = recorded(*_files("pd_slow_kv"), source="dynamo-log").by_id()
    for request_id, request in found.items():
        # whole ms, less the end of the stream after its last token
        assert request["e2e_ms"] == pytest.approx(said["elapsed_ms"][request_id], abs=7)
        assert request["decode_ms"] > 50
        assert request["ttft_ms"] != said["latency_ms"][request_id]


@pytest.mark.trap("dynamo", 7)
def test_a_call_whose_headers_went_out_has_not_ended() -> None:
    """The log is cut after the headers: the call is under way, and no request of 195 ms."""
    path = DATA / "dynamo" / "pd_slow_kv.log_frontend.jsonl.gz"
    with gzip.open(path, "rb") as lines:
        kept = [line for line in lines if b'"request completed"' not in line]
    assert sum(b'"http response sent"' in line for line in kept) == 40
    facts = Facts()
    found = [r for _, r in BY_FORMAT["dynamo-log"].read(lines_of(kept), facts)]
    assert not [r for r in found if isinstance(r, Record) and r.name == "http-request"]
    assert facts.notices()[0].startswith("40 of its calls had not ended")


def test_with_the_request_trace_logs_tell_the_transfer() -> None:
    found = recorded(*_files("pd_slow_kv"), "dynamo/pd_slow_kv.request_trace.jsonl.gz")
    assert len(found.requests) == len(client("dynamo", "pd_slow_kv"))
    sound(found)
    # 131,072 bytes a token at 0.4 GB/s
    late = [
        r["kv_transfer_ms"] / (r["input_tokens"] * 131_072 / 0.4e9 * 1e3) for r in found.requests
    ]
    assert 1 < median(late) < 1.15
