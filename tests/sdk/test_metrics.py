"""The GenAI client metrics: what the conventions name, with their buckets, and cheap for a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import tracekit
from tests.sdk._recorded import Recorder, recording
from tracekit.sdk import metrics as ours
from tracekit.sdk.agent import Agent
from tracekit.sdk.faults import FAULTS

ROOT = Path(__file__).parents[2]
DURATION = "gen_ai.client.operation.duration"
FIRST = "gen_ai.client.operation.time_to_first_chunk"
CHUNK = "gen_ai.client.operation.time_per_output_chunk"
USAGE = "gen_ai.client.token.usage"

#: As the conventions write them down.
SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
TOKENS = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864]


class Metered:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.agent = Agent(meter_provider=self.provider, clock=recorder.clock)

    def points(self, name: str) -> list[Any]:
        return self.all().get(name, [])

    def all(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        found: dict[str, list[Any]] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found[metric.name] = list(metric.data.data_points)
        return found


@pytest.fixture
def metered() -> Iterator[Metered]:
    with recording() as recorder:
        found = Metered(recorder)
        with recorder.as_service(found.agent):
            yield found
        found.provider.shutdown()


def _call(metered: Metered, *, streaming: bool = True, gaps: tuple[float, ...] = (30, 50)) -> None:
    clock = metered.recorder.clock
    with tracekit.request(
        "chat", role="client", model="m", provider="mine", streaming=streaming, input_tokens=100
    ) as r:
        clock.go(300)
        r.chunk()
        for gap in gaps:
            clock.go(gap)
            r.chunk()
        clock.go(100)
        r.set(output_tokens=7, response_model="m-1")


def test_a_stream_is_all_four(metered: Metered) -> None:
    _call(metered)
    found = metered.all()
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mine",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m-1",
    }
    (duration,) = found[DURATION]
    assert duration.sum == pytest.approx(0.48)
    assert dict(duration.attributes) == attributes
    (first,) = found[FIRST]
    assert (first.count, first.sum) == (1, pytest.approx(0.3))
    (chunk,) = found[CHUNK]
    assert (chunk.count, chunk.min, chunk.max) == (2, pytest.approx(0.03), pytest.approx(0.05))
    usage = {p.attributes["gen_ai.token.type"]: p.sum for p in found[USAGE]}
    assert usage == {"input": 100, "output": 7}
    for name in (DURATION, FIRST, CHUNK):
        assert list(found[name][0].explicit_bounds) == pytest.approx(SECONDS)
    assert list(found[USAGE][0].explicit_bounds) == TOKENS


def test_without_streaming_there_is_no_chunk(metered: Metered) -> None:
    _call(metered, streaming=False)
    assert set(metered.all()) == {DURATION, USAGE}


def test_a_failure_has_its_type_and_no_made_up_tokens(metered: Metered) -> None:
    with pytest.raises(LookupError), tracekit.request("chat", role="client", model="m"):
        metered.recorder.clock.go(5)
        raise LookupError
    found = metered.all()
    assert set(found) == {DURATION}
    assert found[DURATION][0].attributes["error.type"] == "LookupError"


def test_a_server_is_no_client(metered: Metered) -> None:
    with tracekit.request("chat", role="engine", model="m") as r:
        r.token()
    assert metered.all() == {}


def test_collections_add_up_and_nothing_counts_twice(metered: Metered) -> None:
    _call(metered)
    assert metered.points(DURATION)[0].count == 1
    _call(metered)
    assert metered.points(DURATION)[0].count == 2
    assert metered.points(CHUNK)[0].count == 4


def test_another_agent_of_the_same_provider_is_heard_too(metered: Metered) -> None:
    _call(metered)
    again = Agent(meter_provider=metered.provider, clock=metered.recorder.clock)
    with metered.recorder.as_service(again):
        _call(metered)
    assert metered.points(DURATION)[0].count == 2


def test_what_waits_is_bounded_and_of_many_chunks_a_part_is_recorded(
    metered: Metered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "CALLS_MAX", 3)
    monkeypatch.setattr(ours, "CHUNKS_HELD_MAX", 50)
    monkeypatch.setattr(ours, "GAPS_MAX", 10)
    for _ in range(5):
        _call(metered, gaps=(10,) * 19)
    assert metered.points(DURATION)[0].count == 3
    # 2 x 20 chunks were held; of their 38 gaps every fourth counts
    (chunk,) = metered.points(CHUNK)
    assert chunk.count == 10 and chunk.sum == pytest.approx(10 * 0.01)


def test_faults_are_a_counter(metered: Metered) -> None:
    with tracekit.request("chat", role="client", colour="red"):
        pass
    (point,) = metered.points("tracekit.sdk.faults")
    assert point.value == 1
    assert point.attributes["tracekit.fault"] == "telling a fact: ValueError"


def test_a_fault_in_recording_stays_inside(
    metered: Metered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(ours, "_attributes", broken)
    _call(metered)
    assert FAULTS.counts() == {"ending a call: RuntimeError": 1}
    # its span is there all the same
    assert metered.all().keys() == {"tracekit.sdk.faults"}


def test_the_child_of_a_fork_does_not_tell_of_its_parents_calls(metered: Metered) -> None:
    _call(metered)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _call(metered)
            os.write(write, str(metered.points(DURATION)[0].count).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"1"
    os.close(read)


class _Receiver(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        assert isinstance(self.server, _Receiver)
        self.server.paths.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("environment", "paths"),
    [
        ({}, {"/v1/traces", "/v1/metrics"}),
        ({"OTEL_METRICS_EXPORTER": "none"}, {"/v1/traces"}),
        ({"OTEL_SDK_DISABLED": "true"}, set()),
    ],
)
def test_our_own_provider_sends_them_too(environment: dict[str, str], paths: set[str]) -> None:
    receiver = _Receiver()
    code = f"""
import tracekit
tracekit.configure("app", endpoint="http://127.0.0.1:{receiver.server_port}")
with tracekit.request("chat", role="client", model="m"):
    pass
import json; print(json.dumps(tracekit.faults()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
        | {"PYTHONPATH": str(ROOT)}
        | environment,
        timeout=60,
    )
    receiver.shutdown()
    receiver.server_close()
    assert (done.returncode, json.loads(done.stdout)) == (0, {}), done.stderr
    assert set(receiver.paths) == paths
