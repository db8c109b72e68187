"""Page Requests lists what the filters ask for and takes one request apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from streamlit.testing.v1 import AppTest

from tracekit.analysis.detail import request_detail
from tracekit.analysis.session import Session
from tracekit.analysis.views import ORDERS
from tracekit.names import PHASES
from tracekit_dashboards import texts
from tracekit_dashboards.markup import plain

OpenApp = Callable[..., AppTest]
Query = Callable[[str], pl.DataFrame]


def listed(app: AppTest) -> list[str]:
    return list(app.dataframe[0].value["request_key"])


def labels(app: AppTest) -> list[str]:
    return [b.label for b in app.button]


def test_every_request_newest_first(demo_store: Path, open_app: OpenApp, query: Query) -> None:
    app = open_app(demo_store, "requests")
    assert not app.exception
    wanted = query("select request_key from requests order by start_unix_ns desc, request_key")
    assert listed(app) == wanted["request_key"].to_list()
    assert f"{texts.LIST_COUNT.format(requests='332 requests')}. {texts.LIST_HINT}" in [
        c.value for c in app.caption
    ]


@pytest.mark.parametrize("order", [o for o in ORDERS if o != "newest"])
def test_orders(demo_store: Path, open_app: OpenApp, query: Query, order: str) -> None:
    app = open_app(demo_store, "requests", order=order)
    wanted = query(f"select request_key from requests order by {order} desc, request_key limit 5")
    assert listed(app)[:5] == wanted["request_key"].to_list()


def test_filters_narrow_the_list(demo_store: Path, open_app: OpenApp, query: Query) -> None:
    app = open_app(demo_store, "requests", search="pd-nixl-000")
    wanted = query("select request_key from requests where request_id like 'pd-nixl-000%'")
    assert sorted(listed(app)) == sorted(wanted["request_key"])
    workers = query(
        "select decode_worker as w, count(*) as n from requests where decode_worker is not null"
        " group by w"
    ).row(0)
    app = open_app(demo_store, "requests", worker=workers[0])
    assert len(listed(app)) == workers[1]
    app = open_app(demo_store, "requests", status="aborted")
    assert [i.value for i in app.info] == [texts.LIST_EMPTY]


def test_slow_requests_are_those_over_the_objective(
    demo_store: Path, open_app: OpenApp, query: Query
) -> None:
    app = open_app(demo_store, "requests", slow="true", slo="ttft=2s")
    wanted = query("select request_key from requests where ttft_ms > 2000")
    assert 0 < wanted.height < 332
    assert sorted(listed(app)) == sorted(wanted["request_key"])


def test_a_finding_leads_to_its_requests(demo_store: Path, open_app: OpenApp) -> None:
    with Session.open(demo_store) as session:
        from tracekit.analysis.attribution import define_attribution
        from tracekit.analysis.slo import Slo

        define_attribution(session.con, Slo())
        phase, cause = session.frame(
            "select phase, cause from verdicts where phase is not null and cause is not null"
            " group by all order by count(*) desc limit 1"
        ).row(0)
        wanted = session.frame(
            f"select distinct request_key from verdicts where phase = '{phase}'"
            f" and cause = '{cause}'"
        )["request_key"]
    app = open_app(demo_store, "requests", phase=phase, cause=cause)
    assert sorted(listed(app)) == sorted(wanted)
    app.button[labels(app).index(texts.CLEAR_FILTER)].click().run()
    assert len(listed(app)) == 332


def test_a_verdict_that_is_none_is_refused(demo_store: Path, open_app: OpenApp) -> None:
    app = open_app(demo_store, "requests", phase="warp")
    assert not app.exception
    assert app.header[0].value == texts.ERROR_TITLE
    assert "warp" in app.warning[0].value


@pytest.mark.parametrize("which", ["pd-nixl-0028", "queue-0080"])
def test_one_request(demo_store: Path, open_app: OpenApp, query: Query, which: str) -> None:
    app = open_app(demo_store, "requests", request=which)
    assert not app.exception
    assert app.subheader[0].value == texts.REQUEST_TITLE.format(id=plain(which))
    row = query(f"select * from requests where request_id = '{which}'").row(0, named=True)
    shown = {m.label: m.value for m in app.metric}
    assert shown[texts.INPUT_TOKENS] == f"{row['input_tokens']:,}"
    assert shown["TTFT"] == f"{row['ttft_ms'] / 1000:.2f} s"
    assert shown["E2E"] == f"{row['e2e_ms'] / 1000:.2f} s"
    # the phases of the table are the request's, and sum to its wall time
    phases = app.dataframe[1].value
    assert phases["ms"].sum() == pytest.approx(row["e2e_ms"], abs=1e-3)
    for phase in PHASES:
        name = {"kv_transfer": "KV transfer", "queue_or_prefill": "queue or prefill"}.get(
            phase, phase.replace("_", " ")
        )
        assert phases.loc[phases["phase"] == name, "ms"].sum() == pytest.approx(
            row[f"{phase}_ms"] or 0, abs=1e-3
        )
    with Session.open(demo_store) as session:
        detail = request_detail(session, which)
    assert detail.verdict is not None
    text = "\n".join(m.value for m in app.markdown)
    for line in detail.verdict["evidence"]:
        assert plain(line) in text


def test_any_id_finds_the_request(demo_store: Path, open_app: OpenApp, query: Query) -> None:
    trace = query("select trace_id from requests where request_id = 'queue-0080'").item()
    app = open_app(demo_store, "requests", request=trace)
    assert app.subheader[0].value == texts.REQUEST_TITLE.format(id="queue-0080")
    app.button[labels(app).index(texts.CLOSE_REQUEST)].click().run()
    assert not app.subheader
    assert "request" not in app.query_params


def test_an_unknown_request_is_told_under_the_list(demo_store: Path, open_app: OpenApp) -> None:
    app = open_app(demo_store, "requests", request="nobody-*knows*")
    assert not app.exception
    assert plain("nobody-*knows*") in app.warning[0].value
    assert len(listed(app)) == 332
