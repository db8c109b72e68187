"""A small made world: calls whose every millisecond is known, and the files that would show them.

Owns the costs of a clean call, a queue in front of slots, and the three forms a source writes: log
rows (the columns of a request log), vLLM's spans under a client's, and a prefill/decode trace.
Knows nothing of the analysis: what a test expects is computed from the calls, never asked of it.
Times are milliseconds from START_NS; all numbers come from one seeded generator per case.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

START_NS: Final = 1_795_982_400_000_000_000
MS: Final = 1_000_000

#: What a clean call costs: prefill = a0 + a1 u + a2 u (c + u/2), a decode step = g0 + g1 context.
PREFILL_MS: Final = (8.0, 0.05, 1e-6)
STEP_MS: Final = (9.0, 2e-4)

Row = dict[str, Any]


@dataclass
class Call:
    """One request. ``gaps`` are the times between its chunks; ``per_chunk`` their tokens."""

    id: str
    at: float
    input: int
    output: int
    cached: int = 0
    worker: str = "engine-0"
    model: str = "m8b"
    route: str = "chat"
    version: str = "0.13.0"
    status: str = "ok"
    client_wait: float = 0.0
    network: float = 2.0
    frontend: float = 4.0
    queue: float = 1.0
    prefill: float = 0.0
    back: float = 2.0
    gaps: list[float] = field(default_factory=list)
    per_chunk: list[int] | None = None
    more: Row = field(default_factory=dict)

    @property
    def send(self) -> float:
        return self.at + self.client_wait

    @property
    def recv(self) -> float:
        return self.send + self.network

    @property
    def queued(self) -> float:
        return self.recv + self.frontend

    @property
    def scheduled(self) -> float:
        return self.queued + self.queue

    @property
    def first(self) -> float:
        return self.scheduled + self.prefill

    @property
    def decode(self) -> float:
        return sum(self.gaps)

    @property
    def last(self) -> float:
        return self.first + self.decode

    @property
    def ttft(self) -> float:
        """From the intended start to the first token at the client."""
        return self.first + self.back - self.at

    @property
    def e2e(self) -> float:
        return self.last + self.back - self.at

    @property
    def tpot(self) -> float:
        return self.decode / (self.output - 1)

    @property
    def uncached(self) -> int:
        return self.input - self.cached

    def stall(self, at: float, excess: float) -> None:
        """Put ``excess`` on the token gap that is open at the time ``at``."""
        now = self.first
        for i, gap in enumerate(self.gaps):
            if now <= at < now + gap:
                self.gaps[i] = gap + excess
                return
            now += gap
        raise ValueError(f"{self.id} does not decode at {at}")


def prefill_ms(uncached: float, cached: float = 0.0) -> float:
    """What computing a prompt takes without any noise."""
    a0, a1, a2 = PREFILL_MS
    return a0 + a1 * uncached + a2 * uncached * (cached + uncached / 2)


class World:
    """Draws clean calls from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def call(
        self,
        name: str,
        at: float,
        *,
        input: int,
        output: int,
        cached: int = 0,
        speed: float = 1.0,
        chunks: bool = True,
        **more: Any,
    ) -> Call:
        """A clean call; ``speed`` multiplies its decode steps; ``more`` are fields of `Call`."""
        rng = self.rng
        c = Call(id=name, at=at, input=input, output=output, cached=cached)
        c.network = 1.0 + rng.expovariate(1.0)
        c.back = 1.0 + rng.expovariate(1.0)
        c.frontend = 3.0 + rng.expovariate(0.7)
        c.queue = 0.05 + rng.expovariate(1.5)
        c.prefill = prefill_ms(input - cached, cached) * rng.lognormvariate(0, 0.07)
        g0, g1 = STEP_MS
        pace = rng.lognormvariate(0, 0.04) * speed
        c.gaps = [
            (g0 + g1 * (input + i)) * pace * rng.lognormvariate(0, 0.06)
            for i in range(max(output - 1, 0))
        ]
        for key, value in more.items():
            if not hasattr(c, key):
                raise AttributeError(key)
            setattr(c, key, value)
        return c

    def traffic(
        self,
        n: int,
        *,
        name: str = "req",
        start: float = 0.0,
        every: float = 400.0,
        inputs: tuple[int, int] = (60, 2000),
        outputs: tuple[int, int] = (20, 90),
        workers: Sequence[str] = ("engine-0", "engine-1"),
        cached_share: float = 0.0,
        **more: Any,
    ) -> list[Call]:
        """Ordinary calls, one about each ``every`` ms, sizes spread over their ranges."""
        out = []
        at = start
        for i in range(n):
            at += self.rng.uniform(0.4, 1.6) * every
            size = self._size(*inputs)
            cached = int(size * cached_share * self.rng.uniform(0.5, 1.0)) // 16 * 16
            kwargs = {"worker": workers[i % len(workers)], **more}
            out.append(
                self.call(
                    f"{name}-{i:03d}",
                    at,
                    input=size,
                    output=self._size(*outputs),
                    cached=cached,
                    **kwargs,
                )
            )
        return out

    def _size(self, low: int, high: int) -> int:
        return round(float(low * (high / low) ** self.rng.random()))


