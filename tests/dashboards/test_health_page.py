"""Page Data health: its numbers are those of the tables, its remarks the doctor's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
from streamlit.testing.v1 import AppTest

from tracekit.analysis.doctor import health
from tracekit.analysis.session import Session
from tracekit_dashboards import texts
from tracekit_dashboards.markup import plain

OpenApp = Callable[..., AppTest]
Query = Callable[[str], pl.DataFrame]


def test_numbers_of_the_demonstration(demo_store: Path, open_app: OpenApp, query: Query) -> None:
    app = open_app(demo_store, "health")
    assert not app.exception
    shown = {m.label: m.value for m in app.metric}
    assert shown[texts.SPANS] == f"{query('select count(*) from spans').item():,}"
    assert shown[texts.LOG_ROWS] == f"{query('select count(*) from request_log').item():,}"
    joined = query(
        "select count(*) from requests where leg_roles like '%client%'"
        " and leg_roles like '%engine%'"
    ).item()
    assert joined == 332
    assert shown[texts.JOINED] == "100 %"
    assert shown[texts.SET_ASIDE] == "0"
    services = app.dataframe[0].value.set_index("service_name")
    for name, n in query("select service_name, count(*) from spans group by all").rows():
        assert services.loc[name, "spans"] == n


def test_what_was_set_aside_and_what_mends_it(shapes: dict[str, Path], open_app: OpenApp) -> None:
    app = open_app(shapes["edge"], "health")
    with Session.open(shapes["edge"]) as session:
        found = health(session)
    text = "\n".join(m.value for m in app.markdown)
    told = [r for r in found.remarks if r.topic != "arrival"]
    assert told
    for remark in told:
        assert f"**{plain(remark.text)}**" in text
        assert remark.how is None or plain(remark.how) in text
    shown = {m.label: m.value for m in app.metric}
    assert shown[texts.SET_ASIDE] == str(sum(row["n"] for row in found.refused))


def test_an_empty_store_tells_how_to_connect(shapes: dict[str, Path], open_app: OpenApp) -> None:
    app = open_app(shapes["empty"], "health")
    assert [h.value for h in app.header] == [texts.HEALTH_EMPTY]
    assert len(app.code) == 3
    assert f"--store {shapes['empty']}" in app.code[0].value


def test_something_that_is_no_request(shapes: dict[str, Path], open_app: OpenApp) -> None:
    app = open_app(shapes["no_requests"])
    assert [h.value for h in app.header] == [texts.EMPTY_TITLE]
    assert "11 spans" in app.info[0].value
    app = open_app(shapes["no_requests"], "health")
    assert not app.exception
    assert app.header[0].value != texts.HEALTH_EMPTY
