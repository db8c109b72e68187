"""Cells of a request log that hold a list: chunk times, tokens per chunk, prefix hashes.

Owns their checks and bounds. Each reader takes one raw cell and raises `CellError` or returns
what the table stores.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import orjson

from tracekit import chunks
from tracekit.errors import SourceError
from tracekit.ingest import _cells
from tracekit.ingest._cells import CellError
from tracekit.ingest._request_json import parse_json

#: Longest list taken: a million chunks are hours of streaming.
_MAX_ITEMS: Final = 1_000_000
_MAX_OFFSET_MS: Final = 1e10
#: From 2001 to 2262: points in time, which only the row's start turns into offsets.
_UNIX_MS: Final = (1e12, 9.2e12)
_MAX_HASH_CHARS: Final = 128


def offsets_us(cell: object, ms_per: float) -> list[int]:
    """[us] chunk offsets from a list in a unit of ``ms_per`` milliseconds; never backwards.

    They count from the start, or all of them from 1970.
    """
    offsets = _numbers(cell)
    first = offsets[0] * ms_per if offsets else 0.0
    low, high = _UNIX_MS if first >= _UNIX_MS[0] else (0.0, _MAX_OFFSET_MS)
    if not all(low <= offset * ms_per <= high for offset in offsets):
        raise CellError("out_of_range", "an offset is negative or too large")
    scale = ms_per * 1e3
    rounded = [round(offset * scale) for offset in offsets]
    if any(later < earlier for earlier, later in pairwise(rounded)):
        raise CellError("not_in_order", "chunk offsets go backwards")
    return rounded


def token_list(cell: object) -> list[int]:
    """Tokens per chunk."""
    tokens = _numbers(cell)
    if not all(0 <= count <= chunks.MAX_TOKENS and count == int(count) for count in tokens):
        raise CellError("not_whole", "tokens of a chunk must be whole numbers from 0 on")
    return [int(count) for count in tokens]


def packed(cell: object) -> str:
    """Chunk times that are packed already, as an export of the table has them."""
    text = str(cell).strip()
    try:
        chunks.unpack(text)
    except SourceError as error:
        raise CellError("bad_chunk_times", str(error)) from None
    return text


def hashes(cell: object) -> str:
    """A JSON array of short strings or whole numbers."""
    if isinstance(cell, str):
        cell = _from_text(cell)
    if not isinstance(cell, list) or len(cell) > _MAX_ITEMS:
        raise CellError("not_a_list", "prefix hashes are not a list")
    items: list[object] = []
    for item in cell:
        if isinstance(item, bool) or not isinstance(item, (str, int)):
            raise CellError("not_a_hash", f"{_cells.show(item)} is not a hash")
        if isinstance(item, int) and not -(1 << 63) <= item < 1 << 64:
            raise CellError("not_a_hash", "a hash is larger than 64 bits; write it as text")
        if isinstance(item, str) and len(item) > _MAX_HASH_CHARS:
            raise CellError("not_a_hash", f"a hash is longer than {_MAX_HASH_CHARS} characters")
        text = isinstance(item, str)
        items.append(_cells.parse_text(item, limit=_MAX_HASH_CHARS) if text else item)
    return orjson.dumps(items).decode()


def _numbers(cell: object) -> list[float]:
    """A list of finite numbers, given as a list or as JSON text."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        cell = _from_text(cell)
    if not isinstance(cell, list) or len(cell) > _MAX_ITEMS:
        raise CellError("not_a_list", f"{_cells.show(cell)} is not a list of numbers")
    for item in cell:
        # NaN fails the comparison, and so do integers beyond any double.
        if type(item) not in (int, float) or not abs(item) < 1e300:
            raise CellError("not_a_number", f"{_cells.show(item)} in the list is not a number")
    return cell


def _from_text(cell: str) -> object:
    try:
        value: object = parse_json(cell.encode("utf-8", "replace"))
    except ValueError:
        raise CellError("not_a_list", "the list is not valid JSON") from None
    return value
