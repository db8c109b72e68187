"""Times near the end of what 64 bits hold: set aside, and nothing else fails for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import Row, chat, engine, http, log_row, phase, table
from tests.analysis._stores import NOW_NS, commit
from tracekit.analysis.derive import LATEST_UNIX_NS
from tracekit.analysis.session import Session
from tracekit.analysis.settle import Settler
from tracekit.lake.store import Store

LAST = 2**63 - 1


def _dated(row: Row, start_unix_ns: int, length_ns: int = 10**9) -> Row:
    return row | {
        "start_unix_ns": start_unix_ns,
        "end_unix_ns": min(start_unix_ns + length_ns, LAST),
    }


def _spans(start_unix_ns: int) -> list[Row]:
    first_chunk = {"gen_ai__response__time_to_first_chunk": 0.1}
    return [
        _dated(engine("e", 0, trace_name="a"), start_unix_ns),
        _dated(chat("c", 0, 0, trace_name="b", **first_chunk), start_unix_ns),
        _dated(http("h", 0, 0, kind=2, trace_name="d"), start_unix_ns),
        _dated(phase("p", "decode", 0, 0, trace_name="f"), start_unix_ns),
    ]


def _log(start_unix_ns: int) -> Row:
    return log_row(
        request_id="l", start_unix_ns=start_unix_ns, ttft_ms=50.0, e2e_ms=100.0, queue_ms=10.0,
        prefill_ms=5.0, client_wait_ms=3.0,
    )  # fmt: skip


@pytest.mark.parametrize("start_unix_ns", [LATEST_UNIX_NS, LAST - 10**9, LAST])
def test_what_is_dated_past_2200_is_set_aside_alone(start_unix_ns: int) -> None:
    sound = engine("ok", 0, trace_name="ok")
    con = captures.derived(
        table("spans", [*_spans(start_unix_ns), sound]),
        table("request_log", [_log(start_unix_ns)]),
    )
    found = con.execute(
        "select quarantine_reason, count(*) from requests group by 1 order by 1 nulls last"
    ).fetchall()
    assert found == [("absurd_time", 5), (None, 1)]


def test_an_end_past_2200_is_set_aside_too() -> None:
    row = engine("e", 0)
    con = captures.derived(table("spans", [row | {"end_unix_ns": LAST}]))
    assert [r["quarantine_reason"] for r in captures.records(con)] == ["absurd_time"]


def test_a_store_with_absurd_times_settles_and_is_read(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    commit(store, "spans", table("spans", [*_spans(LAST), engine("ok", 0, trace_name="k")]), NOW_NS)
    commit(store, "request_log", table("request_log", [_log(LAST)]), NOW_NS)
    query = "select count(*), count(quarantine_reason) from requests"
    with Session.open(store) as session:
        assert session.con.execute(query).fetchall() == [(6, 5)]
        assert Settler(store, quiet_ns=0).run_pass(NOW_NS + 1).settled == 6
        session.refresh()
        assert session.con.execute(query).fetchall() == [(6, 5)]
