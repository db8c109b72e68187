"""A view pinned to a moment shows what there was to see then, whatever has settled since."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.analysis._spans import chat, engine, http, log_row, table
from tests.analysis._stores import NOW_NS, Canonical, S, canonical, commit, differences
from tracekit.analysis.session import Session
from tracekit.analysis.settle import Settler
from tracekit.lake.store import Store

PIN = NOW_NS + 10 * S


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def _pinned(store: Store) -> Canonical:
    with Session.open(store, ingested_through_unix_ns=PIN) as session:
        return canonical(session.con)


def _settle(store: Store, at_unix_ns: int) -> None:
    Settler(store, quiet_ns=0, slack_ns=0).run_pass(at_unix_ns)


def _early() -> tuple[pa.Table, pa.Table]:
    spans = [
        engine("e0", 5, trace_name="a", parent="c0"),
        http("g1", 2, 190, kind=2, trace_name="b", parent="c1"),
        engine("e1", 5, trace_name="b", parent="g1"),
        engine("e2", 5, trace_name="d"),
    ]
    rows = [log_row(request_id="alone", start=50, ttft_ms=30.0, e2e_ms=90.0)]
    return table("spans", spans), table("request_log", rows)


def _late() -> pa.Table:
    """Clients of what was there, and a request of its own."""
    return table(
        "spans",
        [
            chat("c0", 0, 200, trace_name="a", gen_ai__usage__output_tokens=11),
            chat("c1", 0, 200, trace_name="b", gen_ai__usage__output_tokens=11),
            engine("e9", 900, trace_name="new"),
        ],
    )


@pytest.mark.parametrize("settles_first", [False, True])
@pytest.mark.parametrize("passes", [1, 3])
def test_a_request_that_settles_or_is_revised_after_the_pin_is_not_lost(
    store: Store, settles_first: bool, passes: int
) -> None:
    spans, log = _early()
    commit(store, "spans", spans, NOW_NS)
    commit(store, "request_log", log, NOW_NS)
    before = _pinned(store)
    assert sorted(map(len, before)) == [1, 1, 1, 2]
    if settles_first:
        _settle(store, NOW_NS + S)
        assert differences(_pinned(store), before) == []
    with Session.open(store, ingested_through_unix_ns=PIN) as kept:
        commit(store, "spans", _late(), PIN + 100 * S)
        for number in range(1, passes + 1):
            _settle(store, PIN + 100 * S + number * 1000 * S)
            kept.refresh()
            assert differences(canonical(kept.con), before) == []
            assert differences(_pinned(store), before) == []
    with Session.open(store) as session:
        assert sorted(map(len, canonical(session.con))) == [1, 1, 1, 2, 3]


def test_a_request_that_settled_whole_after_the_pin_is_read_as_it_settled(store: Store) -> None:
    spans, log = _early()
    commit(store, "spans", spans, NOW_NS)
    commit(store, "request_log", log, NOW_NS)
    before = _pinned(store)
    _settle(store, PIN + 1000 * S)
    with Session.open(store, ingested_through_unix_ns=PIN) as session:
        assert differences(canonical(session.con), before) == []
        # nothing is derived again for it
        assert session.con.execute("select count(*) from tail.requests").fetchall() == [(0,)]


def test_what_is_merged_after_the_pin_stands_apart_in_its_view(store: Store) -> None:
    ends = [chat("c", 0, 220), engine("e", 5, parent="h")]
    commit(store, "spans", table("spans", ends), NOW_NS)
    before = _pinned(store)
    assert sorted(map(len, before)) == [1, 1]
    _settle(store, NOW_NS + S)
    commit(store, "spans", table("spans", [http("h", 2, 215, kind=3, parent="c")]), PIN + S)
    _settle(store, PIN + 100 * S)
    assert differences(_pinned(store), before) == []
