"""The same calls through every client: four APIs, sync and async, whole and streamed.

Owns how each client is called; asserts nothing. The server is `tracekit.testing.FakeServer`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

import anthropic
import openai

from tracekit.testing import FakeServer

MESSAGES: Final = [{"role": "user", "content": "a b c"}]


@dataclass(frozen=True)
class Api:
    """One API: how it is called, and what its spans are named after."""

    name: str
    provider: str
    operation: str
    create: Callable[..., Any]
    #: the words of this format
    stopped: str
    called_tool: str
    has_reasoning: bool = True


APIS: Final = {
    api.name: api
    for api in (
        Api(
            "chat",
            "openai",
            "chat",
            lambda c, **k: c.chat.completions.create(messages=MESSAGES, **k),
            "stop",
            "tool_calls",
        ),
        Api(
            "completions",
            "openai",
            "text_completion",
            lambda c, **k: c.completions.create(prompt="a b c", **k),
            "stop",
            "stop",
            has_reasoning=False,
        ),
        Api(
            "responses",
            "openai",
            "chat",
            lambda c, **k: c.responses.create(input="a b c", **k),
            "stop",
            "stop",
        ),
        Api(
            "messages",
            "anthropic",
            "chat",
            lambda c, **k: c.messages.create(messages=MESSAGES, max_tokens=64, **k),
            "end_turn",
            "tool_use",
        ),
    )
}


#: those that tell reasoning and tool calls from answers
REASONERS: Final = [api for api in APIS.values() if api.has_reasoning]


@dataclass
class Clients:
    """One client of each kind, and a loop for the async ones, for many calls."""

    server: FakeServer
    loop: asyncio.Runner
    _made: dict[tuple[str, bool], Any] = field(default_factory=dict)

    def of(self, api: Api, is_async: bool) -> Any:
        key = (api.provider, is_async)
        if key not in self._made:
            package = openai if api.provider == "openai" else anthropic
            kind = package.OpenAI if package is openai else package.Anthropic
            if is_async:
                kind = getattr(package, f"Async{kind.__name__}")
            url = self.server.openai_url if package is openai else self.server.url
            self._made[key] = kind(base_url=url, api_key="none", max_retries=0, timeout=30)
        return self._made[key]

    def call(
        self,
        api: Api,
        model: str,
        *,
        is_async: bool = False,
        streaming: bool = True,
        take: int | None = None,
        client_options: dict[str, Any] | None = None,
        **asked: Any,
    ) -> list[Any]:
        """Call once; the response, or the chunks: ``take`` of them, then the stream is closed."""
        if streaming:
            asked["stream"] = True
        asked["model"] = model
        client = self.of(api, is_async)
        if client_options:
            client = client.with_options(**client_options)
        if is_async:
            found = self.run(_call_async(api, client, take, asked))
            assert isinstance(found, list)
            return found
        found = api.create(client, **asked)
        if not streaming:
            return [found]
        chunks = []
        with found:
            for chunk in found:
                chunks.append(chunk)
                if len(chunks) == take:
                    break
        return chunks

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run to its end, in the context of now and not of when the loop was made."""
        return self.loop.run(coroutine, context=contextvars.copy_context())

    def close(self) -> None:
        for (_, is_async), client in self._made.items():
            if is_async:
                self.run(client.close())
            else:
                client.close()


async def _call_async(api: Api, client: Any, take: int | None, asked: dict[str, Any]) -> list[Any]:
    found = await api.create(client, **asked)
    if "stream" not in asked:
        return [found]
    chunks = []
    async with found:
        async for chunk in found:
            chunks.append(chunk)
            if len(chunks) == take:
                break
    return chunks
