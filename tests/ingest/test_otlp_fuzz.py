"""Both decoders against each other on generated messages, and against bytes that are none."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracekit.errors import SourceError
from tracekit.ingest import Decoded, decode_otlp_json, decode_otlp_protobuf
from tracekit.ingest.batch import DECODED_SCHEMA, PAYLOAD_BYTES

SIGNALS = ("traces", "metrics", "logs")
DATA = Path(__file__).parents[1] / "data" / "vllm"
SLOW_IS_FINE = [HealthCheck.too_slow]  # the machine may be busy
EXAMPLES = settings(max_examples=40, deadline=None, suppress_health_check=SLOW_IS_FINE)

UINT64 = st.one_of(st.integers(0, 2**64 - 1), st.integers(10**18, 2 * 10**18), st.just(0))
INT64 = st.integers(-(2**63), 2**63 - 1)
WORDS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=140),
    st.sampled_from(["gen_ai.request.model", "gen_ai.usage.input_tokens", "gen_ai.prompt.0.x"]),
)
SCALARS = st.one_of(
    st.builds(lambda v: {"string_value": v}, WORDS),
    st.builds(lambda v: {"int_value": v}, INT64),
    st.builds(lambda v: {"double_value": v}, st.floats()),
    st.builds(lambda v: {"bool_value": v}, st.booleans()),
    st.builds(lambda v: {"bytes_value": v}, st.binary(max_size=20)),
    st.just({}),
)


def _nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.fixed_dictionaries({"key": WORDS, "value": inner})
    return st.one_of(
        st.builds(lambda v: {"array_value": {"values": v}}, st.lists(inner, max_size=3)),
        st.builds(lambda v: {"kvlist_value": {"values": v}}, st.lists(pairs, max_size=3)),
    )


VALUES = st.recursive(SCALARS, _nest, max_leaves=6)
ATTRIBUTES = st.lists(st.fixed_dictionaries({"key": WORDS, "value": VALUES}), max_size=4)
TRACE_IDS = st.one_of(st.binary(min_size=16, max_size=16), st.binary(max_size=18))
SPAN_IDS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(max_size=9))
EVENT = st.fixed_dictionaries({"name": WORDS, "time_unix_nano": UINT64, "attributes": ATTRIBUTES})
LINK = st.fixed_dictionaries({"trace_id": TRACE_IDS, "span_id": SPAN_IDS, "attributes": ATTRIBUTES})
SPAN = st.fixed_dictionaries(
    {
        "trace_id": TRACE_IDS,
        "span_id": SPAN_IDS,
        "parent_span_id": SPAN_IDS,
        "name": WORDS,
        "kind": st.integers(0, 5),
        "start_time_unix_nano": UINT64,
        "end_time_unix_nano": UINT64,
        "flags": st.integers(0, 2**32 - 1),
        "status": st.fixed_dictionaries({"code": st.integers(0, 2), "message": WORDS}),
        "attributes": ATTRIBUTES,
        "events": st.lists(EVENT, max_size=2),
        "links": st.lists(LINK, max_size=2),
    }
)
LOG = st.fixed_dictionaries(
    {
        "time_unix_nano": UINT64,
        "observed_time_unix_nano": UINT64,
        "severity_number": st.integers(0, 24),
        "severity_text": WORDS,
        "event_name": WORDS,
        "body": VALUES,
        "attributes": ATTRIBUTES,
        "trace_id": TRACE_IDS,
        "span_id": SPAN_IDS,
    }
)
OPTIONAL_DOUBLE: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}), st.floats().map(lambda v: {"sum": v, "min": v})
)
COUNTS = st.lists(UINT64, max_size=3)
POINT = st.fixed_dictionaries(
    {"start_time_unix_nano": UINT64, "time_unix_nano": UINT64, "attributes": ATTRIBUTES}
)


def _with(point: dict[str, Any], *more: dict[str, Any]) -> dict[str, Any]:
    out = dict(point)
    for fields in more:
        out |= fields
    return out


NUMBER = st.builds(
    _with,
    POINT,
    st.one_of(
        st.just({}), INT64.map(lambda v: {"as_int": v}), st.floats().map(lambda v: {"as_double": v})
    ),
    st.builds(lambda v: {"flags": v}, st.integers(0, 1)),
)
HISTOGRAM = st.builds(
    _with,
    POINT,
    OPTIONAL_DOUBLE,
    st.fixed_dictionaries(
        {
            "count": UINT64,
            "bucket_counts": COUNTS,
            "explicit_bounds": st.lists(st.floats(), max_size=2),
        }
    ),
)
SIDE = st.fixed_dictionaries({"offset": st.integers(-(2**31), 2**31 - 1), "bucket_counts": COUNTS})
EXPONENTIAL = st.builds(
    _with,
    POINT,
    OPTIONAL_DOUBLE,
    st.fixed_dictionaries(
        {
            "count": UINT64,
            "scale": st.integers(-10, 20),
            "zero_count": UINT64,
            "zero_threshold": st.floats(),
            "positive": SIDE,
            "negative": SIDE,
        }
    ),
)
SUMMARY = st.builds(
    _with,
    POINT,
    st.fixed_dictionaries(
        {
            "count": UINT64,
            "sum": st.floats(),
            "quantile_values": st.lists(
                st.fixed_dictionaries({"quantile": st.floats(), "value": st.floats()}), max_size=2
            ),
        }
    ),
)


def _metric(kind: str, points: st.SearchStrategy[Any], **more: Any) -> st.SearchStrategy[Any]:
    data = st.fixed_dictionaries({"data_points": st.lists(points, max_size=2)} | more)
    return st.fixed_dictionaries({"name": WORDS, "unit": WORDS, kind: data})


TEMPORALITY = st.integers(0, 2)
METRIC = st.one_of(
    _metric("gauge", NUMBER),
    _metric("sum", NUMBER, is_monotonic=st.booleans(), aggregation_temporality=TEMPORALITY),
    _metric("histogram", HISTOGRAM, aggregation_temporality=TEMPORALITY),
    _metric("exponential_histogram", EXPONENTIAL, aggregation_temporality=TEMPORALITY),
    _metric("summary", SUMMARY),
    st.fixed_dictionaries({"name": WORDS}),
)

MESSAGES: dict[str, tuple[Any, tuple[str, str, str], st.SearchStrategy[Any]]] = {
    "traces": (ExportTraceServiceRequest, ("resource_spans", "scope_spans", "spans"), SPAN),
    "metrics": (
        ExportMetricsServiceRequest,
        ("resource_metrics", "scope_metrics", "metrics"),
        METRIC,
    ),
    "logs": (ExportLogsServiceRequest, ("resource_logs", "scope_logs", "log_records"), LOG),
}


@st.composite
def requests(draw: st.DrawFn, signal: str) -> Any:
    message, (blocks, scopes, items), item = MESSAGES[signal]
    scope = st.fixed_dictionaries(
        {
            "scope": st.fixed_dictionaries({"name": WORDS, "version": WORDS}),
            items: st.lists(item, max_size=3),
        }
    )
    block = st.fixed_dictionaries(
        {
            "resource": st.fixed_dictionaries({"attributes": ATTRIBUTES}),
            scopes: st.lists(scope, max_size=2),
        }
    )
    return message(**draw(st.fixed_dictionaries({blocks: st.lists(block, max_size=2)})))


def _collector_json(message: Any) -> bytes:
    """As the collector's file exporter writes it: ids in hex, enums as numbers."""

    def in_hex(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                k: base64.b64decode(v).hex()
                if k in ("traceId", "spanId", "parentSpanId")
                else in_hex(v)
                for k, v in value.items()
            }
        return [in_hex(v) for v in value] if isinstance(value, list) else value

    document = json_format.MessageToDict(message, use_integers_for_enums=True)
    return json.dumps(in_hex(document)).encode()


