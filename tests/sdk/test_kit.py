"""The kit itself: what `tracekit.testing` promises to tests of applications."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

import tracekit
from tests.sdk._calls import APIS, Clients
from tracekit.errors import UsageError
from tracekit.sdk import setup
from tracekit.sdk.clock import Clock
from tracekit.sdk.instrument import registry
from tracekit.testing import (
    SCRIPT_HEADER,
    CountingIds,
    FakeClock,
    FakeServer,
    Script,
    capture,
    chunks_of,
)


def test_a_clock_that_is_moved_by_hand() -> None:
    clock = FakeClock(unix_ns=1_000_000_000)
    watched: Clock = clock
    assert (watched.perf_ns(), watched.unix_ns()) == (0, 1_000_000_000)
    clock.advance(s=1, ms=2.5, ns=3)
    assert (clock.perf_ns(), clock.unix_ns()) == (1_002_500_003, 2_002_500_003)
    clock.set_unix(5)
    assert (clock.perf_ns(), clock.unix_ns()) == (1_002_500_003, 5)
    clock.advance(ns=1)
    assert (clock.perf_ns(), clock.unix_ns()) == (1_002_500_004, 6)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(ms=-1)


def test_a_clock_that_steps_by_itself() -> None:
    clock = FakeClock(step_ns=7)
    assert [clock.perf_ns() for _ in range(3)] == [0, 7, 14]


def test_spans_have_the_times_of_a_fake_clock(clients: Clients) -> None:
    clock = FakeClock(unix_ns=1_700_000_000_000_000_000)
    api = APIS["chat"]
    with capture(clock=clock, id_generator=CountingIds()) as spans:
        model = clients.server.script("m", Script(chunks=3))
        for _chunk in api.create(clients.of(api, False), model=model, stream=True):
            clock.advance(ms=10)
    span = spans.call()
    # role, three of content, the finish: the first token is the second chunk
    assert span.start_time == 1_700_000_000_000_000_000
    assert span.end_time == 1_700_000_000_050_000_000
    assert chunks_of(span).offsets_us == [10_000, 20_000, 30_000]
    assert (span.attributes or {})["gen_ai.response.time_to_first_chunk"] == 0
    (decode,) = spans.phases(span).values()
    assert (decode.start_time, decode.end_time) == (
        1_700_000_000_010_000_000,
        1_700_000_000_030_000_000,
    )


def test_ids_count() -> None:
    ids = CountingIds(seed=3)
    assert [ids.generate_span_id() for _ in range(2)] == [3 << 32 | 1, 3 << 32 | 2]
    assert [ids.generate_trace_id() for _ in range(2)] == [3 << 64 | 1, 3 << 64 | 2]
    with pytest.raises(ValueError):
        CountingIds(seed=-1)


def test_capturing_puts_back_what_was_there(clients: Clients) -> None:
    before = setup.replace_agent(None)
    try:
        exporter_provider = TracerProvider(shutdown_on_exit=False)
        tracekit.configure(tracer_provider=exporter_provider)
        mine = setup.agent()
        tracekit.instrument(["openai"])
        was_on = registry.watched()
        with capture() as spans:
            assert setup.agent() is not mine
            assert {"openai", "anthropic"} <= registry.watched().keys()
            with capture(["anthropic"]) as inner:
                clients.call(APIS["chat"], "m")
                clients.call(APIS["messages"], "m")
            clients.call(APIS["chat"], "m")
        assert setup.agent() is mine
        assert registry.watched() == was_on
        assert [one.name for one in inner.calls] == [one.name for one in spans.calls] == ["chat m"]
    finally:
        tracekit.uninstrument()
        setup.replace_agent(before)
    assert registry.watched() == {}


def test_capturing_nothing_known_is_an_error() -> None:
    before = setup.replace_agent(None)
    setup.replace_agent(before)
    with pytest.raises(UsageError, match="nonsense"), capture(["nonsense"]):
        pass
    assert setup.replace_agent(before) is before
    assert registry.watched() == {}


def test_one_call_is_asked_for(clients: Clients) -> None:
    with capture() as spans:
        with pytest.raises(AssertionError, match="there are 0"):
            spans.call()
        clients.call(APIS["chat"], "a")
        clients.call(APIS["chat"], "b")
        with pytest.raises(AssertionError, match="there are 2"):
            spans.call()
        spans.clear()
        assert len(spans) == 0


def _post(server: FakeServer, path: str, body: Any, **headers: str) -> tuple[int, bytes]:
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        line.request("POST", path, json.dumps(body), headers)
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


def test_a_script_in_a_header(server: FakeServer) -> None:
    script = Script(chunks=2, gap_ms=[1, 2], extra={"x": 1}, finish_reason="length")
    status, body = _post(
        server,
        "/v1/chat/completions",
        {"model": "m", "messages": []},
        **{SCRIPT_HEADER: script.to_json()},
    )
    answer = json.loads(body)
    assert status == 200
    assert answer["x"] == 1
    assert answer["choices"][0]["message"]["content"] == "word word "
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "header", ["{", "[]", '{"chunkz": 1}', '{"timings": "nobody"}', '{"usage": "perhaps"}']
)
def test_a_header_that_is_no_script_is_refused(server: FakeServer, header: str) -> None:
    body = {"model": "m", "messages": []}
    status, answer = _post(server, "/v1/chat/completions", body, **{SCRIPT_HEADER: header})
    assert status == 400
    assert b"fake server" in answer


def test_paths_and_bodies_that_are_none(server: FakeServer) -> None:
    assert _post(server, "/v1/embeddings", {"model": "m"})[0] == 404
    assert _post(server, "/v1/chat/completions", [1])[0] == 400
    assert [record.outcome for record in server.records()] == ["error", "error"]


def test_times_are_as_told(server: FakeServer) -> None:
    server.script(
        "m", Script(queue_ms=50, prefill_ms=30, chunks=4, gap_ms=[10, 20], timings="vllm")
    )
    begin = time.time_ns()
    _, body = _post(server, "/v1/chat/completions", {"model": "m", "stream": True})
    (record,) = server.records()
    assert begin <= record.arrival_unix_ns <= time.time_ns()
    assert record.queue_ms is not None and record.queue_ms >= 50
    assert record.prefill_ms is not None and record.prefill_ms >= 30
    at = [one.unix_ns for one in record.tokens_sent]
    assert [b - a >= ms * 1e6 for a, b, ms in zip(at, at[1:], (10, 20, 10), strict=False)]
    told = [json.loads(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")]
    assert told[-1]["metrics"]["queue_time_ms"] == pytest.approx(record.queue_ms)
    assert told[-1]["metrics"]["time_to_first_token_ms"] == pytest.approx(record.prefill_ms)


def test_failures_can_be_the_first_few_only(server: FakeServer) -> None:
    server.script("m", Script(status=503, fail_first=2))
    body = {"model": "m", "messages": []}
    statuses = [_post(server, "/v1/chat/completions", body)[0] for _ in range(4)]
    assert statuses == [503, 503, 200, 200]
    server.clear()
    assert _post(server, "/v1/chat/completions", body)[0] == 503
    server.clear(scripts=True)
    assert _post(server, "/v1/chat/completions", body)[0] == 200


def test_tokens_of_each_chunk(server: FakeServer) -> None:
    server.script("m", Script(chunks=5, tokens_per_chunk=[1, 3], usage="every", gap_ms=0))
    _, body = _post(server, "/v1/chat/completions", {"model": "m", "stream": True})
    (record,) = server.records()
    assert [one.tokens for one in record.tokens_sent] == [1, 3, 1, 3, 1]
    assert record.output_tokens == 9
    told = [json.loads(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")]
    seen = [one["usage"]["completion_tokens"] for one in told if one.get("usage")]
    assert seen == [1, 4, 5, 8, 9, 9]


def test_a_server_in_a_thread_does_the_same() -> None:
    with FakeServer(in_thread=True) as server:
        server.script("m", Script(chunks=3))
        _post(server, "/v1/completions", {"model": "m", "prompt": "", "stream": True, "n": 2})
        (record,) = server.records()
        assert len(record.tokens_sent) == 6
        assert record.outcome == "complete"
        port = server.port
    with pytest.raises(OSError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=2).connect()


def test_a_server_ends_with_who_started_it() -> None:
    code = (
        "import os, sys\n"
        "from tracekit.testing import FakeServer\n"
        "print(FakeServer().start().port, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, timeout=60
    )
    port = int(done.stdout)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            http.client.HTTPConnection("127.0.0.1", port, timeout=2).connect()
        except OSError:
            return
        time.sleep(0.05)
    raise AssertionError("the server outlived who started it")
