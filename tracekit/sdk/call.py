"""One LLM call while it runs: when things came, and what was said.

Owns the facts of a call and when it ends, exactly once. Knows no client library, no format beyond
`wire.Wire`, and nothing of spans: `emit` turns a finished call into them.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from tracekit.sdk.clock import Clock
from tracekit.sdk.faults import FAULTS
from tracekit.sdk.wire.facts import ANSWER, NOTHING, Answered, Asked, Wire

#: Chunks whose times are kept; later ones are counted. Keeps a stream that never ends in bounds.
CHUNKS_MAX: Final = 65_536

#: Choices whose ends are told apart.
_CHOICES_MAX: Final = 128

OK: Final = "ok"
ERROR: Final = "error"
ABORTED: Final = "aborted"
TIMEOUT: Final = "timeout"


class Call:
    """Facts of one attempt at one call; all times are [perf ns] of ``clock``.

    ``times_ns`` are arrivals of chunks, in order; `first_content` and `first_answer` are the
    places of the first that brought a token of any channel, and of the visible answer.
    """

    __slots__ = (
        "_lock",
        "_on_end",
        "answer",
        "asked",
        "attempt",
        "chunk_tokens",
        "clock",
        "dropped",
        "end_ns",
        "error",
        "extra",
        "first_answer",
        "first_content",
        "first_ns",
        "headers",
        "headers_ns",
        "http_status",
        "intended_start_unix_ns",
        "phases",
        "pid",
        "provider",
        "request_id",
        "role",
        "server",
        "span",
        "start_ns",
        "start_unix_ns",
        "status",
        "tail",
        "times_ns",
        "wire",
    )

    def __init__(
        self,
        wire: Wire,
        asked: Asked,
        *,
        clock: Clock,
        provider: str | None,
        on_end: Callable[[Call], None],
        role: str = "client",
    ) -> None:
        self.role = role
        self.wire = wire
        self.asked = asked
        self.clock = clock
        self.provider = provider
        self.answer = Answered()
        self.attempt = 1
        #: a forked child has copies of its parent's calls
        self.pid = os.getpid()
        self.request_id: str | None = None
        self.server: tuple[str, int | None] | None = None
        self.span: Any = None
        self.start_ns = clock.perf_ns()
        self.start_unix_ns = clock.unix_ns()
        self.intended_start_unix_ns: int | None = None
        self.headers_ns: int | None = None
        self.http_status: int | None = None
        self.headers: Mapping[str, str] = {}
        self.times_ns: list[int] = []
        #: tokens of each of them; None: one each, as far as is known
        self.chunk_tokens: list[int] | None = None
        self.dropped = 0
        #: the first chunk, where it is none of ``times_ns`` because it brought no token
        self.first_ns: int | None = None
        #: (name, start [perf ns], end [perf ns], how it is known) of phases that were told as such
        self.phases: list[tuple[str, int, int, str]] = []
        #: attributes of the span beside those that follow from the rest
        self.extra: dict[str, Any] = {}
        self.first_content: int | None = None
        self.first_answer: int | None = None
        #: the last chunks, for what only they say: one of each choice, and two that may follow
        self.tail: deque[Any] = deque(maxlen=min(asked.choices or 1, _CHOICES_MAX) + 2)
        self.end_ns: int | None = None
        self.status = OK
        self.error: str | None = None
        self._on_end = on_end
        self._lock = threading.Lock()

    @property
    def ended(self) -> bool:
        return self.end_ns is not None

    def unix(self, perf_ns: int) -> int:
        """[unix ns] of a time of this call."""
        return self.start_unix_ns + perf_ns - self.start_ns

    def look(self, chunk: Any) -> bool:
        """See what the newest chunk brings; whether later ones need no look.

        Its time is the last of ``times_ns``.
        """
        try:
            brings = self.wire.brings(chunk)
            if self.answer.response_id is None:
                # ids and models come with the first; what counts comes again with the last
                self.wire.read(chunk, self.answer)
            if brings == NOTHING:
                return False
            at = len(self.times_ns) - 1
            if self.first_content is None:
                self.first_content = at
            if brings == ANSWER and self.first_answer is None:
                self.first_answer = at
            return self.first_answer is not None
        except Exception as error:
            FAULTS.swallow("reading a chunk", error)
            return True

    def read(self, chunk: Any) -> None:
        """Take what a chunk says, where that cannot wait for the end."""
        try:
            self.wire.read(chunk, self.answer)
        except Exception as error:
            FAULTS.swallow("reading a chunk", error)

    def got_headers(self, status: int | None, headers: Mapping[str, str]) -> None:
        """The response's headers are there."""
        self.headers_ns = self.clock.perf_ns()
        self.http_status = status
        self.headers = headers

    def end(
        self,
        status: str = OK,
        error: BaseException | str | None = None,
        *,
        at_ns: int | None = None,
    ) -> None:
        """The call is over (at ``at_ns`` [perf ns], or now); what is told later counts no more."""
        now = self.clock.perf_ns() if at_ns is None else at_ns
        with self._lock:
            if self.end_ns is not None:
                return
            self.end_ns = now
        try:
            self._read_tail()
            if status == OK and self.answer.error is not None:
                status, error = ERROR, self.answer.error
            if status == ABORTED and len(self.answer.finished) >= (self.asked.choices or 1):
                # the answer was over: not to wait for what may follow it is no abort
                status, error = OK, None
            self.status = status
            if error is not None:
                self.error = error if isinstance(error, str) else error_type(error)
            self._on_end(self)
        except Exception as fault:
            FAULTS.swallow("ending a call", fault)
        finally:
            # a call may be held by its stream for as long as the application likes
            self.tail.clear()

    def left(self) -> None:
        """Nobody reads the stream any more: it was collected as garbage, which may be long after.

        The last that is known of it is its newest chunk.
        """
        known = self.times_ns[-1] if self.times_ns else self.headers_ns
        self.end(ABORTED, "GeneratorExit", at_ns=known)

    def _read_tail(self) -> None:
        """Take what the last chunks say, and forget the times of those that brought no token."""
        for chunk in self.tail:
            self.wire.read(chunk, self.answer)
        if self.wire.typed is None and self.first_content is not None and not self.dropped:
            for chunk in reversed(self.tail):
                if len(self.times_ns) <= self.first_content + 1 or self.wire.brings(chunk):
                    break
                self.times_ns.pop()


def error_type(error: BaseException) -> str:
    """The conventions' ``error.type`` of an exception: its class, with the module it is from."""
    kind = type(error)
    if kind.__module__ in ("builtins", "asyncio.exceptions"):
        return kind.__qualname__
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"


def ending_of(error: BaseException) -> str:
    """How a call ended that raised ``error``, by the exception's classes."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"CancelledError", "GeneratorExit", "KeyboardInterrupt"}:
        return ABORTED
    if any("Timeout" in name for name in names):
        return TIMEOUT
    return ERROR
