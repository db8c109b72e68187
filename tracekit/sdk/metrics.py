"""The GenAI conventions' client metrics, from calls that ended.

Owns the four histograms and their buckets. A call leaves its figures in a list when it ends (under
a microsecond a chunk); they become measurements when metrics are collected, in the thread that does
that: recording one takes OpenTelemetry longer than the SDK may take for a call. Faults of the SDK
are a counter beside them.
"""

from __future__ import annotations

import os
import threading
import weakref
from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation

from tracekit.sdk.call import OK, Call
from tracekit.sdk.faults import FAULTS, attempt

#: Bounds that the conventions ask for: seconds, and tokens.
SECONDS_BOUNDS: Final = tuple(0.01 * 2**i for i in range(14))
TOKENS_BOUNDS: Final = tuple(4.0**i for i in range(14))

DURATION: Final = "gen_ai.client.operation.duration"
FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"
OUTPUT_CHUNK: Final = "gen_ai.client.operation.time_per_output_chunk"
TOKEN_USAGE: Final = "gen_ai.client.token.usage"
FAULT_COUNT: Final = "tracekit.sdk.faults"

#: Calls, and chunks of all of them, that wait for the next collection; more are left out.
CALLS_MAX: Final = 4_096
CHUNKS_HELD_MAX: Final = 200_000
#: Chunk gaps recorded a collection: of more, every second, third, ... one.
GAPS_MAX: Final = 20_000


class _Figures(NamedTuple):
    """What a call leaves: seconds, tokens, and when its chunks came [perf ns]."""

    attributes: dict[str, Any]
    error: str | None
    duration_s: float
    first_chunk_s: float | None
    times_ns: array[int]
    input_tokens: int | None
    output_tokens: int | None


class ClientMetrics:
    """Records into ``meter_provider``, or the process's own, also one that is set later."""

    def __init__(self, meter_provider: MeterProvider | None, *, scope: str, version: str) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Figures] = []
        self._chunks = 0
        meter = metrics.get_meter(scope, version, meter_provider)

        def histogram(name: str, unit: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            return meter.create_histogram(
                name, unit, text, explicit_bucket_boundaries_advisory=bounds
            )

        self._duration = histogram(DURATION, "s", "GenAI operation duration.", SECONDS_BOUNDS)
        self._first_chunk = histogram(
            FIRST_CHUNK, "s", "Time to the first chunk of a streamed response.", SECONDS_BOUNDS
        )
        self._output_chunk = histogram(
            OUTPUT_CHUNK, "s", "Time per chunk of a streamed response after the first.",
            SECONDS_BOUNDS,
        )  # fmt: skip
        self._tokens = histogram(
            TOKEN_USAGE, "{token}", "Number of input and output tokens used.", TOKENS_BOUNDS
        )
        meter.create_observable_counter(
            FAULT_COUNT, [_collect], "{fault}", "Faults inside tracekit that were swallowed."
        )
        _ALIVE.add(self)

    def record(self, call: Call) -> None:
        """Keep what the conventions want of a call that ended."""
        end_ns = call.end_ns
        if end_ns is None:
            return
        times = call.times_ns
        figures = _Figures(
            _attributes(call),
            (call.error or "_OTHER") if call.status != OK else None,
            (end_ns - call.start_ns) / 1e9,
            (times[0] - call.start_ns) / 1e9 if times and call.asked.streaming else None,
            array("q", times if call.asked.streaming else ()),
            call.answer.input_tokens,
            call.answer.output_tokens,
        )
        with self._lock:
            if len(self._waiting) >= CALLS_MAX:
                return
            if self._chunks + len(figures.times_ns) > CHUNKS_HELD_MAX:
                figures = figures._replace(times_ns=array("q"))
            self._chunks += len(figures.times_ns)
            self._waiting.append(figures)

    def forget(self) -> None:
        """In the child of a fork: what waits is the parent's."""
        self._lock = threading.Lock()
        self._waiting = []
        self._chunks = 0

    def record_all(self) -> None:
        """Make measurements of what waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            chunks, self._chunks = self._chunks, 0
        step = -(-chunks // GAPS_MAX) or 1
        place = 0
        for of in waiting:
            ended = of.attributes if of.error is None else of.attributes | {"error.type": of.error}
            self._duration.record(of.duration_s, ended)
            if of.first_chunk_s is not None:
                self._first_chunk.record(of.first_chunk_s, of.attributes)
            for kind, count in (("input", of.input_tokens), ("output", of.output_tokens)):
                if count is not None:
                    self._tokens.record(count, of.attributes | {"gen_ai.token.type": kind})
            for before, after in pairwise(of.times_ns):
                if place % step == 0:
                    self._output_chunk.record((after - before) / 1e9, of.attributes)
                place += 1


#: All there are: a provider keeps one counter of a name, and its first callback, for all of them.
_ALIVE: Final[weakref.WeakSet[ClientMetrics]] = weakref.WeakSet()


def _collect(options: CallbackOptions) -> Iterator[Observation]:
    """Called at the start of each collection, before histograms are read."""
    for one in list(_ALIVE):
        attempt("recording metrics", one.record_all)
    for place, count in FAULTS.counts().items():
        yield Observation(count, {"tracekit.fault": place})


def _begin_anew() -> None:
    for one in list(_ALIVE):
        one.forget()


os.register_at_fork(after_in_child=_begin_anew)


def _attributes(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = {"gen_ai.operation.name": call.asked.operation}
    for name, value in (
        ("gen_ai.provider.name", call.provider),
        ("gen_ai.request.model", call.asked.model),
        ("gen_ai.response.model", call.answer.model),
    ):
        if value is not None:
            found[name] = value
    if call.server is not None:
        found["server.address"] = call.server[0]
        if call.server[1] is not None:
            found["server.port"] = call.server[1]
    return found
