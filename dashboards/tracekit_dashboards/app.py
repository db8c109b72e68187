"""Entry point of the Streamlit app: routes to a page, inside the frame that all pages share."""

from __future__ import annotations

import streamlit as st

from tracekit_dashboards import shell

shell.begin()
page = st.navigation(shell.pages())
with shell.frame(page):
    page.run()
