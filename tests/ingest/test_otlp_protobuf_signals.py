"""OTLP protobuf: metrics and log records."""

from __future__ import annotations

import json
import math
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from tests.ingest._protobuf import (
    SPAN,
    START,
    TRACE,
    any_value,
    attribute,
    decode,
    nested,
)
from tracekit.ingest import decode_otlp_protobuf

# -- metrics -----------------------------------------------------------------------------------


def metrics() -> tuple[ExportMetricsServiceRequest, Any]:
    message = ExportMetricsServiceRequest()
    block = message.resource_metrics.add()
    block.resource.attributes.append(attribute("service.name", "vllm"))
    block.resource.attributes.append(attribute("host.name", "node-1"))
    scope = block.scope_metrics.add()
    scope.scope.name = "meter"
    return message, scope


def test_all_five_kinds_of_metric() -> None:
    message, scope = metrics()
    gauge = scope.metrics.add(name="g", unit="1").gauge.data_points.add(
        time_unix_nano=START, as_double=0.5
    )
    gauge.attributes.append(attribute("engine", "0"))
    counter = scope.metrics.add(name="s", unit="{token}").sum
    counter.is_monotonic, counter.aggregation_temporality = True, 2
    counter.data_points.add(time_unix_nano=START, start_time_unix_nano=START - 9, as_int=7)
    histogram = scope.metrics.add(name="h", unit="s").histogram
    histogram.aggregation_temporality = 1
    histogram.data_points.add(
        time_unix_nano=START,
        count=6,
        sum=1.5,
        bucket_counts=[1, 2, 3],
        explicit_bounds=[0.1, 1.0],
        min=0.01,
        max=0.9,
    )
    exponential = scope.metrics.add(name="e").exponential_histogram
    point = exponential.data_points.add(
        time_unix_nano=START, count=5, sum=2.0, scale=3, zero_count=1, zero_threshold=0.001
    )
    point.positive.offset = -2
    point.positive.bucket_counts.extend([1, 3])
    summary = scope.metrics.add(name="q").summary.data_points.add(
        time_unix_nano=START, count=4, sum=8.0
    )
    summary.quantile_values.add(quantile=0.5, value=2.0)

    decoded = decode(message, "metrics")
    assert decoded.rejected == ()
    rows = {row["name"]: row for row in decoded.table.to_pylist()}
    assert {n: r["metric_type"] for n, r in rows.items()} == {
        "g": "gauge",
        "s": "sum",
        "h": "histogram",
        "e": "exponential_histogram",
        "q": "summary",
    }
    g, s, h, e, q = (rows[n] for n in "gsheq")
    assert (g["value"], g["unit"], g["is_monotonic"], g["temporality"]) == (0.5, "1", None, None)
    assert (g["service_name"], g["host_name"], g["scope_name"]) == ("vllm", "node-1", "meter")
    assert json.loads(g["attributes"]) == {"engine": "0"}
    assert (g["start_unix_ns"], g["at_unix_ns"]) == (None, START)
    assert (s["value"], s["is_monotonic"], s["temporality"]) == (7.0, 1, "cumulative")
    assert s["start_unix_ns"] == START - 9
    assert (h["value"], h["count"], h["temporality"]) == (1.5, 6, "delta")
    assert json.loads(h["buckets"]) == {
        "bounds": [0.1, 1.0],
        "counts": [1, 2, 3],
        "min": 0.01,
        "max": 0.9,
    }
    assert (e["value"], e["count"]) == (2.0, 5)
    assert json.loads(e["buckets"]) == {
        "scale": 3,
        "zero_count": 1,
        "zero_threshold": 0.001,
        "positive": {"offset": -2, "counts": [1, 3]},
        "negative": {"offset": 0, "counts": []},
    }
    assert (q["value"], q["count"]) == (8.0, 4)
    assert json.loads(q["buckets"]) == {"quantiles": [{"quantile": 0.5, "value": 2.0}]}


