"""What the SDK's tests look at: the spans of calls that ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import tracekit
from tracekit.chunks import unpack
from tracekit.sdk.faults import FAULTS


class Seen:
    """Spans in memory."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def calls(self) -> list[ReadableSpan]:
        """Calls, in the order in which they ended."""
        return [s for s in self.spans() if "gen_ai.operation.name" in (s.attributes or {})]

    def phases(self) -> list[str]:
        """Their names, by start."""
        found = [s for s in self.spans() if "tracekit.phase" in (s.attributes or {})]
        return [s.name for s in sorted(found, key=lambda s: (s.start_time or 0, s.end_time or 0))]

    def only(self) -> ReadableSpan:
        """The one call there was."""
        calls = self.calls()
        assert len(calls) == 1, [(c.name, dict(c.attributes or {})) for c in calls]
        return calls[0]


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def status(span: ReadableSpan) -> str:
    return str(told(span)["tracekit.status"])


def offsets_ms(span: ReadableSpan) -> list[float]:
    """Arrivals of chunks with tokens from the call's start."""
    packed = told(span).get("tracekit.chunks")
    return [] if packed is None else [us / 1000 for us in unpack(str(packed)).offsets_us]


def ms(span: ReadableSpan) -> float:
    assert span.end_time is not None and span.start_time is not None
    return (span.end_time - span.start_time) / 1e6


@contextmanager
def watching(*names: str) -> Iterator[Seen]:
    """These libraries watched; afterwards they are not, and nothing may have gone wrong inside."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    FAULTS.clear()
    tracekit.configure(tracer_provider=provider)
    try:
        tracekit.instrument(names)
        yield Seen(exporter)
        assert tracekit.faults() == {}
    finally:
        tracekit.uninstrument(names)
        provider.shutdown()
