"""Which format a file has, and the export requests in it, one after the other.

Formats are told by content first (names lie, standard input has none) and every reader streams:
memory is bounded by one message. A message that cannot be read is reported with its place; the
ones after it are still read wherever the format allows to find them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

import zstandard

from tracekit.errors import SourceError, UsageError
from tracekit.ingest import _wire
from tracekit.ingest._json_split import split_objects
from tracekit.ingest._streams import COMPRESSION_ERRORS, STANDARD_INPUT, ZSTD_MAGIC
from tracekit.ingest.otlp_json import parse, signals_of
from tracekit.ingest.request_log import looks_like_request_log

#: How much of a file is looked at to tell its format.
HEAD_BYTES: Final = 1 << 20
#: A longer line, document or message is refused. Collectors send a few MB at most.
MAX_MESSAGE_BYTES: Final = 1 << 27

OTLP_FORMATS: Final[dict[str, str]] = {
    "otlp-jsonl": "OTLP/JSON, one export request a line (collector file exporter)",
    "otlp-json": "OTLP/JSON, one document or an array of them",
    "otlp-protobuf-delimited": "OTLP protobuf, each message after its length as a varint",
    "otlp-protobuf-framed": "OTLP protobuf, each message after its length as 4 bytes"
    " (collector file exporter)",
    "otlp-protobuf": "OTLP protobuf, one bare export request",
}
REQUEST_LOG_FORMATS: Final[dict[str, str]] = {
    "csv": "request log, CSV with a header line",
    "jsonl": "request log, one JSON object a line",
    "json": "request log, one JSON array of objects",
    "parquet": "request log, Parquet",
}
EMPTY: Final = "empty"

_OTLP_KEY: Final = re.compile(rb'"resource(?:Spans|Metrics|Logs)"\s*:')
_OTLP_START: Final = re.compile(rb'\s*\{\s*"resource(?:Spans|Metrics|Logs)"\s*:')
_BOM: Final = b"\xef\xbb\xbf"
_BLOCK_TAG: Final = 0x0A  # field 1, length-delimited: every export request begins with it


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


def expand(paths: Sequence[str]) -> list[tuple[str, bool]]:
    """(file, True if it was named itself) of every file to read.

    Folders give all regular files beneath them in sorted order, hidden ones skipped. UsageError
    for a path that is not there.
    """
    out: list[tuple[str, bool]] = []
    for path in paths:
        if path == STANDARD_INPUT or os.path.isfile(path):
            out.append((path, True))
        elif os.path.isdir(path):
            if os.path.exists(os.path.join(path, "tracekit-store.json")):
                raise UsageError(
                    f"{path} is a tracekit store, not a folder of recordings; read it with "
                    f"--store {path}, or take rows out with `tracekit store export`"
                )
            out += [(file, False) for file in _files_beneath(path)]
        elif os.path.exists(path):
            out.append((path, True))  # a named pipe, a device: read as it comes
        else:
            raise UsageError(f"no such file or folder: {path}")
    return out


def _files_beneath(folder: str) -> list[str]:
    def unreadable(error: OSError) -> None:
        raise UsageError(f"cannot read folder {error.filename}: {error.strerror}") from None

    found = []
    for parent, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        found += [
            path
            for name in sorted(files)
            if not name.startswith(".") and os.path.isfile(path := os.path.join(parent, name))
        ]
    return found


def detect(
    name: str, head: bytes, *, complete: bool, mapping: Mapping[str, str] | None = None
) -> str:
    """The format of a file by its first bytes, decompressed.

    ``complete`` says that ``head`` is the whole file; ``mapping`` names columns of request logs
    (``--map``), ``name`` serves messages only. One of `OTLP_FORMATS`,
    `REQUEST_LOG_FORMATS` or `EMPTY`; SourceError, saying what was tried, if it is nothing known.
    """
    text = head.removeprefix(_BOM).lstrip()
    if not text and complete:
        return EMPTY
    found = (
        _json_format(text, complete)
        or _protobuf_format(head, complete)
        or looks_like_request_log(name, head, mapping=mapping)
    )
    if found is None:
        columns = csv_header(head)
        if columns:
            names = ", ".join(repr(c) for c in columns[:12])
            raise SourceError(
                f"a table whose columns name nothing known: {names}",
                where=name,
                how="say what they hold with --map THEIRS=OURS[:unit], e.g. "
                f"--map '{columns[-1]}=e2e_ms:s'; ours are request_id, start_unix_ns, model, "
                "input_tokens, output_tokens, ttft_ms, e2e_ms, tokens_per_s, note and the "
                "others of `tracekit sql --describe request_log`",
            )
        tried = "; ".join((*OTLP_FORMATS.values(), *REQUEST_LOG_FORMATS.values()))
        raise SourceError(
            "nothing known in this file",
            where=name,
            how=f"tried: {tried}; each plain, gzip or zstd",
        )
    return found


def csv_header(head: bytes) -> list[str]:
    """The column names of what looks like a delimited table of text; empty if it does not."""
    try:
        lines = head.removeprefix(_BOM).decode("utf-8", "strict").splitlines()[:3]
    except UnicodeDecodeError:
        # the head may end inside a character
        lines = head.removeprefix(_BOM).decode("utf-8", "ignore").splitlines()[:3]
    if len(lines) < 2 or lines[0][:1] in "{[<":
        return []
    for delimiter in (",", "\t", ";"):
        cells = [line.count(delimiter) for line in lines if line]
        if cells and cells[0] and len(set(cells)) == 1:
            names = [c.strip().strip('"') for c in lines[0].split(delimiter)]
            return names if all(n and n.isprintable() for n in names) else []
    return []


def _json_format(text: bytes, complete: bool) -> str | None:
    if not _OTLP_KEY.search(text):
        return None
    lines = text.splitlines()
    whole = lines if complete else lines[:-1]
    if any(_is_request(line) for line in whole):
        return "otlp-jsonl"
    if len(lines) == 1 and _OTLP_START.match(text):
        return "otlp-jsonl"  # a first line longer than the head (or damaged)
    return "otlp-json" if text[:1] in (b"{", b"[") else None


def _protobuf_format(head: bytes, complete: bool) -> str | None:
    if _framed(head, complete):
        return "otlp-protobuf-framed"
    if _delimited(head, complete):
        return "otlp-protobuf-delimited"
    return "otlp-protobuf" if _bare(head, complete) else None


def _is_request(line: bytes) -> bool:
    if not _OTLP_KEY.search(line):
        return False
    try:
        return bool(signals_of(parse(line)[0]))
    except SourceError:
        return False


def _framed(head: bytes, complete: bool) -> bool:
    size = int.from_bytes(head[:4], "big")
    return len(head) > 4 and _is_message(head[4 : 4 + size], size, complete)


def _delimited(head: bytes, complete: bool) -> bool:
    try:
        size, at = _wire.read_varint(head, 0)
    except SourceError:
        return False
    return _is_message(head[at : at + size], size, complete)


def _is_message(body: bytes, size: int, complete: bool) -> bool:
    """True if these ``size`` bytes (or as many as there are) begin an export request."""
    if not 0 < size <= MAX_MESSAGE_BYTES or not body:
        return False
    if body[:4] == ZSTD_MAGIC:
        return True
    if len(body) == size:
        return _signal(body) is not None
    return not complete and _starts_like_a_request(body)


def _bare(head: bytes, complete: bool) -> bool:
    return _signal(head) is not None if complete else _starts_like_a_request(head)


def _signal(body: bytes) -> str | None:
    if body[:1] != bytes([_BLOCK_TAG]):
        return None
    try:
        return _wire.signal_of(body)
    except SourceError:
        return None


def _starts_like_a_request(body: bytes) -> bool:
    """A resource block whose first field is its resource or its scopes."""
    if body[:1] != bytes([_BLOCK_TAG]):
        return False
    try:
        size, at = _wire.read_varint(body, 1)
    except SourceError:
        return False
    return size > 1 and body[at : at + 1] in (b"\x0a", b"\x12")


# -- readers -----------------------------------------------------------------------------------


def read_messages(file_format: str, stream: BinaryIO) -> Iterator[Message | Unreadable]:
    """The messages of an OTLP file of one of `OTLP_FORMATS`, in order."""
    messages = _READERS[file_format](stream)
    last_row = 0
    try:
        for message in messages:
            last_row = message.row
            yield message
    except COMPRESSION_ERRORS as error:
        detail = f"compressed data is cut or damaged: {error}"
        yield Unreadable(last_row + 1, "damaged_compression", detail)


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
        line = line.removeprefix(_BOM) if row == 1 else line
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
            yield Unreadable(row, "cut_short", f"message length: {error}")
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
            yield Unreadable(row, "cut_short", f"{len(data)} of {size} bytes are there")
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
            return Unreadable(row, "damaged_compression", str(error))
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
