"""Every way a call can end: one span, its status, and what was known by then."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from tests.sdk._calls import APIS, REASONERS, Api, Clients
from tests.sdk._facts import end_ns, only, seen_as_sent, start_ns, told
from tracekit.testing import Captured, FakeServer, Script, chunks_of

#: what both clients raise
API_ERRORS = (openai.APIError, anthropic.APIError)


def failure(call: Callable[[], Any]) -> Exception:
    """What ``call`` raises: some clients hand on what their transport raised."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_stream_that_is_read_to_its_end(
    clients: Clients, spans: Captured, api: Api, is_async: bool
) -> None:
    model = clients.server.script(
        "m", Script(prefill_ms=20, chunks=30, prompt_tokens=40, cached_tokens=16, gap_ms=5)
    )
    # the older two tell usage in streams only when asked
    asks = api.name in ("chat", "completions")
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if asks else {}
    clients.call(api, model, is_async=is_async, **options)
    facts, span, record = only(spans, clients.server)
    assert span.name == f"{api.operation} m"
    assert facts["gen_ai.provider.name"] == api.provider
    assert facts["gen_ai.request.model"] == facts["gen_ai.response.model"] == "m"
    assert facts["gen_ai.response.id"] == record.response_id
    assert facts["gen_ai.request.stream"] is True
    assert facts["tracekit.status"] == "ok"
    assert "error.type" not in facts
    assert facts["gen_ai.response.finish_reasons"] == (api.stopped,)
    assert facts["gen_ai.usage.input_tokens"] == 40
    assert facts["gen_ai.usage.cache_read.input_tokens"] == 16
    assert facts["gen_ai.usage.output_tokens"] == 30
    assert facts["http.response.status_code"] == 200
    assert facts["server.port"] == clients.server.port
    assert len(chunks_of(span).offsets_us) == 30
    seen_as_sent(span, record)
    decode = spans.phases(span)["decode"]
    assert (told(decode)["tracekit.phase.source"], decode.parent) == (
        "measured",
        span.get_span_context(),
    )


def test_a_whole_response(clients: Clients, spans: Captured, api: Api, is_async: bool) -> None:
    model = clients.server.script("m", Script(prompt_tokens=40, cached_tokens=16))
    (response,) = clients.call(api, model, is_async=is_async, streaming=False)
    facts, span, record = only(spans, clients.server)
    assert response.id == record.response_id == facts["gen_ai.response.id"]
    assert facts["tracekit.status"] == "ok"
    assert "gen_ai.request.stream" not in facts
    assert facts["gen_ai.response.finish_reasons"] == (api.stopped,)
    assert facts["gen_ai.usage.input_tokens"] == 40
    assert facts["gen_ai.usage.cache_read.input_tokens"] == 16
    assert facts["gen_ai.usage.output_tokens"] == 8
    # when its first token came is not known
    assert not span.events
    assert "gen_ai.response.time_to_first_chunk" not in facts
    assert "tracekit.chunks" not in facts
    assert end_ns(span) >= record.sent[-1].unix_ns


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("status", [400, 404, 429, 500, 529])
def test_an_error_before_the_first_token(
    clients: Clients, spans: Captured, api: Api, is_async: bool, streaming: bool, status: int
) -> None:
    model = clients.server.script("m", Script(status=status, retry_after_s=0.01))
    with pytest.raises(API_ERRORS) as raised:
        clients.call(api, model, is_async=is_async, streaming=streaming)
    facts, span, _ = only(spans, clients.server)
    assert facts["tracekit.status"] == "error"
    assert facts["http.response.status_code"] == status
    assert facts["error.type"] == f"{api.provider}.{type(raised.value).__name__}"
    assert not span.status.is_ok
    assert "gen_ai.usage.output_tokens" not in facts
    assert "tracekit.chunks" not in facts


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_a_connection_that_is_closed_instead_of_an_answer(
    clients: Clients, spans: Captured, api: Api, is_async: bool, streaming: bool
) -> None:
    model = clients.server.script("m", Script(drop=True))
    with pytest.raises(API_ERRORS):
        clients.call(api, model, is_async=is_async, streaming=streaming)
    facts, _, record = only(spans, clients.server)
    assert record.outcome == "dropped"
    assert facts["tracekit.status"] == "error"
    assert facts["error.type"] == f"{api.provider}.APIConnectionError"
    assert "http.response.status_code" not in facts


def test_a_connection_that_is_cut_in_the_stream(
    clients: Clients, spans: Captured, api: Api, is_async: bool
) -> None:
    model = clients.server.script("m", Script(cut_after=5))
    failure(lambda: clients.call(api, model, is_async=is_async))
    facts, span, record = only(spans, clients.server)
    assert record.outcome == "cut"
    assert facts["tracekit.status"] == "error"
    assert facts["http.response.status_code"] == 200
    assert len(chunks_of(span).offsets_us) == 5
    assert [event.name for event in span.events] == ["first_token"]
    assert "gen_ai.response.finish_reasons" not in facts


