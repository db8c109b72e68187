"""Raw and streamed responses of the openai client: one span and the same facts, however read."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from tests.sdk._fake import CHAT, JSON, WHOLE_CHAT, Answer, Server, chunk, paced, serving, sse
from tests.sdk._spans import Seen, ms, offsets_ms, status, told, watching

PATH = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def seen() -> Iterator[Seen]:
    with watching("openai") as found:
        yield found


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as found:
        yield found


def _facts(span: Any) -> dict[str, Any]:
    """What a call said, without its times and ids."""
    return {
        name: value
        for name, value in told(span).items()
        if not name.startswith(("tracekit.", "server.", "gen_ai.response.time"))
    } | {"status": status(span), "chunks": len(offsets_ms(span))}


READS: dict[str, Callable[[Any], Any]] = {
    "iter_lines": lambda r: list(r.iter_lines()),
    "iter_bytes": lambda r: list(r.iter_bytes()),
    "iter_bytes of 7": lambda r: list(r.iter_bytes(7)),
    "iter_text": lambda r: list(r.iter_text()),
    "read": lambda r: r.read(),
    "parse": lambda r: list(r.parse()),
    "http_response": lambda r: list(r.http_response.iter_raw()),
}


@pytest.mark.parametrize("way", READS)
def test_a_streamed_response_tells_the_same_whichever_way_it_is_read(
    way: str, server: Server, seen: Seen, client: openai.OpenAI
) -> None:
    server.on(PATH, Answer(paced(CHAT)))
    list(client.chat.completions.create(**ASK, stream=True))
    with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
        got = READS[way](response)
    assert got
    plain, raw = seen.calls()
    assert _facts(raw) == _facts(plain)
    assert _facts(raw)["chunks"] == 3
    assert told(raw)["gen_ai.usage.cache_read.input_tokens"] == 4
    first, *_, last = offsets_ms(raw)
    # three tokens 20 ms apart, the first 20 ms after the role; a loaded machine reads late
    assert first >= 15 and last - first >= 20
    # the stream goes on for 80 ms after its last token: chunks that bring none, and its end
    assert ms(raw) - last >= 40
    assert seen.phases() == ["decode", "decode"]


def test_the_legacy_raw_response(server: Server, seen: Seen, client: openai.OpenAI) -> None:
    server.on(PATH, Answer(CHAT), Answer([b'{"id": 1}'], JSON))
    raw = client.chat.completions.with_raw_response.create(**ASK, stream=True)
    assert len(list(raw.parse())) == 6
    assert status(seen.only()) == "ok" and len(offsets_ms(seen.only())) == 3


def test_bytes_are_the_callers_own(server: Server, seen: Seen, client: openai.OpenAI) -> None:
    server.on(PATH, Answer(CHAT))
    with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
        assert b"".join(response.iter_bytes()) == b"".join(CHAT)
        assert response.http_response.num_bytes_downloaded == len(b"".join(CHAT))
    assert response.elapsed.total_seconds() > 0


@pytest.mark.parametrize("way", ["read", "json", "parse", "text"])
def test_a_whole_answer(way: str, server: Server, seen: Seen, client: openai.OpenAI) -> None:
    server.on(PATH, Answer([json.dumps(WHOLE_CHAT).encode()], JSON))
    with client.chat.completions.with_streaming_response.create(**ASK) as response:
        getattr(response, way)()
    span = seen.only()
    assert told(span)["gen_ai.usage.output_tokens"] == 3
    assert told(span)["gen_ai.response.finish_reasons"] == ("stop",)
    assert status(span) == "ok"
    assert offsets_ms(span) == []


def test_a_raw_whole_answer(server: Server, seen: Seen, client: openai.OpenAI) -> None:
    server.on(PATH, Answer([json.dumps(WHOLE_CHAT).encode()], JSON))
    raw = client.chat.completions.with_raw_response.create(**ASK)
    assert told(seen.only())["gen_ai.usage.output_tokens"] == 3
    assert raw.parse().id == "chatcmpl-1"
    assert len(seen.calls()) == 1


def test_leaving_early_is_an_abort(server: Server, seen: Seen, client: openai.OpenAI) -> None:
    server.on(PATH, Answer(paced(CHAT, 0.05)))
    with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
        for line in response.iter_lines():
            if '"b"' in line:
                break
    span = seen.only()
    assert status(span) == "aborted"
    assert len(offsets_ms(span)) == 2
    assert "gen_ai.usage.output_tokens" not in told(span)
    assert 100 <= ms(span) < 290  # the whole stream takes 350 ms


def test_leaving_without_a_read(server: Server, seen: Seen, client: openai.OpenAI) -> None:
    server.on(PATH, Answer(paced(CHAT)))
    with client.chat.completions.with_streaming_response.create(**ASK, stream=True):
        pass
    assert status(seen.only()) == "aborted"
    assert offsets_ms(seen.only()) == []


def test_leaving_after_the_end_of_the_answer(
    server: Server, seen: Seen, client: openai.OpenAI
) -> None:
    server.on(PATH, Answer(paced(CHAT)))
    with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
        for line in response.iter_lines():
            if "stop" in line:
                break
    assert status(seen.only()) == "ok"
    assert told(seen.only())["gen_ai.response.finish_reasons"] == ("stop",)


def test_garbage(server: Server, seen: Seen, client: openai.OpenAI) -> None:
    server.on(PATH, Answer(paced(CHAT)))
    raw = client.chat.completions.with_raw_response.create(**ASK, stream=True)
    assert seen.calls() == []
    del raw
    gc.collect()
    span = seen.only()
    assert status(span) == "aborted"
    # nothing was read: what is known last is that the headers were there
    assert ms(span) == pytest.approx(told(span)["tracekit.time_to_headers_ms"], abs=0.01)


def test_an_error_within_the_stream(server: Server, seen: Seen, client: openai.OpenAI) -> None:
    error = {"error": {"message": "no", "type": "server_error", "code": "overloaded"}}
    server.on(PATH, Answer(sse(chunk("a"), error)))
    with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
        list(response.iter_lines())
    span = seen.only()
    assert status(span) == "error" and told(span)["error.type"] == "overloaded"
    assert len(offsets_ms(span)) == 1


def test_a_cut_stream(server: Server, seen: Seen, client: openai.OpenAI) -> None:
    server.on(PATH, Answer([*CHAT[:3], None]))
    with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
        with pytest.raises(Exception, match="incomplete chunked read"):
            list(response.iter_lines())
    span = seen.only()
    assert status(span) == "error" and "RemoteProtocolError" in told(span)["error.type"]
    assert len(offsets_ms(span)) == 2


def test_a_timeout_between_chunks(server: Server, seen: Seen, client: openai.OpenAI) -> None:
    server.on(PATH, Answer([CHAT[0], CHAT[1], 0.5, CHAT[2]]))
    impatient = client.with_options(timeout=0.1).chat.completions.with_streaming_response
    with impatient.create(**ASK, stream=True) as response:
        with pytest.raises(Exception, match="timed out"):
            list(response.iter_lines())
    assert status(seen.only()) == "timeout" and len(offsets_ms(seen.only())) == 1


def test_compressed(server: Server, seen: Seen, client: openai.OpenAI) -> None:
    packed = gzip.compress(b"".join(CHAT))
    pieces = [packed[i : i + 40] for i in range(0, len(packed), 40)]
    server.on(PATH, Answer(pieces, headers={"content-encoding": "gzip"}))
    with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
        assert response.read() == b"".join(CHAT)
    assert len(offsets_ms(seen.only())) == 3
    assert told(seen.only())["gen_ai.usage.input_tokens"] == 7


def test_a_response_of_the_http_library(server: Server, seen: Seen, client: openai.OpenAI) -> None:
    server.on(PATH, Answer(CHAT))
    kind = type(client.chat.completions.with_raw_response.create(**ASK).http_response)
    assert told(seen.only())["gen_ai.usage.output_tokens"] == 3
    found: Any = client.post("/chat/completions", cast_to=kind, body={**ASK, "stream": True})
    assert found.status_code == 200
    assert told(seen.calls()[1])["gen_ai.usage.output_tokens"] == 3


def test_async_ways(server: Server, seen: Seen) -> None:
    server.on(PATH, Answer(paced(CHAT)))

    async def go() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="x", max_retries=0
        ) as client:
            streamed = client.chat.completions.with_streaming_response
            async with streamed.create(**ASK, stream=True) as response:
                assert len([line async for line in response.iter_lines()]) == 14
            async with streamed.create(**ASK, stream=True) as response:
                assert await response.read() == b"".join(CHAT)
            async with streamed.create(**ASK, stream=True) as response:
                assert len([c async for c in await response.parse()]) == 6
            raw = await client.chat.completions.with_raw_response.create(**ASK, stream=True)
            assert len([c async for c in raw.parse()]) == 6

    asyncio.run(go())
    assert [status(span) for span in seen.calls()] == ["ok"] * 4
    assert {len(offsets_ms(span)) for span in seen.calls()} == {3}


def test_async_endings(server: Server, seen: Seen) -> None:
    server.on(PATH, Answer(paced(CHAT, 0.05)))

    async def go() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="x", max_retries=0
        ) as client:
            streamed = client.chat.completions.with_streaming_response
            async with streamed.create(**ASK, stream=True) as response:
                async for line in response.iter_lines():
                    if '"b"' in line:
                        break

            async def read() -> None:
                async with streamed.create(**ASK, stream=True) as response:
                    await response.read()

            task = asyncio.create_task(read())
            await asyncio.sleep(0.13)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(go())
    left, cancelled = seen.calls()
    assert status(left) == "aborted" and len(offsets_ms(left)) == 2
    assert status(cancelled) == "aborted" and told(cancelled)["error.type"] == "CancelledError"
    assert len(offsets_ms(cancelled)) in (1, 2)
