"""Parsed OTLP/JSON to rows: one walk a signal, beside `_proto_walks`.

Every item either becomes rows or is rejected with its reason; no item stops the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from tracekit.errors import SourceError
from tracekit.ingest._attrs import INT64_MAX, BadItemError, resource_of
from tracekit.ingest._json_values import (
    SHAPE_ERRORS,
    any_value,
    attributes_of,
    double,
    enum,
    identifier,
    integer,
    payload_attributes,
    text,
)
from tracekit.ingest._log_rows import LogRows
from tracekit.ingest._metric_rows import (
    TEMPORALITY,
    Metric,
    MetricRows,
    exponential_buckets,
    histogram_buckets,
    summary_quantiles,
)
from tracekit.ingest._rows import Rows, holds_bad_unicode
from tracekit.ingest._span_rows import SpanRows
from tracekit.ingest._text import drop_event_text, drop_name_text, drop_text

#: Names of the lists from request to item, by signal.
LEVELS: Final[dict[str, tuple[str, str, str]]] = {
    "traces": ("resourceSpans", "scopeSpans", "spans"),
    "metrics": ("resourceMetrics", "scopeMetrics", "metrics"),
    "logs": ("resourceLogs", "scopeLogs", "logRecords"),
}

_KINDS: Final = dict(trace_pb2.Span.SpanKind.items())
_STATUSES: Final = dict(trace_pb2.Status.StatusCode.items())
_TEMPORALITIES: Final = dict(metrics_pb2.AggregationTemporality.items())
_SEVERITIES: Final = dict(logs_pb2.SeverityNumber.items())

#: OTLP data point flag: the series has no value at this time.
_NO_RECORDED_VALUE: Final = 1

_Group = tuple[Any, Any, list[Any]]


def walk(document: dict[str, Any], rows: Rows, *, lenient: bool) -> None:
    """Adds every item of a parsed export request to ``rows``.

    SourceError, and nothing added, if the document has not the shape of one. ``lenient`` says
    that its strings may hold bytes that were not UTF-8.
    """
    walk_items = _WALKS[rows.signal]
    for resource, scope, items in _groups(document, rows.signal):
        broken = _open_group(rows, resource, scope, lenient)
        if broken is not None:
            for _ in items:
                rows.reject(broken.reason, f"resource: {broken.detail}", {})
            continue
        if lenient:
            items = [item for item in items if _good_unicode(rows, item)]
        walk_items(items, rows)


def _groups(document: dict[str, Any], signal: str) -> list[_Group]:
    """(resource, scope, items) of every scope, with the lists checked and nothing else."""
    blocks, scopes, items = LEVELS[signal]
    out: list[_Group] = []
    for block in _list(document, blocks):
        for scope in _list(block, scopes):
            out.append((block.get("resource"), scope.get("scope"), _list(scope, items)))
    return out


def _list(holder: Any, name: str) -> list[Any]:
    found = holder.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise SourceError(f"{name} is not a list of objects", how="is it OTLP/JSON?")
    return found


def _open_group(rows: Rows, resource: Any, scope: Any, lenient: bool) -> BadItemError | None:
    """Opens the group of a scope; if its resource or scope cannot be stored, says why."""
    try:
        if lenient and holds_bad_unicode([resource, scope]):
            raise BadItemError("invalid_utf8", "a string is not UTF-8")
        facts = resource_of(
            attributes_of(resource.get("attributes")) if resource else {},
            keep_text=rows.keep_text,
        )
        name = text(scope.get("name")) if scope else ""
        version = text(scope.get("version")) if scope else ""
    except (BadItemError, *SHAPE_ERRORS) as error:
        rows.group(resource_of({}, keep_text=rows.keep_text), None, None)
        return _failure(error, "resource or scope")
    rows.group(facts, name or None, version or None)
    return None


def _good_unicode(rows: Rows, item: dict[str, Any]) -> bool:
    if not holds_bad_unicode(item):
        return True
    ids = {
        name: value for name in ("traceId", "spanId") if isinstance(value := item.get(name), str)
    }
    rows.reject(
        "invalid_utf8",
        "a string is not UTF-8",
        {},
        trace_id=ids.get("traceId"),
        span_id=ids.get("spanId"),
    )
    return False


def _failure(error: Exception, what: str) -> BadItemError:
    if isinstance(error, BadItemError):
        return error
    # Not the message: it may quote a value, and values may be text.
    return BadItemError("malformed", f"{what} is not shaped as OTLP/JSON ({type(error).__name__})")


def _reject(rows: Rows, error: Exception, what: str, item: dict[str, Any], names: str) -> None:
    broken = _failure(error, what)
    payload: dict[str, Any] = {
        name: value
        for name in names.split()
        if isinstance(value := item.get(name), str | int | float)
    }
    payload["attributes"] = payload_attributes(item.get("attributes"))
    rows.reject(
        broken.reason,
        broken.detail,
        payload,
        trace_id=_hex(item.get("traceId"), 16),
        span_id=_hex(item.get("spanId"), 8),
    )


def _hex(value: Any, width: int) -> str | None:
    """The id of a refused item: in hex if it can be read, else as it came, cut."""
    try:
        return identifier(value, width, "").hex() or None
    except BadItemError:
        return value[:64] if isinstance(value, str) else None


# -- traces ------------------------------------------------------------------------------------


def _walk_spans(spans: list[Any], rows: SpanRows) -> None:
    add = rows.add
    for span in spans:
        get = span.get
        try:
            status = get("status") or {}
            events = get("events")
            links = get("links")
            kind = get("kind", 0)
            add(
                identifier(get("traceId"), 16, "bad_trace_id"),
                identifier(get("spanId"), 8, "bad_span_id"),
                identifier(get("parentSpanId"), 8, "bad_parent_span_id"),
                text(get("name")),
                enum(kind, _KINDS),
                integer(get("startTimeUnixNano")),
                integer(get("endTimeUnixNano")),
                enum(status["code"], _STATUSES) if "code" in status else 0,
                text(status.get("message")) or None,
                integer(get("flags")),
                attributes_of(get("attributes")),
                _events(events, rows.keep_text) if events else None,
                _links(links, rows.keep_text) if links else None,
            )
        except (BadItemError, *SHAPE_ERRORS) as error:
            names = "traceId spanId parentSpanId name kind startTimeUnixNano endTimeUnixNano"
            _reject(rows, error, "span", span, names)


def _events(events: list[Any], keep_text: bool) -> list[dict[str, Any]]:
    out = []
    for event in events:
        at = integer(event.get("timeUnixNano"))
        if not 0 <= at <= INT64_MAX:
            raise BadItemError("time_out_of_range", f"event at {at}: not 0 .. 2^63-1 ns")
        name = text(event.get("name"))
        attributes = attributes_of(event.get("attributes"))
        if not keep_text:
            attributes = drop_event_text(name, attributes)
            name = drop_name_text(name)
        out.append({"name": name, "time_unix_ns": at, "attributes": attributes})
    return out


def _links(links: list[Any], keep_text: bool) -> list[dict[str, Any]]:
    out = []
    for link in links:
        attributes = attributes_of(link.get("attributes"))
        out.append(
            {
                "trace_id": _link_id(link.get("traceId"), 16),
                "span_id": _link_id(link.get("spanId"), 8),
                "attributes": attributes if keep_text else drop_text(attributes),
            }
        )
    return out


def _link_id(value: Any, width: int) -> str | None:
    try:
        return identifier(value, width, "").hex() or None
    except BadItemError:
        return None


# -- metrics -----------------------------------------------------------------------------------


def _walk_metrics(metrics: list[Any], rows: MetricRows) -> None:
    for metric in metrics:
        try:
            name = text(metric.get("name"))
            unit = text(metric.get("unit")) or None
            kind = next((k for k in _POINTS if isinstance(metric.get(k), dict)), None)
            if kind is None:
                raise BadItemError(
                    "unknown_metric_type", f"{name}: no data of a kind that is known"
                )
            data = metric[kind]
            metric_type, _ = _POINTS[kind]
            shared = Metric(
                name=name,
                unit=unit,
                metric_type=metric_type,
                is_monotonic=int(data.get("isMonotonic") is True) if kind == "sum" else None,
                temporality=(
                    None
                    if kind in ("gauge", "summary")
                    else TEMPORALITY.get(enum(data.get("aggregationTemporality"), _TEMPORALITIES))
                ),
            )
            points = data.get("dataPoints") or []
            if not isinstance(points, list) or not all(isinstance(p, dict) for p in points):
                raise TypeError("dataPoints is not a list of objects")
        except (BadItemError, *SHAPE_ERRORS) as error:
            _reject(rows, error, "metric", metric, "name")
            continue
        _walk_points(shared, kind, points, rows)


def _walk_points(metric: Metric, kind: str, points: list[Any], rows: MetricRows) -> None:
    _, read = _POINTS[kind]
    for point in points:
        try:
            value, count, buckets = read(metric.name, point)
            rows.add(
                metric,
                start_unix_ns=integer(point.get("startTimeUnixNano")),
                at_unix_ns=integer(point.get("timeUnixNano")),
                value=value,
                count=count,
                buckets=buckets,
                attributes=attributes_of(point.get("attributes")),
            )
        except (BadItemError, *SHAPE_ERRORS) as error:
            named = {"name": metric.name, "metricType": metric.metric_type} | point
            _reject(rows, error, "data point", named, "name metricType timeUnixNano")


_Point = tuple[float | None, int | None, dict[str, Any] | None]


def _number(name: str, point: dict[str, Any]) -> _Point:
    if integer(point.get("flags")) & _NO_RECORDED_VALUE:
        return None, None, None
    if point.get("asInt") is not None:
        whole = integer(point["asInt"])
        if not -INT64_MAX - 1 <= whole <= INT64_MAX:
            raise BadItemError("int_out_of_range", f"{name}: asInt is not 64-bit")
        return float(whole), None, None
    return _optional(point, "asDouble"), None, None


def _histogram(name: str, point: dict[str, Any]) -> _Point:
    buckets = histogram_buckets(
        name,
        [double(b) for b in point.get("explicitBounds") or ()],
        [integer(c) for c in point.get("bucketCounts") or ()],
        _optional(point, "min"),
        _optional(point, "max"),
    )
    return _optional(point, "sum"), integer(point.get("count")), buckets


def _exponential(name: str, point: dict[str, Any]) -> _Point:
    buckets = exponential_buckets(
        name,
        _int32(point.get("scale")),
        (integer(point.get("zeroCount")), double(point.get("zeroThreshold"))),
        _side(point.get("positive")),
        _side(point.get("negative")),
        _optional(point, "min"),
        _optional(point, "max"),
    )
    return _optional(point, "sum"), integer(point.get("count")), buckets


def _side(side: Any) -> tuple[int, list[int]]:
    if not side:
        return 0, []
    return _int32(side.get("offset")), [integer(c) for c in side.get("bucketCounts") or ()]


def _int32(value: Any) -> int:
    return enum(value, {})


def _summary(name: str, point: dict[str, Any]) -> _Point:
    quantiles = [
        (double(q.get("quantile")), double(q.get("value")))
        for q in point.get("quantileValues") or ()
    ]
    return (
        double(point.get("sum")),
        integer(point.get("count")),
        summary_quantiles(quantiles),
    )


def _optional(point: dict[str, Any], field: str) -> float | None:
    value = point.get(field)
    return None if value is None else double(value)


_POINTS: Final[dict[str, tuple[str, Callable[[str, dict[str, Any]], _Point]]]] = {
    "gauge": ("gauge", _number),
    "sum": ("sum", _number),
    "histogram": ("histogram", _histogram),
    "exponentialHistogram": ("exponential_histogram", _exponential),
    "summary": ("summary", _summary),
}


# -- logs --------------------------------------------------------------------------------------


def _walk_logs(records: list[Any], rows: LogRows) -> None:
    for record in records:
        get = record.get
        try:
            rows.add(
                at_unix_ns=integer(get("timeUnixNano")),
                observed_unix_ns=integer(get("observedTimeUnixNano")),
                severity_number=enum(get("severityNumber"), _SEVERITIES),
                severity_text=text(get("severityText")),
                event_name=text(get("eventName")),
                body=any_value(get("body"), 0),
                attributes=attributes_of(get("attributes")),
                trace_id=_id_or_none(get("traceId"), 16),
                span_id=_id_or_none(get("spanId"), 8),
            )
        except (BadItemError, *SHAPE_ERRORS) as error:
            _reject(rows, error, "log record", record, "eventName timeUnixNano severityNumber")


def _id_or_none(value: Any, width: int) -> bytes:
    try:
        return identifier(value, width, "")
    except BadItemError:
        return b""


_WALKS: Final[dict[str, Callable[[list[Any], Any], None]]] = {
    "traces": _walk_spans,
    "metrics": _walk_metrics,
    "logs": _walk_logs,
}
