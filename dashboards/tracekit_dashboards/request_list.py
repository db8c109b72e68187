"""The list of page Requests: filters, rows, and choosing one.

Owns the filters' query parameters. Which rows pass is `views.request_list`'s to say.
"""

from __future__ import annotations

import hashlib
from typing import Final

import polars as pl
import streamlit as st

from tracekit.analysis import views
from tracekit.analysis.session import Session
from tracekit.analysis.views import RequestFilter
from tracekit.errors import UsageError
from tracekit.names import CAUSES, PHASES, SLO_METRICS, STATUSES
from tracekit.report.formats import count, plural
from tracekit.report.texts import cause_label, phase_label, slo_label
from tracekit_dashboards import tables, texts
from tracekit_dashboards.hub import Attribution, Reader
from tracekit_dashboards.view import REQUEST

ROWS_MAX: Final = 500

#: Query parameters of a verdict.
_VERDICT: Final = ("phase", "cause", "metric")
_ORDER: Final = "order"
_ORDER_WIDGET: Final = "_order"
_TABLE_PX: Final = 320
_SHOWN: Final = (
    *("start", "request_id", "status", "ttft_ms", "tpot_ms", "e2e_ms"),
    *("input_tokens", "cached_tokens", "output_tokens"),
    *(f"{phase}_ms" for phase in PHASES),
    *("max_gap_ms", "coverage", "model", "route", "worker", "quarantine_reason", "note"),
)
#: Columns that always have a place; others only where any row has a value.
_ALWAYS: Final = ("start", "request_id", "status", "input_tokens", "output_tokens", "ttft_ms")


def show(reader: Reader) -> None:
    """Filters and the rows that pass."""
    chosen = _filters(reader)

    def compute(session: Session) -> tuple[int, pl.DataFrame]:
        return (
            views.count_requests(session, chosen),
            views.request_list(session, chosen, limit=ROWS_MAX),
        )

    attribution = Attribution.NEEDED if chosen.needs_attribution else Attribution.UNUSED
    with st.spinner(texts.LOADING, show_time=True):
        total, frame = reader.frame(("list", chosen), compute, attribution=attribution)
    if not total:
        st.info(texts.LIST_EMPTY)
        return
    if total > frame.height:
        st.caption(
            texts.LIST_CUT.format(shown=count(frame.height), requests=plural(total, "request"))
        )
    else:
        st.caption(
            f"{texts.LIST_COUNT.format(requests=plural(total, 'request'))}. {texts.LIST_HINT}"
        )
    _table(frame)


def _filters(reader: Reader) -> RequestFilter:
    facets = reader.frame("list_facets", views.list_facets)
    workers = facets.filter(pl.col("facet") == "worker")["value"].to_list()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        search = st.text_input(
            texts.SEARCH, placeholder=texts.SEARCH_HINT, key="search", bind="query-params"
        )
        order = _order()
        status = st.selectbox(
            texts.STATUS,
            STATUSES,
            index=None,
            placeholder=texts.STATUS_ALL,
            key="status",
            bind="query-params",
        )
        worker = st.selectbox(
            texts.WORKER,
            workers,
            index=None,
            placeholder=texts.WORKER_ALL,
            accept_new_options=True,
            key="worker",
            bind="query-params",
        )
        slow = st.toggle(texts.SLOW_ONLY, help=texts.SLOW_HELP, key="slow", bind="query-params")
    phase, cause, metric = _verdict_filter()
    return RequestFilter(
        order=order,
        status=status,
        worker=worker,
        search=search.strip() or None,
        slow=slow,
        phase=phase,
        cause=cause,
        metric=metric,
    )


def _order() -> str:
    """The chosen order. Bound by hand: Streamlit would put the words shown into the URL."""
    orders = list(views.ORDERS)
    if _ORDER_WIDGET not in st.session_state and (asked := st.query_params.get(_ORDER)) in orders:
        st.session_state[_ORDER_WIDGET] = asked
    order = st.selectbox(
        texts.ORDER, orders, format_func=texts.ORDERS.__getitem__, key=_ORDER_WIDGET
    )
    if order == orders[0]:
        st.query_params.pop(_ORDER, None)
    elif st.query_params.get(_ORDER) != order:
        st.query_params[_ORDER] = order
    return order


def _verdict_filter() -> tuple[str | None, str | None, str | None]:
    """Phase, cause and metric of a verdict, as a finding's link asks; a button takes them back."""
    phase, cause, metric = (st.query_params.get(name) for name in _VERDICT)
    if phase is None and cause is None and metric is None:
        return None, None, None
    if metric is not None and metric not in SLO_METRICS:
        raise UsageError(f"no metric {metric!r}; there are {', '.join(SLO_METRICS)}")
    if phase is not None and phase not in PHASES:
        raise UsageError(f"no phase {phase!r}; there are {', '.join(PHASES)}")
    if cause is not None and cause not in CAUSES:
        raise UsageError(f"no cause {cause!r}; there are {', '.join(CAUSES)}")
    named = [phase_label(phase)] if phase else []
    named += [cause_label(cause)] if cause else []
    named += [slo_label(metric)] if metric else []
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(texts.VERDICT_FILTER.format(what=", ".join(named)), icon=":material/filter_alt:")
        st.button(texts.CLEAR_FILTER, type="tertiary", on_click=_clear_verdict_filter)
    return phase, cause, metric


def _clear_verdict_filter() -> None:
    for name in _VERDICT:
        if name in st.query_params:
            del st.query_params[name]


def _table(frame: pl.DataFrame) -> None:
    keys = frame["request_key"].to_list()
    # another list is another table: a selected row must not move to another request
    table = "requests-" + hashlib.sha256("".join(keys).encode()).hexdigest()[:16]
    wanted = st.query_params.get(REQUEST)
    row = keys.index(wanted) if wanted in keys else None
    present = [
        name for name in _SHOWN if name in _ALWAYS or frame[name].null_count() < frame.height
    ]
    st.dataframe(
        frame,
        hide_index=True,
        height=_TABLE_PX,
        column_order=present,
        column_config=tables.columns(frame, texts.COLUMNS),
        key=table,
        placeholder=texts.NO_ENTRY,
        selection_mode="single-row",
        selection_default=None if row is None else {"selection": {"rows": [row]}},
        on_select=lambda: _choose(table, keys),
    )
    tables.csv_button(frame, "requests")


def _choose(table: str, keys: list[str]) -> None:
    rows = st.session_state[table]["selection"]["rows"]
    if rows:
        st.query_params[REQUEST] = keys[rows[0]]
    elif REQUEST in st.query_params:
        del st.query_params[REQUEST]