def test_metric_points_without_a_value() -> None:
    message, scope = metrics()
    points = scope.metrics.add(name="g").gauge.data_points
    points.add(time_unix_nano=START, as_double=math.nan)
    points.add(time_unix_nano=START, flags=1)
    scope.metrics.add(name="h").histogram.data_points.add(time_unix_nano=START, count=0)
    decoded = decode(message, "metrics")
    values = decoded.table["value"].to_pylist()
    assert math.isnan(values[0]) and values[1:] == [None, None]


def test_bad_metric_points_are_refused() -> None:
    message, scope = metrics()
    scope.metrics.add(name="good").gauge.data_points.add(time_unix_nano=START, as_int=1)
    scope.metrics.add(name="no time").gauge.data_points.add(as_int=1)
    scope.metrics.add().gauge.data_points.add(time_unix_nano=START, as_int=1)
    scope.metrics.add(name="late").gauge.data_points.add(time_unix_nano=2**63, as_int=1)
    scope.metrics.add(name="kindless")
    scope.metrics.add(name="odd").histogram.data_points.add(
        time_unix_nano=START, bucket_counts=[1], explicit_bounds=[1.0]
    )
    scope.metrics.add(name="huge").histogram.data_points.add(time_unix_nano=START, count=2**63)
    decoded = decode(message, "metrics")
    assert decoded.table["name"].to_pylist() == ["good"]
    assert [r.reason for r in decoded.rejected] == [
        "missing_time",
        "missing_name",
        "time_out_of_range",
        "unknown_metric_type",
        "bad_buckets",
        "count_out_of_range",
    ]
    assert {r.service_name for r in decoded.rejected} == {"vllm"}


# -- logs --------------------------------------------------------------------------------------


def logs() -> tuple[ExportLogsServiceRequest, Any]:
    message = ExportLogsServiceRequest()
    block = message.resource_logs.add()
    block.resource.attributes.append(attribute("service.name", "vllm"))
    return message, block.scope_logs.add()


def test_log_records() -> None:
    message, scope = logs()
    scope.log_records.add(
        time_unix_nano=START,
        observed_time_unix_nano=START + 1,
        severity_number=9,
        severity_text="INFO",
        event_name="e",
        body=any_value("hello"),
        trace_id=TRACE,
        span_id=SPAN,
        attributes=[attribute("k", 1)],
    )
    scope.log_records.add(observed_time_unix_nano=START + 2, body=any_value({"a": [1]}))
    scope.log_records.add(body=any_value(5), trace_id=b"short", span_id=bytes(8))
    decoded = decode(message, "logs")
    assert decoded.rejected == ()
    first, second, third = decoded.table.to_pylist()
    assert (first["at_unix_ns"], first["severity_number"], first["body"]) == (START, 9, "hello")
    assert (first["trace_id"], first["span_id"]) == (TRACE.hex(), SPAN.hex())
    assert (first["event_name"], first["attributes"]) == ("e", '{"k":1}')
    assert (second["at_unix_ns"], second["body"]) == (START + 2, '{"a":[1]}')
    assert (third["at_unix_ns"], third["body"]) == (None, "5")
    assert (third["trace_id"], third["span_id"]) == (None, None)


def test_bad_log_records_are_refused() -> None:
    message, scope = logs()
    scope.log_records.add(time_unix_nano=2**63)
    scope.log_records.add(body=any_value(nested(30)))
    scope.log_records.add(body=any_value("MARK"), trace_id=TRACE)
    scope.log_records.add(body=any_value("good"))
    data = message.SerializeToString().replace(b"MARK", b"\xff\xfe\xfd\xfc")
    decoded = decode_otlp_protobuf("logs", data)
    assert decoded.table["body"].to_pylist() == ["good"]
    assert sorted(r.reason for r in decoded.rejected) == [
        "invalid_utf8",
        "time_out_of_range",
        "too_deep",
    ]
    assert TRACE.hex() in {r.trace_id for r in decoded.rejected}
