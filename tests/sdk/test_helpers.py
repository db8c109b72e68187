"""What the clients offer beside ``create``: ``.stream()``, raw responses, parsing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from tests.sdk._calls import APIS, MESSAGES, Clients
from tests.sdk._facts import only, seen_as_sent, told
from tracekit.testing import Captured, Script, chunks_of

STREAMS: dict[str, Callable[..., Any]] = {
    "chat": lambda c, **k: c.chat.completions.stream(messages=MESSAGES, **k),
    "responses": lambda c, **k: c.responses.stream(input="a b c", **k),
    "messages": lambda c, **k: c.messages.stream(messages=MESSAGES, max_tokens=64, **k),
}


@pytest.fixture(params=STREAMS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _read(clients: Clients, name: str, is_async: bool, take: int | None = None) -> int:
    """Events of a ``.stream()`` helper."""
    client = clients.of(APIS[name], is_async)
    if not is_async:
        seen = 0
        with STREAMS[name](client, model="m") as stream:
            for _event in stream:
                seen += 1
                if seen == take:
                    break
        return seen

    async def run() -> int:
        seen = 0
        async with STREAMS[name](client, model="m") as stream:
            async for _event in stream:
                seen += 1
                if seen == take:
                    break
        return seen

    return int(clients.run(run()))


def test_a_helper_that_is_read_to_its_end(
    clients: Clients, spans: Captured, name: str, is_async: bool
) -> None:
    clients.server.script("m", Script(chunks=20, usage="always"))
    assert _read(clients, name, is_async) >= 20
    facts, span, record = only(spans, clients.server)
    assert facts["tracekit.status"] == "ok"
    assert facts["gen_ai.request.stream"] is True
    assert facts["gen_ai.response.finish_reasons"] == (APIS[name].stopped,)
    assert facts["gen_ai.usage.output_tokens"] == 20
    assert len(chunks_of(span).offsets_us) == 20
    seen_as_sent(span, record)


def test_a_helper_that_is_left_early(
    clients: Clients, spans: Captured, name: str, is_async: bool
) -> None:
    clients.server.script("m", Script(chunks=1_000, gap_ms=5))
    _read(clients, name, is_async, take=6)
    facts, _, record = only(spans, clients.server)
    assert facts["tracekit.status"] == "aborted"
    assert record.client_left


def test_only_text_is_read(clients: Clients, spans: Captured) -> None:
    clients.server.script("m", Script(chunks=4))
    with STREAMS["messages"](clients.of(APIS["messages"], False), model="m") as stream:
        assert "".join(stream.text_stream) == "word " * 4
    facts, _, _ = only(spans, clients.server)
    assert (facts["tracekit.status"], facts["gen_ai.usage.output_tokens"]) == ("ok", 4)


class Answer(BaseModel):
    words: str = ""


def test_parsed_responses_are_one_call(clients: Clients, spans: Captured) -> None:
    clients.server.script("m", Script(chunks=0, tool_chunks=1))
    client = clients.of(APIS["chat"], False)
    client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Answer)
    facts, _, _ = only(spans, clients.server)
    assert facts["gen_ai.response.finish_reasons"] == ("tool_calls",)


#: api -> its raw and its streaming twin
RAW: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "chat": (
        lambda c, **k: c.chat.completions.with_raw_response.create(messages=MESSAGES, **k),
        lambda c, **k: c.chat.completions.with_streaming_response.create(messages=MESSAGES, **k),
    ),
    "responses": (
        lambda c, **k: c.responses.with_raw_response.create(input="a b c", **k),
        lambda c, **k: c.responses.with_streaming_response.create(input="a b c", **k),
    ),
    "messages": (
        lambda c, **k: c.messages.with_raw_response.create(messages=MESSAGES, max_tokens=9, **k),
        lambda c, **k: c.messages.with_streaming_response.create(
            messages=MESSAGES, max_tokens=9, **k
        ),
    ),
}


def test_a_raw_response(clients: Clients, spans: Captured, name: str, is_async: bool) -> None:
    clients.server.script("m", Script(chunks=7))
    client = clients.of(APIS[name], is_async)
    if is_async:

        async def run() -> Any:
            raw = await RAW[name][0](client, model="m")
            parsed = raw.parse()
            return await parsed if hasattr(parsed, "__await__") else parsed

        parsed = clients.run(run())
    else:
        parsed = RAW[name][0](client, model="m").parse()
    assert parsed.usage is not None
    facts, _, record = only(spans, clients.server)
    assert parsed.id == record.response_id == facts["gen_ai.response.id"]
    assert facts["gen_ai.usage.output_tokens"] == 7
    assert facts["tracekit.status"] == "ok"


def test_a_raw_response_that_streams(clients: Clients, spans: Captured, name: str) -> None:
    clients.server.script("m", Script(chunks=7))
    raw = RAW[name][0](clients.of(APIS[name], False), model="m", stream=True)
    assert len(list(raw.parse())) >= 7
    facts, span, _ = only(spans, clients.server)
    assert facts["tracekit.status"] == "ok"
    assert len(chunks_of(span).offsets_us) == 7


@pytest.mark.parametrize("how", ["read", "parse", "lines", "leave"])
def test_a_streaming_response(clients: Clients, spans: Captured, name: str, how: str) -> None:
    clients.server.script("m", Script(chunks=7))
    with RAW[name][1](clients.of(APIS[name], False), model="m") as raw:
        if how == "read":
            assert raw.read()
        elif how == "parse":
            assert raw.parse().id
        elif how == "lines":
            assert list(raw.iter_lines())
    span = spans.call()
    facts = told(span)
    assert facts["http.response.status_code"] == 200
    if how == "leave":
        assert facts["tracekit.status"] in ("aborted", "ok")
    else:
        assert facts["tracekit.status"] == "ok"
        assert facts["gen_ai.usage.output_tokens"] == 7
