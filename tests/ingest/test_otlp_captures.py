"""Real vLLM recordings: both encodings of one message give the same rows, and the right ones."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tracekit.ingest import decode_otlp_json, decode_otlp_protobuf
from tracekit.ingest.batch import DECODED_SCHEMA

DATA = Path(__file__).parents[1] / "data" / "vllm"
SCENARIOS = {"baseline": 96, "edge": 49, "pd-nixl": 360, "startup-base": 11}


def _json_messages(scenario: str) -> list[bytes]:
    return gzip.decompress((DATA / f"{scenario}.otlp.jsonl.gz").read_bytes()).splitlines()


def _protobuf_messages(scenario: str) -> list[bytes]:
    data = gzip.decompress((DATA / f"{scenario}.otlp.pb.gz").read_bytes())
    out = []
    at = 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        out.append(data[at : at + size])
        at += size
    return out


def _rows(scenario: str) -> list[dict[str, Any]]:
    return [
        row
        for message in _protobuf_messages(scenario)
        for row in decode_otlp_protobuf("traces", message).table.to_pylist()
    ]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_protobuf_and_json_give_the_same_rows(scenario: str) -> None:
    messages = _protobuf_messages(scenario)
    lines = _json_messages(scenario)
    assert len(messages) == len(lines)
    rows = 0
    for message, line in zip(messages, lines, strict=True):
        from_protobuf = decode_otlp_protobuf("traces", message)
        from_json = decode_otlp_json("traces", line)
        assert from_protobuf.rejected == from_json.rejected == ()
        assert from_protobuf.table.schema == DECODED_SCHEMA["traces"]
        assert from_protobuf.table.equals(from_json.table)
        from_protobuf.table.validate(full=True)
        rows += from_protobuf.table.num_rows
    assert rows == SCENARIOS[scenario]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rows_are_what_the_json_says(scenario: str) -> None:
    # Against the text of the recording itself, read with nothing of ours.
    said = {}
    for line in _json_messages(scenario):
        for block in json.loads(line)["resourceSpans"]:
            resource = {a["key"]: a["value"] for a in block["resource"]["attributes"]}
            for scope in block["scopeSpans"]:
                for span in scope["spans"]:
                    said[span["traceId"], span["spanId"]] = (span, scope["scope"], resource)
    rows = _rows(scenario)
    assert len(rows) == len(said)
    for row in rows:
        span, scope, resource = said[row["trace_id"], row["span_id"]]
        assert row["parent_span_id"] == span.get("parentSpanId")
        assert row["name"] == span["name"]
        assert row["kind"] == span["kind"]
        assert row["start_unix_ns"] == int(span["startTimeUnixNano"])
        assert row["end_unix_ns"] == int(span["endTimeUnixNano"])
        assert row["status_code"] == span.get("status", {}).get("code", 0)
        assert row["flags"] == span.get("flags", 0)
        assert row["scope_name"] == scope["name"]
        assert row["service_name"] == resource["service.name"]["stringValue"]
        assert json.loads(row["attributes"]).keys() == {a["key"] for a in span["attributes"]}
        assert len(json.loads(row["events"] or "[]")) == len(span.get("events", []))


def test_an_engine_span_by_hand() -> None:
    row = next(r for r in _rows("edge") if r["span_id"] == "fa85e851c8ca69e3")
    attributes = json.loads(row.pop("attributes"))
    resource = json.loads(row.pop("resource"))
    assert row == {
        "trace_id": "7b15783d1e4be4e644a88dc7a05fba0c",
        "span_id": "fa85e851c8ca69e3",
        "parent_span_id": "eaada8b07b7b3d1a",
        "name": "llm_request",
        "kind": 2,
        "start_unix_ns": 1795982589773017088,
        "end_unix_ns": 1795982590771696040,
        "status_code": 0,
        "status_message": None,
        "flags": 768,
        "service_name": "vllm-server",
        "service_instance_id": "901072e1-4ab7-4760-9946-161c77b56ecc",
        "host_name": "vllm-host",
        "process_id": "22603",
        "process_rank": None,
        "scope_name": "vllm.tracing.otel",
        "scope_version": None,
        "operation_name": None,
        "model": None,
        "request_id": "chatcmpl-edge-0007",
        "response_id": None,
        "http_route": None,
        "tracekit_phase": None,
        "input_tokens": None,
        "output_tokens": None,
        "events": None,
        "links": None,
    }
    assert attributes["gen_ai.latency.time_to_first_token"] == 0.1937415599822998
    assert attributes["gen_ai.latency.time_in_queue"] == 1.920899990182079e-05
    assert attributes["gen_ai.usage.prompt_tokens"] == 32
    assert attributes["gen_ai.request.n"] == 1
    assert len(attributes) == 13
    assert resource["telemetry.sdk.version"] == "1.45.2"


def test_a_cancelled_client_span_by_hand() -> None:
    clients = [r for r in _rows("edge") if r["service_name"] == "load-client"]
    failed = [r for r in clients if r["status_code"] == 2]
    # README of the recording: 8 cancelled, 2 refused with HTTP 400.
    assert len(failed) == 10
    done = next(r for r in clients if r["status_code"] == 0 and r["events"])
    assert [e["name"] for e in json.loads(done["events"])] == ["first_token"]
    assert isinstance(done["input_tokens"], int)
    assert done["model"] == "tiny-llama"
    assert done["http_route"] == "/v1/chat/completions"


def test_pd_services_and_start_up_ranks() -> None:
    services = Counter(r["service_name"] for r in _rows("pd-nixl"))
    assert services["vllm-prefill"] == services["vllm-decode"] == 60
    ranks = {r["process_rank"] for r in _rows("startup-base")}
    assert ranks == {None, "0"}  # API server and engine core; worker 0
