"""The parts of page SQL: query, result, schema.

Owns the editor's state. What may run, and for how long, is `tracekit.analysis.workbench`'s.
"""

from __future__ import annotations

from typing import Final

import polars as pl
import streamlit as st

from tracekit.analysis import sqlfiles, views
from tracekit.analysis.workbench import RelationDoc, SqlResult
from tracekit.errors import UsageError
from tracekit.report import formats
from tracekit_dashboards import tables, texts
from tracekit_dashboards.hub import SQL_ROW_LIMIT, SQL_TIME_LIMIT_S, Reader
from tracekit_dashboards.markup import plain

QUERY: Final = "query"
_NAMED: Final = "named"
_RESULT: Final = "_sql_result"
_FIRST_RELATION: Final = "window_requests"


def workbench(reader: Reader) -> None:
    """The editor, and the rows of the query that was run last."""
    st.selectbox(
        texts.SQL_NAMED,
        sqlfiles.names("adhoc"),
        index=None,
        placeholder=texts.SQL_NAMED_HINT,
        format_func=lambda name: name.replace("_", " "),
        key=_NAMED,
        on_change=_take_named,
    )
    with st.form("sql", border=False):
        query = st.text_area(
            texts.SQL_QUERY,
            texts.SQL_FIRST,
            height=240,
            key=QUERY,
            bind="query-params",
            help=texts.SQL_HELP.format(
                rows=formats.count(SQL_ROW_LIMIT), seconds=formats.number(SQL_TIME_LIMIT_S, 0)
            ),
        )
        asked = st.form_submit_button(
            texts.SQL_RUN, type="primary", icon=":material/play_arrow:", shortcut="Ctrl+Enter"
        )
    st.caption(texts.SQL_NOTE)
    if asked:
        st.session_state[_RESULT] = _run(reader, query)
    _result(st.session_state.get(_RESULT))


def _run(reader: Reader, query: str) -> SqlResult | str:
    """The rows, or why there are none."""
    with st.spinner(texts.LOADING, show_time=True):
        try:
            return reader.hub.run_sql(
                reader.view, query, attribution=views.needs_attribution(query)
            )
        except UsageError as error:
            return str(error)


def _result(result: SqlResult | str | None) -> None:
    if result is None:
        return
    if isinstance(result, str):
        st.error(plain(result))
        return
    took = formats.ms(result.elapsed_ms)
    rows = formats.plural(result.frame.height, "row")
    if not result.frame.height:
        st.info(texts.SQL_EMPTY)
        return
    st.caption((texts.SQL_CUT if result.truncated else texts.SQL_DONE).format(n=rows, ms=took))
    tables.show(result.frame, "query")


def _take_named() -> None:
    name = st.session_state[_NAMED]
    if name is not None:
        st.session_state[QUERY] = sqlfiles.load("adhoc", name).text.strip()


def schema(reader: Reader) -> None:
    """What there is to query: one relation at a time, its columns with their units."""
    docs = {doc.name: doc for doc in reader.frame("schema", views.relation_docs)}
    names = list(docs)
    name = st.selectbox(
        texts.SCHEMA,
        names,
        index=names.index(_FIRST_RELATION) if _FIRST_RELATION in docs else 0,
        key="relation",
        bind="query-params",
    )
    _relation(docs[name])


def _relation(doc: RelationDoc) -> None:
    for line in dict.fromkeys((doc.purpose, doc.grain)):
        if line:
            st.caption(plain(line))
    frame = pl.DataFrame(
        [{"column": c.name, "type": c.type, "meaning": c.doc} for c in doc.columns],
        schema={"column": pl.String, "type": pl.String, "meaning": pl.String},
    )
    labels = {
        "column": texts.SCHEMA_COLUMN,
        "type": texts.SCHEMA_TYPE,
        "meaning": texts.SCHEMA_DOC,
    }
    typed = frame["type"].str.len_chars().sum() > 0
    tables.show(
        frame,
        f"columns-{doc.name}",
        labels=labels,
        order=["column", "meaning", "type"] if typed else ["column", "meaning"],
        height=520,
    )
