"""What a page shows when there is nothing to show: an empty store, or an empty view.

Owns these two states. Errors are the shell's.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import streamlit as st

from tracekit.analysis import views
from tracekit.analysis.views import Overview
from tracekit.lake.store import default_store_path
from tracekit.report.formats import count, plural
from tracekit_dashboards import texts
from tracekit_dashboards.hub import Reader


def overview_or_stop(reader: Reader) -> Overview:
    """What the view holds; where that is nothing, say what to do and end the run."""
    found = reader.frame("overview", views.overview)
    if found.in_store == 0:
        _empty_store(reader)
    elif found.requests == 0:
        st.header(texts.NOTHING_TITLE, anchor=False)
        st.info(texts.NOTHING_TEXT.format(requests=plural(found.in_store, "request")))
    else:
        return found
    st.stop()


def connect_steps(store: Path) -> None:
    """Three ways to fill the store, each a line to copy."""
    option = "" if store == default_store_path() else f" --store {shlex.quote(str(store))}"
    for number, (title, command) in enumerate(texts.EMPTY_STEPS, start=1):
        st.markdown(f"**{number}.** {title}")
        st.code(command.format(store=option), language="bash")


def _empty_store(reader: Reader) -> None:
    st.header(texts.EMPTY_TITLE, anchor=False)
    st.markdown(texts.EMPTY_TEXT)
    connect_steps(reader.hub.path)
    arrived = reader.frame("arrived", views.arrived)
    if arrived:
        what = ", ".join(f"{count(n)} {name.replace('_', ' ')}" for name, n in arrived.items())
        st.info(texts.EMPTY_OTHER.format(what=what))
