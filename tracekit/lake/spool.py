"""The spool: received bytes, on disk before they are acknowledged, until they are in the lake.

Owns durability between the socket and the Delta commit (design §11). Must not know what the
bytes are: a record is one tag byte and a payload, and the receiver defines the tags.

Rules that make at-least-once in, exactly-once out possible:

* `append_many` returns only after the bytes, and the directory entry that leads to them, are
  synced; if it raises, none of its records is replayed (unless the failing disk will not let
  them be taken back either).
* A sequence number is never used twice under one spool id, not even for records that damage
  took away without a trace: tables remember the highest number they committed and refuse
  anything up to it, so a reused number would be a batch silently lost. Hence numbers are
  reserved in the state file, many at a time, before they are used; a crash leaves a gap.
* `cut` persists how far it went before it deletes anything.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from tracekit.errors import SourceError, TracekitError, UsageError
from tracekit.lake import _segment
from tracekit.lake._segment import Segment

_STATE: Final = "spool.json"
_LOCK: Final = "spool.lock"
_RESERVE: Final = 1 << 20
_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class SpoolFull(TracekitError):
    """No room for the records: the spool's own bound, or the disk's. Nothing was kept."""


class Spool:
    """An open spool directory; one process holds it at a time. Methods may be called by threads.

    ``id`` names the sequence of numbers (use it as the application id of Delta transactions);
    ``torn_bytes`` is what `open` found unreadable and cut off, 0 after a clean stop.
    """

    def __init__(self, directory: Path, lock_fd: int, max_bytes: int, segment_bytes: int) -> None:
        """Use `Spool.open`."""
        self.directory = directory
        self.max_bytes = max_bytes
        self.torn_bytes = 0
        # A bound below one segment would leave a cut segment in the way of new records.
        self._segment_bytes = max(1, min(segment_bytes, max_bytes // 4))
        self._lock_fd = lock_fd
        self._mutex = threading.Lock()
        self._segments: list[Segment] = []
        self._active_fd: int | None = None
        self.id, self._cut_through, self._reserved = self._load_state()
        self._next_seq = self._reserved
        self._recover()

    @classmethod
    def open(
        cls, directory: Path, *, max_bytes: int = 1 << 30, segment_bytes: int = 64 << 20
    ) -> Spool:
        """Open the spool in ``directory``, making it if need be, and cut off a torn tail.

        Raises `UsageError` if another process has it open, `SourceError` if its state file is
        damaged.
        """
        directory.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(lock_fd, 20, 0).decode("ascii", "replace").strip()
                raise UsageError(
                    f"the spool {directory} is open in process {holder or '?'}; "
                    "one receiver at a time can own it"
                ) from None
            os.ftruncate(lock_fd, 0)
            os.pwrite(lock_fd, str(os.getpid()).encode(), 0)
            return cls(directory, lock_fd, max_bytes, segment_bytes)
        except BaseException:
            os.close(lock_fd)
            raise

    @property
    def bytes_used(self) -> int:
        """Bytes of segment files on disk, those of cut records in a shared segment included."""
        with self._mutex:
            return self._used()

    @property
    def pending(self) -> int:
        """Records appended and not yet cut."""
        with self._mutex:
            floor = self._cut_through + 1
            return sum(
                s.next_seq - max(s.first_seq, floor) for s in self._segments if s.next_seq > floor
            )

    @property
    def last_seq(self) -> int:
        """The highest sequence number that may have been assigned; 0 before the first."""
        with self._mutex:
            return self._next_seq - 1

    @property
    def cut_through(self) -> int:
        """The sequence number through which records have been cut; 0 before the first cut."""
        with self._mutex:
            return self._cut_through

    def append_many(self, records: Sequence[bytes]) -> list[int]:
        """Append the records, sync once, return their consecutive sequence numbers.

        All or nothing: raises `SpoolFull` where the bound or the disk leaves no room, ``OSError``
        where the disk fails, and then none of them is kept.
        """
        if not records:
            return []
        if max(map(len, records)) > _segment.MAX_RECORD_BYTES:
            raise UsageError(f"a record may have {_segment.MAX_RECORD_BYTES} bytes at most")
        with self._mutex:
            self._require_open()
            needed = _segment.framed_bytes(records)
            active = self._segments[-1] if self._active_fd is not None else None
            if active is not None and active.size_bytes + needed > self._segment_bytes:
                self._seal()
                active = None
            extra = 0 if active is not None else _segment.HEADER_BYTES
            if self._used() + needed + extra > self.max_bytes:
                raise SpoolFull(
                    f"the spool {self.directory} holds {self._used()} of {self.max_bytes} bytes; "
                    f"{needed} more do not fit"
                )
            first = self._next_seq
            end = first + len(records)
            try:
                if end > self._reserved:
                    self._save_state(self._cut_through, end + _RESERVE)
                if active is None:
                    active = self._start_segment(first)
                # Used up even if the write fails: the disk may keep what it says it did not.
                self._next_seq = end
                self._write(active, _segment.frame(first, records))
            except OSError as exc:
                if exc.errno in _FULL_ERRNOS:
                    raise SpoolFull(f"no room on disk for the spool {self.directory}") from exc
                raise
            active.records += len(records)
            active.size_bytes += needed
            return list(range(first, end))

    def replay(self) -> Iterator[tuple[int, bytes]]:
        """(sequence number, record) of everything appended before the call and not yet cut."""
        with self._mutex:
            self._require_open()
            segments = [Segment(**vars(s)) for s in self._segments]
        for segment in segments:
            if segment.next_seq <= self.cut_through + 1:
                continue
            try:
                yield from _segment.read(segment, self.cut_through + 1)
            except FileNotFoundError:
                if segment.next_seq > self.cut_through + 1:
                    raise  # not cut meanwhile: someone took our file

    def cut(self, through_seq: int) -> None:
        """Forget everything up to and including ``through_seq``: it is in all its tables."""
        with self._mutex:
            self._require_open()
            if through_seq >= self._next_seq:
                raise UsageError(f"cut({through_seq}): the last record is {self._next_seq - 1}")
            if through_seq <= self._cut_through:
                return
            self._save_state(through_seq, self._reserved)
            self._cut_through = through_seq
            self._drop_cut_segments()

    def close(self) -> None:
        """Release the directory. Records stay for the next `open`."""
        with self._mutex:
            if self._lock_fd < 0:
                return
            self._seal()
            # Where this fails, the next open leaves a gap in the numbers, as after a crash.
            with suppress(OSError):
                self._save_state(self._cut_through, self._next_seq)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- below: called with the mutex held (or before anyone else can see the object) --

    def _used(self) -> int:
        return sum(s.size_bytes for s in self._segments)

    def _require_open(self) -> None:
        if self._lock_fd < 0:
            raise UsageError(f"the spool {self.directory} is closed")

    def _start_segment(self, first_seq: int) -> Segment:
        path = _segment.segment_path(self.directory, first_seq)
        # A failed start may have left the file; nothing in it was ever acknowledged.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path, flags, 0o644)
        try:
            _write_all(fd, _segment.header(first_seq))
            _fsync_directory(self.directory)
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        segment = Segment(path, first_seq, 0, _segment.HEADER_BYTES)
        self._segments.append(segment)
        self._active_fd = fd
        return segment

    def _write(self, segment: Segment, data: bytes) -> None:
        """Write and sync; on failure take back what was written, and leave the segment."""
        assert self._active_fd is not None
        try:
            _write_all(self._active_fd, data)
            _sync_data(self._active_fd)
        except BaseException:
            # Where this fails too, the next open finds whole records that nobody was told of
            # and replays them, or a torn one and cuts it off.
            with suppress(OSError):
                os.ftruncate(self._active_fd, segment.size_bytes)
                os.fsync(self._active_fd)
            # After a failed sync the kernel may have dropped the pages: never write on here.
            self._seal()
            raise

    def _seal(self) -> None:
        if self._active_fd is not None:
            os.close(self._active_fd)
            self._active_fd = None

    def _drop_cut_segments(self) -> None:
        floor = self._cut_through + 1
        cut = [s for s in self._segments if s.next_seq <= floor]
        if not cut:
            return
        if self._active_fd is not None and self._segments[-1] in cut:
            self._seal()
        self._segments = [s for s in self._segments if s.next_seq > floor]
        for segment in cut:
            segment.path.unlink(missing_ok=True)

    def _recover(self) -> None:
        """Take in the segments on disk and cut off what does not check."""
        if not (self.directory / _STATE).exists():
            self._save_state(self._cut_through, self._reserved)
        for first_seq, path in _segment.segment_paths(self.directory):
            size_bytes = path.stat().st_size
            segment = _segment.scan(first_seq, path)
            good_bytes = 0 if segment is None else segment.size_bytes
            self.torn_bytes += size_bytes - good_bytes
            if segment is None:
                path.unlink()
                continue
            if good_bytes < size_bytes:
                os.truncate(path, good_bytes)
            self._segments.append(segment)
            self._next_seq = max(self._next_seq, segment.next_seq)
        self._drop_cut_segments()

    def _load_state(self) -> tuple[str, int, int]:
        """(id, cut through, first unreserved number); a fresh id where there is no state.

        Segments without a state file are replayed under the new id: perhaps rows twice, which
        readers of raw tables expect, never rows lost.
        """
        path = self.directory / _STATE
        try:
            text = path.read_text()
        except FileNotFoundError:
            return str(uuid.uuid4()), 0, 1
        try:
            state = json.loads(text)
            return str(uuid.UUID(state["id"])), int(state["cut_through"]), int(state["reserved"])
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise SourceError(
                "the spool's state file is damaged",
                where=str(path),
                how="remove it: what is in the spool is then stored under a new id, "
                "some of it perhaps twice",
            ) from exc

    def _save_state(self, cut_through: int, reserved: int) -> None:
        path = self.directory / _STATE
        temporary = path.with_suffix(".tmp")
        state = {"id": self.id, "cut_through": cut_through, "reserved": reserved}
        with temporary.open("w") as out:
            json.dump(state, out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)
        _fsync_directory(self.directory)
        self._reserved = reserved


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _fsync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_data(fd: int) -> None:
    # fdatasync also writes the file's new size, which is all of the metadata we need.
    getattr(os, "fdatasync", os.fsync)(fd)
