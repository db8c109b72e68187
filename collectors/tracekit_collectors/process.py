"""The receiver as a process: the bound of its shutdown, and its ready file."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tracekit.errors import UsageError
from tracekit_collectors.signals import in_main_thread

_LOG = logging.getLogger("tracekit.collect")

#: A ready file holds a process id, two ports and a path.
_READY_FILE_BYTES: Final = 64 << 10


class ShutdownLimit:
    """Ends the process where a shutdown takes longer than ``limit_s``.

    A commit or a pass that hangs with its disk cannot be ended in any other way. Nothing is
    lost by it: acknowledged data is in the spool, and commits are whole or not there. Made for
    the main thread; made in another one it does nothing, for the process is somebody else's.
    """

    def __init__(self, limit_s: float, *, last_words: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._last_words = last_words
        self._timer: threading.Timer | None = None
        self._ours = in_main_thread()

    def start(self) -> None:
        if self._ours:
            self._timer = threading.Timer(self._limit_s, self._end)
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        _LOG.warning(
            "the shutdown took longer than %g s (--shutdown-s) and is cut short; what was "
            "acknowledged and is not in the store waits in the spool for the next start",
            self._limit_s,
        )
        try:
            self._last_words()
            sys.stdout.flush()
        finally:
            os._exit(0)


def check_replaceable(ready_file: Path | None) -> None:
    """UsageError if ``ready_file`` is there and no receiver's: it would be overwritten."""
    if ready_file is None or not (ready_file.exists() or ready_file.is_symlink()):
        return
    if not (ready_file.is_file() and _may_go(ready_file)):
        raise UsageError(
            f"--ready-file {ready_file} exists and is no receiver's; remove it or name another"
        )


def _may_go(file: Path) -> bool:
    """A receiver that was killed left it, or it is empty, as ``mktemp`` makes them."""
    try:
        with file.open("rb") as opened:
            head = opened.read(_READY_FILE_BYTES)
        found = json.loads(head) if head else {"pid": 0, "grpc": {}, "http": {}}
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"pid", "grpc", "http"} <= found.keys()


@contextlib.contextmanager
def ready_at(path: Path, document: Mapping[str, Any]) -> Iterator[None]:
    """The ready file, there while the receiver serves; written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(fd, "w") as file:
        json.dump(document, file)
        file.write("\n")
    os.replace(temporary, path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