def _same(left: Decoded, right: Decoded) -> None:
    left.table.validate(full=True)
    assert left.table.schema == right.table.schema
    for name in left.table.column_names:
        # NaN is not equal to itself in a table, but its text is.
        assert repr(left.table[name].to_pylist()) == repr(right.table[name].to_pylist()), name


@pytest.mark.parametrize("signal", SIGNALS)
@given(data=st.data())
@EXAMPLES
def test_protobuf_and_json_agree(signal: str, data: st.DataObject) -> None:
    message = data.draw(requests(signal))
    from_protobuf = decode_otlp_protobuf(signal, message.SerializeToString())
    refused = len(from_protobuf.rejected)  # of two faults in a span each may name another
    from_collector = decode_otlp_json(signal, _collector_json(message))
    _same(from_protobuf, from_collector)
    assert len(from_collector.rejected) == refused
    dump = json_format.MessageToJson(message, indent=None)
    from_dump = decode_otlp_json(signal, dump.encode())
    _same(from_protobuf, from_dump)
    assert len(from_dump.rejected) == refused
    for row in from_protobuf.table.to_pylist():
        for name in {"attributes", "resource", "events", "links", "buckets"} & row.keys():
            json.loads(row[name] or "{}", parse_constant=lambda text: pytest.fail(text))


