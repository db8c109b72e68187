"""Recorded exports of real vLLM servers, message by message through each transport."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.collectors.receiving import JSON, Running, export, post, post_gzip, until

Start = Callable[..., Running]
DATA = Path(__file__).parent.parent / "data" / "vllm"
CENTURY_NS = 100 * 365 * 86_400 * 10**9  # recordings must not grow too old for the test


def protobuf_messages(name: str) -> list[bytes]:
    """The messages of a file in which each is preceded by its length as a varint."""
    data = gzip.decompress((DATA / f"{name}.otlp.pb.gz").read_bytes())
    out, at = [], 0
    while at < len(data):
        length = shift = 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        out.append(data[at : at + length])
        at += length
    return out


@pytest.mark.parametrize("name", ["baseline", "edge", "pd-nixl", "startup-base"])
@pytest.mark.parametrize("transport", ["grpc", "http-gzip", "http-json"])
def test_every_recorded_span_arrives_once(start: Start, name: str, transport: str) -> None:
    receiver = start(retain_ns=CENTURY_NS)
    messages = protobuf_messages(name)
    sent: Counter[tuple[str, str, str, int, int]] = Counter()
    for message in messages:
        for resource in ExportTraceServiceRequest.FromString(message).resource_spans:
            for scope in resource.scope_spans:
                sent.update(
                    (
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.name,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                    )
                    for span in scope.spans
                )
    if transport == "grpc":
        for message in messages:
            assert export(receiver.ready.grpc_port, message) == b""
    elif transport == "http-gzip":
        for message in messages:
            assert post_gzip(receiver.ready.http_port, message).body == b""
    else:
        lines = gzip.decompress((DATA / f"{name}.otlp.jsonl.gz").read_bytes()).splitlines()
        for line in lines:
            assert post(receiver.ready.http_port, body=line, content_type=JSON).body == b"{}"
    until(lambda: receiver.status()["journal"]["spool_pending"] == 0)
    stored = Counter(receiver.rows(columns="trace_id, span_id, name, start_unix_ns, end_unix_ns"))
    assert stored == sent
    assert receiver.rows("quarantine") == []
