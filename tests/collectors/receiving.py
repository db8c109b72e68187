"""What the receiver's tests send and how they look at the result."""

from __future__ import annotations

import gzip
import http.client
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb
import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracekit.lake.store import Store
from tracekit_collectors.collect import Ready
from tracekit_collectors.config import CollectConfig

EXPORT = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
PROTOBUF = "application/x-protobuf"
JSON = "application/json"


@dataclass(frozen=True)
class Running:
    """A receiver that runs in this process."""

    config: CollectConfig
    ready: Ready
    end: Callable[[], int]
    started: float

    def stop(self) -> None:
        assert self.end() == 0

    def rows(self, table: str = "spans", columns: str = "*") -> list[tuple[Any, ...]]:
        return rows_of(self.config.store, table, columns)

    def status(self) -> dict[str, Any]:
        answer = post(self.ready.http_port, "/status", method="GET")
        assert answer.status == 200
        out: dict[str, Any] = json.loads(answer.body)
        return out


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def rows_of(store: Any, table: str = "spans", columns: str = "*") -> list[tuple[Any, ...]]:
    """The table's rows as a reader sees them now."""
    snapshot = Store.open(store).snapshot(table)
    with duckdb.connect() as con:
        return con.execute(f"SELECT {columns} FROM ({snapshot.scan_sql()})").fetchall()


def until(check: Callable[[], object], *, seconds: float = 30) -> None:
    """Poll until ``check`` is true; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    pause = 0.005
    while not check():
        assert time.monotonic() < deadline, "the awaited state did not come"
        time.sleep(pause)


def spans(
    count: int, *, service: str = "svc", start_unix_ns: int | None = None, payload: int = 0
) -> ExportTraceServiceRequest:
    """A request with ``count`` good spans of 1 s that ended just now."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    attribute = resource.resource.attributes.add(key="service.name")
    attribute.value.string_value = service
    scope = resource.scope_spans.add()
    at = time.time_ns() - 1_000_000_000 if start_unix_ns is None else start_unix_ns
    for index in range(count):
        span = scope.spans.add(
            trace_id=secrets.token_bytes(16),
            span_id=secrets.token_bytes(8),
            name=f"span {index}",
            kind=2,
            start_time_unix_nano=at,
            end_time_unix_nano=at + 1_000_000_000,
        )
        if payload:
            span.attributes.add(key="x").value.string_value = secrets.token_hex(payload // 2)
    return request


def span_ids(request: ExportTraceServiceRequest) -> list[str]:
    return [
        span.span_id.hex()
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def gauge(value: float) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "svc"
    metric = resource.scope_metrics.add().metrics.add(name="vllm:num_requests_waiting")
    metric.gauge.data_points.add(as_double=value, time_unix_nano=time.time_ns())
    return request


def log_record(text: str) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "svc"
    record = resource.scope_logs.add().log_records.add(time_unix_nano=time.time_ns())
    record.body.string_value = text
    return request


def span_json(request: ExportTraceServiceRequest) -> bytes:
    """The request as OTLP/JSON: ids in hex, 64-bit integers as strings."""
    out = []
    for resource in request.resource_spans:
        attributes = [
            {"key": a.key, "value": {"stringValue": a.value.string_value}}
            for a in resource.resource.attributes
        ]
        scopes = [
            {
                "spans": [
                    {
                        "traceId": span.trace_id.hex(),
                        "spanId": span.span_id.hex(),
                        "name": span.name,
                        "kind": span.kind,
                        "startTimeUnixNano": str(span.start_time_unix_nano),
                        "endTimeUnixNano": str(span.end_time_unix_nano),
                    }
                    for span in scope.spans
                ]
            }
            for scope in resource.scope_spans
        ]
        out.append({"resource": {"attributes": attributes}, "scopeSpans": scopes})
    return json.dumps({"resourceSpans": out}).encode()


def post(
    port: int,
    path: str = "/v1/traces",
    body: bytes = b"",
    *,
    content_type: str | None = PROTOBUF,
    method: str = "POST",
    headers: dict[str, str] | None = None,
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        sent = dict(headers or {})
        if content_type is not None and method == "POST":
            sent["Content-Type"] = content_type
        connection.request(method, path, body=body or None, headers=sent)
        response = connection.getresponse()
        return Answer(
            response.status,
            {name.lower(): value for name, value in response.getheaders()},
            response.read(),
        )
    finally:
        connection.close()


def post_gzip(port: int, body: bytes, **options: Any) -> Answer:
    return post(port, body=gzip.compress(body), headers={"Content-Encoding": "gzip"}, **options)


def export(
    port: int,
    body: bytes,
    *,
    signal: str = "traces",
    compression: grpc.Compression = grpc.Compression.NoCompression,
    metadata: tuple[tuple[str, str], ...] = (),
) -> bytes:
    """One gRPC export with raw bytes; raises grpc.RpcError."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(EXPORT[signal])
        out: bytes = call(body, timeout=30, compression=compression, metadata=metadata)
        return out


def counts(values: list[tuple[Any, ...]]) -> Counter[Any]:
    return Counter(value for (value,) in values)
