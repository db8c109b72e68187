"""Every page works on every shape of store, and says only what the data carry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tracekit.analysis.session import Session
from tracekit.analysis.ten_minute import ten_minute_table
from tracekit_dashboards import texts
from tracekit_dashboards.markup import plain

OpenApp = Callable[..., AppTest]

PAGES = ("diagnosis", "requests", "sql", "health")
SHAPES = ("empty", "article", "one", "client_only", "pd_only", "edge", "no_requests")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_page_fails(shapes: dict[str, Path], open_app: OpenApp, shape: str, page: str) -> None:
    app = open_app(shapes[shape], page)
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize("shape", ["article", "one", "client_only", "pd_only", "edge"])
def test_every_request_can_be_opened(
    shapes: dict[str, Path], open_app: OpenApp, shape: str
) -> None:
    with Session.open(shapes[shape]) as session:
        rows = session.frame("select request_key, e2e_ms from requests order by hash(request_key)")
    for key, e2e_ms in rows.head(3).rows():
        app = open_app(shapes[shape], "requests", request=key)
        assert not app.exception
        assert not app.warning
        if e2e_ms is not None and len(app.dataframe) > 1:
            assert app.dataframe[1].value["ms"].sum() == pytest.approx(e2e_ms, abs=1e-3)


def test_a_spreadsheet_gets_the_ten_minute_answer(
    shapes: dict[str, Path], open_app: OpenApp
) -> None:
    app = open_app(shapes["article"])
    with Session.open(shapes["article"]) as session:
        table = ten_minute_table(session)
    text = "\n".join(m.value for m in app.markdown)
    assert plain(table.sentence) in text
    # no clock: nothing is drawn over time, and why is said
    assert texts.NO_CLOCK.format(requests=f"{len(table.rows)} requests") in [
        i.value for i in app.info
    ]
    assert not app.get("arrow_vega_lite_chart")[1:]
    # too few for percentiles: n is said, values are not
    percentiles = next(d.value for d in app.dataframe if "p99_ms" in d.value)
    assert percentiles["n"].tolist()
    assert percentiles[["p50_ms", "p95_ms", "p99_ms"]].isna().all(axis=None)


def test_names_are_shown_as_they_are(shapes: dict[str, Path], open_app: OpenApp) -> None:
    with Session.open(shapes["one"]) as session:
        name = session.frame("select request_id from requests").item()
    assert name == "a*b_$c$[d](e)"
    app = open_app(shapes["one"], "requests", request=name)
    assert app.subheader[0].value == texts.REQUEST_TITLE.format(id=r"a\*b\_\$c\$\[d\](e)")


def test_a_client_alone_cannot_tell_queue_from_prefill(
    shapes: dict[str, Path], open_app: OpenApp
) -> None:
    app = open_app(shapes["client_only"], "requests")
    rows = app.dataframe[0].value
    assert rows["queue_or_prefill_ms"].notna().all()
    assert rows["queue_ms"].isna().all()


def test_an_empty_store_tells_how_to_connect(shapes: dict[str, Path], open_app: OpenApp) -> None:
    app = open_app(shapes["empty"])
    assert [h.value for h in app.header] == [texts.EMPTY_TITLE]
    assert [c.value.split()[:2] for c in app.code][::2] == [
        ["tracekit", "collect"],
        ["tracekit", "import"],
    ]


def test_a_store_that_is_not_there(tmp_path: Path, open_app: OpenApp) -> None:
    app = open_app(tmp_path / "nowhere")
    assert not app.exception
    assert [h.value for h in app.header] == [texts.NO_STORE_TITLE]
    assert "nowhere" in app.warning[0].value
