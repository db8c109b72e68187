"""A list of requests as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit.names import PHASE_COLOURS
from tracekit.report import formats, texts
from tracekit.report.console import make_table

#: Columns by importance: narrow terminals lose the last ones first.
_COLUMNS: Final[tuple[tuple[str, int], ...]] = (
    ("request", 22),
    ("status", 7),
    ("input", 8),
    ("output", 7),
    ("TTFT", 8),
    ("E2E", 8),
    ("longest phase", 24),
    ("TPOT", 8),
    ("tokens/s", 8),
    ("start (UTC)", 19),
    ("model", 16),
)
_NUMBERS: Final = ("input", "output", "TTFT", "E2E", "TPOT", "tokens/s")


def render(rows: Sequence[Mapping[str, Any]], *, total: int, width: int) -> RenderableType:
    """``rows`` have the columns of the request record and ``request_key``.

    ``total`` is how many there are, shown or not.
    """
    if not rows:
        return Text("no requests in this window")
    names = _fitting(width)
    table = make_table(*names, right=_NUMBERS)
    for row in rows:
        cells = _cells(row)
        table.add_row(*(cells[name] for name in names))
    count = formats.plural(total, "request")
    if total > len(rows):
        count = f"{formats.count(len(rows))} of {count}; --last {total} shows all"
    return Group(table, Text(f"({count})", style="dim"))


def _fitting(width: int) -> list[str]:
    names: list[str] = []
    used = 0
    for name, size in _COLUMNS:
        used += size + 3
        if used > width and len(names) >= 4:
            break
        names.append(name)
    return names


def _cells(row: Mapping[str, Any]) -> dict[str, Text]:
    status = str(row["status"] or formats.UNKNOWN)
    if row.get("quarantine_reason"):
        status = "quarantined"
    start = formats.time(row["start_unix_ns"])[:19]
    return {
        "request": Text(formats.cut(_name(row), 40)),
        "status": Text(status, style="" if status == "ok" else "red"),
        "input": Text(formats.count(row["input_tokens"])),
        "output": Text(formats.count(row["output_tokens"])),
        "TTFT": Text(formats.ms(row["ttft_ms"])),
        "E2E": Text(formats.ms(row["e2e_ms"])),
        "TPOT": Text(formats.ms(row["tpot_ms"])),
        "tokens/s": Text(formats.number(row["tokens_per_s"])),
        "longest phase": _longest(row),
        "start (UTC)": Text(start),
        "model": Text(formats.cut(row["model"] or formats.UNKNOWN, 32)),
    }


def _name(row: Mapping[str, Any]) -> str:
    return str(row["request_id"] or row["trace_id"] or row["request_key"])


def _longest(row: Mapping[str, Any]) -> Text:
    phases = [(row.get(f"{name}_ms") or 0.0, name) for name in texts.PHASE_LETTERS]
    longest, name = max(phases, key=lambda p: p[0])
    if longest <= 0:
        return Text(formats.UNKNOWN)
    text = Text(texts.PHASE_LETTERS[name], style=f"bold {PHASE_COLOURS[name]}")
    return text.append(f" {texts.phase_label(name)} {formats.ms(longest)}", style="default")
