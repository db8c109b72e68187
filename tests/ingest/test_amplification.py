"""A small message must not become a large table: what is repeated or refused is bounded."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracekit.errors import SourceError
from tracekit.ingest._collect import new_rows
from tracekit.ingest.otlp_protobuf import add_protobuf, decode_otlp_protobuf


def _request(spans: int, *, resource_value: str = "x", good: bool = True) -> bytes:
    request = ExportTraceServiceRequest()
    block = request.resource_spans.add()
    block.resource.attributes.add(key="note").value.string_value = resource_value
    scope = block.scope_spans.add()
    for i in range(spans):
        if good:
            scope.spans.add(
                trace_id=(i + 1).to_bytes(16),
                span_id=(i + 1).to_bytes(8),
                name="s",
                start_time_unix_nano=10**18,
                end_time_unix_nano=10**18,
            )
        else:
            scope.spans.add()
    data: bytes = request.SerializeToString()
    return data


def test_a_large_resource_value_is_cut_not_repeated() -> None:
    decoded = decode_otlp_protobuf("traces", _request(200, resource_value="y" * 1_000_000))
    assert decoded.table.num_rows == 200 and not decoded.rejected
    assert decoded.table.nbytes < 1_000_000
    text = decoded.table["resource"][0].as_py()
    assert "... (cut)" in text and len(text) < 1000


def test_too_many_bad_items_refuse_the_message_and_leave_the_rows_as_they_were() -> None:
    rows = new_rows("traces", keep_text=False)
    add_protobuf(rows, _request(3))
    with pytest.raises(SourceError, match="bad items in one message"):
        add_protobuf(rows, _request(10_001, good=False))
    assert len(rows) == 3 and not rows.rejected
    add_protobuf(rows, _request(10_000, good=False))
    decoded = rows.decoded()
    assert decoded.table.num_rows == 3 and len(decoded.rejected) == 10_000
