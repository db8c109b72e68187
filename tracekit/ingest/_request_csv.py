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
from dataclasses import dataclass
from typing import BinaryIO, Final

from tracekit.errors import SourceError
from tracekit.ingest._request_files import MAX_FIELDS, MAX_LINE, Block, Double, Names, unique_names
from tracekit.ingest._unpack import CUT_SHORT

#: A quoted field that has not ended after this many lines was never meant to be one.
_MAX_QUOTED_LINES: Final = 50

_DELIMITERS: Final = (",", "\t", ";")
#: The header is one of this many lines, blank ones and comments not counted.
_HEADER_LINES: Final = 10


def read_delimited(
    file: BinaryIO, where: str, *, known: Names, utf8: bool, cut: bool = False
) -> Iterator[Block]:
    """Blocks of a CSV, TSV or semicolon file; the number of a row is its (first) line.

    ``utf8``: the whole file is valid UTF-8; ``cut``: it ends too early, so that a last line
    without its end is no row. Raises `SourceError` if no line is found that is the header of a
    request log.
    """
    encoding, notice = _encoding(file, utf8)
    text = io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="")
    try:
        lines = _Lines(text)
        header = _header(lines, where, known)
        names, delimiter = header.names, header.delimiter
        block = Block(names, complete=True, delimiter=delimiter, doubles=header.doubles)
        block.notices += notice
        if header.skipped:
            block.notices.append(
                f"the header is line {lines.number}; the text above it is skipped: "
                f"{header.skipped} line(s)"
            )
        fewest = 0  # fields of the shortest row so far
        while (line := lines.next()) is not None:
            number = lines.number
            cells = None if line is _TOO_LONG else _record(line, lines, delimiter, len(names))
            unended = line is not _TOO_LONG and line[-1] not in "\r\n"
            if unended and (cut or (cells is not None and len(cells) < fewest)):
                block.refuse(number, CUT_SHORT, "the file ends in the middle of this row")
            elif cells is None:
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
                fewest = min(fewest or len(cells), len(cells))
            if block.full:
                yield block
                block = block.next()
        yield block
    finally:
        if not file.closed:
            text.detach()  # the caller's file stays open


def is_delimited_log(head: bytes, known: Names) -> bool:
    """Whether a file that starts with ``head`` has the header of a request log."""
    file = io.BytesIO(head)
    encoding, _ = _encoding(file, utf8=False)
    text = io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="")
    try:
        _header(_Lines(text), "", known)
    except SourceError:
        return False
    return True


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


@dataclass(frozen=True)
class _Header:
    """The column names of a file; ``skipped``: lines of text above them."""

    names: list[str]
    doubles: dict[str, Double]
    delimiter: str
    skipped: int


def _header(lines: _Lines, where: str, known: Names) -> _Header:
    """The header, leaving ``lines`` behind it.

    It is the first line, if that has a name that tells. It is a later one, for sheets begin with
    titles, if that has more known names, two at least, and nothing but words, and a row of the
    same width with a number under such a name comes next.
    """
    forced: str | None = None
    read: list[str] = []
    candidates: list[int] = []  # places in read
    while len(candidates) <= _HEADER_LINES and (line := lines.next()) is not None:
        read.append(line)
        text = line.strip("\ufeff\r\n\t ;,")
        if match := re.fullmatch(r"sep=(.)\s*", line.lstrip("\ufeff"), re.IGNORECASE):
            forced = match[1]  # spreadsheets write and obey this first line
        elif text and not text.startswith("#"):
            candidates.append(len(read) - 1)
    best: tuple[int, _Header] | None = None
    most = 0
    for skipped, place in enumerate(candidates[:_HEADER_LINES]):
        count, header = _as_header(read[place], forced, known, skipped)
        if header is None or (skipped and count <= max(most, 1)):
            continue
        after = candidates[skipped + 1 : skipped + 2]
        if not skipped or (after and _is_row(read[after[0]], header, known)):
            best, most = (place, header), count
    if best is None:
        first = read[candidates[0]].strip("\ufeff\r\n\t ;,") if candidates else ""
        seen = first[:200] + ("..." if len(first) > 200 else "")
        raise SourceError(
            f"no column of a request log is known in the header {seen!r}",
            where=where,
            how="name columns with --map their_name=our_name[:unit]",
        )
    lines.give_back(read[best[0] + 1 :])
    return best[1]


def _as_header(
    line: str, forced: str | None, known: Names, skipped: int
) -> tuple[int, _Header | None]:
    """The known names of a line that may be a header, and the header; (0, None) if it is none."""
    best: tuple[tuple[int, int], int, _Header] | None = None
    for delimiter in (forced,) if forced else _DELIMITERS:
        cells = [] if line is _TOO_LONG else [c.strip() for c in _split(line, delimiter) or []]
        names, doubles = unique_names(cells)
        score = (sum(map(known.telling, names)), len(names))
        if len(names) > MAX_FIELDS or not score[0] or (skipped and any(map(_is_number, cells))):
            continue
        if best is None or score > best[0]:
            count = sum(map(known.known, names))
            best = (score, count, _Header(names, doubles, delimiter, skipped))
    return (0, None) if best is None else best[1:]


def _is_row(line: str, header: _Header, known: Names) -> bool:
    """Whether a line looks like a row of the table that ``header`` begins."""
    cells = _split(line, header.delimiter) or []
    pairs = zip(header.names, cells, strict=False)
    return len(cells) == len(header.names) and any(
        known.telling(name) and re.match(r"\s*[+-]?\.?\d", cell) for name, cell in pairs
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


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
