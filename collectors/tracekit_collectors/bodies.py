"""Request bodies of OTLP/HTTP: media type, content encoding, bounded decompression. Sans-IO."""

from __future__ import annotations

import zlib
from typing import Final

from tracekit.errors import SourceError

#: Media types of OTLP/HTTP; the first of each encoding is the one we answer with.
_ENCODING_OF: Final = {
    "application/x-protobuf": "protobuf",
    "application/protobuf": "protobuf",
    "application/json": "json",
}
MEDIA_TYPE: Final = {"protobuf": "application/x-protobuf", "json": "application/json"}
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_STEP_BYTES: Final = 1 << 20


class TooLarge(Exception):
    """The body unpacks to more than it may."""


def encoding_of(content_type: str) -> str | None:
    """``protobuf`` or ``json``, None for any other media type."""
    return _ENCODING_OF.get(content_type.partition(";")[0].strip().lower())


def gunzip(data: bytes, *, max_bytes: int) -> bytes:
    """Unpack gzip, never holding more than ``max_bytes`` (+ 1 MiB) of it.

    Raises :class:`TooLarge` past that, SourceError for what is not one whole gzip stream.
    Several members in a row are one stream, as the format has it.
    """
    out: list[bytes] = []
    size = 0
    while True:
        unpacker = zlib.decompressobj(wbits=_GZIP_WINDOW)
        try:
            while not unpacker.eof:
                part = unpacker.decompress(data, _STEP_BYTES)
                if not part and not unpacker.eof:
                    raise SourceError("the gzip body is cut short")
                out.append(part)
                size += len(part)
                if size > max_bytes:
                    raise TooLarge
                data = unpacker.unconsumed_tail
        except zlib.error as error:
            raise SourceError(
                "the body is not gzip, though content-encoding says so", where=str(error)
            ) from error
        data = unpacker.unused_data
        if not data:
            return b"".join(out)
