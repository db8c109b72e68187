"""``@tracekit.traced`` over every kind of function."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

import pytest
from opentelemetry import trace

import tracekit
from tests.sdk._recorded import Recorder, attributes
from tracekit.chunks import unpack


def test_a_function_is_one_request(recorder: Recorder) -> None:
    @tracekit.traced("chat", model="m", facts=lambda prompt, **_: {"input_tokens": len(prompt)})
    def answer(prompt: str, *, loud: bool = False) -> str:
        """What it does."""
        with tracekit.current_request().phase("prefill"):
            recorder.clock.go(3)
        return prompt.upper()

    assert (answer.__name__, answer.__doc__) == ("answer", "What it does.")
    assert answer("abc", loud=True) == "ABC"
    found = attributes(recorder.the_span())
    assert found["gen_ai.usage.input_tokens"] == 3
    assert recorder.phases() == [("prefill", 0, 3, "measured")]


def test_an_error_of_a_function_is_its_own(recorder: Recorder) -> None:
    @tracekit.traced(model="m")
    def answer() -> None:
        raise LookupError("no such model")

    with pytest.raises(LookupError, match="no such model"):
        answer()
    assert attributes(recorder.the_span())["error.type"] == "LookupError"


def test_a_coroutine_is_one_request(recorder: Recorder) -> None:
    @tracekit.traced(model="m", role="client")
    async def answer(prompt: str) -> str:
        await asyncio.sleep(0)
        tracekit.current_request().set(output_tokens=2)
        return prompt

    assert asyncio.iscoroutinefunction(answer)
    assert asyncio.run(answer("x")) == "x"
    assert attributes(recorder.the_span())["gen_ai.usage.output_tokens"] == 2


def test_yields_are_chunks_and_not_counted_as_tokens(recorder: Recorder) -> None:
    @tracekit.traced(model="m")
    def stream(n: int) -> Generator[int, Any, str]:
        for i in range(n):
            recorder.clock.go(10)
            yield i
        return "done"

    def outer() -> Iterator[int]:
        said.append((yield from stream(3)))

    said: list[str] = []
    assert list(outer()) == [0, 1, 2]
    assert said == ["done"]
    found = attributes(recorder.the_span())
    assert unpack(found["tracekit.chunks"]).offsets_us == [10_000, 20_000, 30_000]
    assert "gen_ai.usage.output_tokens" not in found
    assert recorder.phases() == [("decode", 10, 30, "measured")]


def test_tokens_of_a_chunk_may_be_told(recorder: Recorder) -> None:
    @tracekit.traced(model="m", tokens=len)
    def stream() -> Iterator[str]:
        yield ""  # says who answers
        recorder.clock.go(4)
        yield "ab"
        yield "c"

    assert list(stream()) == ["", "ab", "c"]
    found = attributes(recorder.the_span())
    assert found["gen_ai.usage.output_tokens"] == 3
    assert unpack(found["tracekit.chunks"]).tokens == [2, 1]


def test_a_generator_keeps_send_throw_and_close(recorder: Recorder) -> None:
    closed = []

    @tracekit.traced(model="m")
    def stream() -> Generator[Any, Any, None]:
        try:
            got = yield "first"
            try:
                yield got
            except LookupError:
                yield "mended"
            yield "never"
        finally:
            closed.append(True)

    it = stream()
    assert next(it) == "first"
    assert it.send("sent") == "sent"
    assert it.throw(LookupError()) == "mended"
    it.close()
    assert closed == [True]
    assert attributes(recorder.the_span())["tracekit.status"] == "aborted"
    assert not tracekit.faults()


def test_a_generator_that_is_left_was_aborted(recorder: Recorder) -> None:
    @tracekit.traced(model="m")
    def stream() -> Iterator[int]:
        yield from range(100)

    for i in stream():
        if i == 3:
            break
    gc.collect()
    found = attributes(recorder.the_span())
    assert found["tracekit.status"] == "aborted"
    assert len(unpack(found["tracekit.chunks"]).offsets_us) == 4


def test_between_yields_the_caller_has_its_own_span_back(recorder: Recorder) -> None:
    @tracekit.traced(model="m")
    def stream() -> Iterator[bool]:
        yield trace.get_current_span().is_recording()
        yield trace.get_current_span().is_recording()

    seen = []
    for inside in stream():
        seen += [inside, trace.get_current_span().is_recording()]
    assert seen == [True, False, True, False]


def test_a_generator_nobody_reads_is_no_request(recorder: Recorder) -> None:
    @tracekit.traced(model="m")
    def stream(n: int) -> Iterator[int]:
        yield n

    with pytest.raises(TypeError):
        stream()  # type: ignore[call-arg]
    stream(1)
    assert not recorder.spans()


@pytest.mark.parametrize("ending", ["all", "error", "closed", "cancelled"])
def test_async_generators(recorder: Recorder, ending: str) -> None:
    @tracekit.traced(model="m", tokens=lambda _: 2)
    async def stream() -> AsyncIterator[int]:
        for i in range(3):
            await asyncio.sleep(0)
            recorder.clock.go(5)
            yield i
        if ending == "error":
            raise LookupError

    async def read() -> list[int]:
        got = []
        chunks = stream()
        async for i in chunks:
            got.append(i)
            assert not trace.get_current_span().is_recording()
            if ending == "closed" and i == 1:
                await chunks.aclose()  # type: ignore[attr-defined]
            if ending == "cancelled" and i == 1:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
        return got

    if ending in ("all", "closed"):
        assert asyncio.run(read()) == [0, 1, 2][: 3 if ending == "all" else 2]
    else:
        with pytest.raises(LookupError if ending == "error" else asyncio.CancelledError):
            asyncio.run(read())
    found = attributes(recorder.the_span())
    expected = {"all": "ok", "error": "error"}.get(ending, "aborted")
    assert found["tracekit.status"] == expected
    assert found["gen_ai.usage.output_tokens"] == (6 if ending in ("all", "error") else 4)


def test_what_the_decorator_is_told_wrongly_harms_nothing(recorder: Recorder) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError

    @tracekit.traced(model="m", facts=broken, tokens=broken)
    def stream() -> Iterator[int]:
        yield 1

    @tracekit.traced(colour=broken)
    def answer() -> int:
        return 4

    assert list(stream()) == [1]
    assert answer() == 4
    assert set(tracekit.faults()) == {
        "telling facts: RuntimeError",
        "counting tokens: RuntimeError",
        "telling a fact: ValueError",
    }
