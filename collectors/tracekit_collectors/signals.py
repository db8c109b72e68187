"""SIGTERM and SIGINT of a receiver: the first asks it to stop, the second ends the process.

Imports next to nothing: the command sets the handlers before it imports anything slow, so that a
signal during start-up is a clean stop as well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class _Handler:
    """Sets ``stop``; a signal after that exits at once (the spool keeps what was acknowledged)."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.stop.is_set():
            os._exit(128 + number)
        self.stop.set()


@contextlib.contextmanager
def stop_on_signals(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """Inside, SIGTERM and SIGINT set the event that this yields: ``stop``, or one of its own.

    Without ``stop``, handlers that an outer call has set stay, and its event is yielded. Only
    the main thread can handle signals; in another one the event is all there is.
    """
    if not in_main_thread():
        yield stop or threading.Event()
        return
    outer = signal.getsignal(signal.SIGTERM)
    if stop is None and isinstance(outer, _Handler):
        yield outer.stop
        return
    handler = _Handler(stop or threading.Event())
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield handler.stop
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def in_main_thread() -> bool:
    """Whether signals, and the process itself, are the caller's to handle."""
    return threading.current_thread() is threading.main_thread()
