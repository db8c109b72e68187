"""Answers in OTLP's words: partial success, error status, retry delay.

Owns the bytes of responses in both encodings and nothing else. ``google.rpc.Status`` and
``RetryInfo`` are put together by hand: four fields do not earn another dependency.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import any_pb2, duration_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

#: gRPC status codes used here (google.rpc.Code).
INVALID_ARGUMENT: Final = 3
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAUTHENTICATED: Final = 16

_RESPONSE: Final[dict[str, tuple[Any, str, str]]] = {
    "traces": (ExportTraceServiceResponse, "rejected_spans", "rejectedSpans"),
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points", "rejectedDataPoints"),
    "logs": (ExportLogsServiceResponse, "rejected_log_records", "rejectedLogRecords"),
}
_NOUN: Final = {"traces": "spans", "metrics": "data points", "logs": "log records"}


def rejection_text(signal: str, *, total: int, rejected: Mapping[str, int], detail: str) -> str:
    """What the partial-success answer says: how many, why, and one example."""
    if not rejected:
        return ""
    reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(rejected.items()))
    count = sum(rejected.values())
    text = f"{count} of {total} {_NOUN[signal]} refused and kept in quarantine: {reasons}"
    return f"{text}; first: {detail}" if detail else text


def success_protobuf(signal: str, *, rejected: int, message: str) -> bytes:
    """The export response; with nothing to report it is empty, as OTLP asks."""
    response_type, field, _ = _RESPONSE[signal]
    response = response_type()
    if rejected or message:
        setattr(response.partial_success, field, rejected)
        response.partial_success.error_message = message
    out: bytes = response.SerializeToString()
    return out


def success_json(signal: str, *, rejected: int, message: str) -> bytes:
    """The export response as JSON (64-bit counts are strings, as protobuf JSON has them)."""
    if not rejected and not message:
        return b"{}"
    partial = {_RESPONSE[signal][2]: str(rejected), "errorMessage": message}
    return json.dumps({"partialSuccess": partial}).encode()


def error_protobuf(code: int, message: str, *, retry_after_s: int | None = None) -> bytes:
    """A ``google.rpc.Status``: code = 1, message = 2, details = 3 (a RetryInfo, if asked for)."""
    out = b"\x08" + _varint(code) + _field(2, message.encode())
    if retry_after_s is not None:
        delay = duration_pb2.Duration(seconds=retry_after_s).SerializeToString()
        retry = any_pb2.Any(
            type_url="type.googleapis.com/google.rpc.RetryInfo", value=_field(1, delay)
        )
        out += _field(3, retry.SerializeToString())
    return out


def error_json(code: int, message: str) -> bytes:
    """A ``google.rpc.Status`` as JSON."""
    return json.dumps({"code": code, "message": message}).encode()


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
