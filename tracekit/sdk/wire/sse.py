"""Cutting the bytes of a streamed body into its events: server-sent events, or JSON lines.

Owns where an event ends and which line of it is data. Knows nothing of what the data says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

#: Any two line ends in a row; slow, and only for bodies that mix them.
_ANY_BLANK_LINE: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")

#: What ends a stream of OpenAI's format; it is no chunk.
DONE: Final = b"[DONE]"


class Cutter:
    """Cuts a body into events, piece after piece; keeps the start of the one that is not over."""

    def __init__(self, *, lines: bool) -> None:
        """``lines``: every line is an event, as in JSON lines; else a blank line ends one."""
        self._lines = lines
        self.rest = b""

    def cut(self, pieces: Sequence[bytes], times: Sequence[int]) -> Iterator[tuple[bytes, int]]:
        """(event, the time of the piece that completed it) of ``pieces``, whose times are given."""
        start = len(self.rest)
        data = self.rest + b"".join(pieces)
        blocks, sizes = self._split(data)
        self.rest = blocks.pop()
        ends = iter(zip(pieces, times, strict=True))
        end, stop, at = start, 0, times[0] if times else 0
        for block, size in zip(blocks, sizes, strict=True):
            stop += size
            while end < stop:
                piece, at = next(ends)
                end += len(piece)
            if block:
                yield block, at

    def _split(self, data: bytes) -> tuple[list[bytes], list[int]]:
        """The events and what is left, and how long each event is with its end."""
        if self._lines:
            mark = b"\n"
        elif b"\r" not in data:
            mark = b"\n\n"
        elif b"\n\n" not in data and data.count(b"\r") == data.count(b"\r\n"):
            mark = b"\r\n\r\n"
        else:
            return _split_any(data)
        blocks = data.split(mark)
        more = len(mark)
        return blocks, [len(block) + more for block in blocks[:-1]]


def _split_any(data: bytes) -> tuple[list[bytes], list[int]]:
    blocks, sizes, at = [], [], 0
    for found in _ANY_BLANK_LINE.finditer(data):
        blocks.append(data[at : found.start()])
        sizes.append(found.end() - at)
        at = found.end()
    blocks.append(data[at:])
    return blocks, sizes


def fields(block: bytes) -> tuple[bytes | None, bytes]:
    """The ``event`` and the ``data`` of a server-sent event; its other fields are not kept."""
    head, _, tail = block.partition(b"\n")
    # nearly all are one of these two
    if not tail and head.startswith(b"data:"):
        return None, head[5:].strip()
    if head.startswith(b"event:") and tail.startswith(b"data:") and b"\n" not in tail:
        return head[6:].strip(), tail[5:].strip()
    event = None
    data: list[bytes] = []
    for line in block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"event:"):
            event = line[6:].strip()
    return event, b"\n".join(data).strip()
