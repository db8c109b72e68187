"""Who may look: anyone on this machine, and elsewhere only who shows the token.

Owns the gate in front of every page. The token reaches the app by its environment, never by its
command line, and a link that carries it loses it at once, so that it is not shared by accident.
"""

from __future__ import annotations

import hmac
import os
from typing import Final

import streamlit as st

from tracekit_dashboards import texts
from tracekit_dashboards.settings import TOKEN_VARIABLE, is_loopback
from tracekit_dashboards.view import TOKEN

_SHOWN: Final = "_shown_token"


def require_access() -> None:
    """Let the run go on, or show the form for the token and end it."""
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        # Streamlit without an address listens on all of them
        if is_loopback(str(st.get_option("server.address") or "")):
            return
        st.error(texts.NO_TOKEN_SET)
        st.stop()
    shown = st.query_params.get(TOKEN)
    if shown is not None:
        st.session_state[_SHOWN] = shown
        del st.query_params[TOKEN]
    if _matches(st.session_state.get(_SHOWN), token):
        return
    with st.form("token", width=480):
        st.subheader(texts.TOKEN_TITLE)
        given = st.text_input(texts.TOKEN_LABEL, type="password", help=texts.TOKEN_HELP)
        sent = st.form_submit_button(texts.TOKEN_SEND)
        if sent and _matches(given, token):
            st.session_state[_SHOWN] = given
            st.rerun()
        if sent or shown is not None:
            st.error(texts.TOKEN_WRONG)
    st.stop()


def _matches(given: object, token: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(), token.encode())
