"""The parts of page Diagnosis, from the sentence down.

Owns how a `Diagnosis` looks here; every number and sentence in it is the analysis'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

import polars as pl
import streamlit as st

from tracekit.analysis import views
from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.diagnosis import Diagnosis, Finding, Misses
from tracekit.analysis.session import Session
from tracekit.analysis.slo import GIVEN
from tracekit.analysis.ten_minute import ten_minute_table
from tracekit.analysis.views import MIN_P95_ROWS, MIN_ROWS, Overview
from tracekit.analysis.wording import format_confidence
from tracekit.report import formats
from tracekit.report import texts as words
from tracekit.report.diagnosis_text import fold, lost, no_findings
from tracekit.report.side_notes import percentile_notes, phase_notes
from tracekit_dashboards import charts, shell, sidebar, tables, texts
from tracekit_dashboards.hub import Attribution, Reader
from tracekit_dashboards.markup import confidence_colour, phase_chip, plain
from tracekit_dashboards.view import link

#: Findings shown whole; the others are a click away.
_CARDS: Final = 3
#: Up to this many requests the latency chart draws each of them.
_DOTS_MAX: Final = 1_500


def diagnosis(reader: Reader) -> Diagnosis:
    """The diagnosis of the view."""
    slo = reader.view.slo
    with st.spinner(texts.LOADING, show_time=True):
        return reader.frame(
            "diagnosis", lambda session: diagnose(session, slo), attribution=Attribution.DEFINES
        )


def headline(found: Diagnosis) -> None:
    """The one sentence, and what was looked at."""
    st.header(plain(found.sentence), anchor=False)
    first, last = found.window.first_unix_ns, found.window.last_unix_ns
    span = "" if first is None else f" · {formats.time(first)} to {formats.time(last)}"
    st.caption(plain(f"{found.window.text}{span}"))


def _judged(misses: Misses) -> str:
    if misses.judged == misses.violations:
        return ""
    return " " + texts.JUDGED.format(
        judged=formats.count(misses.judged), violations=formats.count(misses.violations)
    )


def counts(found: Diagnosis) -> None:
    """How many requests, how many slow, what is known of them."""
    requests, misses, goodput = found.requests, found.misses, found.goodput
    failed = list(_not_completed(found))
    with st.container(horizontal=True):
        st.metric(
            texts.COMPLETED,
            formats.count(requests.completed),
            help=texts.COMPLETED_HELP,
            delta=texts.COMPLETED_NOTE.format(total=formats.count(requests.total)),
            delta_color="off",
            delta_arrow="off",
        )
        by_metric = ", ".join(
            f"{words.slo_label(metric)} {formats.count(n)}"
            for metric, n in misses.by_metric.items()
        )
        given = found.slo.source == GIVEN
        st.metric(
            texts.MISSES if given else texts.MISSES_NO_SLO,
            formats.count(misses.total),
            help=texts.MISSES_HELP.format(by_metric=by_metric or texts.NO_ENTRY) + _judged(misses),
            delta=(
                texts.MISSES_SLO.format(share=formats.percent(misses.total / requests.ended))
                if given and requests.ended
                else None
                if given
                else texts.MISSES_SLOWEST
            ),
            delta_color="off",
            delta_arrow="off",
        )
        if goodput is not None:
            st.metric(
                texts.GOODPUT,
                formats.percent(goodput.share),
                help=texts.GOODPUT_HELP,
                delta=texts.GOODPUT_RATE.format(rate=formats.number(goodput.requests_per_s, 2)),
                delta_color="off",
                delta_arrow="off",
            )
        st.metric(
            texts.COVERAGE,
            formats.percent(found.coverage),
            help=texts.COVERAGE_HELP,
            delta=texts.COVERAGE_NOTE,
            delta_color="off",
            delta_arrow="off",
        )
        st.metric(
            texts.FAILED,
            formats.count(requests.total - requests.completed),
            help=texts.FAILED_HELP,
            delta=", ".join(failed) or texts.FAILED_NONE,
            delta_color="off",
            delta_arrow="off",
        )


def _not_completed(found: Diagnosis) -> Iterator[str]:
    for name, label in texts.STATUS_PARTS.items():
        if n := getattr(found.requests, name):
            yield f"{formats.count(n)} {label}"
    for reason, n in found.requests.quarantined.items():
        yield f"{formats.count(n)} {texts.QUARANTINED.format(reason=reason)}"


def findings(found: Diagnosis) -> None:
    """One card a finding, the headline first."""
    st.subheader(texts.FINDINGS, anchor=False)
    if not found.findings:
        few = found.requests.completed < MIN_ROWS
        st.info(texts.FINDINGS_FEW.format(n=MIN_ROWS) if few else plain(no_findings(found)))
    slow = words.slow(found.slo.source == GIVEN)
    shown, minor = fold(found.findings)
    for finding in shown[:_CARDS]:
        with st.container(border=True):
            _card(finding, slow)
    if rest := shown[_CARDS:]:
        with st.expander(texts.FINDINGS_MORE.format(n=formats.count(len(rest)))):
            _cards(rest, slow)
    if minor:
        with st.expander(texts.FINDINGS_MINOR.format(n=formats.count(len(minor)))):
            st.caption(plain(texts.FINDINGS_MINOR_NOTE.format(lost=lost(minor))))
            _cards(minor, slow)


def _cards(findings: Sequence[Finding], slow: str) -> None:
    for number, finding in enumerate(findings):
        if number:
            st.divider()
        _card(finding, slow, nested=True)


def _card(finding: Finding, slow: str, *, nested: bool = False) -> None:
    phase = words.phase_label(finding.phase)
    st.markdown(f"**{plain(finding.sentence)}**")
    with st.container(horizontal=True, gap="small"):
        st.html(phase_chip(finding.phase), width="content")
        st.badge(words.cause_label(finding.cause), color="gray")
        st.badge(
            texts.FINDING_CONFIDENCE.format(
                label=finding.confidence_label, value=format_confidence(finding.confidence)
            ),
            color=confidence_colour(finding.confidence_label),
        )
        st.badge(texts.FINDING_N.format(n=formats.count(finding.n)), color="gray")
    share = texts.FINDING_SHARE.format(
        share=formats.percent(finding.share_of_misses),
        slow=slow,
        metric=words.slo_label(finding.metric),
    )
    facts = [share]
    if finding.placebo_share:
        facts.append(texts.FINDING_PLACEBO.format(share=formats.percent(finding.placebo_share)))
    more = texts.FINDING_NO_EXCESS if finding.excess_ms < 0 else texts.FINDING_EXCESS
    facts.append(
        more.format(
            phase=phase,
            excess=formats.ms(finding.excess_ms),
            expected=formats.ms(finding.expected_ms),
        )
    )
    if finding.workers:
        facts.append(texts.FINDING_WORKERS.format(workers=", ".join(finding.workers)))
    st.caption(plain("; ".join(facts)))
    st.markdown(f":material/build: **{texts.FINDING_ACTION}:** {plain(finding.action)}")
    if finding.evidence or finding.culprits:
        with st.container() if nested else st.expander(texts.FINDING_EVIDENCE):
            st.markdown("\n".join(f"- {plain(line)}" for line in finding.evidence))
            _culprits(finding)
    st.page_link(
        shell.page_of(texts.REQUESTS),
        label=texts.FINDING_OPEN,
        icon=":material/arrow_forward:",
        query_params=link(
            sidebar.shared(), phase=finding.phase, cause=finding.cause, metric=finding.metric
        ),
    )


def _culprits(finding: Finding) -> None:
    if not finding.culprits:
        return
    st.markdown(f"**{texts.FINDING_CULPRITS}**")
    for culprit in finding.culprits:
        st.page_link(
            shell.page_of(texts.REQUESTS),
            label=f"{plain(culprit.request_id)}\\: "
            + texts.CULPRIT.format(
                size=f"{formats.plural(culprit.input_tokens, 'prompt token')}, "
                if culprit.input_tokens
                else "",
                victims=formats.plural(culprit.victims, "request"),
                stall=formats.ms(culprit.stall_ms),
            ),
            query_params=link(sidebar.shared(), request=culprit.request_id),
        )


def last_requests(reader: Reader, found: Diagnosis) -> None:
    """Where requests are too few for findings: the ten-minute table and its sentence."""
    if found.requests.completed >= MIN_ROWS:
        return
    table = reader.frame("ten_minutes", ten_minute_table)
    st.subheader(texts.LAST_REQUESTS, anchor=False)
    st.markdown(plain(table.sentence))
    marks = {
        "long_ttft": texts.LONG_TTFT,
        "low_tokens_per_s": texts.LOW_TOKENS_PER_S,
        "low_only_by_ttft": texts.LOW_ONLY_BY_TTFT,
    }
    rows = [asdict(row) for row in table.rows]
    for row in rows:
        row["marks"] = ", ".join(words_ for name, words_ in marks.items() if row[name])
    if rows:
        order = ("request", "marks", "input_tokens", "output_tokens", "ttft_ms", "total_ms")
        tables.show(
            pl.DataFrame(rows, infer_schema_length=None),
            "last-requests",
            labels=texts.COLUMNS,
            order=(*order, "tokens_per_s", "note"),
        )
    st.caption(plain("; ".join((*table.rules, *(effect.text for effect in table.findings)))))


def percentiles(found: Diagnosis) -> None:
    """p50, p95, p99 of every metric with their n."""
    st.subheader(texts.PERCENTILES, anchor=False)
    rows = [
        {
            "metric": words.METRICS[name][0] if name in words.METRICS else name,
            "p50_ms": p.p50,
            "p95_ms": p.p95,
            "p99_ms": p.p99,
            "n": p.n,
            "kind": p.kind,
            "definition": words.METRICS[name][1] if name in words.METRICS else "",
        }
        for name, p in found.percentiles.items()
        if p.n
    ]
    numbers = {"p50_ms": pl.Float64, "p95_ms": pl.Float64, "p99_ms": pl.Float64, "n": pl.Int64}
    schema = {"metric": pl.String, **numbers, "kind": pl.String, "definition": pl.String}
    labels = {"metric": texts.METRIC, "n": texts.N_REQUESTS} | {
        name: texts.UNIT_MS.format(what=name.removesuffix("_ms")) for name in numbers if name != "n"
    }
    tables.show(
        pl.DataFrame(rows, schema=schema),
        "percentiles",
        labels=labels,
        order=("metric", *numbers),
    )
    meanings = " ".join(
        f"{row['metric']}: {row['definition']}{f' ({kind})' if (kind := row['kind']) else ''}."
        for row in rows
    )
    left_out = "".join(f" {_sentence(note)}" for note in percentile_notes(found))
    st.caption(plain(f"{texts.PERCENTILES_NOTE}{left_out} {meanings}"))


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}."


def phase_totals(found: Diagnosis) -> None:
    """The share of each phase in all time."""
    if not found.phases:
        return
    st.subheader(texts.PHASE_TOTALS, anchor=False)
    frame = pl.DataFrame(
        [
            {
                "phase": p.phase,
                "share": p.share,
                "seconds": p.seconds,
                "p50_ms": p.p50_ms,
                "p95_ms": p.p95_ms,
            }
            for p in found.phases
            if p.seconds > 0
        ],
        schema={
            "phase": pl.String,
            "share": pl.Float64,
            "seconds": pl.Float64,
            "p50_ms": pl.Float64,
            "p95_ms": pl.Float64,
        },
    )
    st.altair_chart(charts.phase_totals(frame), width="stretch")
    saved = "".join(f" {_sentence(note)}" for note in phase_notes(found))
    st.caption(plain(f"{texts.PHASE_TOTALS_NOTE}{saved}"))
    tables.csv_button(frame, "phase-totals")


def over_time(reader: Reader, overview: Overview) -> None:
    """Stacked phases by start, with the requests of each bin."""
    st.subheader(texts.OVER_TIME, anchor=False)
    if overview.timed:
        bins = views.bins_for(overview)

        def compute(session: Session) -> pl.DataFrame:
            return views.phases_over_time(session, overview, bins=bins)

        frame = reader.frame(("over_time", overview), compute)
        st.altair_chart(charts.phases_over_time(frame, few=MIN_ROWS), width="stretch")
        width = formats.seconds(views.bin_width_ns(overview, bins=bins) / 1e9)
        few = texts.OVER_TIME_FEW.format(n=MIN_ROWS) if (frame["n"] < MIN_ROWS).any() else ""
        st.caption(texts.OVER_TIME_NOTE.format(width=width) + few)
        tables.csv_button(frame, "phases-over-time")
    if overview.timed < overview.counted:
        st.info(
            texts.NO_CLOCK.format(
                requests=formats.plural(overview.counted - overview.timed, "request")
            )
        )


def latency(reader: Reader, overview: Overview) -> None:
    """One metric by start, against the SLO."""
    if not overview.timed:
        return
    st.subheader(texts.LATENCY, anchor=False)
    metric = st.segmented_control(
        texts.LATENCY_METRIC,
        views.METRICS,
        default=views.METRICS[0],
        required=True,
        format_func=lambda m: words.METRICS[m][0],
        key="metric",
        bind="query-params",
        label_visibility="collapsed",
    )
    assert metric is not None
    label = words.METRICS[metric][0]
    limit_ms = reader.view.slo.limit_ms(metric.removesuffix("_ms"))

    def dots(session: Session) -> pl.DataFrame | None:
        return views.latency_dots(session, metric, limit=_DOTS_MAX)

    def lines(session: Session) -> pl.DataFrame:
        bins = views.bins_for(overview, rows=MIN_P95_ROWS)
        return views.latency_over_time(session, overview, metric, bins=bins)

    points = reader.frame(("dots", metric), dots)
    frame = reader.frame(("lines", metric, overview), lines) if points is None else points
    chart = charts.latency_over_time(frame, points, metric=label, limit_ms=limit_ms)
    st.altair_chart(chart, width="stretch")
    note = texts.LATENCY_LINES.format(n=MIN_P95_ROWS) if points is None else texts.LATENCY_DOTS
    st.caption(" ".join((note, *([texts.LATENCY_LIMIT] if limit_ms is not None else []))))
    tables.csv_button(frame, "latency-over-time")


def missing(found: Diagnosis) -> None:
    """What would have said more, and how to record it."""
    st.subheader(texts.MISSING, anchor=False)
    if not found.missing_evidence:
        st.caption(texts.MISSING_NONE)
    for item in found.missing_evidence:
        st.markdown(
            f"**{plain(item.field)}** {plain(item.why)}  \n"
            f":material/arrow_forward: {plain(item.how)}"
        )
