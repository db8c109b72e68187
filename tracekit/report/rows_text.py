"""Rows of any query as text: a table where it fits, one block a row where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from tracekit.report import formats
from tracekit.report.console import make_table


def render(frame: pl.DataFrame, *, width: int) -> RenderableType:
    """``frame`` for a console ``width`` characters wide; ends with the number of rows."""
    rows = [[_value(v) for v in row] for row in frame.iter_rows()]
    # Python's int type also covers BIGINT columns that a table would otherwise align left.
    right = tuple(n for n, t in frame.schema.items() if t.is_numeric())
    tail = Text(f"({formats.plural(frame.height, 'row')})", style="dim")
    if frame.width and _table_width(frame.columns, rows) > width:
        return Group(*_records(frame.columns, rows, width), tail)
    table = make_table(*frame.columns, right=right)
    for row in rows:
        table.add_row(*(Text(v) for v in row))
    return Group(table, tail)


def _table_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    widths = [max([len(c), *(len(row[i]) for row in rows)]) for i, c in enumerate(columns)]
    return sum(widths) + 2 * (len(widths) - 1)


def _records(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Text]:
    label = max(map(len, columns))
    blocks = []
    for number, row in enumerate(rows, start=1):
        block = Text(f"-- row {number} ".ljust(min(width, 40), "-"), style="dim", no_wrap=True)
        for name, value in zip(columns, row, strict=True):
            block.append(f"\n{name.ljust(label)}  ", style="bold")
            block.append(value, style="default")
        blocks.append(block)
    return blocks


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.1f}"
    return str(value).replace("\n", "\\n")
