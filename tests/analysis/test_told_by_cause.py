"""Losses that are no more than usual, but that have a cause which healthy traffic does not show."""

from __future__ import annotations

import duckdb
import pytest

from tracekit.analysis.rules import Rules
from tracekit.analysis.told_by_cause import add_told

_CAUSES = [
    *[(f"slow{i}", "decode", "slow_worker") for i in range(3)],
    *[(f"stall{i}", "decode", "frontend_stall") for i in range(2)],
    *[(f"met{i}", "decode", "prefill_interference") for i in range(9)],
    *[(f"out{i}", "decode", "preemption") for i in range(9)],
    *[(f"dark{i}", "queue", "unknown") for i in range(9)],
    ("other", "queue", "slow_worker"),
]


@pytest.fixture
def con() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("create table causes (request_key text, phase text, cause text)")
    con.executemany("insert into causes values (?, ?, ?)", _CAUSES)
    con.execute(
        "create table winners as select row_number() over () as slow_id, request_key, phase, "
        "'attributed' as candidate from causes"
    )
    con.execute("create table outstanding (slow_id bigint, reason text)")
    return con


def _told(con: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    add_told(con, Rules())
    return con.execute(
        "select w.request_key, o.reason from outstanding as o join winners as w using (slow_id) "
        "order by all"
    ).fetchall()


def test_three_of_a_kind_tell(con: duckdb.DuckDBPyConnection) -> None:
    """Two may be chance; others at work and counted preemptions are nothing of their own."""
    assert _told(con) == [(f"slow{i}", "cause") for i in range(3)]


def test_what_stands_out_already_counts_and_stays(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(
        "insert into outstanding select slow_id, 'strong' from winners where request_key = 'slow1'"
    )
    assert _told(con) == [("slow0", "cause"), ("slow1", "strong"), ("slow2", "cause")]


def test_few_of_many_may_be_chance(con: duckdb.DuckDBPyConnection) -> None:
    """Three of thirty-one losses of decode is less than a tenth of them."""
    con.execute("insert into causes select 'more' || i, 'decode', 'unknown' from range(8) t(i)")
    assert _told(con) == []


def test_load_alone_tells_nothing(con: duckdb.DuckDBPyConnection) -> None:
    for cause in ("capacity", "arrival_burst", "router_imbalance"):
        con.execute("update causes set cause = ? where cause = 'slow_worker'", [cause])
        assert _told(con) == []
        con.execute("update causes set cause = 'slow_worker' where cause = ?", [cause])


def test_of_very_many_most_tell_for_those_nobody_looked_into(
    con: duckdb.DuckDBPyConnection,
) -> None:
    con.execute(
        "insert into winners select 100 + i, 'far' || i, 'queue', 'attributed' from range(5) t(i)"
    )
    assert not [k for k, _ in _told(con) if k.startswith("far")]
    con.execute("update causes set cause = 'kv_capacity' where cause = 'unknown'")
    assert [k for k, _ in _told(con) if k.startswith("far")] == [f"far{i}" for i in range(5)]


def test_what_is_no_candidate_is_not_told(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("update winners set candidate = 'mixed' where request_key = 'slow1'")
    assert _told(con) == [("slow0", "cause"), ("slow2", "cause")]
