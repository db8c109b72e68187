"""Parsed OTLP messages to rows: one walk a signal.

Every item either becomes rows or is rejected with its reason; no item stops the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from tracekit.ingest._attrs import INT64_MAX, BadItemError
from tracekit.ingest._log_rows import LogRows
from tracekit.ingest._metric_rows import (
    TEMPORALITY,
    Metric,
    MetricRows,
    exponential_buckets,
    histogram_buckets,
    summary_quantiles,
)
from tracekit.ingest._proto_values import (
    any_value,
    attributes_of,
    failure,
    payload_attributes,
    resource_from,
)
from tracekit.ingest._rows import Rows
from tracekit.ingest._span_rows import SpanRows
from tracekit.ingest._text import drop_event_text, drop_name_text, drop_text

#: Names of the repeated fields from request to item, by signal.
LEVELS: Final[dict[str, tuple[str, str, str]]] = {
    "traces": ("resource_spans", "scope_spans", "spans"),
    "metrics": ("resource_metrics", "scope_metrics", "metrics"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
}

#: OTLP data point flag: the series has no value at this time.
_NO_RECORDED_VALUE: Final = 1


def walk(request: Any, rows: Rows) -> None:
    """Adds every item of a parsed export request to ``rows``."""
    blocks, scopes, items = LEVELS[rows.signal]
    walk_items = _WALKS[rows.signal]
    for block in getattr(request, blocks):
        for scope in getattr(block, scopes):
            found = getattr(scope, items)
            broken = open_group(rows, block.resource, scope.scope)
            if broken is None:
                walk_items(found, rows)
                continue
            for _ in found:
                rows.reject(broken.reason, f"resource: {broken.detail}", {})


def open_group(rows: Rows, resource: Any, scope: Any) -> BadItemError | None:
    """Opens the group of a scope; if its resource cannot be stored, says why."""
    name, version = scope.name or None, scope.version or None
    try:
        facts = resource_from(resource.SerializeToString(), rows.keep_text)
    except (BadItemError, UnicodeDecodeError) as error:
        rows.group(resource_from(b"", rows.keep_text), name, version)
        return BadItemError(*failure(error))
    rows.group(facts, name, version)
    return None


def _walk_spans(spans: Iterable[Any], rows: SpanRows) -> None:
    add = rows.add
    for span in spans:
        try:
            status = span.status
            events = span.events
            links = span.links
            add(
                span.trace_id,
                span.span_id,
                span.parent_span_id,
                span.name,
                span.kind,
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                status.code,
                status.message or None,
                span.flags,
                attributes_of(span.attributes),
                _events(events, rows.keep_text) if events else None,
                _links(links, rows.keep_text) if links else None,
            )
        except (BadItemError, UnicodeDecodeError) as error:
            reason, detail = failure(error)
            trace_id, span_id = span.trace_id[:32].hex(), span.span_id[:32].hex()
            rows.reject(reason, detail, _span_payload(span), trace_id=trace_id, span_id=span_id)


def _events(events: Iterable[Any], keep_text: bool) -> list[dict[str, Any]]:
    out = []
    for event in events:
        at = event.time_unix_nano
        if at > INT64_MAX:
            raise BadItemError("time_out_of_range", f"event at {at}: above 2^63-1 ns")
        name = event.name
        attributes = attributes_of(event.attributes)
        if not keep_text:
            attributes = drop_event_text(name, attributes)
            name = drop_name_text(name)
        out.append({"name": name, "time_unix_ns": at, "attributes": attributes})
    return out


def _links(links: Iterable[Any], keep_text: bool) -> list[dict[str, Any]]:
    out = []
    for link in links:
        attributes = attributes_of(link.attributes)
        out.append(
            {
                "trace_id": link.trace_id.hex() if len(link.trace_id) == 16 else None,
                "span_id": link.span_id.hex() if len(link.span_id) == 8 else None,
                "attributes": attributes if keep_text else drop_text(attributes),
            }
        )
    return out


def _span_payload(span: Any) -> dict[str, Any]:
    return {
        "trace_id": span.trace_id[:64].hex(),
        "span_id": span.span_id[:64].hex(),
        "parent_span_id": span.parent_span_id[:64].hex(),
        "name": span.name,
        "kind": span.kind,
        "start_time_unix_nano": span.start_time_unix_nano,
        "end_time_unix_nano": span.end_time_unix_nano,
        "attributes": payload_attributes(span.attributes),
    }


def _walk_metrics(metrics: Iterable[Any], rows: MetricRows) -> None:
    for metric in metrics:
        kind = metric.WhichOneof("data")
        if kind is None:
            detail = f"{metric.name}: no data of a kind that is known"
            rows.reject("unknown_metric_type", detail, {"name": metric.name})
        else:
            _walk_points(metric, kind, rows)


def _walk_points(metric: Any, kind: str, rows: MetricRows) -> None:
    data = getattr(metric, kind)
    summed = kind == "sum"
    shared = Metric(
        name=metric.name,
        unit=metric.unit or None,
        metric_type=kind,
        is_monotonic=int(data.is_monotonic) if summed else None,
        temporality=(
            None if kind in ("gauge", "summary") else TEMPORALITY.get(data.aggregation_temporality)
        ),
    )
    read = _POINTS[kind]
    for point in data.data_points:
        try:
            value, count, buckets = read(metric.name, point)
            rows.add(
                shared,
                start_unix_ns=point.start_time_unix_nano,
                at_unix_ns=point.time_unix_nano,
                value=value,
                count=count,
                buckets=buckets,
                attributes=attributes_of(point.attributes),
            )
        except (BadItemError, UnicodeDecodeError) as error:
            reason, detail = failure(error)
            payload = {
                "name": metric.name,
                "metric_type": kind,
                "time_unix_nano": point.time_unix_nano,
                "attributes": payload_attributes(point.attributes),
            }
            rows.reject(reason, detail, payload)


_Point = tuple[float | None, int | None, dict[str, Any] | None]


def _number(name: str, point: Any) -> _Point:
    kind = point.WhichOneof("value")
    if kind is None or point.flags & _NO_RECORDED_VALUE:
        return None, None, None
    return float(getattr(point, kind)), None, None


def _histogram(name: str, point: Any) -> _Point:
    buckets = histogram_buckets(
        name,
        list(point.explicit_bounds),
        list(point.bucket_counts),
        _optional(point, "min"),
        _optional(point, "max"),
    )
    return _optional(point, "sum"), point.count, buckets


def _exponential(name: str, point: Any) -> _Point:
    buckets = exponential_buckets(
        name,
        point.scale,
        (point.zero_count, point.zero_threshold),
        (point.positive.offset, list(point.positive.bucket_counts)),
        (point.negative.offset, list(point.negative.bucket_counts)),
        _optional(point, "min"),
        _optional(point, "max"),
    )
    return _optional(point, "sum"), point.count, buckets


def _summary(name: str, point: Any) -> _Point:
    return (
        point.sum,
        point.count,
        summary_quantiles([(q.quantile, q.value) for q in point.quantile_values]),
    )


def _optional(point: Any, field: str) -> float | None:
    return getattr(point, field) if point.HasField(field) else None


_POINTS: Final[dict[str, Callable[[str, Any], _Point]]] = {
    "gauge": _number,
    "sum": _number,
    "histogram": _histogram,
    "exponential_histogram": _exponential,
    "summary": _summary,
}


def _walk_logs(records: Iterable[Any], rows: LogRows) -> None:
    for record in records:
        try:
            rows.add(
                at_unix_ns=record.time_unix_nano,
                observed_unix_ns=record.observed_time_unix_nano,
                severity_number=record.severity_number,
                severity_text=record.severity_text,
                event_name=record.event_name,
                body=any_value(record.body, 0),
                attributes=attributes_of(record.attributes),
                trace_id=record.trace_id,
                span_id=record.span_id,
            )
        except (BadItemError, UnicodeDecodeError) as error:
            reason, detail = failure(error)
            payload = {
                "event_name": record.event_name,
                "time_unix_nano": record.time_unix_nano,
                "attributes": payload_attributes(record.attributes),
            }
            trace_id, span_id = record.trace_id[:32].hex(), record.span_id[:32].hex()
            rows.reject(reason, detail, payload, trace_id=trace_id, span_id=span_id)


_WALKS: Final[dict[str, Callable[[Iterable[Any], Any], None]]] = {
    "traces": _walk_spans,
    "metrics": _walk_metrics,
    "logs": _walk_logs,
}
