"""Bytes of an input: files, standard input, gzip and zstd, counted as they are read.

Everything here is bounded in memory. Standard input and pipes are spooled to a temporary file,
since their hash must be known before their first row is written. Compressed data that is cut or
damaged ends where it cannot be read on (`_unpack`); `Source.damage` then says so.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from tracekit.errors import SourceError, UsageError
from tracekit.ingest._unpack import GZIP_MAGIC, ZSTD_MAGIC, Damage, Unpacked

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STANDARD_INPUT: Final = "-"

_CHUNK_BYTES: Final = 1 << 18


class Source:
    """An opened input; ``compression`` is ``gzip``, ``zstd`` or None, ``modified_unix_ns`` when
    the file was last written (None of what came through a pipe)."""

    def __init__(
        self,
        name: str,
        raw: io.FileIO,
        advanced: Callable[[int], None],
        *,
        modified_unix_ns: int | None = None,
    ) -> None:
        self.name = name
        self.modified_unix_ns = modified_unix_ns
        self._raw = raw
        self._meter = _Meter(advanced)
        self._unpacked: Unpacked | None = None
        raw.seek(0)
        magic = raw.read(4)
        self.compression = (
            "gzip" if magic[:2] == GZIP_MAGIC else "zstd" if magic == ZSTD_MAGIC else None
        )

    @cached_property
    def sha256(self) -> str:
        """Hash of the bytes as stored. Moves the file: ask before `content`."""
        self._raw.seek(0)
        return hashlib.file_digest(self._raw, "sha256").hexdigest()

    def content(self) -> BinaryIO:
        """The decompressed content from its start; ends the stream given before.

        Where compressed data is cut or damaged the content ends, see `damage`.
        """
        self._raw.seek(0)
        plain = cast(BinaryIO, io.BufferedReader(_Counted(self._raw, self._meter), _CHUNK_BYTES))
        self._unpacked = None
        if self.compression is None:
            return plain
        self._unpacked = Unpacked(plain, self.compression)
        return cast(BinaryIO, io.BufferedReader(self._unpacked, _CHUNK_BYTES))

    @property
    def damage(self) -> Damage | None:
        """Why the content given last ended before the file did; None if it did not (yet)."""
        return None if self._unpacked is None else self._unpacked.damage

    def head(self, limit_bytes: int) -> tuple[bytes, bool]:
        """Up to ``limit_bytes`` of the content, and whether that is all there should be.

        SourceError if compressed data is damaged from the first byte on.
        """
        stream = self.content()
        parts: list[bytes] = []
        left = limit_bytes
        while left > 0:
            part = stream.read(min(_CHUNK_BYTES, left))
            if not part:
                if self.damage is not None and not parts:
                    raise self.unusable(self.damage)
                return b"".join(parts), self.damage is None
            parts.append(part)
            left -= len(part)
        return b"".join(parts), False

    @contextmanager
    def seekable(self) -> Iterator[BinaryIO]:
        """The content as a seekable file: itself, or a temporary copy if it is compressed.

        Reading itself is not counted, for its reader may go over it twice: say how far it is by
        `reached`. Of damaged compressed data it is what can be read (`damage` is known then).
        """
        if self.compression is None:
            self._raw.seek(0)
            yield cast(BinaryIO, io.BufferedReader(_Counted(self._raw, _Meter(lambda _: None))))
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(self.content(), copy, _CHUNK_BYTES)
            copy.seek(0)
            yield cast(BinaryIO, copy)

    def reached(self, position: int) -> None:
        """Counts the bytes up to ``position`` as read, of an input that is not compressed (the
        bytes of one that is were counted when it was decompressed)."""
        if self.compression is None:
            self._meter.reached(position)

    def unusable(self, damage: Damage) -> SourceError:
        """The error for compressed data of which nothing can be used."""
        return SourceError(
            f"damaged {self.compression} data: {damage.detail}", where=self.name, how=damage.how
        )


def input_bytes(path: str) -> int | None:
    """Size of an input as stored; None for standard input, pipes and what is not there."""
    return os.stat(path).st_size if _is_file(path) else None


@contextmanager
def opened(path: str, *, advanced: Callable[[int], None]) -> Iterator[Source]:
    """Opens ``path`` (``-`` is standard input); ``advanced(n)`` is told of each n bytes read.

    UsageError if it cannot be opened or read.
    """
    modified = None
    with ExitStack() as stack:
        try:
            if _is_file(path):
                raw = stack.enter_context(io.FileIO(path))
                modified = os.fstat(raw.fileno()).st_mtime_ns
            else:
                raw = stack.enter_context(tempfile.TemporaryFile(buffering=0))
                _spool(path, raw)
        except OSError as error:
            raise _unreadable(path, error) from None
        # A file name need not be Unicode; the columns and messages it goes into must.
        name = (
            "standard input"
            if path == STANDARD_INPUT
            else os.fsencode(path).decode("utf-8", "replace")
        )
        yield Source(name, raw, advanced, modified_unix_ns=modified)


def _is_file(path: str) -> bool:
    return path != STANDARD_INPUT and os.path.isfile(path)


def _unreadable(path: str, error: OSError) -> UsageError:
    return UsageError(f"cannot read {path}: {error.strerror or error}")


def _spool(path: str, copy: io.FileIO) -> None:
    """Copies what can be read only once."""
    with ExitStack() as stack:
        source: BinaryIO = sys.stdin.buffer
        if path != STANDARD_INPUT:
            source = stack.enter_context(Path(path).open("rb"))
        shutil.copyfileobj(source, copy, _CHUNK_BYTES)


class _Meter:
    """Says how many bytes each read brought, counting none twice."""

    def __init__(self, advanced: Callable[[int], None]) -> None:
        self._advanced = advanced
        self._furthest = 0

    def reached(self, position: int) -> None:
        if position > self._furthest:
            self._advanced(position - self._furthest)
            self._furthest = position


class _Counted(io.RawIOBase):
    """A metered view of a file; closing it (as its reader does) leaves the file open."""

    def __init__(self, raw: io.FileIO, meter: _Meter) -> None:
        self._raw = raw
        self._meter = meter

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._raw.seek(offset, whence)

    def readinto(self, buffer: WriteableBuffer) -> int:
        size = self._raw.readinto(buffer) or 0
        self._meter.reached(self._raw.tell())
        return size
