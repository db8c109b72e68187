"""Spans of the SDK under a clock that is moved by hand, and what our own SQL makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.analysis import _captures as captures
from tracekit.ingest import decode_otlp_protobuf, stamp
from tracekit.sdk import setup
from tracekit.sdk.agent import Agent
from tracekit.sdk.faults import FAULTS

START_NS = 1_795_982_400_000_000_000
MS = 1_000_000


class HandClock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.ms = 0.0

    def go(self, ms: float) -> None:
        self.ms += ms

    def perf_ns(self) -> int:
        return 77_000 + round(self.ms * MS)

    def unix_ns(self) -> int:
        return START_NS + round(self.ms * MS)


class Recorder:
    """An agent whose spans are kept. ``service`` makes another process of the same clock."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.exporter = InMemorySpanExporter()
        self.agent = self.service("app")

    def service(self, name: str) -> Agent:
        provider = TracerProvider(resource=Resource({"service.name": name}), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        return Agent(tracer_provider=provider, clock=self.clock)

    @contextmanager
    def as_service(self, agent: Agent) -> Iterator[None]:
        """Inside, ``agent`` is the one of the process."""
        before, setup._agent = setup._agent, agent
        try:
            yield
        finally:
            setup._agent = before

    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def the_span(self) -> ReadableSpan:
        """The one span that is no phase."""
        (found,) = [s for s in self.spans() if "tracekit.phase" not in attributes(s)]
        return found

    def phases(self) -> list[tuple[str, float, float, str]]:
        """(name, start [ms], end [ms], source) of the phase spans, from the clock's zero."""
        return [
            (
                s.name,
                ((s.start_time or 0) - START_NS) / MS,
                ((s.end_time or 0) - START_NS) / MS,
                str(attributes(s)["tracekit.phase.source"]),
            )
            for s in self.spans()
            if "tracekit.phase" in attributes(s)
        ]

    def derived(self) -> duckdb.DuckDBPyConnection:
        """The derived tables of what was recorded, through the receiver's decoding."""
        data = encode_spans(self.spans()).SerializeToString()
        rows, refused = stamp(
            decode_otlp_protobuf("traces", data),
            origin="otlp_http",
            now_unix_ns=START_NS,
            oldest_unix_ns=None,
            newest_unix_ns=None,
        )
        assert not refused.num_rows
        return captures.derived(rows)

    def records(self) -> list[dict[str, Any]]:
        return captures.records(self.derived())


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@contextmanager
def recording() -> Iterator[Recorder]:
    """A recorder that is the process's agent; everything is as it was afterwards."""
    recorder = Recorder()
    FAULTS.clear()
    with recorder.as_service(recorder.agent):
        yield recorder
    FAULTS.clear()
