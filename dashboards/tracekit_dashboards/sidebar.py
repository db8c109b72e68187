"""The controls that every page shares: window, filters, objectives, pin.

Owns the widgets. Their values live in the URL: each widget is bound to its query parameter.
"""

from __future__ import annotations

import time
from typing import Final

import polars as pl
import streamlit as st

from tracekit.analysis import views
from tracekit.report.formats import time as format_time
from tracekit_dashboards import texts
from tracekit_dashboards.hub import Hub, Reader
from tracekit_dashboards.markup import plain
from tracekit_dashboards.view import (
    CARRIED,
    MODEL,
    PINNED,
    ROUTE,
    SLO,
    WINDOW,
    View,
    carried,
    parse_view,
)

_WINDOWS: Final = ("15m", "1h", "6h", "24h", "7d")
_ERRORS: Final = {WINDOW: texts.BAD_WINDOW, SLO: texts.BAD_SLO, PINNED: texts.BAD_PIN}
#: The pin outlives a change of page, which clears what no widget holds.
_PIN: Final = "_pin"
_ASKED: Final = "_asked"


def view(hub: Hub) -> View:
    """Draw the controls and give the view that they ask for."""
    _take_carried()
    pinned = _pinned()
    facets = Reader(hub, View(pinned_unix_ns=_number(pinned))).frame("facets", views.facets)
    window = st.selectbox(
        texts.WINDOW,
        _WINDOWS,
        index=None,
        placeholder=texts.WINDOW_ALL,
        help=texts.WINDOW_HELP,
        accept_new_options=True,
        key=WINDOW,
        bind="query-params",
    )
    model = _facet(facets, MODEL, texts.MODEL, texts.MODEL_ALL)
    route = _facet(facets, ROUTE, texts.ROUTE, texts.ROUTE_ALL)
    slo = st.text_input(
        texts.SLO,
        help=texts.SLO_HELP,
        placeholder=texts.SLO_HINT,
        key=SLO,
        bind="query-params",
    )
    given = {WINDOW: window, MODEL: model, ROUTE: route, SLO: slo, PINNED: pinned}
    asked = {name: value for name, value in given.items() if value}
    st.session_state[_ASKED] = asked
    parsed = parse_view(asked, now_unix_ns=time.time_ns())
    for name, error in parsed.errors.items():
        st.warning(plain(_ERRORS[name].format(error=error)))
    _pin_button(parsed.view)
    return parsed.view


def shared() -> dict[str, str]:
    """The shared parameters of this view, for links to other pages."""
    return dict(st.session_state[_ASKED])


def _facet(facets: pl.DataFrame, name: str, label: str, everything: str) -> str | None:
    values = facets.filter(pl.col("facet") == name)["value"].to_list()
    return st.selectbox(
        label,
        values,
        index=None,
        placeholder=everything,
        accept_new_options=True,
        key=name,
        bind="query-params",
    )


def _take_carried() -> None:
    """Put what a link carried into the widgets, before they are drawn."""
    text = st.query_params.pop(CARRIED, None)
    if text is not None:
        for name, value in carried(text).items():
            st.session_state[name] = value


def _pinned() -> str | None:
    in_url = st.query_params.get(PINNED)
    if in_url is not None:
        st.session_state[_PIN] = in_url
    elif st.session_state.get(_PIN):
        st.query_params[PINNED] = st.session_state[_PIN]
    pin: str | None = st.session_state.get(_PIN)
    return pin


def _number(pinned: str | None) -> int | None:
    return parse_view({PINNED: pinned or ""}, now_unix_ns=0).view.pinned_unix_ns


def _pin_button(view: View) -> None:
    if st.session_state.get(_PIN):
        if view.pinned_unix_ns is not None:
            st.caption(texts.PINNED.format(time=format_time(view.pinned_unix_ns)))
        st.button(texts.UNPIN, icon=":material/play_arrow:", on_click=_unpin, width="stretch")
    else:
        st.button(
            texts.PIN,
            icon=":material/push_pin:",
            help=texts.PIN_HELP,
            on_click=_pin,
            width="stretch",
        )


def _pin() -> None:
    st.session_state[_PIN] = st.query_params[PINNED] = str(time.time_ns())


def _unpin() -> None:
    del st.session_state[_PIN]
    if PINNED in st.query_params:
        del st.query_params[PINNED]
