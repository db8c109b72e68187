"""Spans of the calls made in a block, in memory, whatever the process has set up otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import SpanKind

from tracekit.chunks import Chunks, unpack
from tracekit.sdk import setup
from tracekit.sdk.agent import Agent, Settings
from tracekit.sdk.clock import Clock
from tracekit.sdk.instrument import registry


class Captured(Sequence[ReadableSpan]):
    """The finished spans so far, in the order they ended; grows while the block runs."""

    def __init__(self, provider: TracerProvider) -> None:
        #: for spans of the test's own around the calls
        self.provider = provider
        self._exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @overload
    def __getitem__(self, at: int) -> ReadableSpan: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[ReadableSpan]: ...
    def __getitem__(self, at: Any) -> Any:
        return self._exporter.get_finished_spans()[at]

    def __len__(self) -> int:
        return len(self._exporter.get_finished_spans())

    @property
    def calls(self) -> list[ReadableSpan]:
        """Those of LLM calls, one an attempt."""
        return [
            span
            for span in self._exporter.get_finished_spans()
            if span.kind is SpanKind.CLIENT and "gen_ai.operation.name" in (span.attributes or {})
        ]

    def call(self) -> ReadableSpan:
        """The only call. AssertionError if there was none, or more."""
        calls = self.calls
        if len(calls) != 1:
            names = [f"{s.name} ({(s.attributes or {}).get('tracekit.status')})" for s in calls]
            raise AssertionError(f"one call was expected, there are {len(calls)}: {names}")
        return calls[0]

    def phases(self, call: ReadableSpan) -> dict[str, ReadableSpan]:
        """The phase spans under a call, by phase."""
        context = call.get_span_context()
        return {
            str((span.attributes or {})["tracekit.phase"]): span
            for span in self._exporter.get_finished_spans()
            if span.parent is not None
            and context is not None
            and span.parent.span_id == context.span_id
            and "tracekit.phase" in (span.attributes or {})
        }

    def clear(self) -> None:
        """Forget what was captured."""
        self._exporter.clear()


def chunks_of(call: ReadableSpan) -> Chunks:
    """Arrivals [us from the call's start] and tokens of a call's chunks; empty if it tells none."""
    packed = (call.attributes or {}).get("tracekit.chunks")
    return unpack(packed) if isinstance(packed, str) else Chunks([], [])


@contextmanager
def capture(
    only: Iterable[str] | None = None,
    *,
    clock: Clock | None = None,
    id_generator: IdGenerator | None = None,
    resource: Resource | None = None,
    meter_provider: MeterProvider | None = None,
    send_request_id: bool = True,
) -> Iterator[Captured]:
    """Watch LLM client libraries (or ``only`` these) inside the block; the captured spans.

    Spans go to a TracerProvider of the block's own, nowhere else, and metrics to ``meter_provider``
    or nowhere. Afterwards the process's own
    settings hold again, and the libraries are watched, or not, as before. For one thread at a time:
    two blocks may nest, and must not overlap otherwise. UsageError for a name that is none.
    """
    provider = TracerProvider(
        id_generator=id_generator,
        resource=resource or Resource({}),
        shutdown_on_exit=False,
    )
    captured = Captured(provider)
    before = registry.watched()
    registry.uninstrument()
    kept = setup.replace_agent(
        Agent(
            tracer_provider=provider,
            meter_provider=meter_provider or NoOpMeterProvider(),
            settings=Settings(send_request_id=send_request_id),
            clock=clock,
        )
    )
    try:
        setup.instrument(only)
        yield captured
    finally:
        registry.uninstrument()
        setup.replace_agent(kept)
        registry.put_back(before)
        provider.shutdown()
