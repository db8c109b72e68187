"""Page Diagnosis says what the diagnosis says, and its numbers are those of the tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from streamlit.testing.v1 import AppTest

from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.diagnosis import Diagnosis
from tracekit.analysis.session import Session
from tracekit.analysis.slo import parse_slo
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store
from tracekit_dashboards import texts
from tracekit_dashboards.markup import plain

OpenApp = Callable[..., AppTest]
Query = Callable[[str], pl.DataFrame]
COUNTED = "status = 'ok' and quarantine_reason is null and superseded_attempt = 0"


@pytest.fixture(scope="module")
def diagnosis(demo_store: Path) -> Diagnosis:
    with Session.open(demo_store) as session:
        return diagnose(session)


def metrics(app: AppTest) -> dict[str, str]:
    return {m.label: m.value for m in app.metric}


def test_the_sentence_comes_first(
    demo_store: Path, open_app: OpenApp, diagnosis: Diagnosis
) -> None:
    app = open_app(demo_store)
    assert not app.exception
    assert [h.value for h in app.header] == [plain(diagnosis.sentence)]


def test_counts_are_those_of_the_tables(demo_store: Path, open_app: OpenApp, query: Query) -> None:
    shown = metrics(open_app(demo_store))
    done, total, covered = query(
        f"select count(*) filter ({COUNTED}), count(*),"
        f" sum(coverage * e2e_ms) filter ({COUNTED}) / sum(e2e_ms) filter ({COUNTED})"
        " from requests"
    ).row(0)
    assert total == 332
    assert shown[texts.COMPLETED] == f"{done:,}"
    assert shown[texts.FAILED] == f"{total - done:,}"
    assert covered > 0.99
    assert shown[texts.COVERAGE] in ("100 %", ">99.9 %")
    # no objectives, no goodput
    assert texts.GOODPUT not in shown


def test_percentiles_with_their_n(demo_store: Path, open_app: OpenApp, query: Query) -> None:
    app = open_app(demo_store)
    shown = {row["metric"]: row for row in app.dataframe[0].value.to_dict("records")}
    for label, column in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("E2E", "e2e_ms")):
        p50, p95, p99, n = query(
            f"select quantile_cont({column}, 0.5), quantile_cont({column}, 0.95),"
            f" quantile_cont({column}, 0.99), count({column}) from requests where {COUNTED}"
        ).row(0)
        assert shown[label]["n"] == n
        assert [shown[label][f"{p}_ms"] for p in ("p50", "p95", "p99")] == pytest.approx(
            [p50, p95, p99]
        )


def test_beside_the_percentiles_stands_whom_they_leave_out(
    tmp_path: Path, open_app: OpenApp
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text(
        "request_id,start_unix_ns,ttft_ms,e2e_ms,status\n"
        + "".join(
            f"r-{i},{1_795_982_418_000_000_000 + i * 10**9},100,900,"
            f"{'aborted' if i < 10 else 'ok'}\n"
            for i in range(40)
        )
    )
    import_paths(Store.open(tmp_path / "store", create=True), [str(rows)])
    app = open_app(tmp_path / "store")
    assert not app.exception
    assert "75 % of the requests completed (30 of 40 that ended)" in " ".join(
        c.value.replace("\\", "") for c in app.caption
    )


def test_one_card_a_finding(demo_store: Path, open_app: OpenApp, diagnosis: Diagnosis) -> None:
    app = open_app(demo_store)
    text = "\n".join(m.value for m in app.markdown)
    assert len(diagnosis.findings) > 3
    for finding in diagnosis.findings:
        assert f"**{plain(finding.sentence)}**" in text
        assert plain(finding.action) in text
    # the rest of the findings, and each shown card's evidence, are folded away
    minor = sum(finding.minor for finding in diagnosis.findings)
    folded = [e.label for e in app.expander]
    assert texts.FINDINGS_MORE.format(n=len(diagnosis.findings) - minor - 3) in folded
    assert texts.FINDINGS_MINOR.format(n=minor) in folded
    for item in diagnosis.missing_evidence:
        assert plain(item.how) in text


def test_objectives_come_from_the_url(demo_store: Path, open_app: OpenApp, query: Query) -> None:
    app = open_app(demo_store, slo="ttft=1s,e2e=4s")
    assert not app.exception
    shown = metrics(app)
    met, n = query(
        "select count(*) filter (ttft_ms <= 1000 and e2e_ms <= 4000), count(*)"
        f" from requests where {COUNTED}"
    ).row(0)
    assert 0 < met < n
    assert shown[texts.GOODPUT] == f"{100 * met / n:.0f} %"
    assert shown[texts.MISSES] == str(n - met)
    assert app.text_input(key="slo").value == "ttft=1s,e2e=4s"


@pytest.mark.parametrize("route", ["queue/short", "pd-nixl/long"])
def test_a_route_alone(demo_store: Path, open_app: OpenApp, query: Query, route: str) -> None:
    app = open_app(demo_store, route=route)
    n = query(f"select count(*) from requests where route = '{route}'").item()
    assert 0 < n < 332
    assert metrics(app)[texts.COMPLETED] == str(n)


def test_a_window_alone(demo_store: Path, open_app: OpenApp, query: Query) -> None:
    middle = query("select median(start_unix_ns)::bigint from requests").item()
    app = open_app(demo_store, window=f"..{middle}")
    n = query(f"select count(*) from requests where start_unix_ns < {middle}").item()
    assert 0 < n < 332
    assert metrics(app)[texts.COMPLETED] == str(n)


def test_what_the_url_says_wrong_is_told_and_left_out(demo_store: Path, open_app: OpenApp) -> None:
    app = open_app(demo_store, window="yesterday-ish", slo="speed=9", at="noon")
    assert not app.exception
    told = "\n".join(w.value for w in app.warning)
    assert "yesterday" in told
    assert "speed" in told
    assert "noon" in told
    assert metrics(app)[texts.COMPLETED] == "332"


def test_an_empty_view_says_so(demo_store: Path, open_app: OpenApp) -> None:
    app = open_app(demo_store, model="no-such-model")
    assert [h.value for h in app.header] == [texts.NOTHING_TITLE]
    assert "332" in app.info[0].value
    assert not app.metric


def test_changing_a_filter_changes_page_and_address(demo_store: Path, open_app: OpenApp) -> None:
    app = open_app(demo_store)
    app.selectbox(key="route").set_value("queue/short").run()
    assert metrics(app)[texts.COMPLETED] == "120"
    assert app.query_params["route"] in ("queue/short", ["queue/short"])
    # the objectives hold on top of it
    app.text_input(key="slo").set_value("ttft=1s").run()
    with Session.open(demo_store, route="queue/short") as session:
        wanted = diagnose(session, parse_slo("ttft=1s"))
    assert [h.value for h in app.header] == [plain(wanted.sentence)]
    # another address in the same tab (a step back) is taken over, and a cleared filter leaves it
    app.query_params["route"] = "pd-nixl/long"
    app.run()
    assert metrics(app)[texts.COMPLETED] == "15"
    app.selectbox(key="route").set_value(None).run()
    assert metrics(app)[texts.COMPLETED] == "332"
    assert "route" not in app.query_params


def test_a_pinned_view_leaves_out_what_came_later(tmp_path: Path, open_app: OpenApp) -> None:
    store = Store.open(tmp_path / "store", create=True)
    for name in ("first", "second"):
        path = tmp_path / f"{name}.csv"
        rows = [f"{name}-{i},{1_795_982_400_000_000_000 + i},100,10,100,500" for i in range(4)]
        header = "request_id,start_unix_ns,input_tokens,output_tokens,ttft_ms,e2e_ms"
        path.write_text("\n".join((header, *rows)) + "\n")
        import_paths(store, [str(path)])
    with Session.open(store) as session:
        pin = session.frame("select min(ingested_unix_ns) from requests").item()
    app = open_app(store.path, at=str(pin))
    assert not app.exception
    assert not app.warning
    assert metrics(app)[texts.COMPLETED] == "4"
    # the pin is kept where a change of page has cleared the address
    del app.query_params["at"]
    app.run()
    assert metrics(app)[texts.COMPLETED] == "4"
    assert app.query_params["at"] in (str(pin), [str(pin)])
    app.button[[b.label for b in app.button].index(texts.UNPIN)].click().run()
    assert metrics(app)[texts.COMPLETED] == "8"
    assert "at" not in app.query_params
