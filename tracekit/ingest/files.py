"""Which files there are to read, and which format each has.

Formats are told by content first: names lie, and standard input has none. What is in a file of
OTLP is `_messages`' business, what is in a request log `request_log`'s.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from tracekit.errors import SourceError, UsageError
from tracekit.ingest import _wire
from tracekit.ingest._messages import BOM, MAX_MESSAGE_BYTES
from tracekit.ingest._streams import STANDARD_INPUT
from tracekit.ingest._unpack import ZSTD_MAGIC
from tracekit.ingest.engine_logs import ENGINE_LOG_FORMATS, detect_engine_log
from tracekit.ingest.otlp_json import parse, signals_of
from tracekit.ingest.prometheus_text import FORMAT, PROMETHEUS_FORMATS, looks_like
from tracekit.ingest.request_log import json_rows, looks_like_request_log

#: How much of a file is looked at to tell its format.
HEAD_BYTES: Final = 1 << 20

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
#: Columns of an unknown table that its error names.
_COLUMNS_SHOWN: Final = 12

_OTLP_KEY: Final = re.compile(rb'"resource(?:Spans|Metrics|Logs)"\s*:')
_OTLP_START: Final = re.compile(rb'\s*\{\s*"resource(?:Spans|Metrics|Logs)"\s*:')
_BLOCK_TAG: Final = 0x0A  # field 1, length-delimited: every export request begins with it


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
    (``--map``), ``name`` serves messages only. One of `OTLP_FORMATS`, `PROMETHEUS_FORMATS`,
    `ENGINE_LOG_FORMATS`, `REQUEST_LOG_FORMATS` or `EMPTY`; SourceError, saying what was tried, if
    it is nothing known.
    """
    text = head.removeprefix(BOM).lstrip()
    if not text and complete:
        return EMPTY
    found = (
        _json_format(text, complete)
        or _protobuf_format(head, complete)
        or (FORMAT if looks_like(head.removeprefix(BOM)) else None)
        or detect_engine_log(head.removeprefix(BOM))
        or looks_like_request_log(name, head, mapping=mapping)
    )
    return found or _unknown(name, head, mapping or {})


def _unknown(name: str, head: bytes, mapping: Mapping[str, str]) -> NoReturn:
    """SourceError for a file of no known format; with its columns, if it is a table."""
    columns = csv_header(head) or list(next(json_rows(head.removeprefix(BOM)), ()))
    columns = [c for c in columns if c.isprintable()]
    if columns:
        absent = [theirs for theirs in mapping if theirs not in columns]
        near = difflib.get_close_matches(absent[0], columns, n=1) if absent else []
        raise SourceError(
            "a table whose columns name nothing known: "
            + ", ".join(repr(c) for c in columns[:_COLUMNS_SHOWN])
            + (f" and {len(columns) - _COLUMNS_SHOWN} more" * (len(columns) > _COLUMNS_SHOWN))
            + (f"; --map names {absent[0]!r}, which is not among them" if absent else "")
            + (f" (did you mean {near[0]!r}?)" if near else ""),
            where=name,
            how="say what they hold with --map THEIRS=OURS[:unit], e.g. "
            f"--map {shlex.quote(f'{columns[-1]}=e2e_ms:s')}; ours are request_id, start_unix_ns, "
            "model, input_tokens, output_tokens, ttft_ms, e2e_ms, tokens_per_s, note and the "
            "others of `tracekit sql --describe request_log`",
        )
    tried = "; ".join(
        (
            *OTLP_FORMATS.values(),
            *PROMETHEUS_FORMATS.values(),
            *ENGINE_LOG_FORMATS.values(),
            *REQUEST_LOG_FORMATS.values(),
        )
    )
    raise SourceError(
        "nothing known in this file",
        where=name,
        how=f"tried: {tried}; each plain, gzip or zstd",
    )


def csv_header(head: bytes) -> list[str]:
    """The column names of what looks like a delimited table of text; empty if it does not."""
    try:
        lines = head.removeprefix(BOM).decode("utf-8", "strict").splitlines()[:3]
    except UnicodeDecodeError:
        # the head may end inside a character
        lines = head.removeprefix(BOM).decode("utf-8", "ignore").splitlines()[:3]
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
