"""One request on page Requests: facts, timeline across legs, verdict, tables.

Owns how a `RequestDetail` looks here; its numbers are the analysis'.
"""

from __future__ import annotations

import json
from typing import Any, Final

import polars as pl
import streamlit as st

from tracekit.analysis.detail import RequestDetail, request_detail
from tracekit.analysis.request_view import RequestView, request_view
from tracekit.analysis.session import Session
from tracekit.analysis.wording import format_confidence
from tracekit.errors import UsageError
from tracekit.report import formats
from tracekit.report import texts as words
from tracekit.report.inferred_text import inferred_lines
from tracekit_dashboards import charts, shell, sidebar, tables, texts
from tracekit_dashboards.hub import Attribution, Reader
from tracekit_dashboards.markup import confidence_colour, phase_chip, plain
from tracekit_dashboards.view import REQUEST, link

_FACTS: Final = ("ttft_ms", "tpot_ms", "e2e_ms")


def show(reader: Reader, wanted: str) -> None:
    """Everything about the request that ``wanted`` (any of its ids) means."""
    slo = reader.view.slo

    def compute(session: Session) -> tuple[RequestDetail, RequestView]:
        detail = request_detail(session, wanted, slo=slo, attribution_defined=True)
        return detail, request_view(session, detail)

    st.divider()
    try:
        with st.spinner(texts.LOADING, show_time=True):
            detail, drawn = reader.frame(
                ("request", wanted), compute, attribution=Attribution.NEEDED
            )
    except UsageError as error:
        st.warning(plain(texts.REQUEST_MISSING.format(error=error)))
        st.button(texts.CLOSE_REQUEST, on_click=_close)
        return
    _heading(detail)
    _facts(detail.request)
    _timeline(drawn)
    left, right = st.columns([2, 3], gap="large")
    with left:
        _verdict(detail)
    with right:
        _phases(drawn)
        for line in inferred_lines(detail.inferred):
            st.caption(plain(line))
    _tables(detail, drawn)


def _heading(detail: RequestDetail) -> None:
    request = detail.request
    name = request["request_id"] or request["request_key"]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader(texts.REQUEST_TITLE.format(id=plain(str(name))), anchor=False)
        st.download_button(
            texts.DOWNLOAD_JSON,
            lambda: json.dumps(detail.to_json(), indent=2, ensure_ascii=False, default=str),
            file_name=f"tracekit-{request['request_key']}.json",
            mime="application/json",
            icon=":material/download:",
            on_click="ignore",
            type="tertiary",
        )
        st.button(texts.CLOSE_REQUEST, icon=":material/close:", on_click=_close, type="tertiary")
    parts = [
        formats.time(request["start_unix_ns"]),
        *(str(request[k]) for k in ("model", "engine", "route", "tenant", "status") if request[k]),
        *(
            f"{label} {request[key]}"
            for label, key in (
                (texts.PREFILL_ON, "prefill_worker"),
                (texts.DECODE_ON, "decode_worker"),
            )
            if request[key]
        ),
    ]
    st.caption(plain(" · ".join(parts)))
    if request["quarantine_reason"]:
        st.warning(plain(texts.QUARANTINED_ROW.format(reason=request["quarantine_reason"])))


def _facts(request: dict[str, Any]) -> None:
    with st.container(horizontal=True):
        cached = request["cached_tokens"]
        st.metric(
            texts.INPUT_TOKENS,
            formats.count(request["input_tokens"]),
            delta=None if cached is None else texts.CACHED.format(n=formats.count(cached)),
            delta_color="off",
            delta_arrow="off",
        )
        st.metric(texts.OUTPUT_TOKENS, formats.count(request["output_tokens"]))
        for name in _FACTS:
            label, meaning = words.METRICS[name]
            kind = request["ttft_kind"] if name == "ttft_ms" else None
            st.metric(
                label,
                formats.ms(request[name]),
                help=meaning,
                delta=plain(kind) if kind else None,
                delta_color="off",
                delta_arrow="off",
            )
        st.metric(
            texts.STALLS,
            formats.ms(request["stall_ms"]),
            help=texts.STALLS_HELP,
            delta=None
            if request["max_gap_ms"] is None
            else texts.LONGEST_GAP.format(ms=formats.ms(request["max_gap_ms"])),
            delta_color="off",
            delta_arrow="off",
        )
        st.metric(texts.COVERAGE, formats.percent(request["coverage"]), help=texts.COVERAGE_HELP)


