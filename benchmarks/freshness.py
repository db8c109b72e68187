"""Acknowledged to visible in `requests`, under a steady load on the real receiver.

Starts `tracekit collect` on free ports, sends OTLP/gRPC at a steady rate (five spans a request: a
GenAI client span, vLLM's `llm_request`, three of the application), and in a third process keeps a
Session refreshed, as the dashboard does. For every message: the time from its acknowledgement
until its requests are in `requests`. Also the CPU of receiver and reader, and whether a refresh
gets dearer as rows pile up (last quarter of the run against the second).

Goal: p95 at most the flush interval (1 s) + 1 s at 5,000 spans/s for two minutes.

    python benchmarks/freshness.py [SECONDS] [SPANS_PER_S]
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_REQUESTS_A_MESSAGE = 50
_SPANS_A_REQUEST = 5


def _set(owner: Any, values: dict[str, Any]) -> None:
    for key, value in values.items():
        attribute = owner.attributes.add()
        attribute.key = key
        kind = {bool: "bool_value", int: "int_value", float: "double_value"}.get(type(value))
        setattr(attribute.value, kind or "string_value", value)


def _message(draw: random.Random, name: str) -> bytes:
    """Requests that ended just now; their id says which message they came with."""
    request = ExportTraceServiceRequest()
    app, vllm = request.resource_spans.add(), request.resource_spans.add()
    _set(app.resource, {"service.name": "app", "service.instance.id": "a0"})
    _set(vllm.resource, {"service.name": "vllm", "service.instance.id": "w0"})
    app_spans = app.scope_spans.add().spans
    engine_spans = vllm.scope_spans.add().spans
    now = time.time_ns()
    for i in range(_REQUESTS_A_MESSAGE):
        trace_id, client_id = draw.randbytes(16), draw.randbytes(8)
        start = now - 2_000_000_000
        tokens, out = draw.randrange(20, 4000), draw.randrange(2, 300)
        request_id = f"chatcmpl-{name}-{i}"
        client = app_spans.add(
            trace_id=trace_id,
            span_id=client_id,
            name="chat m",
            kind=3,
            start_time_unix_nano=start,
            end_time_unix_nano=now,
        )
        _set(
            client,
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "m",
                "gen_ai.response.id": request_id,
                "gen_ai.request.stream": True,
                "gen_ai.usage.input_tokens": tokens,
                "gen_ai.usage.output_tokens": out,
                "gen_ai.response.time_to_first_chunk": 0.3,
                "gen_ai.provider.name": "vllm",
            },
        )
        engine = engine_spans.add(
            trace_id=trace_id,
            span_id=draw.randbytes(8),
            parent_span_id=client_id,
            name="llm_request",
            kind=2,
            start_time_unix_nano=start + 2_000_000,
            end_time_unix_nano=now - 1_000_000,
        )
        _set(
            engine,
            {
                "gen_ai.latency.time_in_queue": 0.05,
                "gen_ai.latency.time_in_model_prefill": 0.2,
                "gen_ai.latency.time_in_model_decode": 1.7,
                "gen_ai.latency.time_to_first_token": 0.29,
                "gen_ai.latency.e2e": 1.99,
                "gen_ai.usage.prompt_tokens": tokens,
                "gen_ai.usage.completion_tokens": out,
                "gen_ai.request.id": request_id,
                "gen_ai.request.max_tokens": 1024,
                "gen_ai.request.temperature": 0.8,
            },
        )
        for _ in range(_SPANS_A_REQUEST - 2):
            other = app_spans.add(
                trace_id=trace_id,
                span_id=draw.randbytes(8),
                parent_span_id=client_id,
                name="retrieve",
                kind=1,
                start_time_unix_nano=start,
                end_time_unix_nano=start + 1_000_000,
            )
            _set(other, {"db.system": "postgresql", "db.operation": "select"})
    data: bytes = request.SerializeToString()
    return data


def _send(port: int, seconds: float, spans_per_s: float, acked: Any) -> None:
    """Send at the rate; put (message name, time acknowledged) into the queue."""
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    export = channel.unary_unary(
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        request_serializer=None,
        response_deserializer=None,
    )
    draw = random.Random(7)
    period = _REQUESTS_A_MESSAGE * _SPANS_A_REQUEST / spans_per_s
    start = time.monotonic()
    late = 0
    for k in range(int(seconds / period)):
        pause = start + k * period - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        else:
            late += 1
        export(_message(draw, f"{k:06d}"), timeout=30)
        acked.put((f"{k:06d}", time.time()))
    acked.put(("end", time.time()))
    print(f"sender: {late} messages late", file=sys.stderr)


def _read(path: str, acked: Any, out: Any, ready: Any) -> None:
    """Refresh a session until every message was seen; report how long each took."""
    from tracekit.analysis.session import Session

    waiting: dict[str, float] = {}
    took: list[float] = []
    refreshes: list[tuple[float, float]] = []
    ended = False
    cpu0 = time.process_time()
    deadline = None
    with Session.open(path) as session:
        ready.set()
        while not ended or waiting:
            while not acked.empty():
                name, at = acked.get()
                if name == "end":
                    ended, deadline = True, time.time() + 60
                else:
                    waiting[name] = at
            before = time.process_time()
            if session.refresh():
                refreshes.append((time.time(), time.process_time() - before))
                rows = session.con.execute(
                    "select distinct substr(request_id, 10, 6) from requests "
                    "where substr(request_id, 10, 6) in (select unnest($names))",
                    {"names": list(waiting)},
                ).fetchall()
                now = time.time()
                took.extend(now - waiting.pop(name) for (name,) in rows if name in waiting)
            else:
                time.sleep(0.02)
            if deadline and time.time() > deadline:
                break
    out.put((took, refreshes, time.process_time() - cpu0, len(waiting)))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run and print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    rate = float(sys.argv[2]) if len(sys.argv) > 2 else 5000.0
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        store, ready = f"{folder}/store", Path(folder) / "ready.json"
        receiver = subprocess.Popen(
            [
                *(sys.executable, "-m", "tracekit", "collect", "--store", store),
                *("--grpc-port", "0", "--http-port", "0", "--ready-file", str(ready)),
            ],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.time() + 60
        while not ready.exists():
            assert time.time() < deadline and receiver.poll() is None, "the receiver did not start"
            time.sleep(0.05)
        port = json.loads(ready.read_text())["grpc"]["port"]
        acked, out, reading = context.Queue(), context.Queue(), context.Event()
        reader = context.Process(target=_read, args=(store, acked, out, reading))
        reader.start()
        assert reading.wait(60), "the reader did not start"
        cpu0 = _cpu_s(receiver.pid)
        sender = context.Process(target=_send, args=(port, seconds, rate, acked))
        sender.start()
        sender.join()
        receiver_cpu = _cpu_s(receiver.pid) - cpu0
        took, refreshes, reader_cpu, missing = out.get(timeout=180)
        reader.join()
        receiver.send_signal(signal.SIGTERM)
        code = receiver.wait(timeout=60)
    took.sort()
    print(f"{rate:.0f} spans/s for {seconds:.0f} s, flush interval 1 s, receiver exit code {code}")
    print(
        f"acknowledged to visible: p50 {took[len(took) // 2]:.2f} s, "
        f"p95 {took[int(len(took) * 0.95)]:.2f} s, max {took[-1]:.2f} s, "
        f"n {len(took)}, never seen {missing}"
    )
    print(
        f"CPU: receiver {receiver_cpu / seconds:.2f}, reader {reader_cpu / seconds:.2f} of a core"
    )
    quarter = len(refreshes) // 4
    early = statistics.median(c for _, c in refreshes[quarter : 2 * quarter])
    late = statistics.median(c for _, c in refreshes[-quarter:])
    print(f"refresh: {early * 1e3:.0f} ms CPU in the second quarter, {late * 1e3:.0f} in the last")


if __name__ == "__main__":
    main()
