"""Protobuf decoding item by item: what is stored, what is refused and why."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tracekit.errors import SourceError, UsageError
from tracekit.ingest import Decoded, decode_otlp_protobuf
from tracekit.ingest._collect import new_rows
from tracekit.ingest.otlp_protobuf import add_protobuf

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


# -- spans that are stored ---------------------------------------------------------------------


def test_hot_columns_come_from_their_keys() -> None:
    message, scope = request(
        {
            "service.name": "api",
            "service.instance.id": "api-0",
            "host.name": "node-1",
            "process.pid": 4711,
            "vllm.process_name": "Worker_TP1",
        }
    )
    span(
        scope,
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "llama",
            "gen_ai.request.id": "r-1",
            "gen_ai.response.id": "chatcmpl-1",
            "url.path": "/v1/chat/completions",
            "http.target": "/not/this",
            "tracekit.phase": "prefill",
            "gen_ai.usage.input_tokens": 300,
            "gen_ai.usage.output_tokens": 20,
        },
        parent_span_id=SPAN[::-1],
        flags=257,
    )
    row = one_row(message)
    assert row["trace_id"] == TRACE.hex() and row["span_id"] == SPAN.hex()
    assert row["parent_span_id"] == SPAN[::-1].hex()
    assert (row["service_name"], row["service_instance_id"]) == ("api", "api-0")
    assert (row["host_name"], row["process_id"], row["process_rank"]) == ("node-1", "4711", "TP1")
    assert (row["scope_name"], row["scope_version"]) == ("tracekit", "1")
    assert (row["operation_name"], row["model"]) == ("chat", "llama")
    assert (row["request_id"], row["response_id"]) == ("r-1", "chatcmpl-1")
    assert (row["http_route"], row["tracekit_phase"]) == ("/v1/chat/completions", "prefill")
    assert (row["input_tokens"], row["output_tokens"], row["flags"]) == (300, 20, 257)
    assert (row["start_unix_ns"], row["end_unix_ns"]) == (START, START + 5)


def test_every_kind_of_value_is_valid_json() -> None:
    message, scope = request()
    span(
        scope,
        {
            "text": "ü\n",
            "empty": "",
            "int": -(2**63),
            "big": 2**63 - 1,
            "double": 0.1,
            "yes": True,
            "no": False,
            "zero": 0,
            "bytes": b"\x00\xff",
            "list": [1, "a", [2.5, None]],
            "map": {"a": {"b": 1}},
            "none": None,
            "nan": math.nan,
            "inf": math.inf,
            "minus": -math.inf,
        },
    )
    attributes = json.loads(
        one_row(message)["attributes"], parse_constant=lambda name: pytest.fail(name)
    )
    assert attributes == {
        "text": "ü\n",
        "empty": "",
        "int": -(2**63),
        "big": 2**63 - 1,
        "double": 0.1,
        "yes": True,
        "no": False,
        "zero": 0,
        "bytes": "AP8=",
        "list": [1, "a", [2.5, None]],
        "map": {"a": {"b": 1}},
        "none": None,
        "nan": "NaN",
        "inf": "Infinity",
        "minus": "-Infinity",
    }


def test_strings_of_every_length_survive() -> None:
    # The decoder reads short strings by hand: 127 and 128 bytes differ in their framing.
    message, scope = request()
    texts = {f"k{n}": "é" * (n // 2) + "x" * (n % 2) for n in range(0, 300)}
    span(scope, texts)
    assert json.loads(one_row(message)["attributes"]) == texts


def test_the_last_of_two_values_in_one_attribute_wins() -> None:
    # Legal protobuf that no encoder writes; the short way must leave it to the parser.
    raw = b"\x0a\x01a\x18\x05"  # string_value, then int_value
    pair = b"\x0a\x01k\x12" + bytes([len(raw)]) + raw
    message, scope = request()
    span(scope).attributes.append(KeyValue(key="k", value=any_value("xxx")))
    placeholder = KeyValue(key="k", value=any_value("xxx")).SerializeToString()
    assert len(placeholder) == len(pair)
    data = message.SerializeToString().replace(placeholder, pair)
    (row,) = decode_otlp_protobuf("traces", data).table.to_pylist()
    assert row["attributes"] == '{"k":5}'


def test_the_route_is_the_template_before_the_path() -> None:
    keys = ["http.route", "url.path", "http.target"]
    message, scope = request()
    for first in range(3):
        span(scope, {key: key for key in keys[first:]})
    assert decode(message).table["http_route"].to_pylist() == keys


def test_the_last_of_two_equal_keys_wins() -> None:
    message, scope = request()
    made = span(scope, {"gen_ai.request.model": "first"})
    made.attributes.append(attribute("gen_ai.request.model", "last"))
    row = one_row(message)
    assert row["model"] == "last"
    assert json.loads(row["attributes"]) == {"gen_ai.request.model": "last"}


def test_odd_types_in_hot_columns_do_not_stop_the_batch() -> None:
    message, scope = request()
    span(scope, {"gen_ai.request.id": 7, "gen_ai.usage.input_tokens": "12"})
    span(scope, {"gen_ai.request.id": "seven", "gen_ai.usage.input_tokens": 13})
    span(scope, {"gen_ai.request.id": ["a"], "gen_ai.usage.input_tokens": 14.0})
    span(scope, {"gen_ai.usage.input_tokens": "many", "gen_ai.usage.output_tokens": 1e300})
    span(scope, {"gen_ai.usage.input_tokens": True, "gen_ai.usage.output_tokens": math.nan})
    decoded = decode(message)
    assert decoded.rejected == ()
    assert decoded.table["request_id"].to_pylist() == ["7", "seven", '["a"]', None, None]
    assert decoded.table["input_tokens"].to_pylist() == [12, 13, 14, None, None]
    assert decoded.table["output_tokens"].to_pylist() == [None] * 5


def test_events_and_links_are_json() -> None:
    message, scope = request()
    made = span(scope)
    made.events.add(name="first_token", time_unix_nano=START + 1).attributes.append(
        attribute("n", 1)
    )
    made.links.add(trace_id=TRACE[::-1], span_id=SPAN[::-1])
    made.links.add(trace_id=b"short", span_id=SPAN)
    row = one_row(message)
    assert json.loads(row["events"]) == [
        {"name": "first_token", "time_unix_ns": START + 1, "attributes": {"n": 1}}
    ]
    assert json.loads(row["links"]) == [
        {"trace_id": TRACE[::-1].hex(), "span_id": SPAN[::-1].hex(), "attributes": {}},
        {"trace_id": None, "span_id": SPAN.hex(), "attributes": {}},
    ]


def test_a_parent_of_zeros_is_none_and_ids_keep_their_rows() -> None:
    message, scope = request()
    span(scope, parent_span_id=bytes(8))
    span(scope, parent_span_id=SPAN[::-1])
    span(scope)
    parents = decode(message).table["parent_span_id"].to_pylist()
    assert parents == [None, SPAN[::-1].hex(), None]


def test_each_span_has_its_own_resource_and_scope() -> None:
    message, first = request({"service.name": "a"})
    span(first)
    second = message.resource_spans[0].scope_spans.add()
    second.scope.name = "other"
    span(second), span(second)
    block = message.resource_spans.add()
    block.resource.attributes.append(attribute("service.name", "b"))
    span(block.scope_spans.add())
    table = decode(message).table
    assert table["service_name"].to_pylist() == ["a", "a", "a", "b"]
    assert table["scope_name"].to_pylist() == ["tracekit", "other", "other", None]


def test_a_rank_on_the_span_beats_that_of_the_process() -> None:
    message, scope = request({"vllm.process_name": "Worker_3"})
    span(scope, {"tp_rank": 1, "pp_rank": 0, "dp_rank": 2})
    span(scope)
    assert decode(message).table["process_rank"].to_pylist() == ["TP1 PP0 DP2", "3"]


def test_reserved_flag_bits_do_not_overflow_the_column() -> None:
    message, scope = request()
    span(scope, flags=2**32 - 1)
    assert one_row(message)["flags"] == 2**31 - 1


def test_no_spans_is_a_table_of_no_rows() -> None:
    decoded = decode(ExportTraceServiceRequest())
    assert decoded.table.num_rows == 0 and decoded.rejected == ()


def test_many_rows_keep_their_order() -> None:
    # More than fit in one of the column batches that the collector seals.
    message, scope = request()
    for number in range(5000):
        span(scope, {"n": number}, start_time_unix_nano=START + number, end_time_unix_nano=2**62)
    table = decode(message).table
    assert table["start_unix_ns"].to_pylist() == [START + n for n in range(5000)]
    assert [json.loads(a)["n"] for a in table["attributes"].to_pylist()] == list(range(5000))


def test_messages_added_one_after_another_are_one_table() -> None:
    rows = new_rows("traces")
    for number in range(6):
        message, scope = request({"service.name": f"s{number}"})
        for _ in range(1000):
            span(scope, {"n": number})
        add_protobuf(rows, message.SerializeToString())
        assert len(rows) == 1000 * (number + 1)
    table = rows.decoded().table
    assert table.num_rows == 6000
    expected = [(f"s{n}", f'{{"n":{n}}}') for n in range(6) for _ in range(1000)]
    services, attributes = (table[c].to_pylist() for c in ("service_name", "attributes"))
    assert list(zip(services, attributes, strict=True)) == expected


# -- spans that are refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"trace_id": b""}, "bad_trace_id"),
        ({"trace_id": bytes(16)}, "bad_trace_id"),
        ({"trace_id": TRACE[:15]}, "bad_trace_id"),
        ({"trace_id": TRACE + b"x"}, "bad_trace_id"),
        ({"span_id": b""}, "bad_span_id"),
        ({"span_id": bytes(8)}, "bad_span_id"),
        ({"span_id": SPAN + b"x"}, "bad_span_id"),
        ({"parent_span_id": b"abc"}, "bad_parent_span_id"),
        ({"start_time_unix_nano": 0}, "missing_start"),
        ({"end_time_unix_nano": 0}, "missing_end"),
        ({"end_time_unix_nano": START - 1}, "end_before_start"),
        ({"start_time_unix_nano": 2**63, "end_time_unix_nano": 2**63}, "time_out_of_range"),
        ({"end_time_unix_nano": 2**64 - 1}, "time_out_of_range"),
    ],
)
def test_a_bad_span_is_refused_and_the_rest_kept(fields: dict[str, Any], reason: str) -> None:
    message, scope = request()
    span(scope, {"n": 1})
    span(scope, {"n": 2, "gen_ai.prompt": "secret"}, **fields)
    span(scope, {"n": 3})
    decoded = decode(message)
    assert [json.loads(a)["n"] for a in decoded.table["attributes"].to_pylist()] == [1, 3]
    (rejected,) = decoded.rejected
    assert (rejected.signal, rejected.reason) == ("traces", reason)
    assert rejected.service_name == "vllm"
    assert rejected.detail
    payload = json.loads(rejected.payload)
    assert payload["attributes"] == {"n": 2}
    assert payload["name"] == "chat"


def test_a_span_that_starts_when_it_ends_is_stored() -> None:
    message, scope = request()
    span(scope, end_time_unix_nano=START)
    assert one_row(message)["end_unix_ns"] == START


def test_an_event_beyond_int64_refuses_its_span() -> None:
    message, scope = request()
    span(scope).events.add(name="e", time_unix_nano=2**63)
    assert [r.reason for r in decode(message).rejected] == ["time_out_of_range"]


def test_nesting_is_cut_off_and_never_recursed_into() -> None:
    message, scope = request()
    span(scope, {"fine": nested(24)})
    span(scope, {"deep": nested(25), "kept": 1})
    span(scope, {"n": 1})
    decoded = decode(message)
    assert decoded.table.num_rows == 2
    (rejected,) = decoded.rejected
    assert rejected.reason == "too_deep"
    assert json.loads(rejected.payload)["attributes"] == {"deep": None, "kept": 1}


@pytest.mark.parametrize("field", [5, 6])  # array_value, kvlist_value
def test_a_depth_bomb_costs_only_its_span(field: int) -> None:
    message, scope = request()
    made = span(scope)
    made.attributes.add(key="bomb")
    span(scope, {"n": 1})
    tag = bytes([field << 3 | 2])
    bomb = b""
    for _ in range(3000):
        if field == 6:
            bomb = b"\x12" + _size(bomb) + bomb  # KeyValue.value
        bomb = b"\x0a" + _size(bomb) + bomb  # values[0]
        bomb = tag + _size(bomb) + bomb
    made.attributes[0].value.bytes_value = b"@" * len(bomb)
    placeholder = made.attributes[0].value.SerializeToString()
    data = message.SerializeToString().replace(placeholder, _as_long(bomb, len(placeholder)))
    decoded = decode_otlp_protobuf("traces", data)
    assert decoded.table.num_rows == 1
    assert [r.reason for r in decoded.rejected] == ["too_deep"]
    assert decoded.rejected[0].trace_id == TRACE.hex()


def _size(data: bytes) -> bytes:
    out = b""
    value = len(data)
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _as_long(data: bytes, length: int) -> bytes:
    """``data`` padded to ``length`` by an unknown varint field, so that outer sizes still fit."""
    missing = length - len(data)
    assert missing >= 2
    return b"\x78" + b"\x80" * (missing - 2) + b"\x00" + data


def test_a_value_that_is_not_utf8_costs_only_its_span() -> None:
    message, scope = request()
    span(scope, {"n": 1})
    span(scope, {"good": "g", "bad": "MARK"})
    decoded = decode_otlp_protobuf(
        "traces", message.SerializeToString().replace(b"MARK", b"\xff\xfe\xfd\xfc")
    )
    assert decoded.table.num_rows == 1
    (rejected,) = decoded.rejected
    assert rejected.reason == "invalid_utf8"
    assert (rejected.trace_id, rejected.span_id) == (TRACE.hex(), SPAN.hex())
    assert json.loads(rejected.payload)["attributes"] == {"good": "g", "bad": None}


@pytest.mark.parametrize("where", ["name", "key", "status"])
def test_any_string_that_is_not_utf8_costs_only_its_span(where: str) -> None:
    message, scope = request()
    span(scope, {"n": 1}, name="good")
    bad = span(scope, {"MARK" if where == "key" else "k": "v"})
    if where == "name":
        bad.name = "MARK"
    elif where == "status":
        bad.status.message = "MARK"
    span(scope, {"n": 3}, name="good")
    data = message.SerializeToString().replace(b"MARK", b"\xff\xfe\xfd\xfc")
    decoded = decode_otlp_protobuf("traces", data)
    assert decoded.table["name"].to_pylist() == ["good", "good"]
    assert decoded.table["service_name"].to_pylist() == ["vllm", "vllm"]
    (rejected,) = decoded.rejected
    assert (rejected.reason, rejected.trace_id) == ("invalid_utf8", TRACE.hex())
    assert rejected.service_name == "vllm"


def test_a_resource_that_is_not_utf8_costs_its_own_spans() -> None:
    for resource in ({"service.name": "MARK"}, {"MARK": "vllm"}):
        message, scope = request(resource)
        span(scope), span(scope)
        other = message.resource_spans.add()
        span(other.scope_spans.add(), {"n": 3})
        data = message.SerializeToString().replace(b"MARK", b"\xff\xfe\xfd\xfc")
        decoded = decode_otlp_protobuf("traces", data)
        assert decoded.table["attributes"].to_pylist() == ['{"n":3}']
        assert [r.reason for r in decoded.rejected] == ["invalid_utf8"] * 2


def test_a_span_that_does_not_parse_costs_only_itself() -> None:
    message, scope = request()
    span(scope, {"n": 1})
    span(scope, {"MARK": 2})
    # Inside the second span: a field whose length runs over the span's end.
    data = message.SerializeToString().replace(b"\x0a\x04MARK", b"\x0a\x7fMARK")
    decoded = decode_otlp_protobuf("traces", data)
    assert decoded.table.num_rows == 1
    assert [(r.reason, r.span_id) for r in decoded.rejected] == [("malformed", SPAN.hex())]


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05ab", b"\xff" * 20, b"hello"])
def test_what_is_no_message_is_one_error(data: bytes) -> None:
    with pytest.raises(SourceError):
        decode_otlp_protobuf("traces", data)


def test_an_unknown_signal_is_the_callers_fault() -> None:
    with pytest.raises(UsageError, match="traces, metrics, logs"):
        decode_otlp_protobuf("profiles", b"")


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
