"""Page Diagnosis: the sentence, what it rests on, and where the time went."""

from __future__ import annotations

import streamlit as st

from tracekit_dashboards import diagnosis_parts as parts
from tracekit_dashboards import shell, states

reader = shell.reader()
overview = states.overview_or_stop(reader)
found = parts.diagnosis(reader)

parts.headline(found)
parts.counts(found)
left, right = st.columns([3, 2], gap="large")
with left:
    parts.findings(found)
    parts.last_requests(reader, found)
with right:
    parts.percentiles(found)
    parts.phase_totals(found)
parts.over_time(reader, overview)
parts.latency(reader, overview)
parts.missing(found)
