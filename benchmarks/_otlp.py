"""OTLP export requests for benchmarks: 512 spans of 15 attributes, as an SDK would send them."""

from __future__ import annotations

import random

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SPANS_PER_MESSAGE = 512
_PHASES = ("queue", "prefill", "kv_transfer", "decode")


def _set(owner: object, key: str, value: object) -> None:
    attribute = owner.attributes.add()  # type: ignore[attr-defined]
    attribute.key = key
    kind = {bool: "bool_value", int: "int_value", float: "double_value"}.get(type(value))
    setattr(attribute.value, kind or "string_value", value)


def message(seed: int, *, start_unix_ns: int) -> bytes:
    """One serialized request: a root and four phase spans a request, about 570 bytes a span."""
    draw = random.Random(seed)
    request = ExportTraceServiceRequest()
    block = request.resource_spans.add()
    for key, value in (
        ("service.name", "vllm"),
        ("service.instance.id", "vllm-0"),
        ("host.name", "gpu-node-1"),
        ("telemetry.sdk.language", "python"),
    ):
        _set(block.resource, key, value)
    scope = block.scope_spans.add()
    scope.scope.name, scope.scope.version = "tracekit", "0.1"
    trace_id = root = b""
    for i in range(SPANS_PER_MESSAGE):
        place = i % 5
        if place == 0:
            trace_id, root = draw.randbytes(16), draw.randbytes(8)
        span = scope.spans.add(
            trace_id=trace_id,
            span_id=root if place == 0 else draw.randbytes(8),
            parent_span_id=b"" if place == 0 else root,
            name=f"llm.{_PHASES[place - 1]}" if place else "chat",
            kind=3,
            start_time_unix_nano=start_unix_ns + i * 1000,
            end_time_unix_nano=start_unix_ns + i * 1000 + int(draw.lognormvariate(18, 1)),
        )
        tokens = int(draw.lognormvariate(6.6, 1.1))
        attributes: tuple[tuple[str, object], ...] = (
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.request.model", f"model-{draw.randrange(4)}"),
            ("gen_ai.response.model", "model"),
            ("gen_ai.provider.name", "vllm"),
            ("gen_ai.usage.input_tokens", tokens),
            ("gen_ai.usage.cache_read.input_tokens", tokens // 3),
            ("gen_ai.usage.output_tokens", draw.randrange(1, 900)),
            ("gen_ai.request.max_tokens", 1024),
            ("gen_ai.request.temperature", draw.random()),
            ("gen_ai.request.stream", True),
            ("gen_ai.response.id", f"chatcmpl-{draw.getrandbits(64):x}"),
            ("gen_ai.response.time_to_first_chunk", draw.random()),
            ("llm.queue_depth", draw.randrange(64)),
            ("server.address", f"vllm-{draw.randrange(4)}"),
            ("user.id", f"u{draw.randrange(5000)}"),
        )
        for name, written in attributes:
            _set(span, name, written)
    data: bytes = request.SerializeToString()
    return data
