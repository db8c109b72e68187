"""The parts of page Data health, from the facts of `tracekit.analysis.doctor`.

Owns how they look; the judgements are the doctor's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl
import streamlit as st

from tracekit.analysis import doctor, views
from tracekit.analysis.doctor import Health
from tracekit.report import formats
from tracekit_dashboards import charts, tables, texts
from tracekit_dashboards.hub import Reader
from tracekit_dashboards.markup import plain

_MINUTE_S = 60.0


def health(reader: Reader) -> Health:
    """The doctor's findings; told anew every minute, for they speak of ages."""
    with st.spinner(texts.LOADING, show_time=True):
        return reader.frame(("health", int(time.time() // _MINUTE_S)), doctor.health)


def headline(found: Health) -> None:
    """The one line: what is joined and explained, or the first problem."""
    joins = found.joins
    problem = next((r.text for r in found.remarks if r.level == "problem"), None)
    sentence = problem or texts.HEALTH_SENTENCE.format(
        joined=formats.count(joins["joined"]),
        requests=formats.plural(joins["requests"], "request"),
        covered=formats.percent(joins["covered_share"]),
    )
    st.header(plain(sentence), anchor=False)
    st.caption(plain(found.store))


def counts(found: Health) -> None:
    """Arrival, joins, coverage and what was set aside, as numbers."""
    joins = found.joins
    arrived = {row["table_name"]: row["total"] for row in found.arrivals}
    last = found.last_ingested_unix_ns
    age_s = None if last is None else (time.time_ns() - last) / 1e9
    with st.container(horizontal=True):
        _metric(texts.LAST_ARRIVAL, formats.age(age_s), texts.LAST_ARRIVAL_HELP, formats.time(last))
        _metric(texts.SPANS, formats.count(arrived["spans"]))
        _metric(texts.LOG_ROWS, formats.count(arrived["request_log"]))
        _metric(
            texts.JOINED,
            formats.percent(joins["joined"] / joins["requests"] if joins["requests"] else None),
            texts.JOINED_HELP,
            texts.JOINED_NOTE.format(
                joined=formats.count(joins["joined"]),
                requests=formats.plural(joins["requests"], "request"),
            ),
        )
        _metric(
            texts.COVERAGE,
            formats.percent(joins["covered_share"]),
            texts.COVERAGE_HELP,
            texts.COVERAGE_NOTE,
        )
        _metric(
            texts.SET_ASIDE,
            formats.count(sum(row["n"] for row in found.refused)),
            texts.SET_ASIDE_HELP,
        )


def _metric(label: str, value: str, help_: str | None = None, note: str | None = None) -> None:
    st.metric(
        label, value, help=help_, delta=note, delta_color="off", delta_arrow="off", width="content"
    )


def remarks(found: Health) -> None:
    """What the doctor says, problems first, each with what mends it."""
    st.subheader(texts.REMARKS, anchor=False)
    if not found.remarks:
        st.success(texts.HEALTH_FINE)
    for remark in found.remarks:
        colour = texts.LEVEL_COLOURS[remark.level]
        icon = texts.LEVEL_ICONS[remark.level]
        how = f"  \n{plain(remark.how)}" if remark.how else ""
        st.markdown(f":{colour}[{icon}] **{plain(remark.text)}**{how}")


def funnel(reader: Reader, found: Health) -> None:
    """From rows to requests."""
    st.subheader(texts.FUNNEL, anchor=False)
    steps = reader.frame("funnel", lambda session: views.funnel(session, found))
    frame = pl.DataFrame(
        [{"step": texts.FUNNEL_STEPS[name], "n": n} for name, n in steps.items()],
        schema={"step": pl.String, "n": pl.Int64},
    )
    st.altair_chart(charts.funnel(frame), width="stretch")
    st.caption(texts.FUNNEL_NOTE)
    tables.csv_button(frame, "funnel")


def services(found: Health) -> None:
    """From whom, understood how, last when."""
    if not found.services:
        return
    st.subheader(texts.SERVICES, anchor=False)
    frame = _frame(found.services).with_columns(
        pl.col("service_name").replace("", texts.SERVICE_NONAME),
        _utc("last_ingested_unix_ns").alias("last"),
    )
    shown = ("service_name", "spans", "legs", "requests", "instances", "sources", "engines")
    tables.show(
        frame,
        "services",
        labels=texts.HEALTH_COLUMNS,
        order=(*shown, "roles", "scopes", "last"),
    )
    st.caption(texts.SERVICES_NOTE)


def refused(found: Health) -> None:
    """What was set aside, by place and reason."""
    st.subheader(texts.REFUSED, anchor=False)
    if not found.refused:
        st.caption(texts.REFUSED_NONE)
        return
    frame = _frame(found.refused).with_columns(pl.col("place").replace(texts.REFUSED_PLACES))
    tables.show(frame, "set-aside", labels=texts.HEALTH_COLUMNS)


def arrivals(found: Health) -> None:
    """Every raw table: rows, rows of the last minute, last arrival."""
    st.subheader(texts.ARRIVALS, anchor=False)
    frame = _frame(found.arrivals).with_columns(_utc("last_ingested_unix_ns").alias("last"))
    tables.show(
        frame,
        "arrivals",
        labels=texts.HEALTH_COLUMNS,
        order=("table_name", "total", "last_minute", "last"),
    )


def coverage(reader: Reader) -> None:
    """How much of each request is explained."""
    frame = reader.frame("coverage", views.coverage_histogram)
    if not frame.height:
        return
    st.subheader(texts.COVERAGE_CHART, anchor=False)
    st.altair_chart(charts.coverage(frame), width="stretch")
    tables.csv_button(frame, "coverage")


def _frame(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([dict(row) for row in rows], infer_schema_length=None)


def _utc(column: str) -> pl.Expr:
    return pl.from_epoch(pl.col(column), time_unit="ns").dt.replace_time_zone("UTC")
