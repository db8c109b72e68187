"""Answers from documents: the more of them go into a prompt, the longer until the first token.

    python examples/rag_app.py --store /tmp/rag --demo
    OPENAI_API_KEY=... python examples/rag_app.py --store /tmp/rag "Why is the sky blue?"

The provider of the demo tells nothing of its times, as most do: what lies before the first token is
``queue_or_prefill``. That it grows with the prompt is what tells the two apart.
"""

from __future__ import annotations

import random
import sys

import openai
from _demo import arguments, diagnose

import tracekit
from tracekit.testing import FakeServer, Script

DOCUMENT = "Sunlight is scattered by the air, blue light more than red. " * 40


def answer(client: openai.OpenAI, model: str, question: str, documents: list[str]) -> str:
    """Ordinary client code: all that was found goes into the prompt."""
    stream = client.chat.completions.create(
        model=model,
        messages=[
            {"role": "system", "content": "\n\n".join(["Answer from these texts.", *documents])},
            {"role": "user", "content": question},
        ],
        stream=True,
        stream_options={"include_usage": True},
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def demo() -> None:
    """Fifty questions; most find a few documents, some find very many."""
    chance = random.Random(7)
    with FakeServer() as server:
        client = openai.OpenAI(base_url=server.openai_url, api_key="none")
        for number in range(50):
            found = 60 if number % 7 == 3 else chance.randint(1, 10)
            tokens = 50 + 500 * found
            # a server that computes fifty prompt tokens a millisecond
            script = Script(prefill_ms=10 + tokens / 50, prompt_tokens=tokens, gap_ms=3, chunks=10)
            server.script("fake", script)
            answer(client, "fake", f"Question {number}?", [DOCUMENT] * found)


def main() -> int:
    args = arguments("answers from documents")
    tracekit.configure("rag-app", store=args.store)
    tracekit.instrument()
    if args.demo:
        demo()
    else:
        client = openai.OpenAI()
        for question in args.questions:
            print(answer(client, args.model, question, [DOCUMENT]))
    return diagnose(args.store, slo="ttft=400ms")


if __name__ == "__main__":
    sys.exit(main())
