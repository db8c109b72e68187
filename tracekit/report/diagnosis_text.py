"""The diagnosis in the terminal: the sentence first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tracekit.analysis.rules import Rules
from tracekit.analysis.sentence import abstained
from tracekit.analysis.slo import GIVEN
from tracekit.names import PHASE_COLOURS
from tracekit.report import fleet_text, formats, side_notes, texts
from tracekit.report.console import make_table

if TYPE_CHECKING:
    from tracekit.analysis.diagnosis import Diagnosis, Finding, MissingEvidence, PhaseTotal

_BAR_CELLS: Final = 24
#: Findings shown with their evidence; the others are one sentence each.
_DETAILED: Final = 3


def render(diagnosis: Diagnosis, *, width: int = 80, every: bool = False) -> Group:
    """The whole diagnosis; on consoles under 100 characters the phase bars are left out.

    ``every``: with the minor findings, which are one line otherwise.
    """
    return Group(*_blocks(diagnosis, width, every))


def _blocks(diagnosis: Diagnosis, width: int, every: bool) -> Iterator[RenderableType]:
    yield Text(diagnosis.sentence, style="bold")
    yield Text()
    for label, value in facts(diagnosis):
        yield Text.assemble((f"{label:<10}", "dim"), value)
    yield Text()
    yield _percentiles(diagnosis)
    for note in side_notes.percentile_notes(diagnosis):
        yield Text(note, style="dim")
    if diagnosis.phases:
        yield Text()
        yield _phases(diagnosis.phases, bars=width >= 100)
        for note in side_notes.phase_notes(diagnosis):
            yield Text(note, style="dim")
    yield Text()
    if not diagnosis.findings:
        yield Text(no_findings(diagnosis))
    shown, folded = fold(diagnosis.findings, every=every)
    for number, finding in enumerate(shown[:_DETAILED], start=1):
        yield from _finding(number, finding, diagnosis)
    if len(shown) > _DETAILED:
        for number, finding in enumerate(shown[_DETAILED:], start=_DETAILED + 1):
            yield Text(f"{number}. {finding.sentence}")
        yield Text("their evidence: --format md or --json", style="dim")
    if folded:
        yield Text(f"{folded_line(folded)}: --all lists them, --json always does")
    if folded or len(shown) > _DETAILED:
        yield Text()
    for note in side_notes.over_limit_notes(diagnosis):
        yield Text(note)
    if diagnosis.unexplained_share and _is_judged(diagnosis):
        share, given = formats.percent(diagnosis.unexplained_share), diagnosis.slo.source == GIVEN
        yield Text(texts.UNEXPLAINED.format(share=share, slow=texts.slow(given)), style="dim")
    yield from _fleet(diagnosis)
    yield from _missing(diagnosis.missing_evidence)


def fold(
    findings: Sequence[Finding], *, every: bool = False
) -> tuple[list[Finding], list[Finding]]:
    """The findings to print, and the minor ones that one line stands for."""
    shown = [f for f in findings if every or not f.minor]
    return shown, [f for f in findings if not every and f.minor]


def lost(findings: Sequence[Finding]) -> str:
    """The time that findings lost, by metric: TTFT's is in E2E again, so there is no sum."""
    by_metric: dict[str, float] = {}
    for finding in findings:
        by_metric[finding.metric] = by_metric.get(finding.metric, 0.0) + finding.lost_s
    return ", ".join(
        f"{texts.slo_label(metric)} {formats.seconds(seconds)}"
        for metric, seconds in by_metric.items()
    )


def folded_line(folded: Sequence[Finding]) -> str:
    """The minor findings in one line."""
    ones = formats.plural(len(folded), "smaller one")
    said = "1 or 2 requests each, or under 2 % of the time lost"
    return f"and {ones} ({said}; in all {lost(folded)})"


def no_findings(diagnosis: Diagnosis) -> str:
    """Why there is no finding."""
    if not _is_judged(diagnosis):
        completed = diagnosis.requests.completed
        return texts.nothing_judged(completed, Rules().min_rows)
    if not diagnosis.misses.total:
        return texts.NOTHING_SLOW
    return texts.NO_FINDINGS.format(
        slow=texts.slow(diagnosis.slo.source == GIVEN),
        reasons="; ".join(
            f"{n:,} {abstained(reason, n)}" for reason, n in diagnosis.unexplained_reasons.items()
        ),
    )


def _is_judged(diagnosis: Diagnosis) -> bool:
    """Whether there are requests enough, or none over given limits."""
    if diagnosis.slo.source == GIVEN and not diagnosis.misses.total:
        return True
    return diagnosis.requests.completed >= Rules().min_rows


