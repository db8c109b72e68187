"""Dynamo's JSON-lines logs: the spans that their lines were written in, given back."""

from __future__ import annotations

from statistics import median

import pytest

from tests.sources._recorded import client, recorded, sound

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


def test_with_the_request_trace_logs_tell_the_transfer() -> None:
    found = recorded(*_files("pd_slow_kv"), "dynamo/pd_slow_kv.request_trace.jsonl.gz")
    assert len(found.requests) == len(client("dynamo", "pd_slow_kv"))
    sound(found)
    # 131,072 bytes a token at 0.4 GB/s
    late = [
        r["kv_transfer_ms"] / (r["input_tokens"] * 131_072 / 0.4e9 * 1e3) for r in found.requests
    ]
    assert 1 < median(late) < 1.15
