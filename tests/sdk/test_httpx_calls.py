"""Calls made with plain HTTP clients: told by path and body, and however they end."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

import tracekit
from tests.sdk._fake import (
    CHAT,
    JSON,
    MESSAGES,
    NDJSON,
    WHOLE_CHAT,
    Answer,
    Server,
    chunk,
    paced,
    serving,
    sse,
)
from tests.sdk._spans import Seen, ms, offsets_ms, status, told, watching

CHAT_PATH = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**ASK, "stream": True}


@pytest.fixture(params=["httpx", "httpx2"])
def http(request: pytest.FixtureRequest) -> Any:
    try:
        return importlib.import_module(request.param)
    except ImportError:
        pytest.skip(f"{request.param} is not installed")


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def seen() -> Iterator[Seen]:
    with watching("httpx") as found:
        yield found


@pytest.fixture
def client(http: Any, server: Server, seen: Seen) -> Iterator[Any]:
    with http.Client(base_url=server.url) as found:
        yield found


def test_a_stream(client: Any, server: Server, seen: Seen) -> None:
    server.on(CHAT_PATH, Answer(paced(CHAT), wait_s=0.05))
    with client.stream("POST", CHAT_PATH, json=STREAM) as response:
        assert len([line for line in response.iter_lines() if line]) == 7
    span = seen.only()
    facts = told(span)
    assert span.name == "chat m" and span.kind.name == "CLIENT"
    assert facts["gen_ai.provider.name"] == "openai"
    assert facts["gen_ai.request.stream"] is True
    assert facts["gen_ai.usage.output_tokens"] == 3
    assert facts["gen_ai.response.finish_reasons"] == ("stop",)
    assert facts["server.address"] == "127.0.0.1"
    assert facts["server.port"] == server.server_address[1]
    assert facts["http.response.status_code"] == 200
    assert 50 <= facts["tracekit.time_to_headers_ms"] < 150
    first, *_, last = offsets_ms(span)
    assert first >= 65 and last - first >= 20
    assert seen.phases() == ["decode"]
    # the server's spans can be joined
    _, headers, _ = server.seen[0]
    assert headers["x-request-id"] == facts["tracekit.request_id"]
    assert f"{span.context.trace_id:032x}-{span.context.span_id:016x}" in headers["traceparent"]


def test_whole(client: Any, server: Server, seen: Seen) -> None:
    server.on(CHAT_PATH, Answer([0.05, json.dumps(WHOLE_CHAT).encode()], JSON))
    assert client.post(CHAT_PATH, json=ASK).json() == WHOLE_CHAT
    assert told(seen.only())["gen_ai.usage.input_tokens"] == 7
    assert offsets_ms(seen.only()) == [] and ms(seen.only()) >= 50


def test_a_stream_that_is_read_at_once(client: Any, server: Server, seen: Seen) -> None:
    server.on(CHAT_PATH, Answer(paced(CHAT)))
    assert client.post(CHAT_PATH, json=STREAM).content == b"".join(CHAT)
    first, *_, last = offsets_ms(seen.only())
    assert last - first >= 20


def test_one_call_of_the_module(http: Any, server: Server, seen: Seen) -> None:
    server.on(CHAT_PATH, Answer([json.dumps(WHOLE_CHAT).encode()], JSON))
    http.post(server.url + CHAT_PATH, json=ASK)
    assert status(seen.only()) == "ok"


def test_anthropic(client: Any, server: Server, seen: Seen) -> None:
    server.on("/v1/messages", Answer(MESSAGES))
    with client.stream("POST", "/v1/messages", json={**STREAM, "max_tokens": 5}) as response:
        response.read()
    facts = told(seen.only())
    assert facts["gen_ai.provider.name"] == "anthropic"
    assert facts["gen_ai.usage.input_tokens"] == 7 and len(offsets_ms(seen.only())) == 3


OLLAMA_END = {
    "model": "llama",
    "done": True,
    "done_reason": "stop",
    "total_duration": 30_000_000,
    "load_duration": 1_000_000,
    "prompt_eval_count": 26,
    "prompt_eval_cached_count": 20,
    "prompt_eval_duration": 10_000_000,
    "eval_count": 2,
    "eval_duration": 15_000_000,
}


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_ollama(path: str, client: Any, server: Server, seen: Seen) -> None:
    def said(text: str) -> dict[str, Any]:
        if path == "/api/generate":
            return {"response": text}
        return {"message": {"role": "assistant", "content": text}}

    parts = [{"model": "llama", "done": False, **said(t)} for t in "ab"]
    lines = [json.dumps(p).encode() + b"\n" for p in (*parts, {**said(""), **OLLAMA_END})]
    # two lines in one piece, one line in two
    server.on(path, Answer([0.04, lines[0] + lines[1], lines[2][:9], lines[2][9:]], NDJSON))
    body = {"model": "llama", "prompt": "x"} if path == "/api/generate" else ASK
    with client.stream("POST", path, json=body) as response:
        assert len(list(response.iter_lines())) == 3
    facts = told(seen.only())
    assert facts["gen_ai.provider.name"] == "ollama"
    assert facts["gen_ai.request.stream"] is True  # it streams unless told not to
    assert facts["gen_ai.usage.input_tokens"] == 26
    assert facts["gen_ai.usage.cache_read.input_tokens"] == 20
    assert facts["gen_ai.usage.output_tokens"] == 2
    assert len(offsets_ms(seen.only())) == 2
    assert seen.phases() == ["queue", "prefill", "decode"]


def test_ollama_whole(client: Any, server: Server, seen: Seen) -> None:
    whole = {**OLLAMA_END, "message": {"role": "assistant", "content": "ab"}}
    server.on("/api/chat", Answer([0.04, json.dumps(whole).encode()], JSON))
    client.post("/api/chat", json={**ASK, "stream": False})
    assert told(seen.only())["gen_ai.usage.output_tokens"] == 2
    assert seen.phases() == ["queue", "prefill", "decode"]


def test_an_http_error(client: Any, server: Server, seen: Seen) -> None:
    body = json.dumps({"error": {"message": "slow down", "code": "rate_limit"}}).encode()
    server.on(CHAT_PATH, Answer([body], JSON, 429))
    assert client.post(CHAT_PATH, json=ASK).status_code == 429
    with client.stream("POST", CHAT_PATH, json=STREAM) as response:
        with pytest.raises(Exception, match="429"):
            response.raise_for_status()
    for span in seen.calls():
        assert status(span) == "error" and told(span)["error.type"] == "429"
    assert len(seen.calls()) == 2


def test_timeouts(http: Any, client: Any, server: Server, seen: Seen) -> None:
    server.on(CHAT_PATH, Answer(CHAT, wait_s=0.3), Answer([*CHAT[:3], 0.3, *CHAT[3:]]))
    with pytest.raises(http.ReadTimeout):
        client.post(CHAT_PATH, json=STREAM, timeout=0.1)
    with pytest.raises(http.ReadTimeout):
        client.post(CHAT_PATH, json=STREAM, timeout=0.1)
    before, after = seen.calls()
    assert status(before) == status(after) == "timeout"
    assert told(before)["error.type"] == f"{http.__name__}.ReadTimeout"
    assert (len(offsets_ms(before)), len(offsets_ms(after))) == (0, 2)


def test_no_server(http: Any, seen: Seen) -> None:
    with pytest.raises(http.ConnectError):
        http.post(f"http://127.0.0.1:1{CHAT_PATH}", json=ASK)
    assert status(seen.only()) == "error"
    assert told(seen.only())["error.type"] == f"{http.__name__}.ConnectError"


def test_an_abort(client: Any, server: Server, seen: Seen) -> None:
    server.on(CHAT_PATH, Answer(paced(CHAT, 0.05)))
    with client.stream("POST", CHAT_PATH, json=STREAM) as response:
        for line in response.iter_lines():
            if '"a"' in line:
                break
    assert status(seen.only()) == "aborted" and len(offsets_ms(seen.only())) == 1


def test_leaving_after_the_end_mark(client: Any, server: Server, seen: Seen) -> None:
    server.on(CHAT_PATH, Answer(paced(sse(chunk("a"), done=True), 0.05)))
    with client.stream("POST", CHAT_PATH, json=STREAM) as response:
        for line in response.iter_lines():
            if "[DONE]" in line:
                break
    assert status(seen.only()) == "ok"


def test_an_empty_stream(client: Any, server: Server, seen: Seen) -> None:
    server.on(CHAT_PATH, Answer([b"data: [DONE]\n\n"]))
    client.post(CHAT_PATH, json=STREAM)
    assert status(seen.only()) == "ok" and offsets_ms(seen.only()) == []


def test_a_model_in_the_path(client: Any, server: Server, seen: Seen) -> None:
    path = "/openai/deployments/gpt-x/chat/completions"
    server.on(path, Answer([json.dumps(WHOLE_CHAT).encode()], JSON))
    body = {"messages": ASK["messages"]}
    client.post(f"{path}?api-version=1", json=body)
    assert seen.only().name == "chat gpt-x"
    assert server.seen[0][2] == body  # what is sent is the caller's


OTHERS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/embeddings", {"model": "m", "input": "x"}),
    ("POST", "/chats/7/messages", {"body": "hello"}),
    ("POST", "/v1/messages", {"text": "hello"}),
    ("POST", "/completions", {"word": "x"}),
    ("POST", "/surveys/responses", {"model": "m", "input": "x"}),
    ("POST", CHAT_PATH, ["no", "object"]),
    ("GET", CHAT_PATH, None),
    ("POST", "/", ASK),
]


@pytest.mark.parametrize(("method", "path", "body"), OTHERS)
def test_other_traffic_is_not_touched(
    method: str, path: str, body: Any, client: Any, server: Server, seen: Seen
) -> None:
    server.on(path, Answer([b"{}"], JSON))
    client.request(method, path, json=body)
    assert seen.spans() == ()
    _, headers, _ = server.seen[0]
    assert not {"traceparent", "x-request-id"} & set(headers)


def test_a_body_that_is_a_stream_is_not_read(client: Any, server: Server, seen: Seen) -> None:
    server.on(CHAT_PATH, Answer(CHAT))
    client.post(CHAT_PATH, content=iter([json.dumps(ASK).encode()]))
    assert seen.spans() == ()


def test_what_a_hook_reads_first(http: Any, server: Server, seen: Seen) -> None:
    server.on(CHAT_PATH, Answer(paced(CHAT)))
    with http.Client(event_hooks={"response": [lambda r: r.read()]}) as client:
        with client.stream("POST", server.url + CHAT_PATH, json=STREAM) as response:
            assert b"".join(response.iter_bytes()) == b"".join(CHAT)
    # its facts are known, the times of its chunks are not
    assert told(seen.only())["gen_ai.usage.output_tokens"] == 3
    assert offsets_ms(seen.only()) == []


def test_a_transport_of_the_tests(http: Any, seen: Seen) -> None:
    answers = http.MockTransport(lambda request: http.Response(200, json=WHOLE_CHAT))
    with http.Client(transport=answers) as client:
        assert client.post(f"http://api.groq.com/openai{CHAT_PATH}", json=ASK).json() == WHOLE_CHAT
    assert told(seen.only())["gen_ai.provider.name"] == "groq"
    assert told(seen.only())["gen_ai.usage.output_tokens"] == 3


def test_async(http: Any, server: Server, seen: Seen) -> None:
    server.on(
        CHAT_PATH,
        Answer(paced(CHAT)),
        Answer([json.dumps(WHOLE_CHAT).encode()], JSON),
        Answer(paced(CHAT, 0.05)),
    )

    async def go() -> None:
        async with http.AsyncClient(base_url=server.url) as client:
            async with client.stream("POST", CHAT_PATH, json=STREAM) as response:
                assert len([line async for line in response.aiter_lines() if line]) == 7
            assert (await client.post(CHAT_PATH, json=ASK)).json() == WHOLE_CHAT
            async with client.stream("POST", CHAT_PATH, json=STREAM) as response:
                async for line in response.aiter_lines():
                    if '"b"' in line:
                        break
            task = asyncio.create_task(client.post(CHAT_PATH, json=STREAM))
            await asyncio.sleep(0.13)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(go())
    stream, whole, left, cancelled = seen.calls()
    assert status(stream) == status(whole) == "ok"
    assert len(offsets_ms(stream)) == 3 and told(whole)["gen_ai.usage.output_tokens"] == 3
    assert status(left) == "aborted" and len(offsets_ms(left)) == 2
    assert status(cancelled) == "aborted" and told(cancelled)["error.type"] == "CancelledError"


def test_calls_within_a_client_library_are_its_own(server: Server) -> None:
    openai = pytest.importorskip("openai")
    server.on(CHAT_PATH, Answer(CHAT))
    with watching("openai", "httpx") as seen:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
            list(client.chat.completions.create(**ASK, stream=True))
            with client.chat.completions.with_streaming_response.create(**STREAM) as response:
                response.read()
    assert [len(offsets_ms(span)) for span in seen.calls()] == [3, 3]


def test_a_client_that_makes_its_requests_anew_doubles_none(server: Server) -> None:
    openai = pytest.importorskip("openai")
    kind: Any = openai.DefaultHttpxClient

    class Anew(kind):  # type: ignore[misc]
        def send(self, request: Any, **kwargs: Any) -> Any:
            made = self.build_request(
                request.method, request.url, headers=request.headers, content=request.content
            )
            return super().send(made, **kwargs)

    server.on(CHAT_PATH, Answer(CHAT))
    with watching("openai", "httpx") as seen:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", http_client=Anew()) as client:
            list(client.chat.completions.create(**ASK, stream=True))
    assert len(offsets_ms(seen.only())) == 3


def test_a_client_library_that_is_not_watched(server: Server, seen: Seen) -> None:
    openai = pytest.importorskip("openai")
    server.on(CHAT_PATH, Answer(paced(CHAT)))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        list(client.chat.completions.create(**ASK, stream=True))
    assert status(seen.only()) == "ok" and len(offsets_ms(seen.only())) == 3


def test_everything_is_put_back(http: Any, server: Server) -> None:
    before = (http.Client.send, http.AsyncClient.send)
    with watching("httpx") as seen:
        assert http.Client.send is not before[0]
    assert (http.Client.send, http.AsyncClient.send) == before
    server.on(CHAT_PATH, Answer(CHAT))
    http.post(server.url + CHAT_PATH, json=STREAM)
    assert seen.spans() == ()


def test_a_fault_of_ours_is_not_the_callers(
    http: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit.sdk import bodies
    from tracekit.sdk.faults import FAULTS

    server.on(CHAT_PATH, Answer(CHAT))
    with watching("httpx") as seen:
        for name in ("_read", "_left"):
            monkeypatch.setattr(bodies.Body, name, lambda *args: 1 / 0)
        assert http.post(server.url + CHAT_PATH, json=STREAM).content == b"".join(CHAT)
        assert "reading a body: ZeroDivisionError" in tracekit.faults()
        FAULTS.clear()
    assert status(seen.only()) == "ok"


def test_reasoning_and_tools(client: Any, server: Server, seen: Seen) -> None:
    thoughts = [chunk(delta={"reasoning_content": "hm"})] * 2
    tool = chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]})
    server.on(CHAT_PATH, Answer(sse(*thoughts, tool, chunk(finish_reason="tool_calls"), done=True)))
    client.post(CHAT_PATH, json=STREAM)
    facts = told(seen.only())
    assert facts["gen_ai.response.finish_reasons"] == ("tool_calls",)
    assert len(offsets_ms(seen.only())) == 3
    assert "tracekit.time_to_first_answer_ms" not in facts
