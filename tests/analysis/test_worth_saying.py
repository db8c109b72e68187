"""What is next to nothing is not said: culprits of a hair, shares of 0 %."""

from __future__ import annotations

from collections import defaultdict

import duckdb
import pytest

from tracekit.analysis import diagnose, verdicts
from tracekit.analysis.missing import missing_evidence
from tracekit.analysis.rules import Rules

_STALLS = [("long", 900.0), ("half", 450.0), ("crumb", 8.0), ("short", 0.0)]


@pytest.fixture
def con() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    rules = Rules().to_arrow()
    con.execute("create table attribution_rules as select * from rules")
    assert rules.num_rows == 1
    con.execute(
        "create table finding_culprits (phase text, metric text, culprit_key text, "
        "request_id text, input_tokens int, victims int, stall_ms double)"
    )
    con.execute(
        "create table interference (request_key text, phase text, culprit_key text, "
        "culprit_request_id text, stall_ms double)"
    )
    for name, ms in _STALLS:
        con.execute(
            "insert into finding_culprits values ('decode', 'tpot', ?, ?, 9, 1, ?)",
            [name, name, ms],
        )
        con.execute("insert into interference values ('v', 'decode', ?, ?, ?)", [name, name, ms])
    # elsewhere a small one is the largest, and under 1 ms still nobody
    for metric, ms in (("ttft", 8.0), ("e2e", 0.9)):
        con.execute(
            "insert into finding_culprits values ('decode', ?, 'crumb', 'crumb', 9, 1, ?)",
            [metric, ms],
        )
    return con


def test_only_culprits_that_cost_something_are_named(con: duckdb.DuckDBPyConnection) -> None:
    named = diagnose._culprits(con)
    assert [c.request_id for c in named["decode", "tpot"]] == ["long", "half"]
    assert [c.request_id for c in named["decode", "ttft"]] == ["crumb"]
    assert ("decode", "e2e") not in named
    rows = con.execute(f"select culprit_key from ({verdicts._NAMED}) order by stall_ms desc")
    assert rows.fetchall() == [("long",), ("half",)]


@pytest.mark.parametrize(
    ("covered", "said"), [(1_000, "in 3 slow requests"), (700, "in 30 % of the requests")]
)
def test_no_share_of_nothing(covered: int, said: str) -> None:
    fields: dict[str, int] = defaultdict(lambda: 1_000, with_merged_phase=0, with_whole_cached=0)
    fields["with_coverage"] = covered
    notes = missing_evidence(
        fields, completed=1_000, reasons={"coverage": 3}, queue_cause_open=False, rules=Rules()
    )
    (why,) = [m.why for m in notes if m.field == "coverage"]
    assert why.endswith(said)
