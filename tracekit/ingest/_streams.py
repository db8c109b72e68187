"""Bytes of an input: files, standard input, gzip and zstd, counted as they are read.

Everything here is bounded in memory. Standard input and pipes are spooled to a temporary file,
since their hash must be known before their first row is written.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import zstandard

from tracekit.errors import SourceError, UsageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STANDARD_INPUT: Final = "-"

ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC: Final = b"\x1f\x8b"

_CHUNK_BYTES: Final = 1 << 18
#: zstd frames may ask for a window this large (``zstd --long=27``) and no larger.
_ZSTD_WINDOW_BYTES: Final = 1 << 27
#: Compressed bytes fed at a time: zstd may make 30,000 times as much of them.
_ZSTD_FEED_BYTES: Final = 1 << 11

#: What reading a damaged or cut compressed file raises.
COMPRESSION_ERRORS: Final = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)


class Source:
    """An opened input; ``compression`` is ``gzip``, ``zstd`` or None."""

    def __init__(self, name: str, raw: io.FileIO, advanced: Callable[[int], None]) -> None:
        self.name = name
        self._raw = raw
        self._meter = _Meter(advanced)
        raw.seek(0)
        magic = raw.read(4)
        self.compression = (
            "gzip" if magic[:2] == _GZIP_MAGIC else "zstd" if magic == ZSTD_MAGIC else None
        )

    @cached_property
    def sha256(self) -> str:
        """Hash of the bytes as stored. Moves the file: ask before `content`."""
        self._raw.seek(0)
        return hashlib.file_digest(self._raw, "sha256").hexdigest()

    def content(self) -> BinaryIO:
        """The decompressed content from its start; ends the stream given before."""
        self._raw.seek(0)
        plain = cast(BinaryIO, io.BufferedReader(_Counted(self._raw, self._meter), _CHUNK_BYTES))
        if self.compression == "gzip":
            return cast(BinaryIO, gzip.GzipFile(fileobj=plain))
        if self.compression == "zstd":
            return cast(BinaryIO, io.BufferedReader(_Zstd(plain), _CHUNK_BYTES))
        return plain

    def head(self, limit_bytes: int) -> tuple[bytes, bool]:
        """Up to ``limit_bytes`` of the content, and whether that is all of it.

        SourceError if compressed data is damaged from the first byte on.
        """
        stream = self.content()
        parts: list[bytes] = []
        left = limit_bytes
        try:
            while left > 0:
                part = stream.read(min(_CHUNK_BYTES, left))
                if not part:
                    return b"".join(parts), True
                parts.append(part)
                left -= len(part)
        except COMPRESSION_ERRORS as error:
            if not parts:
                raise self.damaged(error) from None
        return b"".join(parts), False

    @contextmanager
    def seekable(self) -> Iterator[BinaryIO]:
        """The content as a seekable file: itself, or a temporary copy if it is compressed.

        Reading itself is not counted, for its reader may go over it twice: say how far it is by
        `reached`. SourceError if compressed data is damaged.
        """
        if self.compression is None:
            self._raw.seek(0)
            yield cast(BinaryIO, io.BufferedReader(_Counted(self._raw, _Meter(lambda _: None))))
            return
        stream = self.content()
        with tempfile.TemporaryFile() as copy:
            try:
                while part := stream.read(_CHUNK_BYTES):
                    copy.write(part)
            except COMPRESSION_ERRORS as error:
                raise self.damaged(error) from None
            copy.seek(0)
            yield cast(BinaryIO, copy)

    def reached(self, position: int) -> None:
        """Counts the bytes up to ``position`` as read, of an input that is not compressed (the
        bytes of one that is were counted when it was decompressed)."""
        if self.compression is None:
            self._meter.reached(position)

    def damaged(self, error: Exception) -> SourceError:
        """The error for compressed data that cannot be read."""
        return SourceError(f"damaged {self.compression} data: {error}", where=self.name)


def input_bytes(path: str) -> int | None:
    """Size of an input as stored; None for standard input, pipes and what is not there."""
    return os.stat(path).st_size if _is_file(path) else None


@contextmanager
def opened(path: str, *, advanced: Callable[[int], None]) -> Iterator[Source]:
    """Opens ``path`` (``-`` is standard input); ``advanced(n)`` is told of each n bytes read.

    UsageError if it cannot be opened or read.
    """
    with ExitStack() as stack:
        try:
            if _is_file(path):
                raw = stack.enter_context(io.FileIO(path))
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
        yield Source(name, raw, advanced)


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


class _Zstd(io.RawIOBase):
    """Decompresses frame after frame; EOFError where the last one is cut.

    (The library's own stream reader takes a cut frame for the end of the file.)
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._frame = self._context.decompressobj()
        self._in_frame = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        while not self._ready:
            part = b""
            if self._frame.eof:
                part = self._frame.unused_data
                self._frame = self._context.decompressobj()
                self._in_frame = False
            part = part or self._source.read(_ZSTD_FEED_BYTES)
            if not part:
                if self._in_frame:
                    raise EOFError("zstd data ends in the middle of a frame")
                return 0
            self._in_frame = True
            self._ready = memoryview(self._frame.decompress(part))
        size = min(len(view), len(self._ready))
        view[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size
