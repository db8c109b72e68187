"""gzip and zstd, decompressed as far as they can be read.

Copies stop half way, disks fill up, pods die while they write: what decodes before the damage is
as good as ever. So damage ends the content here instead of raising, and is told beside it.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

import zstandard

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
GZIP_MAGIC: Final = b"\x1f\x8b"

#: Reasons: the data ends too early; the data is not what was written.
CUT_SHORT: Final = "cut_short"
DAMAGED: Final = "damaged_compression"

#: zstd frames may ask for a window this large (``zstd --long=27``) and no larger.
_ZSTD_WINDOW_BYTES: Final = 1 << 27
#: Compressed bytes fed at a time: zstd may make 30,000 times as much of them.
_FEED_BYTES: Final = 1 << 11
#: ``wbits`` of zlib for data in a gzip header and trailer.
_GZIP_WBITS: Final = 31


@dataclass(frozen=True, slots=True)
class Damage:
    """Why compressed data could not be read to its end.

    ``reason`` is `CUT_SHORT` or `DAMAGED`. ``inside``: the content ends in the middle of what
    was written, so that a last line without its end is only a part of one; else all of it is
    there, and a checksum or what follows it is wrong.
    """

    reason: str
    detail: str
    inside: bool

    @property
    def how(self) -> str:
        return "get the whole file again and import that"


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def _gzip_member() -> _Decompressor:
    return zlib.decompressobj(_GZIP_WBITS)


def _zstd_frame() -> _Decompressor:
    context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    return context.decompressobj()


@dataclass(frozen=True, slots=True)
class _Compression:
    """``new_part`` reads a member or frame; ``padding`` may stand between them.

    ``checksum_bytes`` stand at a file's end. They are fed by themselves, for a feed that fails
    gives none of its content.
    """

    new_part: Callable[[], _Decompressor]
    padding: bytes
    checksum_bytes: int


_COMPRESSIONS: Final = {
    "gzip": _Compression(_gzip_member, padding=b"\0", checksum_bytes=8),
    "zstd": _Compression(_zstd_frame, padding=b"", checksum_bytes=4),
}


class Unpacked(io.RawIOBase):
    """The content of a gzip or zstd file, all its members or frames.

    It ends where the data is cut or damaged; `damage` says so from then on.
    """

    def __init__(self, source: BinaryIO, compression: str) -> None:
        """``compression`` is ``gzip`` or ``zstd``."""
        self.damage: Damage | None = None
        self._source = source
        self._compression = compression
        self._pieces = self._decompressed()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        if not self._ready:
            self._ready = memoryview(next(self._pieces, b""))
        size = min(len(view), len(self._ready))
        view[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decompressed(self) -> Iterator[bytes]:
        """Pieces of the content, none empty."""
        how = _COMPRESSIONS[self._compression]
        part: _Decompressor | None = None
        given = False  # content of this part
        for piece in self._feeds(how.checksum_bytes):
            while piece:
                if part is None:
                    piece = piece.lstrip(how.padding)
                    if not piece:
                        break
                    part, given = how.new_part(), False
                try:
                    content = part.decompress(piece)
                except (zlib.error, zstandard.ZstdError) as error:
                    self.damage = self._damaged(error, given)
                    return
                if content:
                    given = True
                    yield content
                piece = part.unused_data if part.eof else b""
                part = None if part.eof else part
        if part is not None:
            self.damage = Damage(CUT_SHORT, f"the {self._compression} data ends too early", True)

    def _feeds(self, checksum_bytes: int) -> Iterator[bytes]:
        """The data in feeds, the last of which is the checksum, wherever the reads end."""
        held = b""
        while data := self._source.read(_FEED_BYTES):
            data = held + data
            yield data[:-checksum_bytes]
            held = data[-checksum_bytes:]
        yield held

    def _damaged(self, error: Exception, given: bool) -> Damage:
        text = str(error).rpartition(": ")[2]
        # zlib says "incorrect data check", zstd "Restored data doesn't match checksum".
        if given and "check" in text:
            detail = f"{text}: some of the rows before this may be wrong"
            return Damage(DAMAGED, f"the {self._compression} data is damaged, {detail}", False)
        return Damage(DAMAGED, f"the {self._compression} data is damaged: {text}", True)
