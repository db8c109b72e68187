"""A gateway that lets four calls through at once: its callers wait in it, not in the provider.

    python examples/async_gateway.py --store /tmp/gateway --demo
    OPENAI_API_KEY=... python examples/async_gateway.py --store /tmp/gateway "Why is the sky blue?"

Without `tracekit.limiter` (a plain semaphore) that wait is in no span, and the calls look quick.
"""

from __future__ import annotations

import asyncio
import sys

import openai
from _demo import arguments, diagnose

import tracekit
from tracekit.testing import FakeServer, Script

#: As a semaphore, for threads and tasks; a call that waits here tells so.
limit = tracekit.limiter(4)


async def answer(client: openai.AsyncOpenAI, model: str, question: str) -> str:
    """Ordinary client code, and the limit."""
    async with limit:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            stream=True,
            stream_options={"include_usage": True},
        )
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        return "".join(parts)


async def demo() -> None:
    """Sixty questions: one after another at first, then forty at once."""
    with FakeServer() as server:
        server.script("fake", Script(prefill_ms=40, gap_ms=3, chunks=10, prompt_tokens=200))
        async with openai.AsyncOpenAI(base_url=server.openai_url, api_key="none") as client:
            for number in range(20):
                await answer(client, "fake", f"Question {number}?")
            await asyncio.gather(*(answer(client, "fake", f"Question {n}?") for n in range(40)))


async def ask(model: str, questions: list[str]) -> None:
    async with openai.AsyncOpenAI() as client:
        for text in await asyncio.gather(*(answer(client, model, q) for q in questions)):
            print(text)


def main() -> int:
    args = arguments("a gateway with a limit")
    tracekit.configure("gateway", store=args.store)
    tracekit.instrument()
    asyncio.run(demo() if args.demo else ask(args.model, args.questions))
    return diagnose(args.store, slo="ttft=300ms")


if __name__ == "__main__":
    sys.exit(main())
