"""Page SQL: a read-only workbench with the schema beside it."""

from __future__ import annotations

import streamlit as st

from tracekit_dashboards import shell, sql_parts

reader = shell.reader()
left, right = st.columns([3, 2], gap="large")
with left:
    sql_parts.workbench(reader)
with right:
    sql_parts.schema(reader)
