"""What spans say, compared with what the server did."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from tracekit.testing import Captured, FakeServer, Record, chunks_of


def told(span: ReadableSpan) -> dict[str, Any]:
    """Attributes of a span."""
    return dict(span.attributes or {})


def only(spans: Captured, server: FakeServer) -> tuple[dict[str, Any], ReadableSpan, Record]:
    """The one call of a test: attributes, span and truth, which name each other."""
    span = spans.call()
    (record,) = server.records()
    named(span, record)
    return told(span), span, record


def named(span: ReadableSpan, record: Record) -> None:
    """The server was told this span's ids, and the request id that the span tells."""
    context = span.get_span_context()
    assert context is not None
    assert (record.trace_id, record.span_id) == (context.trace_id, context.span_id)
    assert record.request_id == told(span)["tracekit.request_id"]


def start_ns(span: ReadableSpan) -> int:
    assert span.start_time is not None
    return span.start_time


def end_ns(span: ReadableSpan) -> int:
    assert span.end_time is not None
    return span.end_time


def event_ns(span: ReadableSpan, name: str) -> int:
    (at,) = [event.timestamp for event in span.events if event.name == name]
    return at


def late_ms(span: ReadableSpan, record: Record) -> list[float]:
    """How much later than it was sent each chunk with tokens was seen. The counts are equal."""
    start = start_ns(span)
    seen = [start + us * 1_000 for us in chunks_of(span).offsets_us]
    sent = [one.unix_ns for one in record.tokens_sent]
    assert len(seen) == len(sent)
    return [(a - b) / 1e6 for a, b in zip(seen, sent, strict=True)]


def seen_as_sent(span: ReadableSpan, record: Record) -> None:
    """All chunks were seen, none before it was sent. (How late is for `test_times`.)"""
    assert min(late_ms(span, record)) > -1.0
