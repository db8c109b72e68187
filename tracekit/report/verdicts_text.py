"""Verdicts as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit.names import PHASE_COLOURS
from tracekit.report import formats, texts
from tracekit.report.console import make_table

#: Columns by importance, with the width they want: narrow terminals lose the last ones first.
_COLUMNS: Final[tuple[tuple[str, int], ...]] = (
    ("request", 22),
    ("metric", 6),
    ("was", 8),
    ("verdict", 13),
    ("phase", 11),
    ("excess", 8),
    ("cause", 16),
    ("sure", 6),
    ("expected", 8),
    ("culprit", 22),
    ("worker", 16),
)
_NUMBERS: Final = ("was", "excess", "expected")


def render(rows: Sequence[Mapping[str, Any]], *, width: int) -> RenderableType:
    """``rows`` as `tracekit.analysis.verdicts.list_verdicts` yields them."""
    if not rows:
        return Text("no slow request in this window")
    names: list[str] = []
    used = 0
    for name, size in _COLUMNS:
        used += size + 3
        if used > width and len(names) >= 5:
            break
        names.append(name)
    table = make_table(*names, right=_NUMBERS)
    for row in rows:
        cells = _cells(row)
        table.add_row(*(cells[name] for name in names))
    return Group(table, Text(f"({formats.plural(len(rows), 'verdict')})", style="dim"))


def _cells(row: Mapping[str, Any]) -> dict[str, Text]:
    phase, cause = row["phase"], row["cause"]
    culprits = row["culprit_request_ids"]
    more = f" +{len(culprits) - 1}" if len(culprits) > 1 else ""
    was = formats.ms(row["value_ms"])
    return {
        "request": Text(
            formats.cut(str(row["request_id"] or row["trace_id"] or row["request_key"]), 36)
        ),
        "metric": Text(texts.slo_label(row["metric"])),
        "was": Text(f">{was}" if row["censored"] else was),
        "verdict": Text(row["class"].replace("_", " ")),
        "phase": Text(
            texts.phase_label(phase) if phase else formats.UNKNOWN,
            style=PHASE_COLOURS.get(phase or "", ""),
        ),
        "excess": Text(formats.excess(row["excess_ms"])),
        "expected": Text(formats.ms(row["expected_ms"])),
        "cause": Text(texts.cause_label(cause) if cause else formats.UNKNOWN),
        "sure": Text(row["confidence_label"] or formats.UNKNOWN),
        "culprit": Text(formats.cut(culprits[0], 32) + more if culprits else formats.UNKNOWN),
        "worker": Text(str(row["worker"] or formats.UNKNOWN)),
    }
