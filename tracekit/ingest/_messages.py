"""The export requests in an OTLP file, one after the other.

Every reader streams: memory is bounded by one message. A message that cannot be read is reported
with its place; the ones after it are still read wherever the format allows to find them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

import zstandard

from tracekit.errors import SourceError
from tracekit.ingest import _wire
from tracekit.ingest._json_split import split_objects
from tracekit.ingest._unpack import CUT_SHORT, DAMAGED, ZSTD_MAGIC, Damage
from tracekit.ingest.otlp_json import parse, signals_of

#: A longer line, document or message is refused. Collectors send a few MB at most.
MAX_MESSAGE_BYTES: Final = 1 << 27

BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Message:
    """One export request as bytes; ``row`` is its line or its number in the file, from 1."""

    row: int
    data: bytes
    encoding: str  # json or protobuf


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A place where there should have been a message."""

    row: int
    reason: str
    detail: str


def read_messages(
    file_format: str, stream: BinaryIO, *, damage: Callable[[], Damage | None] = lambda: None
) -> Iterator[Message | Unreadable]:
    """The messages of an OTLP file of one of `OTLP_FORMATS`, in order.

    ``damage`` is asked at the end of ``stream`` whether it ended too early: that comes last, in
    place of a last message that is only a part.
    """
    last: Message | Unreadable | None = None
    for message in _READERS[file_format](stream):
        if last is not None:
            yield last
        last = message
    if (cut := damage()) is None:
        if last is not None:
            yield last
    elif last is None or not _is_part(last):
        if last is not None:
            yield last
        row = last.row + 1 if last is not None else 1
        yield Unreadable(row, cut.reason, f"{cut.detail}; {cut.how}")
    else:
        yield Unreadable(last.row, cut.reason, f"{cut.detail}; {cut.how}")


def _is_part(last: Message | Unreadable) -> bool:
    """Whether the last message before damage is no whole one."""
    if isinstance(last, Unreadable):
        return last.reason == CUT_SHORT
    try:
        signals(last)
    except SourceError:
        return True
    return False


def signals(message: Message) -> tuple[tuple[str, ...], object, bool]:
    """(signals in a message, its parsed JSON if it is JSON, whether strings may be bad Unicode).

    SourceError if it is no export request.
    """
    if message.encoding == "json":
        document, lenient = parse(message.data)
        found = signals_of(document)
        if not found and document != {}:
            raise SourceError("JSON, but no OTLP export request")
        return found, document, lenient
    signal = _wire.signal_of(message.data)
    return (() if signal is None else (signal,)), None, False


def _lines(stream: BinaryIO) -> Iterator[Message | Unreadable]:
    row = 0
    while line := stream.readline(MAX_MESSAGE_BYTES + 1):
        row += 1
        if len(line) > MAX_MESSAGE_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(MAX_MESSAGE_BYTES)) and not rest.endswith(b"\n"):
                continue
            yield _too_long(row)
            continue
        line = line.removeprefix(BOM) if row == 1 else line
        line = line.strip()
        if line:
            yield Message(row, line, "json")


def _documents(stream: BinaryIO) -> Iterator[Message | Unreadable]:
    for row, data in split_objects(stream, limit_bytes=MAX_MESSAGE_BYTES):
        yield _too_long(row) if data is None else Message(row, data, "json")


def _delimited_messages(stream: BinaryIO) -> Iterator[Message | Unreadable]:
    return _frames(stream, _varint_length)


def _framed_messages(stream: BinaryIO) -> Iterator[Message | Unreadable]:
    return _frames(stream, _fixed_length)


def _frames(
    stream: BinaryIO, read_length: Callable[[BinaryIO], int | None]
) -> Iterator[Message | Unreadable]:
    row = 0
    while True:
        row += 1
        try:
            size = read_length(stream)
        except SourceError as error:
            yield Unreadable(row, CUT_SHORT, f"message length: {error}")
            return
        if size is None:
            return
        if size > MAX_MESSAGE_BYTES:
            # A wrong length leaves no way to find the next message.
            yield Unreadable(
                row, "bad_length", f"message length {size} is over {MAX_MESSAGE_BYTES} bytes"
            )
            return
        data = _read_exactly(stream, size)
        if len(data) < size:
            yield Unreadable(row, CUT_SHORT, f"{len(data)} of {size} bytes are there")
            return
        yield _unpacked(row, data)


def _varint_length(stream: BinaryIO) -> int | None:
    prefix = b""
    while len(prefix) < 10 and (byte := stream.read(1)):
        prefix += byte
        if byte[0] < 0x80:
            break
    return _wire.read_varint(prefix, 0)[0] if prefix else None


def _fixed_length(stream: BinaryIO) -> int | None:
    prefix = _read_exactly(stream, 4)
    if 0 < len(prefix) < 4:
        raise SourceError(f"{len(prefix)} of 4 bytes are there")
    return int.from_bytes(prefix, "big") if prefix else None


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    parts = []
    left = size
    while left and (part := stream.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _unpacked(row: int, data: bytes) -> Message | Unreadable:
    """A framed message; the collector compresses each by itself if told to compress."""
    if data[:4] == ZSTD_MAGIC:
        try:
            data = _decompressed(data)
        except zstandard.ZstdError as error:
            return Unreadable(row, DAMAGED, str(error))
        if len(data) > MAX_MESSAGE_BYTES:
            return _too_long(row)
    return Message(row, data, "json" if data[:1] == b"{" else "protobuf")


def _decompressed(data: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
    return bytes(reader.read(MAX_MESSAGE_BYTES + 1))


def _whole(stream: BinaryIO) -> Iterator[Message | Unreadable]:
    data = _read_exactly(stream, MAX_MESSAGE_BYTES + 1)
    yield _too_long(1) if len(data) > MAX_MESSAGE_BYTES else Message(1, data, "protobuf")


def _too_long(row: int) -> Unreadable:
    return Unreadable(row, "too_long", f"longer than {MAX_MESSAGE_BYTES} bytes")


_READERS: Final[dict[str, Callable[[BinaryIO], Iterator[Message | Unreadable]]]] = {
    "otlp-jsonl": _lines,
    "otlp-json": _documents,
    "otlp-protobuf-delimited": _delimited_messages,
    "otlp-protobuf-framed": _framed_messages,
    "otlp-protobuf": _whole,
}
