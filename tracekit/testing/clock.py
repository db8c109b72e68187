"""A clock that stands still until it is moved."""

from __future__ import annotations

import threading
from typing import Final

#: 2026-01-01T00:00:00Z: where a fake clock starts unless told otherwise.
_START: Final = 1_767_225_600_000_000_000


class FakeClock:
    """A `tracekit.sdk.clock.Clock` that is moved by hand, so that times in spans are exact.

    ``step_ns`` is what it moves by itself with every reading of its monotonic side: give it 1 where
    two readings must never be the same. `set_unix` moves only the wall clock, as a time server
    would.
    """

    def __init__(self, unix_ns: int = _START, *, step_ns: int = 0) -> None:
        self._lock = threading.Lock()
        self._perf_ns = 0
        self._zero_unix_ns = unix_ns
        self._step_ns = step_ns

    def perf_ns(self) -> int:
        """Monotonic [ns], from 0."""
        with self._lock:
            now = self._perf_ns
            self._perf_ns += self._step_ns
            return now

    def unix_ns(self) -> int:
        """Wall clock [unix ns]."""
        with self._lock:
            return self._zero_unix_ns + self._perf_ns

    def advance(self, *, s: float = 0, ms: float = 0, ns: int = 0) -> None:
        """Move both sides on by the sum. ValueError if that is backwards."""
        by = round(s * 1e9) + round(ms * 1e6) + ns
        if by < 0:
            raise ValueError("a monotonic clock does not go back; use set_unix for the wall clock")
        with self._lock:
            self._perf_ns += by

    def set_unix(self, unix_ns: int) -> None:
        """Set the wall clock; the monotonic side goes on as if nothing were."""
        with self._lock:
            self._zero_unix_ns = unix_ns - self._perf_ns
