"""The OTLP messages as the fast decoder reads them: attributes as maps of raw bytes.

``repeated KeyValue`` and ``map<string, bytes>`` are the same bytes on the wire, and a raw
AnyValue is cheaper to read by hand than through two Python wrappers an attribute: 30 % of the
whole decoder. The messages are the official ones with only that field type changed, in a
descriptor pool of their own.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

_FILES: Final = (
    common_pb2,
    resource_pb2,
    trace_pb2,
    metrics_pb2,
    logs_pb2,
    trace_service_pb2,
    metrics_service_pb2,
    logs_service_pb2,
)
_KEY_VALUE: Final = ".opentelemetry.proto.common.v1.KeyValue"
_Field: Final = descriptor_pb2.FieldDescriptorProto

#: A nested attribute value, read with the official message.
AnyValue: Final[Any] = common_pb2.AnyValue


def _attributes_as_maps(message: Any, path: str) -> None:
    for nested in message.nested_type:
        _attributes_as_maps(nested, f"{path}.{nested.name}")
    if message.name == "KeyValueList":  # a value, not attributes: stays as it is
        return
    for field in message.field:
        if field.type_name != _KEY_VALUE or field.label != _Field.LABEL_REPEATED:
            continue
        entry = message.nested_type.add(name=f"{field.name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        optional = _Field.LABEL_OPTIONAL
        entry.field.add(name="key", number=1, label=optional, type=_Field.TYPE_STRING)
        entry.field.add(name="value", number=2, label=optional, type=_Field.TYPE_BYTES)
        field.type_name = f"{path}.{entry.name}"


def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for module in _FILES:
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            _attributes_as_maps(message, f".{file.package}.{message.name}")
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL: Final = _pool()


def _message(name: str) -> Any:
    full = f"opentelemetry.proto.{name}"
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(full))


#: Message of a whole export request, by signal.
REQUEST: Final[dict[str, Any]] = {
    "traces": _message("collector.trace.v1.ExportTraceServiceRequest"),
    "metrics": _message("collector.metrics.v1.ExportMetricsServiceRequest"),
    "logs": _message("collector.logs.v1.ExportLogsServiceRequest"),
}

#: Message of one item, by signal.
ITEM: Final[dict[str, Any]] = {
    "traces": _message("trace.v1.Span"),
    "metrics": _message("metrics.v1.Metric"),
    "logs": _message("logs.v1.LogRecord"),
}

#: A resource, parsed apart from the messages it came in.
ResourceMessage: Final[Any] = _message("resource.v1.Resource")
