"""Delimited text of a request log: encodings, delimiters, quotes, broken lines.

A line that cannot be read is refused with its number, and the lines after it are read: a quote
that never ends takes no other row with it.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO, Final

from tracekit.errors import SourceError
from tracekit.ingest._request_files import MAX_FIELDS, MAX_LINE, Block, Telling, unique_names

#: A quoted field that has not ended after this many lines was never meant to be one.
_MAX_QUOTED_LINES: Final = 50

_DELIMITERS: Final = (",", "\t", ";")


def read_delimited(file: BinaryIO, where: str, *, telling: Telling, utf8: bool) -> Iterator[Block]:
    """Blocks of a CSV, TSV or semicolon file; the number of a row is its (first) line.

    ``utf8``: the whole file is valid UTF-8. Raises `SourceError` if no header is found in which
    ``telling`` knows a column.
    """
    encoding, notice = _encoding(file, utf8)
    text = io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="")
    try:
        lines = _Lines(text)
        names, delimiter = _header(lines, where, telling)
        block = Block(names, complete=True, delimiter=delimiter)
        block.notices += notice
        while (line := lines.next()) is not None:
            number = lines.number
            cells = None if line is _TOO_LONG else _record(line, lines, delimiter, len(names))
            if cells is None:
                block.refuse(number, "broken_line", "the line is too long or its quotes are broken")
            elif len(cells) > len(names) and any(cells[len(names) :]):
                block.refuse(
                    number,
                    "too_many_fields",
                    f"{len(cells)} fields where the header has {len(names)} "
                    "(text that holds the delimiter must be quoted)",
                )
            elif any(cell.strip() for cell in cells):
                block.add(number, dict(zip(names, cells, strict=False)), len(line))
            if block.full:
                yield block
                block = block.next()
        yield block
    finally:
        if not file.closed:
            text.detach()  # the caller's file stays open


def delimited_header(head: bytes, telling: Telling) -> tuple[list[str], str] | None:
    """Column names and delimiter of a file that starts with ``head``, or None."""
    file = io.BytesIO(head)
    encoding, _ = _encoding(file, utf8=False)
    text = io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="")
    try:
        return _header(_Lines(text), "", telling)
    except SourceError:
        return None


_TOO_LONG: Final = "\0too long"


class _Lines:
    """Lines of a text, with the number of the last one given; lines can be given back."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._back: deque[str] = deque()
        self.number = 0

    def next(self) -> str | None:
        if self._back:
            self.number += 1
            return self._back.popleft()
        line = self._text.readline(MAX_LINE)
        if not line:
            return None
        self.number += 1
        if len(line) < MAX_LINE or line[-1] in "\r\n":
            return line
        while (rest := self._text.readline(MAX_LINE)) and rest[-1] not in "\r\n":
            pass
        return _TOO_LONG

    def give_back(self, lines: list[str]) -> None:
        self.number -= len(lines)
        self._back.extendleft(reversed(lines))


def _encoding(file: BinaryIO, utf8: bool) -> tuple[str, list[str]]:
    start = file.tell()
    head = file.read(1 << 16)
    file.seek(start)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16", []
    if utf8 or _decodes(head, "utf-8"):
        note = [] if utf8 else ["some text is not UTF-8; what could not be read is shown as \ufffd"]
        return "utf-8-sig", note
    # Spreadsheets in Korea still save CSV in the code page of Korean Windows.
    if _decodes(head, "cp949"):
        return "cp949", ["the text is not UTF-8; read as CP949 (Korean Windows)"]
    return "cp1252", ["the text is not UTF-8; read as Windows-1252"]


def _decodes(head: bytes, encoding: str) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)("strict").decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _header(lines: _Lines, where: str, telling: Telling) -> tuple[list[str], str]:
    forced: str | None = None
    first = ""
    while (line := lines.next()) is not None:
        first = line.strip("\ufeff\r\n\t ;,")
        if match := re.fullmatch(r"sep=(.)\s*", line.lstrip("\ufeff"), re.IGNORECASE):
            forced = match[1]  # spreadsheets write and obey this first line
        elif first and not first.startswith("#") and line is not _TOO_LONG:
            break
    best: tuple[tuple[int, int], list[str], str] | None = None
    for delimiter in (forced,) if forced else _DELIMITERS:
        cells = _split(line or "", delimiter) or []
        names = unique_names([cell.strip() for cell in cells])
        score = (sum(map(telling, names)), len(names))
        if len(names) <= MAX_FIELDS and score[0] and (best is None or score > best[0]):
            best = (score, names, delimiter)
    if best is None:
        seen = first[:200] + ("..." if len(first) > 200 else "")
        raise SourceError(
            f"no column of a request log is known in the header {seen!r}",
            where=where,
            how="name columns with --map their_name=our_name[:unit]",
        )
    return best[1], best[2]


def _record(line: str, lines: _Lines, delimiter: str, width: int) -> list[str] | None:
    """Cells of the record that starts with ``line``: more lines only if quotes ask for them."""
    if line.count('"') % 2 == 0:
        return _split(line, delimiter)
    taken: list[str] = []
    whole = line
    while len(taken) < _MAX_QUOTED_LINES and len(whole) < MAX_LINE:
        more = lines.next()
        if more is None:
            break
        taken.append(more)
        whole += more
        if more.count('"') % 2:
            cells = _split(whole, delimiter)
            if cells is not None and len(cells) <= width:
                return cells
            break
    # The quote was only a character, or is missing: the lines after this one are rows.
    lines.give_back(taken)
    return [cell.strip() for cell in line.rstrip("\r\n").split(delimiter)]


def _split(record: str, delimiter: str) -> list[str] | None:
    if '"' not in record:
        return record.rstrip("\r\n").split(delimiter)
    try:
        records = list(csv.reader(io.StringIO(record, newline=""), delimiter=delimiter))
    except csv.Error:
        return None
    # Two records: the quotes that seemed to join the lines were only characters.
    return records[0] if len(records) == 1 else None