@pytest.mark.parametrize("signal", SIGNALS)
@given(data=st.data())
@EXAMPLES
def test_taking_a_message_apart_gives_the_same(signal: str, data: st.DataObject) -> None:
    # A bad string in one more item sends the message the slow way; the others must not notice.
    message = data.draw(requests(signal))
    whole = decode_otlp_protobuf(signal, message.SerializeToString())
    _, (blocks, scopes, items), _ = MESSAGES[signal]
    broken = type(message)()
    broken.CopyFrom(message)
    item = getattr(getattr(getattr(broken, blocks).add(), scopes).add(), items).add()
    setattr(item, "severity_text" if signal == "logs" else "name", "@@MARK@@")
    salvaged = decode_otlp_protobuf(
        signal, broken.SerializeToString().replace(b"@@MARK@@", b"\xff" * 8)
    )
    _same(whole, salvaged)
    assert [r.reason for r in salvaged.rejected] == [
        *[r.reason for r in whole.rejected],
        "invalid_utf8",
    ]


def _decodes_or_one_error(decode: Any, signal: str, data: bytes) -> None:
    try:
        decoded = decode(signal, data)
    except SourceError:
        return
    assert decoded.table.schema == DECODED_SCHEMA[signal]
    decoded.table.validate(full=True)
    for rejected in decoded.rejected:
        assert rejected.reason
        assert len(rejected.payload.encode()) <= PAYLOAD_BYTES


@pytest.mark.parametrize("decode", [decode_otlp_protobuf, decode_otlp_json])
@pytest.mark.parametrize("signal", SIGNALS)
@given(data=st.binary(max_size=300))
@settings(max_examples=100, deadline=None, suppress_health_check=SLOW_IS_FINE)
def test_any_bytes(decode: Any, signal: str, data: bytes) -> None:
    _decodes_or_one_error(decode, signal, data)


JSON_KEYS = st.sampled_from(
    "resourceSpans scopeSpans spans resourceMetrics scopeMetrics metrics resourceLogs scopeLogs "
    "logRecords resource scope attributes key value stringValue intValue arrayValue values "
    "kvlistValue traceId spanId name kind startTimeUnixNano events links status code gauge "
    "histogram dataPoints bucketCounts explicitBounds body timeUnixNano".split()
)
ANY_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["1", "0" * 32, "0102030405060708090a0b0c0d0e0f10", "NaN"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(JSON_KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("signal", SIGNALS)
@given(value=ANY_JSON, where=st.integers(0, 3))
@settings(max_examples=100, deadline=None, suppress_health_check=SLOW_IS_FINE)
def test_any_json(signal: str, value: Any, where: int) -> None:
    _, (blocks, scopes, items), _ = MESSAGES[signal]
    names = [json_format_name(n) for n in (blocks, scopes, items)]
    for name in reversed(names[:where]):
        value = {name: value if isinstance(value, list) else [value]}
    _decodes_or_one_error(decode_otlp_json, signal, json.dumps(value).encode())


def json_format_name(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.title() for word in rest)


def _real(suffix: str) -> bytes:
    data = gzip.decompress((DATA / f"edge.otlp.{suffix}.gz").read_bytes())
    if suffix == "jsonl":
        return min(data.splitlines(), key=len)
    # The first message, after its two-byte length.
    return data[2 : 2 + (data[0] & 0x7F | data[1] << 7)]


@pytest.mark.parametrize(
    ("decode", "suffix"), [(decode_otlp_protobuf, "pb"), (decode_otlp_json, "jsonl")]
)
@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=SLOW_IS_FINE)
def test_a_real_message_with_bytes_changed_or_cut(
    decode: Any, suffix: str, data: st.DataObject
) -> None:
    original = _real(suffix)
    assert decode("traces", original).table.num_rows
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(changed)), st.integers(0, len(changed))))
    for signal in SIGNALS:
        _decodes_or_one_error(decode, signal, bytes(changed[:cut]))


def test_every_cut_of_a_real_message_is_one_error() -> None:
    for suffix, decode in (("pb", decode_otlp_protobuf), ("jsonl", decode_otlp_json)):
        original = _real(suffix)
        for cut in range(1, len(original), 7):
            with pytest.raises(SourceError):
                decode("traces", original[:cut])
