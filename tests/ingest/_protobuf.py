"""OTLP messages made with the official classes, and their decoding."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tracekit.ingest import Decoded, decode_otlp_protobuf

TRACE = bytes(range(1, 17))
SPAN = bytes(range(1, 9))
START = 1_795_982_589_773_017_088


def attribute(key: str, value: Any) -> KeyValue:
    return KeyValue(key=key, value=any_value(value))


def any_value(value: Any) -> AnyValue:
    out = AnyValue()
    if isinstance(value, bool):
        out.bool_value = value
    elif isinstance(value, str):
        out.string_value = value
    elif isinstance(value, int):
        out.int_value = value
    elif isinstance(value, float):
        out.double_value = value
    elif isinstance(value, bytes):
        out.bytes_value = value
    elif isinstance(value, list):
        out.array_value.values.extend(any_value(v) for v in value)
    elif isinstance(value, dict):
        out.kvlist_value.values.extend(attribute(k, v) for k, v in value.items())
    return out


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


def request(resource: dict[str, Any] | None = None) -> tuple[ExportTraceServiceRequest, Any]:
    message = ExportTraceServiceRequest()
    block = message.resource_spans.add()
    given = {"service.name": "vllm"} if resource is None else resource
    block.resource.attributes.extend(attribute(k, v) for k, v in given.items())
    scope = block.scope_spans.add()
    scope.scope.name, scope.scope.version = "tracekit", "1"
    return message, scope


def span(scope: Any, attributes: dict[str, Any] | None = None, **fields: Any) -> Any:
    defaults = {
        "trace_id": TRACE,
        "span_id": SPAN,
        "name": "chat",
        "kind": 3,
        "start_time_unix_nano": START,
        "end_time_unix_nano": START + 5,
    }
    made = scope.spans.add(**(defaults | fields))
    made.attributes.extend(attribute(k, v) for k, v in (attributes or {}).items())
    return made


def decode(message: Any, signal: str = "traces") -> Decoded:
    decoded = decode_otlp_protobuf(signal, message.SerializeToString())
    decoded.table.validate(full=True)
    return decoded


def one_row(message: Any, signal: str = "traces") -> dict[str, Any]:
    decoded = decode(message, signal)
    assert decoded.rejected == ()
    (row,) = decoded.table.to_pylist()
    return dict(row)
