"""Page Data health: is the data arriving, joined and complete."""

from __future__ import annotations

import streamlit as st

from tracekit_dashboards import health_parts as parts
from tracekit_dashboards import shell, states, texts

reader = shell.reader()
found = parts.health(reader)

if found.last_ingested_unix_ns is None:
    st.header(texts.HEALTH_EMPTY, anchor=False)
    states.connect_steps(reader.hub.path)
else:
    parts.headline(found)
    parts.counts(found)
    left, right = st.columns([3, 2], gap="large")
    with left:
        parts.remarks(found)
    with right:
        parts.funnel(reader, found)
    parts.services(found)
    left, right = st.columns(2, gap="large")
    with left:
        parts.refused(found)
        parts.arrivals(found)
    with right:
        parts.coverage(reader)
