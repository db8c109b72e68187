"""The settle lock: one process at a time derives `requests` from raw rows.

Owns the lock file and nothing else. The kernel releases a lock when its holder dies, however it
dies, so a lock is never stale.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from tracekit.lake.store import Store


@contextmanager
def settle_lock(store: Store, blocking: bool) -> Iterator[bool]:
    """Yield True holding the store's settle lock, or False if another holds it.

    ``blocking`` waits for it instead of yielding False. Threads exclude each other too.
    """
    with exclusive(store, ".settle.lock", blocking) as held:
        yield held


@contextmanager
def exclusive(store: Store, name: str, blocking: bool) -> Iterator[bool]:
    """The same with a lock file of another name in the store's directory."""
    # Each use opens the file anew: flock belongs to the open file, so threads exclude each other.
    fd = os.open(store.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            # Not left to the close: a child forked meanwhile has the same open file.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)
