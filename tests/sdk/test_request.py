"""``tracekit.request``: what an author tells, as spans and as what our own SQL reads in them."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
from opentelemetry import trace

import tracekit
from tests.sdk._recorded import MS, START_NS, Recorder, attributes
from tracekit.chunks import unpack
from tracekit.names import PHASES

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"Traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "X-Request-ID": "req-7"}


def _phases(record: dict[str, Any]) -> dict[str, float]:
    return {p: record[f"{p}_ms"] for p in PHASES if record[f"{p}_ms"]}


def _serve(recorder: Recorder, **more: Any) -> None:
    """A request of 2 ms in the front end, queue 30, prefill 40, two gaps of 10 and a tail of 3."""
    clock = recorder.clock
    with tracekit.request("chat", model="m", input_tokens=100, **more) as r:
        clock.go(2)
        with r.phase("queue"):
            clock.go(30)
        with r.phase("prefill"):
            clock.go(40)
        for _ in range(3):
            r.token()
            clock.go(10)
        clock.go(-7)
        r.set(finish_reason="stop", cached_tokens=64)


def test_an_engines_phases_are_the_requests(recorder: Recorder) -> None:
    _serve(recorder, request_id="r1", engine="mine", worker="w1")
    (record,) = recorder.records()
    # an engine alone knows a request until its last token
    assert _phases(record) == {"frontend": 2, "queue": 30, "prefill": 40, "decode": 20}
    assert record["e2e_ms"] == 92
    assert record["ttft_ms"] == 72
    assert record["ttft_kind"] == "server"
    assert record["tpot_ms"] == 10
    assert (record["input_tokens"], record["cached_tokens"], record["output_tokens"]) == (
        100,
        64,
        3,
    )
    assert (record["request_id"], record["engine"], record["worker"]) == ("r1", "mine", "w1")
    assert (record["model"], record["status"], record["finish_reason"]) == ("m", "ok", "stop")
    assert record["leg_roles"] == "engine"
    assert record["coverage"] == 1
    assert not tracekit.faults()


def test_the_span_is_a_servers_and_the_phases_lie_below(recorder: Recorder) -> None:
    _serve(recorder)
    span = recorder.the_span()
    assert (span.name, span.kind) == ("chat m", trace.SpanKind.SERVER)
    found = attributes(span)
    assert found["tracekit.role"] == "engine"
    assert found["gen_ai.operation.name"] == "chat"
    assert "gen_ai.provider.name" not in found
    chunks = unpack(found["tracekit.chunks"])
    assert chunks.offsets_us == [72_000, 82_000, 92_000]
    assert chunks.tokens == [1, 1, 1]
    assert recorder.phases() == [
        ("queue", 2, 32, "measured"),
        ("prefill", 32, 72, "measured"),
        ("decode", 72, 92, "measured"),
    ]
    assert span.context is not None
    for child in recorder.spans():
        if child is not span:
            assert child.parent is not None
            assert child.parent.span_id == span.context.span_id


def test_a_client_and_the_engine_it_called_are_one_request(recorder: Recorder) -> None:
    clock = recorder.clock
    server = recorder.service("engine")
    with tracekit.request("chat", role="client", model="m", streaming=True) as call:
        clock.go(5)
        with recorder.as_service(server):
            carried = call.headers()
            # another process: the caller's context is in the headers alone
            contextvars.Context().run(_serve, recorder, headers=carried)
        call.chunk()
        clock.go(4)
        call.chunk()
        call.set(output_tokens=3)
    (record,) = recorder.records()
    # what the client saw of the decode stands aside
    assert record["leg_roles"] == "client,engine,provider"
    assert record["match_score"] == 1
    assert record["queue_ms"] == 30
    assert record["prefill_ms"] == 40
    assert record["network_ms"] == pytest.approx(5 + 4)
    assert record["frontend_ms"] == pytest.approx(2 + 3)
    assert len({s.context.trace_id for s in recorder.spans() if s.context}) == 1


def test_an_engine_without_the_trace_joins_by_the_request_id(recorder: Recorder) -> None:
    server = recorder.service("engine")
    with tracekit.request("chat", role="client", request_id="r9", streaming=True) as call:
        recorder.clock.go(5)
        with recorder.as_service(server):
            contextvars.Context().run(_serve, recorder, request_id="r9")
        call.chunk()
    (record,) = recorder.records()
    assert record["leg_roles"] == "client,engine"
    assert record["queue_ms"] == 30


def test_headers_bring_trace_and_request_id(recorder: Recorder) -> None:
    asgi = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
    for headers in (HEADERS, asgi):
        recorder.exporter.clear()
        with tracekit.request("chat", headers=headers):
            pass
        span = recorder.the_span()
        assert span.context is not None and span.parent is not None
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == "00f067aa0ba902b7"
        assert attributes(span)["tracekit.request_id"] == "req-7"


def test_a_current_span_goes_before_headers(recorder: Recorder) -> None:
    with recorder.agent.tracer.start_as_current_span("http") as outer:
        with tracekit.request("chat", headers=HEADERS):
            pass
    (span,) = [s for s in recorder.spans() if s.name == "chat"]
    assert span.parent is not None
    assert span.parent.span_id == outer.get_span_context().span_id


def test_a_gateways_queue_is_its_own_and_its_call_lies_inside(recorder: Recorder) -> None:
    clock = recorder.clock
    engine = recorder.service("engine")
    with tracekit.request("chat", role="gateway", model="m") as r:
        clock.go(1)
        with r.phase("queue"):
            clock.go(8)
        clock.go(1)
        with recorder.as_service(engine):
            contextvars.Context().run(_serve, recorder, headers=r.headers())
        clock.go(2)
    (record,) = recorder.records()
    assert record["leg_roles"] == "gateway,engine"
    assert record["queue_ms"] == 8 + 30
    assert record["route_ms"] == pytest.approx(1 + 1)
    assert record["prefill_ms"] == 40
    assert record["unexplained_ms"] == pytest.approx(0)


def test_a_gateway_alone_tells_its_queue(recorder: Recorder) -> None:
    clock = recorder.clock
    with tracekit.request("chat", role="gateway", model="m", streaming=True) as r:
        clock.go(1)
        with r.phase("queue"):
            clock.go(8)
        clock.go(20)
        r.chunk()
        clock.go(11)
        r.chunk()
    (record,) = recorder.records()
    assert record["leg_roles"] == "gateway"
    assert record["decode_ms"] == 11
    assert record["ttft_ms"] == 29
    assert record["output_tokens"] is None


def test_prefill_and_decode_servers_become_one_request(recorder: Recorder) -> None:
    clock = recorder.clock
    with recorder.as_service(recorder.service("prefill")):
        with tracekit.request(
            "chat", role="prefill_engine", model="m", request_id="r5", input_tokens=800
        ) as r:
            with r.phase("queue"):
                clock.go(3)
            with r.phase("prefill"):
                clock.go(50)
            r.set(output_tokens=1)
    with recorder.as_service(recorder.service("decode")):
        with tracekit.request(
            "chat", role="decode_engine", model="m", request_id="r5", input_tokens=800
        ) as r:
            with r.phase("kv_transfer"):
                clock.go(12)
            for _ in range(4):
                r.token()
                clock.go(5)
            r.set(kv_bytes=4096)
    (record,) = recorder.records()
    assert record["leg_roles"] == "prefill_engine,decode_engine"
    assert record["queue_ms"] == 3
    assert record["prefill_ms"] == 50
    assert record["kv_transfer_ms"] == 12
    assert record["decode_ms"] == 15
    assert record["kv_bytes"] == 4096
    assert (record["prefill_worker"], record["decode_worker"]) == ("prefill", "decode")


def test_a_load_of_cache_is_neither_queue_nor_prefill(recorder: Recorder) -> None:
    clock = recorder.clock
    with tracekit.request("chat", model="m") as r:
        for name, ms in (("queue", 5), ("kv_transfer", 9), ("prefill", 20)):
            with r.phase(name):
                clock.go(ms)
        r.token()
        clock.go(2)
        r.token()
    (record,) = recorder.records()
    assert _phases(record) == {"queue": 5, "kv_transfer": 9, "prefill": 20, "decode": 2}


def test_between_chunks_of_a_prefill_it_waits(recorder: Recorder) -> None:
    clock = recorder.clock
    with tracekit.request("chat", model="m") as r:
        with r.phase("queue"):
            clock.go(5)
        with r.phase("prefill"):
            clock.go(20)
        clock.go(30)
        with r.phase("prefill"):
            clock.go(20)
        r.token()
        with r.phase("decode.preempted"):
            clock.go(9)
        r.token()
    (record,) = recorder.records()
    assert record["prefill_ms"] == 70
    assert record["prefill_wait_ms"] == 30
    assert record["decode_ms"] == 9
    assert record["decode_preempted_ms"] == 9


def test_a_queue_alone_leaves_the_prefill_to_the_first_token(recorder: Recorder) -> None:
    clock = recorder.clock
    with tracekit.request("chat", model="m") as r:
        clock.go(2)
        with r.phase("queue"):
            clock.go(5)
        clock.go(33)
        r.token()
        clock.go(2)
        r.token()
    (record,) = recorder.records()
    assert _phases(record) == {"frontend": 2, "queue": 5, "prefill": 33, "decode": 2}


def test_tokens_alone_tell_queue_and_prefill_together(recorder: Recorder) -> None:
    clock = recorder.clock
    with tracekit.request("chat", model="m") as r:
        clock.go(40)
        r.token(3)
        clock.go(6)
        r.token(3)
    (record,) = recorder.records()
    assert _phases(record) == {"queue_or_prefill": 40, "decode": 6}
    assert record["output_tokens"] == 6


def test_a_phase_that_is_over_may_be_told(recorder: Recorder) -> None:
    recorder.clock.go(100)
    with tracekit.request("chat", model="m", start_unix_ns=START_NS) as r:
        r.phase_at("queue", START_NS + 10 * MS, START_NS + 60 * MS)
        r.phase_at("prefill", START_NS + 60 * MS, START_NS + 100 * MS, source="reported")
        r.token()
    assert recorder.phases()[:2] == [
        ("queue", 10, 60, "measured"),
        ("prefill", 60, 100, "reported"),
    ]
    (record,) = recorder.records()
    assert record["queue_ms"] == 50
    assert record["e2e_ms"] == 100


def test_a_client_of_its_own_is_a_genai_client_span(recorder: Recorder) -> None:
    clock = recorder.clock
    with tracekit.request(
        "chat", role="client", model="m", provider="mine", streaming=True, input_tokens=9
    ) as r:
        clock.go(50)
        r.token(2, visible=False)
        clock.go(10)
        r.token(2)
        r.set(output_tokens=4, reasoning_tokens=2, response_id="x1")
    span = recorder.the_span()
    assert span.kind == trace.SpanKind.CLIENT
    assert attributes(span)["gen_ai.response.time_to_first_chunk"] == pytest.approx(0.05)
    assert attributes(span)["tracekit.time_to_first_answer_ms"] == 60
    assert "tracekit.role" not in attributes(span)
    (record,) = recorder.records()
    assert (record["ttft_ms"], record["ttfa_ms"], record["output_tokens"]) == (50, 60, 4)
    # what it saw of the decode tells of no engine
    assert _phases(record) == {"queue_or_prefill": 50, "decode": 10}


class OverloadedError(Exception):
    """No slot."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OverloadedError(), "error"),
        (TimeoutError(), "timeout"),
        (asyncio.CancelledError(), "aborted"),
        (GeneratorExit(), "aborted"),
        (KeyboardInterrupt(), "aborted"),
    ],
)
def test_an_exception_ends_it_and_goes_on(
    recorder: Recorder, error: BaseException, status: str
) -> None:
    with pytest.raises(type(error)):
        with tracekit.request("chat", model="m") as r:
            with r.phase("queue"):
                recorder.clock.go(5)
                raise error
    span = recorder.the_span()
    assert span.status.status_code == trace.StatusCode.ERROR
    assert attributes(span)["tracekit.status"] == status
    assert recorder.phases() == [("queue", 0, 5, "measured")]
    (record,) = recorder.records()
    assert record["status"] == status
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_aborting_ends_it_there(recorder: Recorder) -> None:
    with tracekit.request("chat", model="m") as r:
        r.token()
        recorder.clock.go(5)
        r.token()
        r.abort()
        assert r.ended
        recorder.clock.go(500)
        r.token()
        r.set(finish_reason="stop")
    (record,) = recorder.records()
    assert (record["status"], record["decode_ms"], record["finish_reason"]) == ("aborted", 5, None)


