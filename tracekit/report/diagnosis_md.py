"""The diagnosis as Markdown, for an issue, a pull request or a wiki."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracekit.report import cost_model_text, fleet_text, formats, side_notes, texts
from tracekit.report.diagnosis_text import facts, finding_lines, fold, folded_line, no_findings
from tracekit.report.markdown import cell, table

if TYPE_CHECKING:
    import polars as pl

    from tracekit.analysis.diagnosis import Diagnosis, Finding


def render(
    diagnosis: Diagnosis, cost_model: pl.DataFrame | None = None, *, every: bool = False
) -> str:
    """The whole diagnosis; with ``cost_model`` also what was expected, a row a cell.

    ``every``: with the minor findings, which are one line otherwise.
    """
    return "\n\n".join(_sections(diagnosis, cost_model, every)) + "\n"


def _sections(diagnosis: Diagnosis, cost_model: pl.DataFrame | None, every: bool) -> Iterator[str]:
    yield f"# {cell(diagnosis.sentence)}"
    yield "\n".join(f"- **{label}**: {cell(value)}" for label, value in facts(diagnosis))
    yield "## Latency"
    yield table(
        ("metric", "p50", "p95", "p99", "n", "what"),
        (
            (
                label,
                formats.ms(p.p50),
                formats.ms(p.p95),
                formats.ms(p.p99),
                formats.count(p.n),
                f"{meaning} ({p.kind})" if p.kind else meaning,
            )
            for name, (label, meaning) in texts.METRICS.items()
            if (p := diagnosis.percentiles.get(name)) is not None and p.n
        ),
        right=("p50", "p95", "p99", "n"),
    )
    if notes := list(side_notes.percentile_notes(diagnosis)):
        yield "\n".join(f"- {cell(note)}" for note in notes)
    if diagnosis.phases:
        yield "## Where the time went"
        yield table(
            ("phase", "total", "share", "p50", "p95"),
            (
                (
                    texts.phase_label(p.phase),
                    formats.seconds(p.seconds),
                    formats.percent(p.share),
                    formats.ms(p.p50_ms),
                    formats.ms(p.p95_ms),
                )
                for p in diagnosis.phases
            ),
            right=("total", "share", "p50", "p95"),
        )
        if notes := list(side_notes.phase_notes(diagnosis)):
            yield "\n".join(f"- {cell(note)}" for note in notes)
    yield "## Findings"
    if not diagnosis.findings:
        yield no_findings(diagnosis)
    shown, folded = fold(diagnosis.findings, every=every)
    for number, finding in enumerate(shown, start=1):
        yield _finding(number, finding, diagnosis)
    if folded:
        yield f"{folded_line(folded)}: `--all` lists them, `--json` always does"
    if notes := list(side_notes.over_limit_notes(diagnosis)):
        yield "\n".join(f"- {cell(note)}" for note in notes)
    if fleet := fleet_text.rows(diagnosis):
        yield f"## {fleet_text.HEADING}"
        yield table(fleet_text.COLUMNS, fleet, right=fleet_text.RIGHT)
        yield "\n".join(f"- {cell(note)}" for note in fleet_text.notes(diagnosis))
    if diagnosis.missing_evidence:
        yield "## Missing evidence"
        yield table(
            ("field", "why it matters", "how to record it"),
            ((m.field, m.why, m.how) for m in diagnosis.missing_evidence),
        )
    if cost_model is not None:
        yield "## What was expected"
        for one in cost_model_text.cells(cost_model.to_dicts()):
            yield f"### {cell(one.title)}"
            yield table(cost_model_text.COLUMNS, one.rows)
            if one.up_to:
                yield f"fitted up to: {cell('; '.join(one.up_to))}"
            if one.unfitted:
                yield f"not fitted: {cell(', '.join(one.unfitted))}"
        yield "\n".join(f"- {cell(note)}" for note in cost_model_text.NOTES)


def _finding(number: int, finding: Finding, diagnosis: Diagnosis) -> str:
    lines = [f"### {number}. {cell(finding.sentence)}", ""]
    lines.extend(f"- {cell(line)}" for line in finding_lines(finding, diagnosis))
    if finding.action:
        lines.append(f"- **try**: {cell(finding.action)}")
    return "\n".join(lines)
