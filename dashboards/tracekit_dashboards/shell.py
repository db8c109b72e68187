"""The frame around every page: access, store, sidebar, errors and following the store.

Owns what happens before and after a page. A page asks `reader` for its frames.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import streamlit as st

from tracekit.errors import SourceError, TracekitError
from tracekit.lake.store import default_store_path
from tracekit_dashboards import access, sidebar, texts
from tracekit_dashboards.hub import Hub, Reader
from tracekit_dashboards.markup import plain
from tracekit_dashboards.settings import STORE_VARIABLE

if TYPE_CHECKING:
    from streamlit.navigation.page import StreamlitPage

#: Seconds between two looks at the store while a page is open.
_WATCH_S: Final = 2.0
_ROUTES: Final = (
    ("diagnosis", texts.DIAGNOSIS, ":material/troubleshoot:"),
    ("requests", texts.REQUESTS, ":material/view_timeline:"),
    ("sql", texts.SQL, ":material/database:"),
    ("health", texts.HEALTH, ":material/health_and_safety:"),
)
_READER: Final = "_reader"
_PAGES: Final = "_pages"

#: Pages that keep what they show until the reader asks for more.
_STILL: Final = (texts.SQL,)

_HERE: Final = Path(__file__).parent

#: Numbers that stand under each other must be as wide as each other; the sentence is the largest
#: text but not a poster; code is set in the code font.
_STYLE: Final = """
<style>
[data-testid="stMainBlockContainer"] { padding: 4rem 3rem 4rem; }
[data-testid="stMetricValue"], [data-testid="stMarkdownContainer"], [data-testid="stTable"],
[data-testid="stAlertContainer"] { font-variant-numeric: tabular-nums; }
[data-testid="stMetricValue"] { font-size: 1.5rem; }
[data-testid="stHeading"] h2 { font-size: 1.35rem; line-height: 1.35; padding: 0.25rem 0; }
[data-testid="stHeading"] h3 { font-size: 1.1rem; padding: 0.75rem 0 0.25rem; }
.st-key-query textarea { font-family: var(--st-code-font, monospace); font-size: 0.875rem; }
</style>
"""


def begin() -> None:
    """First of all in every run: the page's look, then who may see it."""
    st.set_page_config(page_title=texts.APP_TITLE, page_icon=_HERE / "icon.svg", layout="wide")
    st.logo(_HERE / "logo.svg", icon_image=_HERE / "icon.svg", size="large")
    st.html(_STYLE)
    access.require_access()


def pages() -> list[StreamlitPage]:
    """The pages, in order; made once in every run."""
    found = [
        st.Page(
            f"app_pages/{name}.py",
            title=title,
            icon=icon,
            help=texts.QUESTIONS[title],
            url_path=name,
            default=title == texts.DIAGNOSIS,
        )
        for name, title, icon in _ROUTES
    ]
    st.session_state[_PAGES] = {page.title: page for page in found}
    return found


@contextmanager
def frame(page: StreamlitPage) -> Iterator[None]:
    """Everything around ``page``; what goes wrong in it on purpose is told, not traced."""
    try:
        hub = _hub(os.environ.get(STORE_VARIABLE) or str(default_store_path()))
    except TracekitError as error:
        _tell(texts.NO_STORE_TITLE, error)
        st.stop()
    try:
        with st.sidebar:
            reader = Reader(hub, sidebar.view(hub))
            if page.title in _STILL:
                st.caption(texts.PAUSED)
            elif reader.view.pinned_unix_ns is None:
                _follow(reader)
        st.session_state[_READER] = reader
        yield
    except TracekitError as error:
        _tell(texts.ERROR_TITLE, error)


def reader() -> Reader:
    """The way to the store for this run."""
    found: Reader = st.session_state[_READER]
    return found


def page_of(title: str) -> StreamlitPage:
    """The page with this title, for links."""
    found: StreamlitPage = st.session_state[_PAGES][title]
    return found


@st.cache_resource(show_spinner=texts.LOADING, on_release=Hub.close)
def _hub(path: str) -> Hub:
    return Hub(path)


@st.fragment(run_every=_WATCH_S)
def _follow(reader: Reader) -> None:
    if reader.is_outdated():
        st.rerun()
    st.caption(texts.LIVE)


def _tell(title: str, error: TracekitError) -> None:
    st.header(title, anchor=False)
    if isinstance(error, SourceError):
        st.error("  \n".join(plain(part) for part in (error.what, error.where) if part))
        if error.how:
            st.info(plain(error.how))
    else:
        st.warning(plain(str(error)))
