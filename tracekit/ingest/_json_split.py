"""JSON objects out of a stream that is not one object a line.

A pretty-printed document, several one after the other, or an array of them: each top-level object
(or element of a top-level array) is cut out by counting brackets, so that memory is bounded by
one object and not by the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, Final

_BRACKET_OR_STRING: Final = re.compile(rb'["{}\[\]]')
_STRING_END: Final = re.compile(rb'["\\]')
#: Whitespace, and what holds a top-level array together.
_BETWEEN: Final = re.compile(rb"[^ \t\r\n,\[\]]")
_BOM: Final = b"\xef\xbb\xbf"


def split_objects(
    stream: BinaryIO, *, limit_bytes: int, chunk_bytes: int = 1 << 18
) -> Iterator[tuple[int, bytes | None]]:
    """(line it starts on, the object's bytes), in order.

    Bytes are None for an object over ``limit_bytes``, which is skipped. What stands between
    objects and is neither space nor comma comes out as it is, line by line, for the caller to
    refuse; so does an object that the end of the stream cuts.
    """
    cutter = _Cutter(limit_bytes)
    first = True
    while chunk := stream.read(chunk_bytes):
        if first:
            chunk = chunk.removeprefix(_BOM)
            first = False
        yield from cutter.feed(chunk)
    yield from cutter.rest()


class _Cutter:
    """Where in the JSON the last chunk ended, and the pieces of the object it ended in."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._line = 1
        self._start_line = 1
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes | None]]:
        at = 0
        counted = 0  # newlines before this position are in self._line
        start = 0  # of the open object, in this chunk
        while at < len(chunk):
            if self._depth:
                at = self._step(chunk, at)
                if self._depth == 0:
                    self._keep(chunk[start:at])
                    yield self._start_line, self._taken()
                continue
            found = _BETWEEN.search(chunk, at)
            if found is None:
                break
            start = found.start()
            self._line += chunk.count(b"\n", counted, start)
            counted = start
            if chunk[start] == ord("{"):
                self._start_line = self._line
                self._depth = 1
                at = start + 1
            else:
                end = chunk.find(b"\n", start)
                at = len(chunk) if end < 0 else end
                yield self._line, chunk[start:at]
        if self._depth:
            self._keep(chunk[start:])
        self._line += chunk.count(b"\n", counted)

    def rest(self) -> Iterator[tuple[int, bytes | None]]:
        """The object that the stream ended in, if it did."""
        if self._depth:
            yield self._start_line, self._taken()

    def _step(self, chunk: bytes, at: int) -> int:
        """Moves past the next character that matters; updates depth and string state."""
        if self._escaped:
            self._escaped = False
            return at + 1
        found = (_STRING_END if self._in_string else _BRACKET_OR_STRING).search(chunk, at)
        if found is None:
            return len(chunk)
        mark = found[0]
        if mark == b'"':
            self._in_string = not self._in_string
        elif mark == b"\\":
            self._escaped = True
        else:
            self._depth += 1 if mark in b"{[" else -1
        return found.end()

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self._limit:
            self._pieces.append(piece)
        else:
            self._pieces.clear()

    def _taken(self) -> bytes | None:
        whole = b"".join(self._pieces) if self._size <= self._limit else None
        self._pieces.clear()
        self._size = 0
        return whole
