"""Raw and streamed responses of the anthropic client: chunks that tell their type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.sdk._fake import MESSAGE_START, MESSAGES, Answer, Server, delta, paced, serving, sse
from tests.sdk._spans import Seen, offsets_ms, status, told, watching

PATH = "/v1/messages"
ASK: dict[str, Any] = {
    "model": "claude-1",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def seen() -> Iterator[Seen]:
    with watching("anthropic") as found:
        yield found


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0) as found:
        yield found


@pytest.mark.parametrize("named", [True, False])
def test_read_by_lines(
    named: bool, server: Server, seen: Seen, client: anthropic.Anthropic
) -> None:
    # a compatible server may leave the events' names out
    pieces = MESSAGES if named else [p.partition(b"\n")[2] for p in MESSAGES]
    server.on(PATH, Answer(paced(pieces)))
    with client.messages.with_streaming_response.create(**ASK, stream=True) as response:
        list(response.iter_lines())
    span = seen.only()
    assert status(span) == "ok"
    facts = told(span)
    # what came from the cache is part of the input
    assert facts["gen_ai.usage.input_tokens"] == 7
    assert facts["gen_ai.usage.cache_read.input_tokens"] == 2
    assert facts["gen_ai.usage.output_tokens"] == 3
    assert facts["gen_ai.response.finish_reasons"] == ("end_turn",)
    assert facts["gen_ai.response.id"] == "msg_1"
    first, *_, last = offsets_ms(span)
    assert len(offsets_ms(span)) == 3 and first >= 50 and last - first >= 20


def test_parsed(server: Server, seen: Seen, client: anthropic.Anthropic) -> None:
    server.on(PATH, Answer(MESSAGES))
    with client.messages.with_streaming_response.create(**ASK, stream=True) as response:
        assert len(list(response.parse())) >= 8
    assert status(seen.only()) == "ok" and len(offsets_ms(seen.only())) == 3


def test_thinking_comes_before_the_answer(
    server: Server, seen: Seen, client: anthropic.Anthropic
) -> None:
    thought = [delta("hm", "thinking_delta")] * 2
    pieces = sse(MESSAGE_START, *thought, delta("a"), {"type": "message_stop"}, events=True)
    server.on(PATH, Answer(paced(pieces)))
    with client.messages.with_streaming_response.create(**ASK, stream=True) as response:
        response.read()
    first, second, answer = offsets_ms(seen.only())
    assert told(seen.only())["tracekit.time_to_first_answer_ms"] == pytest.approx(answer, abs=0.01)
    assert first < second < answer


def test_an_error_within_the_stream(
    server: Server, seen: Seen, client: anthropic.Anthropic
) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}
    server.on(PATH, Answer(sse(MESSAGE_START, delta("a"), error, events=True)))
    with client.messages.with_streaming_response.create(**ASK, stream=True) as response:
        list(response.iter_lines())
    assert status(seen.only()) == "error"
    assert told(seen.only())["error.type"] == "overloaded_error"