def test_an_error_inside_a_stream_that_began_well(
    clients: Clients, spans: Captured, api: Api, is_async: bool
) -> None:
    model = clients.server.script("m", Script(error_after=5))
    # responses hand the error over as an event, the others raise
    if api.name == "responses":
        clients.call(api, model, is_async=is_async)
    else:
        with pytest.raises(API_ERRORS):
            clients.call(api, model, is_async=is_async)
    facts, span, record = only(spans, clients.server)
    assert record.outcome == "stream_error"
    assert facts["tracekit.status"] == "error"
    assert facts["http.response.status_code"] == 200
    assert facts["error.type"]
    assert len(chunks_of(span).offsets_us) == 5


def test_an_error_as_the_first_event(clients: Clients, spans: Captured, is_async: bool) -> None:
    model = clients.server.script("m", Script(error_after=0))
    with pytest.raises(API_ERRORS):
        clients.call(APIS["chat"], model, is_async=is_async)
    facts, span, _ = only(spans, clients.server)
    assert facts["tracekit.status"] == "error"
    assert "tracekit.chunks" not in facts
    assert not span.events


def test_a_stream_without_any_event(
    clients: Clients, spans: Captured, api: Api, is_async: bool
) -> None:
    model = clients.server.script("m", Script(empty=True))
    assert clients.call(api, model, is_async=is_async) == []
    facts, span, _ = only(spans, clients.server)
    assert (facts["tracekit.status"], facts["error.type"]) == ("error", "empty_stream")
    assert not span.events


def test_a_stream_without_tokens_that_says_why_is_no_error(
    clients: Clients, spans: Captured, is_async: bool
) -> None:
    model = clients.server.script("m", Script(chunks=0, finish_reason="content_filter"))
    clients.call(APIS["chat"], model, is_async=is_async)
    facts, span, _ = only(spans, clients.server)
    assert facts["tracekit.status"] == "ok"
    assert facts["gen_ai.response.finish_reasons"] == ("content_filter",)
    assert "tracekit.chunks" not in facts
    assert not span.events


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_a_timeout_before_the_headers(
    clients: Clients, spans: Captured, api: Api, is_async: bool, streaming: bool
) -> None:
    model = clients.server.script("m", Script(headers_ms=20_000))
    with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
        clients.call(
            api, model, is_async=is_async, streaming=streaming, client_options={"timeout": 0.15}
        )
    facts, span, record = only(spans, clients.server)
    assert record.client_left
    assert facts["tracekit.status"] == "timeout"
    assert facts["error.type"] == f"{api.provider}.APITimeoutError"
    assert "http.response.status_code" not in facts
    assert 0.1e9 < end_ns(span) - start_ns(span) < 10e9


def test_a_timeout_in_the_stream(
    clients: Clients, spans: Captured, api: Api, is_async: bool
) -> None:
    model = clients.server.script("m", Script(hang_after=4))
    raised = failure(
        lambda: clients.call(api, model, is_async=is_async, client_options={"timeout": 0.2})
    )
    assert "Timeout" in type(raised).__name__
    facts, span, record = only(spans, clients.server)
    assert record.client_left
    assert facts["tracekit.status"] == "timeout"
    assert len(chunks_of(span).offsets_us) == 4


def test_a_stream_that_is_closed_early(
    clients: Clients, spans: Captured, api: Api, is_async: bool
) -> None:
    model = clients.server.script("m", Script(chunks=1_000, gap_ms=5))
    took = clients.call(api, model, is_async=is_async, take=12)
    assert len(took) == 12
    facts, span, record = only(spans, clients.server)
    assert record.client_left
    assert_aborted(facts)
    # what the application took, less what brings no token
    before = {"chat": 1, "completions": 0, "responses": 4, "messages": 2}[api.name]
    assert len(chunks_of(span).offsets_us) == 12 - before <= len(record.tokens_sent)


def assert_aborted(facts: dict[str, Any]) -> None:
    assert facts["tracekit.status"] == "aborted"
    assert "gen_ai.response.finish_reasons" not in facts
    assert facts["error.type"] in ("GeneratorExit", "CancelledError")


def test_a_stream_that_is_closed_before_it_is_read(
    clients: Clients, spans: Captured, api: Api
) -> None:
    model = clients.server.script("m", Script(chunks=1_000))
    stream = api.create(clients.of(api, False), model=model, stream=True)
    stream.close()
    facts, _, record = only(spans, clients.server)
    assert record.client_left
    assert_aborted(facts)
    assert "tracekit.chunks" not in facts