def run_slots(calls: Iterable[Call], slots: int) -> None:
    """Let calls wait for one of ``slots`` places on their worker, first come first served."""
    free: dict[str, list[float]] = {}
    for c in sorted(calls, key=lambda c: c.queued):
        places = free.setdefault(c.worker, [0.0] * slots)
        c.queue += max(0.0, heapq.heappop(places) - c.queued)
        heapq.heappush(places, c.last)


def run_clients(calls: Iterable[Call], limit: int) -> None:
    """Let calls wait in the client for one of ``limit`` connections, in order of intention."""
    free = [0.0] * limit
    for c in sorted(calls, key=lambda c: c.at):
        c.client_wait += max(0.0, heapq.heappop(free) - c.at)
        heapq.heappush(free, c.last + c.back)


def total_stall(gaps: Sequence[float]) -> float:
    """Stall as the field defines it: gaps over max(4 x median, 50 ms), less the median."""
    mid = median(gaps)
    return sum(g - mid for g in gaps if g > max(4 * mid, 50.0))


def unix_ns(ms: float) -> int:
    return START_NS + round(ms * MS)


def window(start: float, end: float) -> str:
    """A window as ``--baseline`` takes it."""
    return f"{unix_ns(start)}..{unix_ns(end)}"


def _hex(text: str, digits: int) -> str:
    return hashlib.md5(text.encode()).hexdigest()[:digits]


def trace_id(c: Call) -> str:
    return _hex("trace " + c.id, 32)


# -- request logs ----------------------------------------------------------------------------------


def log_row(
    c: Call,
    *,
    phases: bool = False,
    chunks: bool = False,
    cached: bool = True,
    traced: bool = False,
    intended: bool = False,
    **more: Any,
) -> Row:
    """One row of a request log. ``phases``: the server's phases and its worker, too."""
    row: Row = {"request_id": c.id}
    if traced:
        row["trace_id"] = trace_id(c)
    row["start_unix_ns"] = unix_ns(c.send)
    if intended:
        row["intended_start_unix_ns"] = unix_ns(c.at)
    row |= {"model": c.model, "route": c.route, "input_tokens": c.input}
    if cached:
        row["cached_tokens"] = c.cached
    row |= {"output_tokens": c.output, "streaming": 1, "status": c.status}
    # a log that has phases has them on the server's clock: no way back to a client
    back = 0.0 if phases else c.back
    if c.status == "ok":
        row |= {
            "finish_reason": "stop",
            "ttft_ms": round(c.ttft - c.back + back, 3),
            "ttft_kind": "first_content",
            "e2e_ms": round(c.e2e - c.back + back, 3),
        }
    if phases:
        row["worker"] = c.worker
        for name in ("network", "frontend", "queue", "prefill", "decode"):
            row[f"{name}_ms"] = round(getattr(c, name), 3)
    if chunks:
        at = c.first + back - c.send
        offsets = [round(at, 2)]
        for gap in c.gaps:
            at += gap
            offsets.append(round(at, 2))
        row["chunk_offsets_ms"] = offsets
        row["chunk_tokens"] = c.per_chunk or [1] * len(offsets)
    row |= c.more | more
    return {k: v for k, v in row.items() if v is not None}


def json_lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in rows)


# -- OTLP ------------------------------------------------------------------------------------------


def _value(v: Any) -> Row:
    if isinstance(v, bool):
        return {"boolValue": v}
    if isinstance(v, int):
        return {"intValue": str(v)}
    if isinstance(v, float):
        return {"doubleValue": v}
    if isinstance(v, list):
        return {"arrayValue": {"values": [_value(x) for x in v]}}
    return {"stringValue": str(v)}


def _attributes(values: Row) -> list[Row]:
    return [{"key": k, "value": _value(v)} for k, v in values.items()]


@dataclass(frozen=True)
class Span:
    """One span and the resource that sent it."""

    resource: tuple[tuple[str, str], ...]
    scope: str
    body: Row

    @property
    def id(self) -> str:
        return str(self.body["spanId"])


def span(
    name: str,
    *,
    key: str,
    trace: str,
    start: float,
    end: float,
    kind: int,
    resource: Row,
    scope: str = "app",
    parent: str | None = None,
    error: str | None = None,
    attributes: Row,
) -> Span:
    """A span; ``key`` makes its id."""
    body: Row = {"traceId": trace, "spanId": _hex("span " + key, 16)}
    if parent:
        body["parentSpanId"] = parent
    body |= {
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(unix_ns(start)),
        "endTimeUnixNano": str(unix_ns(end)),
        "attributes": _attributes(attributes),
        "status": {"code": 2, "message": error} if error else {},
        "flags": 768 if parent else 256,
    }
    return Span(tuple(resource.items()), scope, body)


