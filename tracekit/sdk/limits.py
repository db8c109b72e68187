"""Waiting in the application before a call is sent: `limiter`, and telling of it: `intended_start`.

What waits in the client is no part of the server's queue. The next call that starts inside carries
when it was meant to be sent, and the time until it was is its ``client_wait``.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from tracekit.errors import UsageError
from tracekit.sdk.agent import Intended, intended
from tracekit.sdk.setup import clock


@contextmanager
def intended_start(unix_ns: int) -> Iterator[None]:
    """The next call that starts inside was meant to be sent at ``unix_ns`` [unix ns].

    For whoever plans calls: a load generator, a queue of jobs. Later calls inside were not.
    """
    owner = object()
    _enter(owner, unix_ns)
    try:
        yield
    finally:
        _leave(owner)


def _enter(owner: object, unix_ns: int) -> None:
    intended.set(Intended(unix_ns, owner=owner, before=intended.get()))


def _leave(owner: object) -> None:
    # left in another task than entered, there is nothing here to be put back
    held = intended.get()
    if held is not None and held.owner is owner:
        intended.set(held.before)


class _Waiter:
    """Somebody in the queue: ``wake`` tells them that they have a slot; False if they are gone."""

    __slots__ = ("has_slot", "wake")

    def __init__(self, wake: Callable[[], bool]) -> None:
        self.wake = wake
        self.has_slot = False


class Limiter:
    """Lets ``n`` in at once, in the order in which they came; threads and tasks alike."""

    def __init__(self, n: int) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise UsageError(f"limiter({n!r}): the number of calls at once must be 1 or more")
        self.n = n
        self._free = n
        self._queue: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    @property
    def running(self) -> int:
        """How many are inside."""
        return self.n - self._free

    @property
    def waiting(self) -> int:
        """How many wait to get in."""
        return len(self._queue)

    def __enter__(self) -> Limiter:
        began = clock().unix_ns()
        event = threading.Event()

        def wake() -> bool:
            event.set()
            return True

        waiter = self._join(wake)
        if waiter is not None:
            try:
                event.wait()
            except BaseException:
                self._give_up(waiter)
                raise
        _enter(self, began)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _leave(self)
        self._release()

    async def __aenter__(self) -> Limiter:
        began = clock().unix_ns()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def told() -> None:
            if not future.done():
                future.set_result(None)

        def wake() -> bool:
            try:
                loop.call_soon_threadsafe(told)
            except RuntimeError:
                return False  # its event loop was closed
            return True

        waiter = self._join(wake)
        if waiter is not None:
            try:
                await future
            except BaseException:
                self._give_up(waiter)
                raise
        _enter(self, began)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _join(self, wake: Callable[[], Any]) -> _Waiter | None:
        """Take a slot (None), or a place in the queue."""
        with self._lock:
            if self._free:
                self._free -= 1
                return None
            waiter = _Waiter(wake)
            self._queue.append(waiter)
            return waiter

    def _release(self) -> None:
        """Hand a slot on to who has waited longest, or keep it."""
        with self._lock:
            while self._queue:
                waiter = self._queue.popleft()
                waiter.has_slot = True
                if waiter.wake():
                    return
            self._free += 1

    def _give_up(self, waiter: _Waiter) -> None:
        """A waiter was interrupted, perhaps when it had just been given a slot."""
        with self._lock:
            if not waiter.has_slot:
                self._queue.remove(waiter)
                return
        self._release()


def limiter(n: int) -> Limiter:
    """At most ``n`` at once: ``with limit: client...`` or ``async with limit: await client...``.

    First come, first served, over all threads and tasks that share it. What a call waited here is
    the ``client_wait`` of its request. UsageError if ``n`` is not 1 or more.
    """
    return Limiter(n)