@pytest.mark.parametrize("read", [0, 6], ids=["unread", "begun"])
def test_a_stream_that_nobody_holds_any_more(
    clients: Clients, spans: Captured, api: Api, read: int
) -> None:
    model = clients.server.script("m", Script(chunks=1_000, gap_ms=2))
    stream = api.create(clients.of(api, False), model=model, stream=True)
    for _, _chunk in zip(range(read), stream, strict=False):
        pass
    assert not spans.calls
    response = stream.response
    del stream
    gc.collect()
    response.close()
    facts, span, record = only(spans, clients.server)
    assert record.client_left
    assert_aborted(facts)
    # the last that is known of it, not when it was collected
    last = chunks_of(span).offsets_us
    if last:
        assert end_ns(span) - start_ns(span) == pytest.approx(last[-1] * 1e3, abs=2e6)


def test_an_exception_in_the_application_closes_the_stream(
    clients: Clients, spans: Captured, api: Api
) -> None:
    model = clients.server.script("m", Script(chunks=1_000))
    with (
        pytest.raises(KeyError),
        api.create(clients.of(api, False), model=model, stream=True) as stream,
    ):
        for _chunk in stream:
            raise KeyError("mine")
    facts, _, record = only(spans, clients.server)
    assert record.client_left
    assert_aborted(facts)


@pytest.mark.parametrize("when", ["headers", "chunks"])
def test_a_task_that_is_cancelled(clients: Clients, spans: Captured, api: Api, when: str) -> None:
    slow = when == "headers"
    model = clients.server.script(
        "m", Script(headers_ms=20_000 if slow else 0, chunks=1_000, gap_ms=5)
    )
    client = clients.of(api, True)
    begun = asyncio.Event()

    async def read() -> None:
        async for _chunk in await api.create(client, model=model, stream=True):
            begun.set()

    async def run() -> None:
        task = asyncio.ensure_future(read())
        if slow:
            await asyncio.sleep(0.1)
        else:
            await begun.wait()
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    clients.run(run())
    facts, span, record = only(spans, clients.server)
    assert record.client_left
    assert_aborted(facts)
    assert facts["error.type"] == "CancelledError"
    if not slow:
        assert 1 <= len(chunks_of(span).offsets_us) < len(record.tokens_sent) + 1


def test_a_whole_response_that_is_cancelled(clients: Clients, spans: Captured, api: Api) -> None:
    model = clients.server.script("m", Script(headers_ms=20_000))

    async def run() -> None:
        call = api.create(clients.of(api, True), model=model)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(call, 0.1)

    clients.run(run())
    facts, _, record = only(spans, clients.server)
    assert record.client_left
    assert_aborted(facts)


@pytest.mark.parametrize("api", REASONERS, ids=lambda api: api.name)
def test_tool_calls(clients: Clients, spans: Captured, api: Api, is_async: bool) -> None:
    model = clients.server.script("m", Script(chunks=0, tool_chunks=6))
    clients.call(api, model, is_async=is_async)
    facts, span, record = only(spans, clients.server)
    assert facts["tracekit.status"] == "ok"
    assert facts["gen_ai.response.finish_reasons"] == (api.called_tool,)
    assert len(chunks_of(span).offsets_us) == 6
    seen_as_sent(span, record)
    # nothing of it is a visible answer
    assert "tracekit.time_to_first_answer_ms" not in facts


@pytest.mark.parametrize("api", REASONERS, ids=lambda api: api.name)
def test_reasoning_only(clients: Clients, spans: Captured, api: Api, is_async: bool) -> None:
    model = clients.server.script("m", Script(chunks=0, reasoning_chunks=6, usage="always"))
    clients.call(api, model, is_async=is_async)
    facts, span, _ = only(spans, clients.server)
    assert facts["tracekit.status"] == "ok"
    assert len(chunks_of(span).offsets_us) == 6
    assert "tracekit.time_to_first_answer_ms" not in facts
    if api.provider == "openai":
        assert facts["gen_ai.usage.reasoning.output_tokens"] == 6


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_several_choices(
    clients: Clients, spans: Captured, is_async: bool, streaming: bool
) -> None:
    model = clients.server.script("m", Script(chunks=5, usage="always"))
    clients.call(APIS["chat"], model, is_async=is_async, streaming=streaming, n=3)
    facts, span, record = only(spans, clients.server)
    assert facts["tracekit.status"] == "ok"
    assert facts["gen_ai.request.choice.count"] == 3
    assert facts["gen_ai.response.finish_reasons"] == ("stop", "stop", "stop")
    assert facts["gen_ai.usage.output_tokens"] == 15
    if streaming:
        seen_as_sent(span, record)


def test_the_server_is_told_nothing_twice(server: FakeServer, clients: Clients) -> None:
    """Without a capture nothing is sent, and the calls are as they were."""
    clients.call(APIS["chat"], "m")
    (record,) = server.records()
    assert record.traceparent is None
    assert record.request_id is None
