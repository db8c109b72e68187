"""OTLP/JSON: its spellings of ids, integers and enums, and what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tracekit.errors import SourceError
from tracekit.ingest import Decoded, decode_otlp_json

TRACE = "0102030405060708090a0b0c0d0e0f10"
SPAN = "0102030405060708"
START = 1_795_982_589_773_017_088


def span(**fields: Any) -> dict[str, Any]:
    return {
        "traceId": TRACE,
        "spanId": SPAN,
        "name": "chat",
        "kind": 3,
        "startTimeUnixNano": str(START),
        "endTimeUnixNano": str(START + 5),
    } | fields


def attribute(key: str, **value: Any) -> dict[str, Any]:
    return {"key": key, "value": value}


def document(*spans: Any, resource: Any = None) -> dict[str, Any]:
    named = {"attributes": [attribute("service.name", stringValue="vllm")]}
    return {
        "resourceSpans": [
            {
                "resource": named if resource is None else resource,
                "scopeSpans": [{"scope": {"name": "s"}, "spans": list(spans)}],
            }
        ]
    }


def decode(*spans: Any, resource: Any = None) -> Decoded:
    decoded = decode_otlp_json("traces", json.dumps(document(*spans, resource=resource)).encode())
    decoded.table.validate(full=True)
    return decoded


def one_row(**fields: Any) -> dict[str, Any]:
    decoded = decode(span(**fields))
    assert decoded.rejected == ()
    (row,) = decoded.table.to_pylist()
    return dict(row)


def reasons(*spans: Any, resource: Any = None) -> list[str]:
    return [r.reason for r in decode(*spans, resource=resource).rejected]


def test_ids_in_hex_or_base64() -> None:
    in_base64 = one_row(
        traceId=base64.b64encode(bytes.fromhex(TRACE)).decode(),
        spanId=base64.b64encode(bytes.fromhex(SPAN)).decode(),
        parentSpanId=base64.b64encode(bytes.fromhex(SPAN)[::-1]).decode(),
    )
    in_hex = one_row(traceId=TRACE.upper(), parentSpanId=bytes.fromhex(SPAN)[::-1].hex())
    assert in_base64 == in_hex
    assert in_hex["trace_id"] == TRACE and in_hex["span_id"] == SPAN


@pytest.mark.parametrize(
    "bad",
    [
        "",
        None,
        "0" * 32,
        TRACE[:-2],
        TRACE + "00",
        "g" * 32,
        TRACE[:-2] + "é1",
        TRACE[:28] + "  10",
        12,
        [TRACE],
        base64.b64encode(b"fifteen bytes..").decode(),
        base64.b64encode(b"fourteen bytes").decode() + "====",
        "abcdef0123456789abcdef01",
    ],
)
def test_bad_trace_ids_are_refused(bad: Any) -> None:
    decoded = decode(span(traceId=bad, attributes=[attribute("a", intValue="1")]), span())
    assert decoded.table.num_rows == 1
    (rejected,) = decoded.rejected
    assert rejected.reason == "bad_trace_id"
    assert (rejected.span_id, rejected.service_name) == (SPAN, "vllm")
    assert json.loads(rejected.payload)["attributes"] == {"a": 1}


def test_a_shorter_id_of_the_same_length_in_base64_is_none() -> None:
    # Seven and eight bytes both take twelve characters.
    seven = base64.b64encode(bytes(range(1, 8))).decode()
    blank = SPAN[:-4] + "  08"
    links = [{"traceId": TRACE, "spanId": bad} for bad in (seven, blank)]
    assert [link["span_id"] for link in json.loads(one_row(links=links)["links"])] == [None, None]
    assert reasons(span(spanId=seven)) == ["bad_span_id"]


def test_integers_as_strings_or_numbers_and_enums_by_name() -> None:
    named = one_row(
        kind="SPAN_KIND_SERVER",
        status={"code": "STATUS_CODE_ERROR", "message": "boom"},
        startTimeUnixNano=START,
        flags="257",
        attributes=[
            attribute("gen_ai.usage.input_tokens", intValue=12),
            attribute("gen_ai.usage.output_tokens", intValue="-9223372036854775808"),
            attribute("f", doubleValue="1.5"),
            attribute("i", doubleValue=2),
            attribute("n", doubleValue="NaN"),
            attribute("m", doubleValue="-Infinity"),
            attribute("b", bytesValue="AP8="),
            attribute("l", arrayValue={"values": [{"intValue": "1"}, {}]}),
            attribute("e", arrayValue={}),
            attribute("k", kvlistValue={"values": [attribute("x", boolValue=False)]}),
            attribute("z"),
            {"key": "y"},
        ],
    )
    assert (named["kind"], named["status_code"], named["status_message"]) == (2, 2, "boom")
    assert (named["start_unix_ns"], named["flags"]) == (START, 257)
    assert (named["input_tokens"], named["output_tokens"]) == (12, -(2**63))
    assert json.loads(named["attributes"]) == {
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": -(2**63),
        "f": 1.5,
        "i": 2.0,
        "n": "NaN",
        "m": "-Infinity",
        "b": "AP8=",
        "l": [1, None],
        "e": [],
        "k": {"x": False},
        "z": None,
        "y": None,
    }
    numbered = one_row(kind=2, status={"code": 2})
    assert (numbered["kind"], numbered["status_code"]) == (2, 2)


def test_null_counts_as_absent_and_unknown_fields_are_ignored() -> None:
    fields = dict.fromkeys(("parentSpanId", "attributes", "events", "links", "status", "flags"))
    assert one_row(**fields, traceState="a=b", other={"x": [1]}) == one_row()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"endTimeUnixNano": str(START - 1)}, "end_before_start"),
        ({"startTimeUnixNano": None}, "missing_start"),
        ({"endTimeUnixNano": "0"}, "missing_end"),
        ({"startTimeUnixNano": "-5"}, "time_out_of_range"),
        ({"endTimeUnixNano": str(2**63)}, "time_out_of_range"),
        ({"endTimeUnixNano": "9" * 5000}, "malformed"),
        ({"endTimeUnixNano": "soon"}, "malformed"),
        ({"endTimeUnixNano": 1.5}, "malformed"),
        ({"endTimeUnixNano": True}, "malformed"),
        ({"parentSpanId": "abc"}, "bad_parent_span_id"),
        ({"name": 5}, "malformed"),
        ({"kind": "SPAN_KIND_NEW"}, "bad_enum"),
        ({"kind": 2**40}, "bad_enum"),
        ({"status": "bad"}, "malformed"),
        ({"attributes": {"a": 1}}, "malformed"),
        ({"attributes": 5}, "malformed"),
        ({"attributes": [5]}, "malformed"),
        ({"attributes": [{"key": 5, "value": {"intValue": "1"}}]}, "malformed"),
        ({"attributes": [attribute("a", stringValue=5)]}, "malformed"),
        ({"attributes": [attribute("a", intValue="x")]}, "malformed"),
        ({"attributes": [attribute("a", intValue=str(2**63))]}, "int_out_of_range"),
        ({"attributes": [attribute("a", intValue=2**63)]}, "int_out_of_range"),
        ({"attributes": [attribute("a", boolValue="true")]}, "malformed"),
        ({"attributes": [attribute("a", bytesValue="%")]}, "malformed"),
        ({"attributes": [attribute("a", doubleValue=[1])]}, "malformed"),
        ({"events": [{"timeUnixNano": str(2**63)}]}, "time_out_of_range"),
        ({"events": {"a": 1}}, "malformed"),
        ({"links": [1]}, "malformed"),
    ],
)
def test_a_bad_span_is_refused_and_the_rest_kept(fields: dict[str, Any], reason: str) -> None:
    decoded = decode(span(), span(**fields), span())
    assert decoded.table.num_rows == 2
    assert [r.reason for r in decoded.rejected] == [reason]
    assert decoded.rejected[0].trace_id == TRACE
    json.loads(decoded.rejected[0].payload)


def test_details_quote_no_values() -> None:
    (rejected,) = decode(span(attributes=[attribute("a", intValue="my secret")])).rejected
    assert "secret" not in rejected.detail + rejected.payload


@pytest.mark.parametrize("levels", [25, 200])
def test_nesting_is_cut_off(levels: int) -> None:
    for kind in ("arrayValue", "kvlistValue"):
        value: Any = {"stringValue": "x"}
        for _ in range(levels):
            inner = {"key": "k", "value": value} if kind == "kvlistValue" else value
            value = {kind: {"values": [inner]}}
        bomb = span(attributes=[{"key": "deep", "value": value}])
        assert reasons(bomb, span()) == ["too_deep"]


@pytest.mark.parametrize("opener", [b"[", b'{"a":', b'{"resourceSpans":['])
def test_a_depth_bomb_is_one_error(opener: bytes) -> None:
    with pytest.raises(SourceError):
        decode_otlp_json("traces", opener * 100_000)


def test_a_depth_bomb_with_a_bad_byte_is_one_error() -> None:
    # The bad byte sends the text through a parser that recurses.
    with pytest.raises(SourceError):
        decode_otlp_json("traces", b'"\xff"' + b"[" * 100_000)


@pytest.mark.parametrize("bad", [b"\xff\xfe", b"\\ud800", b"\xed\xa0\x80"])
@pytest.mark.parametrize("field", ["name", "key", "value", "event"])
def test_a_string_that_is_not_utf8_costs_only_its_span(field: str, bad: bytes) -> None:
    made = span(
        name="MARK" if field == "name" else "n",
        attributes=[
            attribute(
                "MARK" if field == "key" else "k", stringValue="MARK" if field == "value" else "v"
            )
        ],
        events=[{"name": "MARK" if field == "event" else "e", "timeUnixNano": "1"}],
    )
    data = json.dumps(document(span(), made, span())).encode().replace(b"MARK", bad)
    decoded = decode_otlp_json("traces", data)
    assert decoded.table.num_rows == 2
    (rejected,) = decoded.rejected
    assert (rejected.reason, rejected.trace_id) == ("invalid_utf8", TRACE)


def test_a_resource_that_is_not_utf8_costs_its_own_spans() -> None:
    bad = document(
        span(), span(), resource={"attributes": [attribute("service.name", stringValue="MARK")]}
    )
    bad["resourceSpans"] += document(span())["resourceSpans"]
    decoded = decode_otlp_json("traces", json.dumps(bad).encode().replace(b"MARK", b"\xff"))
    assert decoded.table["service_name"].to_pylist() == ["vllm"]
    assert [r.reason for r in decoded.rejected] == ["invalid_utf8"] * 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"5",
        b'{"resourceSpans": 5}',
        b'{"resourceSpans": [5]}',
        b'{"resourceSpans": [{"scopeSpans": {}}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [null]}]}]}',
        b'{"resource_spans": []}',
        b'{"resourceLogs": []}',
        b'{"resourceSpans": [',
        b"\xff\xfe",
    ],
)
def test_what_is_no_request_is_one_error(data: bytes) -> None:
    with pytest.raises(SourceError):
        decode_otlp_json("traces", data)


@pytest.mark.parametrize(
    "data", [b"{}", b'{"resourceSpans":[]}', b'{"resourceSpans":[{"scopeSpans":[{}]}]}']
)
def test_an_empty_request_is_no_rows(data: bytes) -> None:
    decoded = decode_otlp_json("traces", data)
    assert decoded.table.num_rows == 0 and decoded.rejected == ()


def test_another_signal_is_named() -> None:
    with pytest.raises(SourceError, match="a request for logs, not traces"):
        decode_otlp_json("traces", b'{"resourceLogs": []}')


def test_a_malformed_resource_refuses_its_spans() -> None:
    assert reasons(span(), span(), resource={"attributes": 5}) == ["malformed"] * 2


def test_metrics_and_logs_in_json() -> None:
    metrics = {
        "resourceMetrics": [
            {
                "scopeMetrics": [
                    {
                        "metrics": [
                            {
                                "name": "h",
                                "histogram": {
                                    "aggregationTemporality": "AGGREGATION_TEMPORALITY_DELTA",
                                    "dataPoints": [
                                        {
                                            "timeUnixNano": str(START),
                                            "count": "3",
                                            "sum": "Infinity",
                                            "bucketCounts": ["1", 2],
                                            "explicitBounds": [0.5],
                                        }
                                    ],
                                },
                            },
                            {"name": "bad", "gauge": {"dataPoints": [{"asInt": "x"}]}},
                            {"name": "worse", "gauge": {"dataPoints": 5}},
                            {"name": 5, "gauge": {}},
                            {"name": "new", "newKind": {}},
                        ]
                    }
                ]
            }
        ]
    }
    decoded = decode_otlp_json("metrics", json.dumps(metrics).encode())
    (row,) = decoded.table.to_pylist()
    assert (row["count"], row["value"], row["temporality"]) == (3, float("inf"), "delta")
    assert json.loads(row["buckets"]) == {"bounds": [0.5], "counts": [1, 2]}
    assert [r.reason for r in decoded.rejected] == [
        "malformed",
        "malformed",
        "malformed",
        "unknown_metric_type",
    ]

    logs = {
        "resourceLogs": [
            {
                "scopeLogs": [
                    {
                        "logRecords": [
                            {
                                "timeUnixNano": str(START),
                                "severityNumber": "SEVERITY_NUMBER_WARN",
                                "body": {"stringValue": "hi"},
                                "traceId": TRACE,
                                "spanId": "zz",
                            },
                            {"timeUnixNano": "x"},
                        ]
                    }
                ]
            }
        ]
    }
    decoded = decode_otlp_json("logs", json.dumps(logs).encode())
    (row,) = decoded.table.to_pylist()
    assert (row["severity_number"], row["body"]) == (13, "hi")
    assert (row["trace_id"], row["span_id"]) == (TRACE, None)
    assert [r.reason for r in decoded.rejected] == ["malformed"]
