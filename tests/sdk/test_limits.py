"""``tracekit.limiter`` and ``intended_start``: what waits in the client is told as such."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import tracekit
from tests.sdk._recorded import START_NS, Recorder, attributes
from tracekit.errors import UsageError
from tracekit.sdk.agent import intended

INTENDED = "tracekit.intended_start_unix_ns"


def _call(recorder: Recorder, ms: float = 10) -> None:
    with tracekit.request("chat", role="client", model="m", streaming=True) as r:
        recorder.clock.go(ms)
        r.chunk()
        recorder.clock.go(1)
        r.chunk()


def test_an_intended_start_is_client_wait(recorder: Recorder) -> None:
    recorder.clock.go(70)
    with tracekit.intended_start(START_NS):
        _call(recorder)
    assert attributes(recorder.the_span())[INTENDED] == START_NS
    (record,) = recorder.records()
    assert record["client_wait_ms"] == 70
    assert record["e2e_ms"] == 81
    assert intended.get() is None


def test_it_is_of_the_next_call_only(recorder: Recorder) -> None:
    recorder.clock.go(70)
    with tracekit.intended_start(START_NS):
        _call(recorder)
        _call(recorder)
    _call(recorder)
    found = [attributes(s).get(INTENDED) for s in recorder.spans() if s.name == "chat m"]
    assert found == [START_NS, None, None]


def test_of_two_around_each_other_the_earlier_counts(recorder: Recorder) -> None:
    recorder.clock.go(50e-6)
    with tracekit.intended_start(START_NS + 20), tracekit.limiter(1):
        _call(recorder, 0)
        _call(recorder, 0)
    recorder.clock.ms = 50e-6
    with tracekit.limiter(1), tracekit.intended_start(START_NS + 90):
        _call(recorder, 0)
    found = [attributes(s).get(INTENDED) for s in recorder.spans() if s.name == "chat m"]
    assert found == [START_NS + 20, None, START_NS + 50]


def test_tasks_wait_in_order_and_their_calls_tell_since_when(recorder: Recorder) -> None:
    limit = tracekit.limiter(1)
    order: list[int] = []

    async def call(i: int) -> None:
        async with limit:
            order.append(i)
            await asyncio.sleep(0)
            _call(recorder, 9)

    async def all_of_them() -> None:
        await asyncio.gather(*(call(i) for i in range(5)))

    asyncio.run(all_of_them())
    assert order == [0, 1, 2, 3, 4]
    # all came at 0, and each call takes 10 ms
    assert [r["client_wait_ms"] for r in recorder.records()] == [0, 10, 20, 30, 40]
    assert (limit.running, limit.waiting) == (0, 0)


def test_never_more_than_n_threads_and_tasks_together() -> None:
    limit = tracekit.limiter(3)
    inside = most = 0
    lock = threading.Lock()

    def step(by: int) -> None:
        nonlocal inside, most
        with lock:
            inside += by
            most = max(most, inside)

    def thread() -> None:
        for _ in range(20):
            with limit:
                step(1)
                time.sleep(0.0005)
                step(-1)

    async def task() -> None:
        for _ in range(20):
            async with limit:
                step(1)
                await asyncio.sleep(0.0005)
                step(-1)

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(5)))

    workers = [threading.Thread(target=thread) for _ in range(5)]
    for worker in workers:
        worker.start()
    asyncio.run(tasks())
    for worker in workers:
        worker.join()
    assert most == 3
    assert (limit.running, limit.waiting) == (0, 0)


def test_threads_wait_in_the_order_in_which_they_came() -> None:
    limit = tracekit.limiter(1)
    order: list[int] = []

    def enter(i: int) -> None:
        with limit:
            order.append(i)

    threads = [threading.Thread(target=enter, args=(i,)) for i in range(6)]
    with limit:
        for i, thread in enumerate(threads):
            thread.start()
            while limit.waiting <= i:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order == list(range(6))


@pytest.mark.parametrize("handed_over", [False, True])
def test_who_is_cancelled_loses_no_slot(handed_over: bool) -> None:
    limit = tracekit.limiter(1)

    async def wait() -> None:
        async with limit:
            pass

    async def main() -> None:
        async with limit:
            first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
            await asyncio.sleep(0)
            assert limit.waiting == 2
            if not handed_over:
                first.cancel()
                await asyncio.sleep(0)
                assert limit.waiting == 1
        # the slot is the first one's by now, who has not run yet
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.wait_for(second, 5)

    asyncio.run(main())
    assert (limit.running, limit.waiting) == (0, 0)


def test_an_event_loop_that_is_gone_keeps_no_slot() -> None:
    limit = tracekit.limiter(1)
    loop = asyncio.new_event_loop()

    async def wait() -> None:
        async with limit:
            pass

    with limit:
        task = loop.create_task(wait())
        loop.run_until_complete(asyncio.sleep(0.01))
        assert limit.waiting == 1
        loop.close()
    assert (limit.running, limit.waiting) == (0, 0)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with limit:
        pass


def test_an_error_inside_gives_the_slot_back() -> None:
    limit = tracekit.limiter(1)
    with pytest.raises(LookupError), limit:
        raise LookupError
    with limit:
        assert limit.running == 1
    assert intended.get() is None


@pytest.mark.parametrize("n", [0, -1, True, 1.5, None])
def test_a_number_that_is_none_is_told_at_once(n: object) -> None:
    with pytest.raises(UsageError, match="1 or more"):
        tracekit.limiter(n)  # type: ignore[arg-type]