def otlp_lines(spans: Iterable[Span], batch: int = 32) -> str:
    """OTLP JSON as a collector's file exporter writes it: one export request a line."""
    groups: dict[tuple[Any, str], list[Row]] = {}
    lines = []

    def write(key: tuple[Any, str]) -> None:
        resource, scope = key
        scoped = {"scope": {"name": scope}, "spans": groups.pop(key)}
        lines.append(
            {
                "resourceSpans": [
                    {
                        "resource": {"attributes": _attributes(dict(resource))},
                        "scopeSpans": [scoped],
                    }
                ]
            }
        )

    for s in spans:
        key = (s.resource, s.scope)
        groups.setdefault(key, []).append(s.body)
        if len(groups[key]) == batch:
            write(key)
    for key in list(groups):
        write(key)
    return json_lines(lines)


def client_span(c: Call, *, end: float | None = None, **attributes: Any) -> Span:
    """The application's GenAI span; attributes given with ``__`` for ``.`` are added to it."""
    named: Row = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": c.model,
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": c.input,
    }
    error = None
    if c.status == "ok":
        named |= {
            "gen_ai.usage.output_tokens": c.output,
            "gen_ai.usage.cache_read.input_tokens": c.cached,
            "gen_ai.response.finish_reasons": ["stop"],
            "gen_ai.response.time_to_first_chunk": round((c.first + c.back - c.send) / 1e3, 6),
        }
    else:
        error = c.status
        named["error.type"] = {"timeout": "TimeoutError", "aborted": "CancelledError"}.get(
            c.status, "APIError"
        )
    if c.client_wait:
        named["tracekit.intended_start_unix_ns"] = unix_ns(c.at)
    named |= {k.replace("__", "."): v for k, v in attributes.items()}
    return span(
        f"chat {c.model}",
        key=f"client {c.id}",
        trace=trace_id(c),
        start=c.send,
        end=c.last + c.back if end is None else end,
        kind=3,
        resource={"service.name": c.route},
        scope="opentelemetry.instrumentation.openai",
        error=error,
        attributes={k: v for k, v in named.items() if v is not None},
    )


def engine_span(
    c: Call,
    *,
    parent: str | None,
    trace: str | None = None,
    service: str = "vllm",
    request_id: str | None = None,
    seconds: Mapping[str, float] | None = None,
) -> Span:
    """vLLM's ``llm_request``; ``seconds`` replace single durations by their last word."""
    ttft = c.frontend + c.queue + c.prefill
    told: dict[str, float] = {
        "time_in_queue": c.queue / 1e3,
        "time_in_model_prefill": c.prefill / 1e3,
        "time_in_model_decode": c.decode / 1e3,
        "time_in_model_inference": (c.prefill + c.decode) / 1e3,
        "time_to_first_token": ttft / 1e3,
        "e2e": (ttft + c.decode) / 1e3,
    } | dict(seconds or {})
    named: Row = {f"gen_ai.latency.{k}": round(v, 9) for k, v in told.items()}
    named |= {
        "gen_ai.usage.prompt_tokens": c.input,
        "gen_ai.usage.completion_tokens": c.output,
        "gen_ai.request.id": f"chatcmpl-{request_id or c.id}",
        "gen_ai.request.max_tokens": c.output,
        "gen_ai.request.n": 1,
    }
    return span(
        "llm_request",
        key=f"{service} {c.worker} {c.id}",
        trace=trace or trace_id(c),
        start=c.recv,
        end=c.last + 0.3,
        kind=2,
        parent=parent,
        resource={
            "service.name": service,
            "service.instance.id": c.worker,
            "service.version": c.version,
            "host.name": f"{c.worker}-host",
            "vllm.process_id": "101",
        },
        scope="vllm.tracing.otel",
        attributes=named,
    )


def traced(c: Call) -> list[Span]:
    """A client's span and the engine's below it."""
    client = client_span(c)
    return [client, engine_span(c, parent=client.id)]


def phase_span(
    c: Call, phase: str, start: float, end: float, *, parent: str, **attributes: Any
) -> Span:
    """A span that states its phase (``tracekit.phase``)."""
    named = {k.replace("__", "."): v for k, v in attributes.items()}
    return span(
        phase,
        key=f"phase {phase} {c.id}",
        trace=trace_id(c),
        start=start,
        end=end,
        kind=1,
        parent=parent,
        resource={"service.name": "serving", "service.instance.id": c.worker},
        attributes={"tracekit.phase": phase} | named,
    )
