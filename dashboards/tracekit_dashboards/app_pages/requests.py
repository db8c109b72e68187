"""Page Requests: a list to filter, and where the time of one request went."""

from __future__ import annotations

import streamlit as st

from tracekit_dashboards import request_list, request_parts, shell, states
from tracekit_dashboards.view import REQUEST

reader = shell.reader()
states.overview_or_stop(reader)

request_list.show(reader)
if wanted := st.query_params.get(REQUEST):
    request_parts.show(reader, wanted)