def _timeline(drawn: RequestView) -> None:
    st.markdown(f"**{texts.WATERFALL}**")
    if not drawn.lanes:
        st.info(texts.WATERFALL_NONE)
        return
    st.altair_chart(charts.waterfall(drawn), width="stretch")
    tokens = texts.TOKENS_NOTE if drawn.chunks.height or drawn.gaps.height else texts.TOKENS_NONE
    st.caption(f"{texts.WATERFALL_NOTE} {tokens}")


def _verdict(detail: RequestDetail) -> None:
    st.markdown(f"**{texts.VERDICT}**")
    verdict = detail.verdict
    if verdict is None:
        st.info(plain(detail.verdict_reason or texts.VERDICT_NONE))
        return
    with st.container(horizontal=True, gap="small"):
        if verdict["phase"]:
            st.html(phase_chip(verdict["phase"]), width="content")
        if verdict["cause"]:
            st.badge(words.cause_label(verdict["cause"]), color="gray")
        if verdict["confidence"] is not None:
            label = str(verdict["confidence_label"])
            st.badge(
                texts.VERDICT_CONFIDENCE.format(
                    value=format_confidence(verdict["confidence"]), label=label
                ),
                color=confidence_colour(label),
            )
    st.markdown(plain(words.CLASSES.get(verdict["class"], verdict["class"])))
    st.markdown("\n".join(f"- {plain(line)}" for line in verdict["evidence"]))
    if verdict["culprits"]:
        st.markdown(f"**{texts.CULPRITS}**")
        for culprit in verdict["culprits"]:
            st.page_link(
                shell.page_of(texts.REQUESTS),
                label=plain(str(culprit)),
                query_params=link(sidebar.shared(), request=str(culprit)),
            )


def _phases(drawn: RequestView) -> None:
    st.markdown(f"**{texts.PHASE_TABLE}**")
    whole = drawn.phases.filter(pl.col("lane") == drawn.lanes[0]) if drawn.lanes else drawn.phases
    frame = charts.named_phases(whole).select(
        pl.col("phase_name").alias("phase"),
        pl.col("sub_phase").str.split(".").list.last().str.replace_all("_", " "),
        "start_ms",
        "ms",
        (pl.col("share") * 100).alias("share_pct"),
        "provenance",
        "field",
        "role",
        "worker",
    )
    tables.show(frame, "phases", labels=texts.COLUMNS)


def _tables(detail: RequestDetail, drawn: RequestView) -> None:
    with st.expander(texts.BOUNDARIES):
        st.caption(texts.BOUNDARIES_NOTE)
        tables.show(drawn.boundaries, "boundaries", labels=texts.COLUMNS)
    if drawn.gaps.height:
        with st.expander(texts.GAPS):
            tables.show(drawn.gaps.sort("ms", descending=True), "token-gaps", labels=texts.COLUMNS)
    if detail.gpu:
        with st.expander(texts.GPU):
            tables.show(pl.DataFrame(list(detail.gpu)), "gpus", labels=texts.GPU_COLUMNS)
    with st.expander(texts.RECORD):
        rows = [
            {"field": name, "value": str(value)}
            for name, value in detail.request.items()
            if value is not None
        ]
        tables.show(pl.DataFrame(rows, schema=["field", "value"]), "record", labels=texts.COLUMNS)


def _close() -> None:
    if REQUEST in st.query_params:
        del st.query_params[REQUEST]
