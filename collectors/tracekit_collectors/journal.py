"""What has been acknowledged and is not in the lake yet: on disk, and decoded in memory.

Owns the order between the two. One thread syncs: it takes every request that is waiting, appends
them all to the spool with one sync, then wakes all senders (group commit). Decoded rows wait in
memory for the writer, in the same order. Memory is bounded:

* lake slow but working, memory full: new requests are refused with a delay (decoding them twice
  would only make the overload worse);
* lake failing, memory full: new requests go to the spool only (``behind``), and are decoded
  again from there once the lake takes commits, until the spool is full as well.

Start-up is the second case: a spool with records in it starts ``behind``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass

from tracekit.lake.spool import Spool, SpoolFull
from tracekit_collectors.entries import Entry

_LOG = logging.getLogger("tracekit.collect")


class Overloaded(Exception):
    """No room now; the same request may be sent again later."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Numbered:
    """A decoded request and its sequence number in the spool."""

    seq: int
    entry: Entry


class _Waiting:
    """One request that waits for the sync."""

    __slots__ = ("done", "entry", "error", "record")

    def __init__(self, record: bytes, entry: Entry) -> None:
        self.record = record
        self.entry = entry
        self.done = threading.Event()
        self.error: BaseException | None = None


class Journal:
    """Spool and buffer of one receiver; every method may be called from any thread."""

    def __init__(self, spool: Spool, *, max_rows: int, max_bytes: int, flush_rows: int) -> None:
        self._spool = spool
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._flush_rows = flush_rows

        self._queue: list[_Waiting] = []
        self._queue_changed = threading.Condition()
        self._closed = False

        #: Guards the spool and everything below: what is on disk and what is in memory must
        #: change together, or the writer would cut what it has not seen.
        self._lock = threading.Lock()
        self._writer_wakes = threading.Condition(self._lock)
        self._buffer: deque[Numbered] = deque()
        self._buffer_since = 0.0
        self._rows = 0  # in the buffer and in the commit that is being made
        self._bytes = 0
        self._waiting_rows = 0  # in the buffer only
        self._spool_bytes = spool.bytes_used  # asking the spool would wait for its sync
        self._behind = spool.pending > 0
        self._lake_failing = False
        self._finishing = False

        self._thread = threading.Thread(target=self._sync_loop, name="spool-sync", daemon=True)

    # -- senders ---------------------------------------------------------------------------

    def admit(self, size_bytes: int) -> None:
        """Refuse early, before a body is decoded for nothing. Raises :class:`Overloaded`."""
        # Read without the lock, which is held during a sync: decoding must go on meanwhile. A
        # number that is one request old only moves the refusal by one request.
        if self._memory_full() and not self._lake_failing:
            raise Overloaded(
                "memory", f"{self._rows} rows wait for their commit (--max-buffer-rows)"
            )
        if self._spool_bytes + size_bytes > self._spool.max_bytes:
            raise self._spool_full()

    def write(self, record: bytes, entry: Entry) -> None:
        """Return once ``record`` is on disk. Raises :class:`Overloaded` if it cannot be."""
        waiting = _Waiting(record, entry)
        with self._queue_changed:
            if self._closed:
                raise Overloaded("shutdown", "it is shutting down")
            self._queue.append(waiting)
            self._queue_changed.notify()
        waiting.done.wait()
        if isinstance(waiting.error, SpoolFull):
            raise self._spool_full() from waiting.error
        if isinstance(waiting.error, OSError):
            raise Overloaded(
                "disk", f"the spool cannot be written ({waiting.error.strerror or waiting.error})"
            ) from waiting.error
        if waiting.error is not None:
            raise waiting.error

    def _memory_full(self) -> bool:
        return self._rows >= self._max_rows or self._bytes >= self._max_bytes

    def _spool_full(self) -> Overloaded:
        return Overloaded(
            "spool",
            f"{self._spool_bytes} bytes wait in the spool for the store (--max-spool-bytes)",
        )

    # -- the sync thread -------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Sync what is waiting, then take no more; returns when that is done."""
        with self._queue_changed:
            self._closed = True
            self._queue_changed.notify()
        self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _sync_loop(self) -> None:
        while True:
            with self._queue_changed:
                while not self._queue and not self._closed:
                    self._queue_changed.wait()
                group, self._queue = self._queue, []
                if not group:
                    return
            try:
                self._append(group)
            except Exception as error:
                if not isinstance(error, OSError | SpoolFull):
                    _LOG.exception("the spool failed")
                for waiting in group:
                    waiting.error = error
            finally:
                for waiting in group:
                    waiting.done.set()

    def _append(self, group: list[_Waiting]) -> None:
        with self._lock:
            seqs = self._spool.append_many([waiting.record for waiting in group])
            self._spool_bytes = self._spool.bytes_used
            idle = not self._buffer
            for seq, waiting in zip(seqs, group, strict=True):
                self._hold(Numbered(seq, waiting.entry))
            if idle or self._waiting_rows >= self._flush_rows:
                self._writer_wakes.notify()

    def _hold(self, numbered: Numbered) -> None:
        entry = numbered.entry
        # Only a lake that fails lets rows come this far with memory full (see `admit`); a few
        # requests that were being decoded meanwhile may come as well.
        if not self._behind and self._memory_full():
            self._behind = True
            _LOG.warning("memory is full: requests now wait in the spool only")
        if self._behind:
            return
        if not self._buffer:
            self._buffer_since = time.monotonic()
        self._buffer.append(numbered)
        rows = _rows(entry)
        self._waiting_rows += rows
        self._rows += rows
        self._bytes += entry.size_bytes

    # -- the writer ------------------------------------------------------------------------

    def wait(self, *, interval_s: float) -> None:
        """Wait until there is something to commit: enough rows, old enough rows, or a backlog."""
        with self._lock:
            while not self._finishing:
                if self._waiting_rows >= self._flush_rows:
                    return
                if self._buffer:
                    left = self._buffer_since + interval_s - time.monotonic()
                    if left <= 0:
                        return
                    self._writer_wakes.wait(left)
                elif self._behind:
                    return
                else:
                    self._writer_wakes.wait()

    def finish(self) -> None:
        """From now on :meth:`wait` returns at once: the writer is to finish."""
        with self._lock:
            self._finishing = True
            self._writer_wakes.notify_all()

    def take(self) -> list[Numbered]:
        """Everything in memory, in order; it stays accounted for until :meth:`committed`."""
        with self._lock:
            taken = list(self._buffer)
            self._buffer.clear()
            self._waiting_rows = 0
            return taken

    def read_behind(self, *, max_bytes: int) -> list[tuple[int, bytes]]:
        """The next records that are in the spool only, about ``max_bytes`` of them.

        Empty while older requests are still in memory; call it when everything taken before has
        been committed. Reaching the end ends the ``behind`` state: later requests are held in
        memory again, after these.
        """
        with self._lock:
            if not self._behind or self._buffer:
                return []
            size_bytes = 0
            chunk: list[tuple[int, bytes]] = []
            for seq, record in self._spool.replay():
                chunk.append((seq, record))
                size_bytes += len(record)
                if size_bytes >= max_bytes:
                    break
            else:
                self._behind = False
            return chunk

    def committed(self, through_seq: int, taken: list[Numbered]) -> None:
        """Everything up to ``through_seq`` is in the lake; ``taken`` leaves memory.

        An ``OSError`` (the cut must be written down, too) changes nothing; call it again.
        """
        with self._lock:
            self._spool.cut(through_seq)
            self._spool_bytes = self._spool.bytes_used
            self._rows -= sum(_rows(numbered.entry) for numbered in taken)
            self._bytes -= sum(numbered.entry.size_bytes for numbered in taken)
            self._lake_failing = False

    def lake_failed(self) -> None:
        """Commits fail: keep acknowledging into the spool."""
        with self._lock:
            self._lake_failing = True

    # -- status ----------------------------------------------------------------------------

    def to_json(self) -> dict[str, int | bool | str]:
        """How full spool and memory are."""
        with self._lock:
            return {
                "spool_id": self._spool.id,
                "spool_bytes": self._spool.bytes_used,
                "spool_max_bytes": self._spool.max_bytes,
                "spool_pending": self._spool.pending,
                "spool_torn_bytes": self._spool.torn_bytes,
                "buffer_rows": self._rows,
                "buffer_bytes": self._bytes,
                "behind": self._behind,
                "lake_failing": self._lake_failing,
            }


def _rows(entry: Entry) -> int:
    return entry.rows + (0 if entry.quarantined is None else int(entry.quarantined.num_rows))
