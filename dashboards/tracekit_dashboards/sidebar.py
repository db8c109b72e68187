"""The controls that every page shares: window, filters, objectives, pin.

Owns the widgets and keeps each in step with its query parameter. Streamlit can bind a widget to a
parameter, but then links that carry the view would hold it twice, and a change of page clears what
is not bound: so what the address says is taken over, and what it does not say is written there.
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
from tracekit_dashboards.view import MODEL, PINNED, ROUTE, SHARED, SLO, WINDOW, View, parse_view

_WINDOWS: Final = ("15m", "1h", "6h", "24h", "7d")
_ERRORS: Final = {WINDOW: texts.BAD_WINDOW, SLO: texts.BAD_SLO, PINNED: texts.BAD_PIN}


def view(hub: Hub) -> View:
    """Draw the controls and give the view that they ask for."""
    for name in SHARED:
        _meet_address(name)
    parsed = parse_view(shared(), now_unix_ns=time.time_ns())
    pinned = View(pinned_unix_ns=parsed.view.pinned_unix_ns)
    facets = Reader(hub, pinned).frame("facets", views.facets)
    _choice(WINDOW, _WINDOWS, texts.WINDOW, texts.WINDOW_ALL, texts.WINDOW_HELP)
    _choice(MODEL, _values(facets, MODEL), texts.MODEL, texts.MODEL_ALL)
    _choice(ROUTE, _values(facets, ROUTE), texts.ROUTE, texts.ROUTE_ALL)
    st.text_input(
        texts.SLO,
        help=texts.SLO_HELP,
        placeholder=texts.SLO_HINT,
        key=SLO,
        on_change=_write_address,
        args=(SLO,),
    )
    for name, error in parsed.errors.items():
        st.warning(plain(_ERRORS[name].format(error=error)))
    _pin_button(parsed.view)
    return parsed.view


def shared() -> dict[str, str]:
    """The shared parameters of this view, for links to other pages."""
    return {name: value for name in SHARED if (value := st.session_state.get(name))}


def _choice(
    name: str, options: tuple[str, ...], label: str, everything: str, help_: str | None = None
) -> None:
    st.selectbox(
        label,
        options,
        index=None,
        placeholder=everything,
        help=help_,
        accept_new_options=True,
        key=name,
        on_change=_write_address,
        args=(name,),
    )


def _values(facets: pl.DataFrame, name: str) -> tuple[str, ...]:
    return tuple(facets.filter(pl.col("facet") == name)["value"])


def _meet_address(name: str) -> None:
    """Before the widget is drawn: the address wins where it says something."""
    asked = st.query_params.get(name)
    kept = st.session_state.get(name)
    if asked:
        if asked != kept:
            st.session_state[name] = asked
    elif kept:
        st.query_params[name] = kept


def _write_address(name: str) -> None:
    """After a change of the widget."""
    value = st.session_state.get(name)
    if value:
        st.query_params[name] = value
    else:
        st.query_params.pop(name, None)


def _pin_button(view: View) -> None:
    if not st.session_state.get(PINNED):
        st.button(
            texts.PIN,
            icon=":material/push_pin:",
            help=texts.PIN_HELP,
            on_click=_pin,
            args=(str(time.time_ns()),),
            width="stretch",
        )
        return
    if view.pinned_unix_ns is not None:
        st.caption(texts.PINNED.format(time=format_time(view.pinned_unix_ns)))
    st.button(
        texts.UNPIN, icon=":material/play_arrow:", on_click=_pin, args=(None,), width="stretch"
    )


def _pin(at: str | None) -> None:
    st.session_state[PINNED] = at
    _write_address(PINNED)
