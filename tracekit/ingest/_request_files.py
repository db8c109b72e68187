"""What the readers of request logs hand over: blocks of rows, each row a dict of raw cells.

Owns the shape and the bounds: a block holds at most `BLOCK_ROWS` rows and about `BLOCK_BYTES` of
text, a line is at most `MAX_LINE` long, a row has at most `MAX_FIELDS` columns. The readers are
`_request_csv`, `_request_json` and `_request_parquet`; they own the bytes and know nothing of
columns except, through a callable, whether a header tells a request log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

BLOCK_ROWS: Final = 10_000
BLOCK_BYTES: Final = 8 << 20
MAX_LINE: Final = 8 << 20
MAX_FIELDS: Final = 1000

_MAX_DEPTH: Final = 8

Row = dict[str, object]
Telling = Callable[[str], bool]


@dataclass(frozen=True)
class Refused:
    """A line or element that is no row: its number, why, and what was seen."""

    number: int
    reason: str
    detail: str


@dataclass
class Block:
    """``rows[i]`` was line or element ``numbers[i]``, from 1; ``names``: columns so far.

    ``complete``: ``names`` are all the file has. ``delimiter``: of a delimited file, else None.
    """

    names: list[str]
    complete: bool
    delimiter: str | None = None
    rows: list[Row] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    size: int = 0

    def add(self, number: int, row: Row, size: int) -> None:
        self.rows.append(row)
        self.numbers.append(number)
        self.size += size

    def refuse(self, number: int, reason: str, detail: str) -> None:
        self.refused.append(Refused(number, reason, detail))

    @property
    def full(self) -> bool:
        items = len(self.rows) + len(self.refused)
        return items >= BLOCK_ROWS or self.size >= BLOCK_BYTES

    def next(self) -> Block:
        """An empty block to go on with."""
        return Block(self.names, self.complete, self.delimiter)


def flatten(value: dict[str, Any]) -> Row | None:
    """``{"usage": {"prompt_tokens": 3}}`` -> ``{"usage.prompt_tokens": 3}``; None if too wide."""
    if not any(isinstance(item, dict) for item in value.values()):
        return _clean_names(value) if len(value) <= MAX_FIELDS else None
    row: Row = {}
    waiting = [("", value, 0)]
    while waiting:
        prefix, part, depth = waiting.pop()
        for name, item in part.items():
            if isinstance(item, dict) and depth < _MAX_DEPTH:
                waiting.append((f"{prefix}{name}.", item, depth + 1))
            else:
                row.setdefault(prefix + name, item)
        if len(row) + len(waiting) > MAX_FIELDS:
            return None
    return _clean_names(row)


def _clean_names(row: Row) -> Row:
    if all(map(str.isascii, row)):
        return row
    return {name.encode("utf-8", "replace").decode(): item for name, item in row.items()}


def unique_names(names: list[str]) -> list[str]:
    """Column names without blanks and doubles."""
    result: list[str] = []
    for i, name in enumerate(names):
        name = name or f"column_{i + 1}"
        result.append(name if name not in result else f"{name}_{i + 1}")
    return result
