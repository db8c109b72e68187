"""What a session shows: windows, filters, pinned views, raw rows without duplicates."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis._spans import at, chat, engine, log_row, span, table
from tests.analysis._stores import NOW_NS, S, canonical, commit
from tracekit.analysis.session import Session
from tracekit.analysis.settle import Settler
from tracekit.analysis.window import Window, parse_window
from tracekit.errors import UsageError
from tracekit.lake.store import Store

NAMES = "select request_id from window_requests order by request_id"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def _add_logs(store: Store, *, now_unix_ns: int = NOW_NS) -> None:
    rows = [
        log_row(request_id="a", start=0, e2e_ms=50.0, model="m", route="chat"),
        log_row(request_id="b", start=1000, e2e_ms=50.0, model="m", route="batch"),
        log_row(request_id="c", start=2000, e2e_ms=50.0, model="n", route="chat"),
        log_row(request_id="z", e2e_ms=50.0, model="m", route="chat"),  # no clock
    ]
    commit(store, "request_log", table("request_log", rows), now_unix_ns)


def _names(session: Session) -> str:
    return "".join(name for (name,) in session.con.execute(NAMES).fetchall())


def test_a_small_store_is_read_on_one_core(store: Store) -> None:
    _add_logs(store)
    with Session.open(store) as session:
        assert session.con.sql("select current_setting('threads')").fetchall() == [(1,)]


def test_windows_and_filters_choose_requests(store: Store) -> None:
    _add_logs(store)
    with Session.open(store) as session:
        assert _names(session) == "abcz"
        # since is inside, until is not; a row without a clock is in every window
        session.focus(window=Window(at(1000), at(2000), "one second"))
        assert _names(session) == "bz"
        session.focus(window=Window(at(1000), None))
        assert _names(session) == "bcz"
        session.focus(window=Window(None, at(1000)))
        assert _names(session) == "az"
        session.focus(model="m", route="chat")
        assert _names(session) == "az"
        session.focus(route="no such 'route'")
        assert _names(session) == ""
        # `requests` is the whole store all the same
        assert session.con.execute("select count(*) from requests").fetchall() == [(4,)]
        frame = session.frame("select $n::bigint + 1 as x", {"n": 1})
        assert frame["x"].to_list() == [2]
    window = parse_window("2026-11-29", None, now_unix_ns=NOW_NS)
    with Session.open(store.path, window=window, model="n", route="chat") as session:
        assert _names(session) == "c"
        row = session.frame("select * from settings").to_dicts()[0]
        assert (row["since_unix_ns"], row["until_unix_ns"]) == (window.since_unix_ns, None)
        assert (row["window_text"], row["model"], row["route"]) == (window.text, "n", "chat")


def test_a_store_without_rows_has_every_relation(store: Store) -> None:
    with Session.open(store) as session:
        for name in (
            "spans request_log gpu_samples metric_samples log_records quarantine legs requests "
            "phases token_gaps window_requests"
        ).split():
            assert session.con.execute(f"select count(*) from {name}").fetchall() == [(0,)]
        assert not session.refresh()
        _add_logs(store)
        assert session.refresh()
        assert _names(session) == "abcz"
    with pytest.raises(UsageError, match="no tracekit store"):
        Session.open(store.path / "nowhere")


def test_raw_rows_sent_twice_are_shown_once(store: Store) -> None:
    rows = [
        engine("e", 0),
        engine("e", 0, process="2"),
        span("x", id="e", start=0, end=1, service="s"),
    ]
    for number in range(2):
        commit(store, "spans", table("spans", rows), NOW_NS + number)
        _add_logs(store, now_unix_ns=NOW_NS + number)
    with Session.open(store) as session:
        counts = "select (select count(*) from spans), (select count(*) from request_log)"
        assert session.con.execute(counts).fetchall() == [(3, 4)]


@pytest.mark.parametrize("settles", [False, True])
def test_a_pinned_view_stays_as_it_was(store: Store, settles: bool) -> None:
    first = [engine("e0", 0, trace_name="a"), engine("e1", 1000, trace_name="b", parent="c1")]
    commit(store, "spans", table("spans", first), NOW_NS)
    if settles:
        Settler(store, quiet_ns=0).run_pass(NOW_NS + 1)
    pin = NOW_NS + 10 * S
    with Session.open(store, ingested_through_unix_ns=pin) as session:
        before = canonical(session.con)
        assert sorted(map(len, before)) == [1, 1]
        # later: another request, and the client of one that was there
        late = [chat("c1", 995, 1200, trace_name="b"), engine("e2", 2000, trace_name="c")]
        commit(store, "spans", table("spans", late), NOW_NS + 100 * S)
        session.refresh()
        assert canonical(session.con) == before
        if settles:
            Settler(store, quiet_ns=0).run_pass(NOW_NS + 100 * S + 1)
            session.refresh()
            assert canonical(session.con) == before
        raw = "select count(*) from spans"
        assert session.con.execute(raw).fetchall() == [(2,)]
    with Session.open(store, ingested_through_unix_ns=pin) as session:
        assert canonical(session.con) == before
    with Session.open(store) as session:
        assert sorted(map(len, canonical(session.con))) == [1, 1, 2]
