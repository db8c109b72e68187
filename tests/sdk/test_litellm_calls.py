"""LiteLLM: one span a call at its level, whatever it uses underneath."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from tests.sdk._fake import CHAT, JSON, WHOLE_CHAT, Answer, Server, chunk, paced, serving, sse
from tests.sdk._spans import Seen, ms, offsets_ms, status, told, watching

# it would ask the net for prices of models otherwise
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
litellm: Any = pytest.importorskip("litellm")

# LiteLLM leaves what it logs in the background behind
pytestmark = pytest.mark.filterwarnings("default")

PATH = "/v1/chat/completions"
WHOLE = Answer([json.dumps(WHOLE_CHAT).encode()], JSON)
FAILS = Answer([b'{"error": {"message": "no", "code": "x"}}'], JSON, 500)
MESSAGES = [{"role": "user", "content": "hi"}]
#: providers that LiteLLM calls by the openai client, and by its own HTTP client
PROVIDERS = ["openai", "hosted_vllm"]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def seen() -> Iterator[Seen]:
    with watching("litellm", "openai", "httpx") as found:
        yield found


def _ask(server: Server, provider: str = "openai", **more: Any) -> dict[str, Any]:
    return {
        "model": f"{provider}/m",
        "messages": MESSAGES,
        "api_base": f"{server.url}/v1",
        "api_key": "x",
        "max_retries": 0,
        **more,
    }


@pytest.mark.parametrize("provider", PROVIDERS)
def test_whole(provider: str, server: Server, seen: Seen) -> None:
    server.on(PATH, WHOLE)
    answer = litellm.completion(**_ask(server, provider, temperature=0.5))
    assert answer.choices[0].message.content == "abc"
    asyncio.run(litellm.acompletion(**_ask(server, provider)))
    for span in seen.calls():
        facts = told(span)
        assert span.name == "chat m" and status(span) == "ok"
        assert facts["gen_ai.provider.name"] == provider
        assert facts["gen_ai.usage.input_tokens"] == 7
        assert facts["gen_ai.usage.cache_read.input_tokens"] == 4
        assert facts["gen_ai.response.id"] == "chatcmpl-1"
        assert facts["gen_ai.response.finish_reasons"] == ("stop",)
        assert facts["server.port"] == server.server_address[1]
        assert facts["http.response.status_code"] == 200
    assert len(seen.calls()) == 2 and len(server.seen) == 2
    # the server's spans can be joined
    for span, (_, headers, _) in zip(seen.calls(), server.seen, strict=True):
        assert headers["x-request-id"] == told(span)["tracekit.request_id"]
        assert f"{span.context.trace_id:032x}" in headers["traceparent"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_stream(provider: str, server: Server) -> None:
    usage = {"stream_options": {"include_usage": True}}
    server.on(PATH, Answer(CHAT))
    ask = _ask(server, provider, stream=True)

    async def warm() -> None:
        async for _ in await litellm.acompletion(**ask):
            pass

    asyncio.run(warm())  # it imports much at its first call, and lets nothing else run meanwhile
    with watching("litellm", "openai", "httpx") as seen:
        _stream(provider, server, seen, usage)


def _stream(provider: str, server: Server, seen: Seen, usage: dict[str, Any]) -> None:
    server.on(PATH, Answer(paced(CHAT, 0.05)))
    stream = litellm.completion(**_ask(server, provider, stream=True, **usage))
    assert isinstance(stream, litellm.CustomStreamWrapper)
    assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == "abc"

    async def go() -> None:
        stream = await litellm.acompletion(**_ask(server, provider, stream=True, **usage))
        assert [c async for c in stream]

    asyncio.run(go())
    for span in seen.calls():
        assert status(span) == "ok"
        assert told(span)["gen_ai.usage.output_tokens"] == 3
        assert told(span)["gen_ai.response.finish_reasons"] == ("stop",)
        first, *_, last = offsets_ms(span)
        # 100 ms apart as they are sent; the reader may be late for the first
        assert len(offsets_ms(span)) == 3 and 50 <= last - first
    assert len(seen.calls()) == 2
    assert seen.phases() == ["decode", "decode"]


def test_counts_that_litellm_estimates_are_not_taken(server: Server, seen: Seen) -> None:
    bare = {name: value for name, value in WHOLE_CHAT.items() if name != "usage"}
    server.on(PATH, Answer([json.dumps(bare).encode()], JSON), Answer([*CHAT[:5], CHAT[6]]))
    litellm.completion(**_ask(server))
    list(litellm.completion(**_ask(server, stream=True)))
    for span in seen.calls():
        assert status(span) == "ok"
        assert not [name for name in told(span) if name.startswith("gen_ai.usage.")]


@pytest.mark.parametrize("is_async", [False, True])
def test_endings_of_a_stream(is_async: bool, server: Server, seen: Seen) -> None:
    server.on(PATH, Answer(paced(CHAT, 0.05)))

    async def leave() -> None:
        stream = await litellm.acompletion(**_ask(server, stream=True))
        async for part in stream:
            if part.choices[0].delta.content == "b":
                break
        if hasattr(stream, "aclose"):  # older ones have none
            await stream.aclose()

    if is_async:
        asyncio.run(leave())
    else:
        stream = litellm.completion(**_ask(server, stream=True))
        for part in stream:
            if part.choices[0].delta.content == "b":
                break
        del stream, part
    # LiteLLM itself holds the last answer that it got
    time.sleep(0.1)
    server.on(PATH, WHOLE)
    litellm.completion(**_ask(server))
    gc.collect()
    (span,) = [span for span in seen.calls() if status(span) != "ok"]
    assert status(span) == "aborted" and len(offsets_ms(span)) == 2
    assert ms(span) >= 90


def test_a_cancelled_task(server: Server, seen: Seen) -> None:
    server.on(PATH, Answer(WHOLE.pieces, JSON, wait_s=1.0))

    async def go() -> None:
        task = asyncio.create_task(litellm.acompletion(**_ask(server)))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert status(seen.only()) == "aborted"


def test_errors(server: Server, seen: Seen) -> None:
    refusal = Answer([b'{"error": {"message": "slow down", "code": "x"}}'], JSON, 429)
    server.on(PATH, refusal)
    with pytest.raises(litellm.RateLimitError):
        litellm.completion(**_ask(server))
    with pytest.raises(litellm.RateLimitError):
        asyncio.run(litellm.acompletion(**_ask(server, "hosted_vllm")))
    for span in seen.calls():
        assert status(span) == "error"
        assert told(span)["error.type"] == "litellm.RateLimitError"
        assert told(span)["http.response.status_code"] == 429
    assert len(seen.calls()) == 2


def test_an_error_within_a_stream(server: Server, seen: Seen) -> None:
    error = {"error": {"message": "no", "type": "server_error", "code": "x"}}
    server.on(PATH, Answer(sse(chunk("a"), chunk("b"), error)))
    with pytest.raises(Exception, match="no"):
        list(litellm.completion(**_ask(server, stream=True)))
    assert status(seen.only()) == "error" and len(offsets_ms(seen.only())) >= 1


def test_a_timeout(server: Server, seen: Seen) -> None:
    server.on(PATH, Answer(WHOLE.pieces, JSON, wait_s=0.5))
    with pytest.raises(litellm.Timeout):
        litellm.completion(**_ask(server, timeout=0.1))
    assert status(seen.only()) == "timeout"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("is_async", [False, True])
def test_retries_are_attempts(is_async: bool, provider: str, server: Server, seen: Seen) -> None:
    pytest.importorskip("tenacity")  # LiteLLM retries with it
    server.on(PATH, FAILS, WHOLE)
    ask = _ask(server, provider, num_retries=2)
    asyncio.run(litellm.acompletion(**ask)) if is_async else litellm.completion(**ask)
    first, second = seen.calls()
    assert status(first) == "error" and told(first)["error.type"] == "500"
    assert status(second) == "ok" and told(second)["tracekit.attempt"] == 2
    assert told(first)["tracekit.request_id"] == told(second)["tracekit.request_id"]
    assert told(second)["gen_ai.usage.output_tokens"] == 3


def test_a_fallback_is_an_attempt(server: Server, seen: Seen) -> None:
    server.on(PATH, FAILS, WHOLE)
    litellm.completion(**_ask(server, fallbacks=["openai/other"]))
    first, second = seen.calls()
    assert status(first) == "error" and told(first)["error.type"] == "500"
    assert status(second) == "ok" and told(second)["tracekit.attempt"] == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_a_router_makes_attempts(is_async: bool, server: Server, seen: Seen) -> None:
    server.on(PATH, FAILS, WHOLE)
    params = {name: value for name, value in _ask(server).items() if name != "messages"}
    router = litellm.Router(
        model_list=[{"model_name": "group", "litellm_params": params}],
        num_retries=2,
        retry_after=0,
    )
    if is_async:
        asyncio.run(router.acompletion("group", MESSAGES))
    else:
        router.completion("group", MESSAGES)
    first, second = seen.calls()
    assert status(first) == "error" and "InternalServerError" in told(first)["error.type"]
    assert status(second) == "ok" and told(second)["tracekit.attempt"] == 2
    assert told(first)["tracekit.request_id"] == told(second)["tracekit.request_id"]
    # the next request is none of these
    server.on(PATH, WHOLE)
    router.completion("group", MESSAGES)
    third = seen.calls()[2]
    assert "tracekit.attempt" not in told(third)
    assert told(third)["tracekit.request_id"] != told(first)["tracekit.request_id"]


@pytest.mark.parametrize("stream", [False, True])
def test_its_own_cache_is_marked(
    stream: bool, server: Server, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(litellm, "cache", litellm.Cache(type="local"))
    server.on(PATH, Answer(CHAT) if stream else WHOLE)
    try:
        for _ in range(2):
            answer = litellm.completion(**_ask(server, stream=stream))
            if stream:
                list(answer)
            time.sleep(0.5)  # it is stored in the background
    except ImportError as error:
        pytest.skip(f"the cache of this LiteLLM needs {error.name}")
    asked, kept = seen.calls()
    assert len(server.seen) == 1
    assert "tracekit.response_cache_hit" not in told(asked)
    assert told(kept)["tracekit.response_cache_hit"] is True


def test_without_the_hooks_underneath(server: Server) -> None:
    server.on(PATH, WHOLE, Answer(CHAT))
    with watching("litellm") as seen:
        litellm.completion(**_ask(server, "hosted_vllm"))
        list(litellm.completion(**_ask(server, "hosted_vllm", stream=True)))
    whole, stream = seen.calls()
    assert told(whole)["gen_ai.usage.output_tokens"] == 3
    assert len(offsets_ms(stream)) == 3


def test_everything_is_put_back(server: Server) -> None:
    def all_of_it() -> list[Any]:
        main: Any = import_module("litellm.main")
        stream, router = litellm.CustomStreamWrapper, litellm.Router
        return [
            *(getattr(m, n) for m in (litellm, main) for n in ("completion", "acompletion")),
            *(stream.__next__, stream.__anext__),
            *(router.completion, router.acompletion),
        ]

    before = all_of_it()
    with watching("litellm"):
        assert all(a is not b for a, b in zip(all_of_it(), before, strict=True))
    assert all_of_it() == before
