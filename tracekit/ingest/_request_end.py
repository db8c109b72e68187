"""How a request log ends: totals below the table, and the place where a damaged file breaks off.

Owns what can only be told at the last row. It holds back the last rows for that, and knows no
columns: whether a row that reads like a total is a request after all is `_request_rows`' to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tracekit.ingest import _cells
from tracekit.ingest._request_files import Block, Refused, Row
from tracekit.ingest._unpack import CUT_SHORT, Damage

#: More rows than these are no summary of a table.
_MOST_ROWS: Final = 20

_SUMMARY_WORDS: Final = frozenset(
    "total totals subtotal sum average averages avg mean median min minimum max maximum std stdev "
    "stddev count grand overall "
    "합계 총계 총합 총합계 소계 평균 평균값 전체 중앙값 중간값 최소 최소값 최솟값 최대 최대값 "
    "최댓값 표준편차 개수".split()
)
_PERCENTILE: Final = re.compile(r"p\d{1,2}(?:\.\d+)?|\d{1,2}(?:\.\d+)?%")
_IN_BRACKETS: Final = re.compile(r"[(\[].*")
_BETWEEN_WORDS: Final = re.compile(r"[\s_:=/-]+")

#: Reasons of a refusal that may only be the cut of the file.
_BROKEN: Final = (CUT_SHORT, "broken_json", "broken_line")


def with_end(blocks: Iterator[Block], damage: Damage | None) -> Iterator[Block]:
    """The blocks, the last one with what its end tells: ``below`` and the damage as a refusal."""
    held: list[Block] = []
    first = True
    last_number = 0
    for block in blocks:
        if held and not _may_be_below(block):
            yield from held
            held.clear()
            first = False
        held.append(block)
        numbers = block.numbers[-1:] + [r.number for r in block.refused[-1:]]
        last_number = max([last_number, *numbers])
    _mark_below(held)
    if damage is not None and held:
        _refuse_damage(held[-1], damage, last_number)
    if first and len(held) == 1:
        held[0].complete = True
    yield from held


def is_summary(row: Row) -> bool:
    """Whether a row's first cell says that it sums up the others (``Total``, ``평균``)."""
    first = next((cell for cell in row.values() if not _cells.is_null(cell)), None)
    if not isinstance(first, str) or len(first) > 40:
        return False
    words = [w for w in _BETWEEN_WORDS.split(_IN_BRACKETS.sub("", first).lower()) if w]
    return bool(words) and all(w in _SUMMARY_WORDS or _PERCENTILE.fullmatch(w) for w in words)


def _is_text_below(row: Row) -> bool:
    """Whether a row is one cell of text: what people write under a table."""
    return sum(not _cells.is_null(cell) for cell in row.values()) == 1


def _may_be_below(block: Block) -> bool:
    rows = block.rows
    return len(rows) <= _MOST_ROWS and all(is_summary(r) or _is_text_below(r) for r in rows)


def _mark_below(held: list[Block]) -> None:
    """Marks the last rows from the first summary on, if nothing but such rows follows."""
    tail: list[tuple[Block, int]] = []
    for block in reversed(held):
        for i in range(len(block.rows) - 1, -1, -1):
            row = block.rows[i]
            if len(tail) == _MOST_ROWS or not (is_summary(row) or _is_text_below(row)):
                break
            tail.append((block, i))
        else:
            continue
        break
    while tail and not is_summary(tail[-1][0].rows[tail[-1][1]]):
        tail.pop()
    for block, i in tail:
        block.below.append(i)


def _refuse_damage(block: Block, damage: Damage, last_number: int) -> None:
    """One refusal for the place of the damage: the last one, if that is what it means."""
    refused = Refused(last_number + 1, damage.reason, f"{damage.detail}; {damage.how}")
    ended = block.refused[-1] if block.refused else None
    if ended is not None and ended.number == last_number and ended.reason in _BROKEN:
        block.refused[-1] = Refused(last_number, refused.reason, refused.detail)
    else:
        block.refused.append(refused)
