"""The one clock of the SDK: monotonic times, and their place on the wall clock.

Times within a process are differences of `perf_ns`; a call is put on the wall clock once, when it
starts, so that a clock that is set while it runs moves none of its parts.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a call reads time from. `tracekit.testing` has one that is moved by hand."""

    def perf_ns(self) -> int:
        """Monotonic [ns], from any zero."""

    def unix_ns(self) -> int:
        """Wall clock [unix ns]."""


class SystemClock:
    """The machine's clocks."""

    #: functions of the instance's class, not methods: a call a chunk less
    perf_ns = staticmethod(time.perf_counter_ns)
    unix_ns = staticmethod(time.time_ns)