def test_what_is_wrong_is_counted_and_left_out(recorder: Recorder) -> None:
    with tracekit.request("chat", role="motor", input_tokens="many", colour="red") as r:
        with r.phase("warmup"):
            recorder.clock.go(1)
        r.phase_at("queue", 5, 3)
        r.phase_at("queue", 3, 5, source="guessed")
        r.set(output_tokens=-3, kv_bytes=True)
        r.end("fine")
    assert tracekit.faults() == {
        "telling a role: ValueError": 1,
        "telling a fact: ValueError": 4,
        "telling a phase: ValueError": 3,
        "telling an end: ValueError": 1,
    }
    assert recorder.phases() == []
    span = recorder.the_span()
    assert attributes(span)["tracekit.role"] == "engine"
    assert not {k for k in attributes(span) if "tokens" in k or "kv_bytes" in k}


def test_phases_of_several_threads_and_a_phase_that_is_left_open(recorder: Recorder) -> None:
    with tracekit.request("chat", model="m") as r:
        open_one = r.phase("kv_transfer").start()

        def work() -> None:
            for _ in range(50):
                with r.phase("prefill"):
                    r.token()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recorder.clock.go(7)
    open_one.stop()
    names = [name for name, *_ in recorder.phases()]
    assert names.count("prefill") == 200
    assert ("kv_transfer", 0, 7, "measured") in recorder.phases()
    assert attributes(recorder.the_span())["gen_ai.usage.output_tokens"] == 200


