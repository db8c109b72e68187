"""OTLP protobuf: spans that are refused, and what the refusal costs the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.ingest._protobuf import (
    SPAN,
    START,
    TRACE,
    decode,
    nested,
    one_row,
    request,
    span,
)
from tracekit.errors import SourceError, UsageError
from tracekit.ingest import decode_otlp_protobuf

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
