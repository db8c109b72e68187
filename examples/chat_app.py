"""A chat application, slow because its provider's queue is long at times.

    python examples/chat_app.py --store /tmp/chat --demo
    OPENAI_API_KEY=... python examples/chat_app.py --store /tmp/chat "Why is the sky blue?"

The provider of the demo tells its own times with every answer, as Groq does; so the wait in its
queue is known, and is not taken for prefill.
"""

from __future__ import annotations

import sys

import openai
from _demo import arguments, diagnose

import tracekit
from tracekit.testing import FakeServer, Script


def answer(client: openai.OpenAI, model: str, question: str) -> str:
    """Ordinary client code: nothing here knows that it is watched."""
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        stream=True,
        stream_options={"include_usage": True},
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def demo() -> None:
    """Fifty questions; for ten of them the provider has more to do than it can."""
    calm = Script(prefill_ms=60, queue_ms=2, gap_ms=3, chunks=10, timings="groq")
    busy = Script(prefill_ms=60, queue_ms=400, gap_ms=3, chunks=10, timings="groq")
    with FakeServer() as server:
        client = openai.OpenAI(base_url=server.openai_url, api_key="none")
        for number in range(50):
            server.script("fake", busy if 25 <= number < 35 else calm)
            answer(client, "fake", f"Question {number}?")


def main() -> int:
    args = arguments("a chat application")
    tracekit.configure("chat-app", store=args.store)
    tracekit.instrument()
    if args.demo:
        demo()
    else:
        client = openai.OpenAI()
        for question in args.questions:
            print(answer(client, args.model, question))
    return diagnose(args.store, slo="ttft=300ms")


if __name__ == "__main__":
    sys.exit(main())
