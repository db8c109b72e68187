"""JSON of a request log: one object a line, or one array of objects.

Both are read as they come in. A broken line is refused and the next one read; what comes after a
syntax error in an array cannot be told apart any more and is refused as one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import orjson

from tracekit.ingest._request_files import MAX_FIELDS, MAX_LINE, Block, flatten

#: What an OTLP export request holds; a request log has no such column.
OTLP_KEYS: Final = ("resourceSpans", "resourceMetrics", "resourceLogs")


def read_json_lines(file: BinaryIO) -> Iterator[Block]:
    """Blocks of a file with one JSON object a line; nested objects become dotted columns."""
    names: dict[str, None] = {}
    block = Block([], complete=False)
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and line[-1] != 10:
            while (rest := file.readline(MAX_LINE)) and rest[-1] != 10:
                pass
            block.refuse(number, "too_long", f"the line is longer than {MAX_LINE} bytes")
        else:
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line.isspace() and line:
                try:
                    _take(block, names, number, parse_json(line), len(line))
                except ValueError as error:
                    block.refuse(number, "broken_json", _json_fault(error))
        if block.full:
            block.names = list(names)
            yield block
            block = block.next()
    block.names = list(names)
    yield block


def read_json_array(file: BinaryIO) -> Iterator[Block]:
    """Blocks of a file that is one JSON array of objects; a row's number is its place, from 1.

    What comes after a syntax error cannot be told apart any more and is refused as one.
    """
    names: dict[str, None] = {}
    block = Block([], complete=False)
    elements = _Elements(file)
    number = 0
    while True:
        number += 1
        try:
            element, size = elements.next()
        except StopIteration:
            break
        except ValueError as error:
            block.refuse(number, "broken_json", f"{_json_fault(error)}; the rest is not read")
            break
        _take(block, names, number, element, size)
        if block.full:
            block.names = list(names)
            yield block
            block = block.next()
    block.names = list(names)
    yield block


def parse_json(line: bytes) -> Any:
    """One JSON value; NaN and Infinity, which many tools write, are null. `ValueError` if bad."""
    try:
        return orjson.loads(line)
    except ValueError:
        pass
    try:
        return _DECODER.decode(line.decode("utf-8", "replace").strip())
    except RecursionError:
        raise ValueError("nested too deeply") from None


_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=lambda _: None)
_SKIP: Final = re.compile(r"[\s,]*")


def _json_fault(error: ValueError) -> str:
    # Not the error's own text: it may quote the line, which may hold a prompt.
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: {error.msg} at character {error.pos + 1}"
    return f"not valid JSON: {type(error).__name__}"


class _Elements:
    """The elements of one JSON array, read as the file comes in."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._text = ""
        self._at = 0
        self._ended = False
        self._opened = False
        self._closed = False

    def next(self) -> tuple[Any, int]:
        """The next element and about how many bytes it took; StopIteration at the end."""
        if self._closed:
            raise StopIteration
        if not self._opened:
            if self._skip() != "[":
                raise ValueError("no array")
            self._at += 1
            self._opened = True
        if self._skip() == "]":
            self._at += 1
            self._closed = True
            if self._skip():
                raise ValueError("more after the array")
            raise StopIteration
        while True:
            try:
                element, end = _DECODER.raw_decode(self._text, self._at)
                if end < len(self._text) or self._ended:
                    break
            except RecursionError:
                self._closed = True
                raise ValueError("nested too deeply") from None
            except ValueError:
                if self._ended or len(self._text) - self._at > MAX_LINE:
                    self._closed = True
                    raise
            self._more()
        size = end - self._at
        self._at = end
        return element, size

    def _skip(self) -> str:
        """Skip space and commas; the character there, or '' at the end of the file."""
        while True:
            match = _SKIP.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._more()

    def _more(self) -> None:
        """Read as much again as is waiting, so that a long element costs no more than twice."""
        self._text = self._text[self._at :]
        self._at = 0
        data = self._file.read(max(1 << 16, len(self._text)))
        self._ended = not data
        self._text += self._decoder.decode(data, final=self._ended)


def _take(block: Block, names: dict[str, None], number: int, value: Any, size: int) -> None:
    if not isinstance(value, dict):
        block.refuse(number, "not_an_object", f"a JSON {_json_type(value)} is no row")
        return
    if any(isinstance(value.get(key), list) for key in OTLP_KEYS):
        detail = (
            "an OTLP export request in a request log: to take the spans too, import the file "
            "once more with --source otlp-jsonl"
        )
        block.refuse(number, "otlp_in_request_log", detail)
        return
    row = flatten(value)
    if row is None:
        block.refuse(number, "too_many_fields", f"more than {MAX_FIELDS} fields")
        return
    if len(names) < MAX_FIELDS:
        for name in row:
            names.setdefault(name)
    elif not names.keys() >= row.keys():
        block.notices.append(f"more than {MAX_FIELDS} columns: further ones are not kept")
    block.add(number, row, size)


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    kinds: dict[type, str] = {list: "array", str: "string", bool: "boolean"}
    return kinds.get(type(value), "number")
