"""The parts that do no I/O: bodies, spool records, answers."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

from tracekit.errors import SourceError
from tracekit_collectors import answers, bodies
from tracekit_collectors.entries import Request, from_record, to_record


@given(st.binary(max_size=5000), st.integers(0, 9))
def test_gunzip_undoes_gzip(data: bytes, level: int) -> None:
    assert bodies.gunzip(gzip.compress(data, level), max_bytes=5000) == data


@given(st.binary(max_size=200))
def test_gunzip_of_anything_parses_or_raises_one_error(data: bytes) -> None:
    for packed in (data, b"\x1f\x8b\x08" + data, gzip.compress(b"x") + data):
        try:
            bodies.gunzip(packed, max_bytes=1000)
        except (SourceError, bodies.TooLarge):
            pass


def test_a_gzip_bomb_costs_no_more_than_the_limit() -> None:
    bomb = gzip.compress(b"\0" * (64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(bodies.TooLarge):
            bodies.gunzip(bomb, max_bytes=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    # A limit that is exactly met is met.
    assert len(bodies.gunzip(bomb, max_bytes=64 << 20)) == 64 << 20


@given(
    st.sampled_from(
        [
            ("otlp_grpc", "protobuf", "traces"),
            ("otlp_http", "json", "logs"),
            ("otlp_http", "protobuf", "metrics"),
        ]
    ),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=100),
)
def test_records_come_back_as_they_went(
    kind: tuple[str, str, str], received: int, body: bytes
) -> None:
    origin, encoding, signal = kind
    request = Request(signal, encoding, origin, received, body)
    assert from_record(to_record(request)) == request


@given(st.binary(max_size=40))
def test_any_record_parses_or_raises_one_error(record: bytes) -> None:
    try:
        from_record(record)
    except SourceError:
        pass


def test_partial_success_in_every_signal_and_encoding() -> None:
    metrics = ExportMetricsServiceResponse.FromString(
        answers.success_protobuf("metrics", rejected=2, message="why")
    ).partial_success
    assert (metrics.rejected_data_points, metrics.error_message) == (2, "why")
    logs = ExportLogsServiceResponse.FromString(
        answers.success_protobuf("logs", rejected=1, message="why")
    )
    assert logs.partial_success.rejected_log_records == 1
    assert json.loads(answers.success_json("logs", rejected=1, message="why")) == {
        "partialSuccess": {"rejectedLogRecords": "1", "errorMessage": "why"}
    }


@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [
        ("application/x-protobuf", "protobuf"),
        ("application/protobuf", "protobuf"),
        ("Application/JSON; charset=utf-8", "json"),
        ("text/json", None),
        ("", None),
    ],
)
def test_media_types(content_type: str, encoding: str | None) -> None:
    assert bodies.encoding_of(content_type) == encoding
