"""Page SQL runs one SELECT, refuses all else, and says what there is to query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from streamlit.testing.v1 import AppTest

from tracekit.analysis import sqlfiles
from tracekit_dashboards import texts

OpenApp = Callable[..., AppTest]
Query = Callable[[str], pl.DataFrame]


def run(app: AppTest, query: str | None = None) -> AppTest:
    if query is not None:
        app.text_area(key="query").set_value(query)
    app.button[[b.label for b in app.button].index(texts.SQL_RUN)].click().run()
    assert not app.exception
    return app


def test_nothing_runs_by_itself(demo_store: Path, open_app: OpenApp) -> None:
    app = open_app(demo_store, "sql", query="select 42 as answer")
    assert app.text_area(key="query").value == "select 42 as answer"
    # only the schema
    assert len(app.dataframe) == 1
    assert run(app).dataframe[0].value["answer"].to_list() == [42]


def test_the_first_query_and_the_filters(demo_store: Path, open_app: OpenApp, query: Query) -> None:
    app = run(open_app(demo_store, "sql"))
    wanted = query(texts.SQL_FIRST)
    shown = pl.from_pandas(app.dataframe[0].value)
    assert shown.sort("route").equals(wanted.sort("route"))
    app = run(open_app(demo_store, "sql", route="queue/short"))
    assert app.dataframe[0].value["n"].to_list() == [120]


@pytest.mark.parametrize("name", sqlfiles.names("adhoc"))
def test_named_queries(demo_store: Path, open_app: OpenApp, name: str) -> None:
    app = open_app(demo_store, "sql")
    app.selectbox(key="named").set_value(name).run()
    assert app.text_area(key="query").value == sqlfiles.load("adhoc", name).text.strip()
    run(app)
    assert not app.error


@pytest.mark.parametrize(
    "query",
    [
        "delete from requests",
        "select 1; select 2",
        "copy requests to 'stolen.csv'",
        "set threads = 1",
        "select * from read_text('/etc/passwd')",
        "select * from 'https://example.org/x.parquet'",
        "attach 'x.db'",
        "selec 1",
        "select no_such_column from requests",
        "",
    ],
)
def test_refused_and_told(demo_store: Path, open_app: OpenApp, query: str) -> None:
    app = run(open_app(demo_store, "sql"), query)
    assert len(app.error) == 1
    assert app.error[0].value
    # the editor is as it was, and the next query runs
    assert run(app, "select count(*) as n from requests").dataframe[0].value["n"][0] == 332
    assert not app.error


def test_relations_of_the_attribution(demo_store: Path, open_app: OpenApp, query: Query) -> None:
    app = open_app(demo_store, "sql", slo="ttft=2s")
    app = run(app, "select count(*) as n from slow_requests where metric = 'ttft'")
    assert (
        app.dataframe[0].value["n"][0]
        == query("select count(*) from requests where ttft_ms > 2000").item()
    )


def test_long_results_are_cut_and_say_so(demo_store: Path, open_app: OpenApp) -> None:
    app = run(open_app(demo_store, "sql"), "select * from range(6000)")
    assert len(app.dataframe[0].value) == 5_000
    assert any("5,000" in c.value for c in app.caption)


def test_every_relation_is_described_with_units(demo_store: Path, open_app: OpenApp) -> None:
    app = open_app(demo_store, "sql")
    box = app.selectbox(key="relation")
    assert {"spans", "requests", "window_requests", "phases", "verdicts"} <= set(box.options)
    for name, column, unit in (
        ("phases", "duration_ms", "[ms]"),
        ("verdicts", "excess_ms", "[ms]"),
    ):
        app.selectbox(key="relation").set_value(name).run()
        columns = app.dataframe[-1].value
        meaning = columns.loc[columns["column"] == column, "meaning"].iloc[0]
        assert meaning.startswith(unit)
