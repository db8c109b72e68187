"""A comparison as Markdown, for an issue, a pull request or a wiki."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracekit.report import compare_text as text
from tracekit.report import texts
from tracekit.report.markdown import cell, table

if TYPE_CHECKING:
    from tracekit.analysis.comparison import Comparison


def render(comparison: Comparison) -> str:
    """The whole comparison."""
    return "\n\n".join(_sections(comparison)) + "\n"


def _sections(comparison: Comparison) -> Iterator[str]:
    yield f"# {cell(comparison.sentence)}"
    yield "\n".join(
        f"- **{cell(label)}**: {cell(value)}" if label else f"  {cell(value)}"
        for label, value in text.facts(comparison)
    )
    if rows := list(text.statistic_rows(comparison)):
        yield "## Latency"
        yield table(text.STATISTICS, rows, right=text.STATISTICS[1:5])
        yield text.sure_line(comparison)
        if lines := list(text.not_compared_lines(comparison)):
            yield "\n".join(f"- {cell(line)}" for line in lines)
    if rows := list(text.split_rows(comparison)):
        yield "## What the change of the mean is made of"
        yield table(text.SPLIT, rows, right=text.SPLIT[1:8])
        if lines := list(text.mix_lines(comparison)):
            yield "\n".join(f"- {cell(line)}" for line in lines)
    if rows := list(text.kind_rows(comparison)):
        yield f"## Kinds of traffic, {texts.METRICS[text.kinds_metric(comparison)][0]}"
        yield table(text.KINDS, rows, right=text.KINDS[1:])
    if lines := list(text.worker_lines(comparison)):
        yield "## Workers"
        yield "\n".join(f"- {cell(line)}" for line in lines)
    if comparison.notes:
        yield "## Notes"
        yield "\n".join(f"- {cell(note)}" for note in comparison.notes)
    if comparison.missing_evidence:
        yield "## Missing evidence"
        yield table(
            ("field", "why it matters", "how to record it"),
            ((m.field, m.why, m.how) for m in comparison.missing_evidence),
        )
