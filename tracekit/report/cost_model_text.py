"""The cost model for readers: a table a cell, what each phase should take, how surely known.

Owns the words and the order. The same cells as data are in ``--json`` and in the relation
``cost_model``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit.analysis.fit import PHASE_TERMS
from tracekit.analysis.rules import Rules
from tracekit.report import formats, texts
from tracekit.report.console import make_table
from tracekit.words import plural, reach_text

COLUMNS: Final = (
    "phase",
    "should take",
    "ordinary variation",
    "half lie within",
    "fitted on",
)

#: What each term is multiplied by, in words; "" for what does not grow.
_TIMES: Final = {
    "one": "",
    "uncached_tokens": "uncached token",
    "attended_tokens_sq": "uncached x (cached + uncached / 2)",
    "kv_size": "prompt token",
    "steps": "step",
    "step_context": "step and token of context",
}
_LEVELS: Final = {"cell": "", "model": "; some fits borrow from the whole model",
                  "all": "; some fits borrow from all requests"}  # fmt: skip

#: How to read the tables.
NOTES: Final = (
    "fitted up to: the largest of the fitted requests, by uncached tokens, steps or what is moved, "
    f"and by their mean context; beyond {Rules.size_reach:.0f} times that nothing is judged",
    "half lie within: half of the fitted requests are within this share of what they should take",
    "a decode step is a token where accepted drafts are not known; * fitted on other cells, too, "
    "since this one has too few requests",
)


@dataclass(frozen=True)
class CellText:
    """One cell: ``title``, ``rows`` as cells of COLUMNS, the phases that have no fit, and how
    large the fitted requests were.
    """

    title: str
    rows: tuple[tuple[str, ...], ...]
    unfitted: tuple[str, ...]
    up_to: tuple[str, ...] = ()


def cells(rows: Sequence[Mapping[str, Any]]) -> Iterator[CellText]:
    """Each row of ``cost_model`` as text."""
    for row in rows:
        fitted = [p for p in PHASE_TERMS if row[f"{p}_s0"] is not None]
        yield CellText(
            _title(row),
            tuple(_phase(row, p) for p in fitted),
            tuple(texts.phase_label(p) for p in PHASE_TERMS if p not in fitted),
            tuple(f"{texts.phase_label(p)} {up_to}" for p in fitted if (up_to := _up_to(row, p))),
        )


def _title(row: Mapping[str, Any]) -> str:
    engine = " ".join(filter(None, (row["engine"], row["engine_version"])))
    named = (row["model"] or "no model", engine, row["topology"])
    tau = row["tau"]
    how = "median" if tau == 0.5 else f"{tau * 100:.0f}th percentile"
    of = "declared baseline" if row["source"] == "baseline" else "window itself"
    return (
        f"{', '.join(filter(None, named))}: {plural(row['n'], 'request')}, {how} of the {of}"
        f"{_LEVELS[row['level']]} (version {row['version']})"
    )


def _phase(row: Mapping[str, Any], phase: str) -> tuple[str, ...]:
    s0, s1, error = row[f"{phase}_s0"], row[f"{phase}_s1"], row[f"{phase}_error"]
    varies = [formats.ms(s0)] if s0 or not s1 else []
    if s1:
        varies.append(f"{formats.percent(s1)} of it")
    return (
        texts.phase_label(phase),
        _formula(row, phase),
        " + ".join(varies),
        formats.percent(error),
        formats.count(row[f"{phase}_n"]) + ("*" if row[f"{phase}_borrowed"] else ""),
    )


def _up_to(row: Mapping[str, Any], phase: str) -> str:
    reach = row.get(f"{phase}_reach")
    if reach is None:
        return ""
    per_byte = bool(row["kv_transfer_per_byte"])
    return reach_text(phase, reach, row.get(f"{phase}_context_reach"), per_byte=per_byte)


def _formula(row: Mapping[str, Any], phase: str) -> str:
    parts = []
    for name, size in PHASE_TERMS[phase]:
        value = row[f"{phase}_{name}"]
        if not value:
            continue
        unit = _TIMES[size]
        if size == "kv_size" and row["kv_transfer_per_byte"]:
            unit = "byte"
        if not unit:
            parts.append(formats.ms(value))
        elif " x " in unit:
            parts.append(f"{value:.3g} ms x {unit}")
        else:
            parts.append(f"{value:.3g} ms per {unit}")
    return " + ".join(parts) or "next to nothing"


def render(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The cells for a terminal."""
    parts: list[RenderableType] = []
    for one in cells(rows):
        parts.append(Text(f"\nwhat was expected: {one.title}", style="bold"))
        table = make_table(*COLUMNS, right=COLUMNS[3:])
        for row in one.rows:
            table.add_row(*(Text(v) for v in row))
        parts.append(table)
        if one.up_to:
            parts.append(Text(f"fitted up to: {'; '.join(one.up_to)}", style="dim"))
        if one.unfitted:
            parts.append(Text(f"not fitted: {', '.join(one.unfitted)}", style="dim"))
    parts.extend(Text(note, style="dim") for note in NOTES)
    return Group(*parts)