def facts(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """The lines above the tables, as (label, text): window, requests, limits, slow, coverage."""
    window = diagnosis.window
    span = ""
    if window.first_unix_ns is not None and window.last_unix_ns is not None:
        span = f" ({formats.time(window.first_unix_ns)} to {formats.time(window.last_unix_ns)})"
    yield "window", f"{window.text}{span}"
    yield "requests", _requests(diagnosis)
    given = diagnosis.slo.source == GIVEN
    yield ("SLO" if given else "slow is"), _limits(diagnosis)
    misses = diagnosis.misses
    by_metric = ", ".join(f"{texts.slo_label(m)} {n:,}" for m, n in misses.by_metric.items() if n)
    yield (
        "miss it" if given else "slow",
        formats.plural(misses.total, "request") + (f" ({by_metric})" if by_metric else ""),
    )
    if misses.judged < misses.violations:
        yield (
            "judged",
            texts.JUDGED.format(
                judged=misses.judged, violations=misses.violations, slow=texts.slow(given)
            ),
        )
    if diagnosis.goodput is not None:
        goodput = diagnosis.goodput
        rate = (
            ""
            if goodput.requests_per_s is None
            else f", {formats.number(goodput.requests_per_s, 2)} requests/s"
        )
        yield (
            "goodput",
            f"{formats.percent(goodput.share)} of {formats.count(goodput.n)} requests met the "
            f"SLO{rate}",
        )
    if diagnosis.coverage is not None:
        yield "coverage", f"{formats.percent(diagnosis.coverage)} of the time is explained"


def _requests(diagnosis: Diagnosis) -> str:
    counts = diagnosis.requests
    parts = [f"{counts.total:,}: {counts.completed:,} completed"]
    parts.extend(
        f"{n:,} {word}"
        for word, n in (
            ("aborted", counts.aborted),
            ("failed", counts.errored),
            ("timed out", counts.timeout),
            ("open", counts.open),
            ("superseded by a later attempt", counts.superseded),
        )
        if n
    )
    parts.extend(f"{n:,} quarantined ({reason})" for reason, n in counts.quarantined.items())
    if counts.without_clock:
        parts.append(f"{counts.without_clock:,} without a start time, in every window")
    return ", ".join(parts)


def _limits(diagnosis: Diagnosis) -> str:
    slo = diagnosis.slo
    given = [
        f"{texts.slo_label(metric)} {'at most' if slo.source == GIVEN else 'over'} "
        f"{formats.ms(limit)}"
        for metric, limit in (("ttft", slo.ttft_ms), ("tpot", slo.tpot_ms), ("e2e", slo.e2e_ms))
        if limit is not None
    ]
    if slo.source == GIVEN:
        return ", ".join(given)
    return texts.SLOWEST + (f" ({', '.join(given)})" if given else "")


def _percentiles(diagnosis: Diagnosis) -> RenderableType:
    table = make_table("", "p50", "p95", "p99", "n", "what", right=("p50", "p95", "p99", "n"))
    for name, (label, meaning) in texts.METRICS.items():
        p = diagnosis.percentiles.get(name)
        if p is None or not p.n:
            continue
        if p.kind:
            meaning += f" [{p.kind}]"
        table.add_row(
            label,
            formats.ms(p.p50),
            formats.ms(p.p95),
            formats.ms(p.p99),
            formats.count(p.n),
            Text(meaning, style="dim"),
        )
    return table


def _phases(phases: tuple[PhaseTotal, ...], *, bars: bool) -> RenderableType:
    names = ["phase", "total", "share", "p50", "p95", *([""] if bars else [])]
    table = make_table(*names, right=("total", "share", "p50", "p95"))
    for phase in phases:
        colour = PHASE_COLOURS.get(phase.phase, "")
        letter = texts.PHASE_LETTERS.get(phase.phase, "?")
        cells: list[RenderableType] = [
            Text.assemble((letter, colour), f" {texts.phase_label(phase.phase)}"),
            formats.seconds(phase.seconds),
            formats.percent(phase.share),
            formats.ms(phase.p50_ms),
            formats.ms(phase.p95_ms),
        ]
        if bars:
            cells.append(Text(letter * round(phase.share * _BAR_CELLS), style=colour))
        table.add_row(*cells)
    return table


def _finding(number: int, finding: Finding, diagnosis: Diagnosis) -> Iterator[RenderableType]:
    yield Text.assemble((f"{number}. ", "bold"), (finding.sentence, "bold"))
    for line in finding_lines(finding, diagnosis):
        yield Padding(Text(f"- {line}"), (0, 0, 0, 3), expand=False)
    if finding.action:
        yield Padding(
            Text.assemble(("try: ", "bold green"), finding.action), (0, 0, 0, 3), expand=False
        )
    yield Text()


def finding_lines(finding: Finding, diagnosis: Diagnosis) -> list[str]:
    """What the finding's sentence does not say: its evidence, where, and what may be ordinary."""
    lines = list(finding.evidence)
    unnamed = [w for w in finding.workers if not any(w in line for line in lines)]
    if unnamed:
        also = "also " if len(unnamed) < len(finding.workers) else ""
        lines.append(f"{also}on {', '.join(unnamed)}")
    if (said := fleet_text.ordinary(diagnosis, finding)) is not None:
        lines.append(said)
    return lines


def _fleet(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    rows = fleet_text.rows(diagnosis)
    if not rows:
        return
    yield Text()
    yield Text(fleet_text.HEADING.lower(), style="bold")
    last = None if any(row[-1] for row in rows) else -1
    table = make_table(*fleet_text.COLUMNS[:last], right=fleet_text.RIGHT)
    for row in rows:
        table.add_row(*row[:last])
    yield table
    for note in fleet_text.notes(diagnosis):
        yield Text(note, style="dim")


def _missing(missing: tuple[MissingEvidence, ...]) -> Iterator[RenderableType]:
    if not missing:
        return
    yield Text()
    yield Text("missing evidence", style="bold")
    for item in missing:
        yield Text(f"- {item.field}: {item.why}")
        yield Padding(Text(item.how, style="dim"), (0, 0, 0, 2), expand=False)
