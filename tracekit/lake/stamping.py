"""Ingest stamps that settling can rely on.

A raw row is stamped first and visible only once its commit is through. Whoever settles must not
move the watermark past a stamp whose rows are still on their way, however long that takes. So a
writer holds a file in the store while it stamps and commits; the kernel lets go of it when the
writer dies, however it dies. Nothing here is about what the rows mean.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tracekit.lake.store import Store

#: App transaction of `requests` that carries the watermark [unix ns]: raw rows stamped before it
#: are settled or belong to no request.
WATERMARK_APP: Final = "tracekit-settle-watermark"

_DIRECTORY: Final = ".stamping"

#: File systems round times (a tick, on some a second): the stamp is not older than this says.
_FILE_TIME_NS: Final = 1_000_000_000


@contextmanager
def stamping(store: Store) -> Iterator[int]:
    """The ingest time [unix ns] for raw rows that are committed before the block ends.

    Never before the watermark, also where the clock was set back.
    """
    directory = store.path / _DIRECTORY
    directory.mkdir(exist_ok=True)
    path, fd = _held_file(directory)
    try:
        floor = store.txn_version("requests", WATERMARK_APP) or 0
        yield max(time.time_ns(), floor)
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def oldest_stamp_unix_ns(store: Store) -> int | None:
    """No row that is stamped but not yet committed has an older stamp; None if there is none.

    Ask before reading a snapshot: what was on its way then is either named here or in it.
    """
    oldest: int | None = None
    for path in (store.path / _DIRECTORY).glob("*"):
        at_unix_ns = _held_since(path)
        if at_unix_ns is not None:
            oldest = at_unix_ns if oldest is None else min(oldest, at_unix_ns)
    return oldest


def _held_file(directory: Path) -> tuple[Path, int]:
    while True:
        path = directory / uuid.uuid4().hex
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        fcntl.flock(fd, fcntl.LOCK_EX)
        # between the two, somebody may have taken it for left behind and removed it
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(fd).st_ino:
                return path, fd
        os.close(fd)


def _held_since(path: Path) -> int | None:
    """When the file's holder took it [unix ns]; None if it has none. Removes it then."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.fstat(fd).st_mtime_ns - _FILE_TIME_NS
    else:
        path.unlink(missing_ok=True)
        return None
    finally:
        os.close(fd)
