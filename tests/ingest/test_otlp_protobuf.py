"""OTLP protobuf: spans that are stored."""

from __future__ import annotations

import json
import math

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from tests.ingest._protobuf import (
    SPAN,
    START,
    TRACE,
    any_value,
    attribute,
    decode,
    one_row,
    request,
    span,
)
from tracekit.ingest import decode_otlp_protobuf
from tracekit.ingest._collect import new_rows
from tracekit.ingest.otlp_protobuf import add_protobuf

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


def test_a_log_line_that_became_an_events_name_loses_its_text() -> None:
    message, scope = request({})
    made = span(scope, {})
    made.events.add(name="Output: the answer", time_unix_nano=START)
    (event,) = json.loads(one_row(message)["events"])
    assert event["name"] == "Output: [text dropped]"
