"""The ten-minute table: request, input, output, TTFT, E2E, tokens/s, note, and the marks.

A long TTFT is marked ``T``, a low token rate ``R`` (``r`` where only the wait for the first token
makes it low), so that the two are told apart without colour.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit.report import formats, markdown
from tracekit.report.console import make_table

if TYPE_CHECKING:
    from tracekit.analysis.ten_minute import TenMinuteRow, TenMinuteTable

_HEADER: Final = ("request", "input", "output", "TTFT", "E2E", "tokens/s", "marks", "note")
_NUMBERS: Final = ("input", "output", "TTFT", "E2E", "tokens/s")
_MARKS: Final = "T = long TTFT, R = low tokens/s, r = low tokens/s by the TTFT alone"


def render(table: TenMinuteTable, *, width: int = 80) -> Group:
    """The table, its rules, the findings and, last, the sentence."""
    return Group(*_blocks(table, width))


def _blocks(table: TenMinuteTable, width: int) -> Iterator[RenderableType]:
    if table.rows:
        grid = make_table(*_HEADER, right=_NUMBERS)
        for row in table.rows:
            request, *numbers, marks, note = _cells(row)
            ttft = "bold red" if row.long_ttft else ""
            rate = "bold yellow" if row.low_tokens_per_s else ""
            styles = ("", "", ttft, "", rate)
            grid.add_row(
                Text(formats.cut(request, max(16, width // 4))),
                *(Text(n, style=s) for n, s in zip(numbers, styles, strict=True)),
                Text(marks, style="bold"),
                Text(note),
            )
        yield grid
        if any(_cells(row)[-2] for row in table.rows):
            yield Text(_MARKS, style="dim")
    for rule in table.rules:
        yield Text(rule, style="dim")
    yield Text()
    for finding in table.findings:
        yield Text(f"- {finding.text}")
    for missing in table.missing:
        yield Text(f"- missing: {missing}", style="yellow")
    yield Text()
    yield Text(table.sentence, style="bold")


def markdown_table(table: TenMinuteTable) -> str:
    """The same as Markdown."""
    parts = [
        markdown.table(_HEADER, (_cells(row) for row in table.rows), right=_NUMBERS),
        "\n".join(f"- {line}" for line in (_MARKS, *table.rules)),
        "\n".join(
            (
                *(f"- {finding.text}" for finding in table.findings),
                *(f"- missing: {missing}" for missing in table.missing),
            )
        ),
        f"**{table.sentence}**",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _cells(row: TenMinuteRow) -> tuple[str, ...]:
    marks = "T" if row.long_ttft else ""
    if row.low_tokens_per_s:
        marks += "r" if row.low_only_by_ttft else "R"
    note = row.note or ""
    if row.status != "ok":
        note = f"{row.status}; {note}" if note else row.status
    return (
        row.request,
        formats.count(row.input_tokens),
        formats.count(row.output_tokens),
        formats.ms(row.ttft_ms),
        formats.ms(row.total_ms),
        formats.number(row.tokens_per_s),
        marks,
        note,
    )
