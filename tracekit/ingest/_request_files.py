"""What the readers of request logs hand over: blocks of rows, each row a dict of raw cells.

Owns the shape and the bounds: a block holds at most `BLOCK_ROWS` rows and about `BLOCK_BYTES` of
text, a line is at most `MAX_LINE` long, a row has at most `MAX_FIELDS` columns. The readers are
`_request_csv`, `_request_json` and `_request_parquet`; they own the bytes and know nothing of
columns except, through `Names`, which names are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

BLOCK_ROWS: Final = 10_000
BLOCK_BYTES: Final = 8 << 20
MAX_LINE: Final = 8 << 20
MAX_FIELDS: Final = 1000

_MAX_DEPTH: Final = 8

Row = dict[str, object]


@dataclass(frozen=True)
class Names:
    """``known``: whether a column's name says what it holds; ``telling``: whether it is one that
    only request logs have."""

    known: Callable[[str], bool]
    telling: Callable[[str], bool]

    def tell(self, names: Iterable[str]) -> bool:
        """Whether these columns are those of a request log."""
        return any(map(self.telling, names))


@dataclass(frozen=True)
class Double:
    """A further column of one name: the name of the first, and both places, from 1."""

    first: str
    first_place: int
    place: int


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
    ``doubles``: the ``names`` that were made since the file has one twice. ``below``: places in
    ``rows`` of what stands below the table (`_request_end`): totals, averages.
    """

    names: list[str]
    complete: bool
    delimiter: str | None = None
    rows: list[Row] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    doubles: dict[str, Double] = field(default_factory=dict)
    below: list[int] = field(default_factory=list)
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
        return Block(self.names, self.complete, self.delimiter, doubles=self.doubles)


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


def unique_names(names: list[str]) -> tuple[list[str], dict[str, Double]]:
    """Column names without blanks and doubles, and which of them stand for a double.

    The second ``latency``, in column 4, becomes ``latency#4``.
    """
    result: dict[str, int] = {}
    doubles: dict[str, Double] = {}
    for place, name in enumerate(names, 1):
        name = name or f"column_{place}"
        if (first := result.get(name)) is not None:
            double = Double(name, first, place)
            while name in result:
                name = f"{name}#{place}"
            doubles[name] = double
        result[name] = place
    return list(result), doubles