def test_phases_and_tokens_are_bounded(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.sdk.request.CHUNKS_MAX", 10)
    monkeypatch.setattr("tracekit.sdk.request.PHASES_MAX", 5)
    with tracekit.request("chat", model="m") as r:
        for _ in range(8):
            with r.phase("prefill"):
                recorder.clock.go(1)
        for _ in range(30):
            r.token(2)
            recorder.clock.go(1)
    found = attributes(recorder.the_span())
    assert len([p for p in recorder.phases() if p[0] == "prefill"]) == 5
    assert found["tracekit.phases_dropped"] == 3
    assert found["tracekit.chunks_dropped"] == 19
    assert found["gen_ai.usage.output_tokens"] == 60
    assert found["tracekit.time_to_last_token_ms"] == 8 + 29
    assert sum(unpack(found["tracekit.chunks"]).tokens) == 60


def test_tasks_have_their_own_current_request(recorder: Recorder) -> None:
    async def serve(name: str) -> None:
        async with tracekit.request("chat", model=name) as r:
            async with r.phase("queue"):
                await asyncio.sleep(0)
            assert tracekit.current_request() is r
            tracekit.current_request().set(response_id=name)

    async def both() -> None:
        await asyncio.gather(*(serve(f"m{i}") for i in range(5)))

    asyncio.run(both())
    spans = [s for s in recorder.spans() if s.name != "queue"]
    assert len({s.context.trace_id for s in spans if s.context}) == 5
    for span in spans:
        assert attributes(span)["gen_ai.response.id"] == attributes(span)["gen_ai.request.model"]


def test_without_a_request_around_it_nothing_happens(recorder: Recorder) -> None:
    r = tracekit.current_request()
    with r.phase("queue"):
        r.token()
    r.set(output_tokens=3)
    r.abort()
    assert r.headers() == {}
    assert not recorder.spans() and not tracekit.faults()


def test_leaving_in_another_context_is_no_trouble(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    r = tracekit.request("chat", model="m")
    contextvars.copy_context().run(r.__enter__)
    r.__exit__(None, None, None)
    assert recorder.the_span().status.status_code == trace.StatusCode.UNSET
    assert not caplog.records and not tracekit.faults()
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_suppression_is_respected(recorder: Recorder) -> None:
    from opentelemetry import context

    token = context.attach(context.set_value("suppress_instrumentation", True))
    try:
        with tracekit.request("chat", model="m") as r:
            r.token()
    finally:
        context.detach(token)
    assert not recorder.spans()
