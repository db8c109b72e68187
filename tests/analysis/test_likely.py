"""Joins by time and token counts, on recorded traffic whose ids were taken away.

The truth is the trace id that the load client wrote down, which none of the code under test sees.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.analysis import _captures as captures
from tracekit.analysis.likely import Pair, propose, record
from tracekit.analysis.session import Session
from tracekit.analysis.settle import Settler, settle_after_import
from tracekit.lake.store import Store

SCENARIOS = ("queue", "pd-nixl", "prefix-cache", "long-prompt")


def engine_spans(scenario: str) -> list[dict[str, Any]]:
    """The engine's own spans: no client, no proxy."""
    rows: list[dict[str, Any]] = captures.spans(scenario).to_pylist()
    return [row for row in rows if row["name"] == "llm_request"]


def log_rows(scenario: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """(the client's rows without any id, leg id → trace id that the call had)."""
    rows: list[dict[str, Any]] = captures.log(scenario).to_pylist()
    truth = {_leg_id(row): row["trace_id"] for row in rows}
    return [row | {"trace_id": None, "request_id": None} for row in rows], truth


def _leg_id(row: Mapping[str, Any]) -> str:
    ((leg_id,),) = duckdb.execute("select substr(md5($1), 1, 24)", [row["log_key"]]).fetchall()
    return str(leg_id)


def _append(store: Store, table: str, rows: list[dict[str, Any]]) -> None:
    schema = captures.empty(table).schema
    store.append(table, pa.Table.from_pylist(rows, schema=schema))


def make_store(path: Path, spans: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Store:
    store = Store.open(path, create=True)
    _append(store, "spans", spans)
    _append(store, "request_log", rows)
    settle_after_import(store)
    return store


def pairs_of(store: Store) -> tuple[Pair, ...]:
    with Session.open(store) as session:
        return propose(session).pairs


def requests_of(store: Store) -> list[dict[str, Any]]:
    with Session.open(store) as session:
        return session.frame("select * from requests order by start_unix_ns").to_dicts()


def _halved(rows: list[dict[str, Any]], key: str, seed: int) -> list[dict[str, Any]]:
    kept = random.Random(seed)
    chosen = {value: kept.random() < 0.5 for value in sorted({row[key] for row in rows})}
    return [row for row in rows if chosen[row[key]]]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_all_pairs_are_found_and_right(scenario: str, tmp_path: Path) -> None:
    rows, truth = log_rows(scenario)
    pairs = pairs_of(make_store(tmp_path / "store", engine_spans(scenario), rows))
    assert len(pairs) == captures.CALLS[scenario]
    assert all(truth[pair.client_leg_id] == pair.trace_id for pair in pairs)
    # below any shared id (0.9), and not by much: chance was at most 5 %
    assert all(0.85 <= pair.score < 0.9 for pair in pairs)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_lost_its_counterpart_is_not_given_another(scenario: str, tmp_path: Path) -> None:
    """Half of the calls and half of the engine's requests are gone, each by itself."""
    rows, truth = log_rows(scenario)
    spans = _halved(engine_spans(scenario), "trace_id", 1)
    rows = _halved(rows, "log_key", 2)
    pairs = pairs_of(make_store(tmp_path / "store", spans, rows))
    both = {span["trace_id"] for span in spans} & {truth[_leg_id(row)] for row in rows}
    assert len(pairs) == len(both)
    assert all(truth[pair.client_leg_id] == pair.trace_id for pair in pairs)


SIZES = ("input_tokens", "output_tokens")
_SPAN_SIZES = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens")


def _coarse(tokens: int, step: int) -> int:
    return (tokens // step + 1) * step


def _coarse_span(span: dict[str, Any], step: int) -> dict[str, Any]:
    told = captures.attributes(span)
    assert all(name in told for name in _SPAN_SIZES)
    told |= {name: _coarse(told[name], step) for name in _SPAN_SIZES}
    return span | {"attributes": json.dumps(told)}


@pytest.mark.parametrize("coarse", (8, 32, 1000))
def test_requests_of_one_size_are_joined_where_nothing_else_fits(
    coarse: int, tmp_path: Path
) -> None:
    """Benchmarks send one size again and again: the coarser the sizes, the fewer pairs are sure."""
    wrong = found = 0
    # under P/D the length of an answer of one token tells the prefill server
    for scenario in ("queue", "prefix-cache", "long-prompt"):
        rows, truth = log_rows(scenario)
        spans = _halved(
            [_coarse_span(span, coarse) for span in engine_spans(scenario)], "trace_id", 3
        )
        rows = _halved(
            [row | {name: _coarse(row[name], coarse) for name in SIZES} for row in rows],
            "log_key",
            4,
        )
        pairs = pairs_of(make_store(tmp_path / scenario, spans, rows))
        found += len(pairs)
        wrong += sum(truth[pair.client_leg_id] != pair.trace_id for pair in pairs)
    assert wrong <= 0.05 * found, f"{wrong} of {found}"
    assert (found > 20) == (coarse < 1000)


def test_what_was_written_down_is_one_request(tmp_path: Path) -> None:
    """As if the ids had been there: same phases, and the score of a likeness."""
    rows, _ = log_rows("queue")
    store = make_store(tmp_path / "store", engine_spans("queue"), rows)
    pairs = pairs_of(store)
    assert record(store, pairs)
    found = requests_of(store)
    con = captures.derived(
        captures.empty("spans").from_pylist(
            engine_spans("queue"), schema=captures.empty("spans").schema
        ),
        captures.log("queue"),
    )
    told = captures.records(con)
    assert len(found) == len(told) == 120
    for mine, theirs in zip(found, told, strict=True):
        assert mine["leg_roles"] == "client,engine"
        assert mine["sources"] == "request_log,tracekit_join,vllm"
        assert 0.85 <= mine["match_score"] < 0.9
        assert mine["trace_id"] == theirs["trace_id"]
        for column in ("ttft_ms", "e2e_ms", "queue_ms", "prefill_ms", "decode_ms", "network_ms"):
            assert mine[column] == pytest.approx(theirs[column]), column
    assert not pairs_of(store)


def test_writing_twice_changes_nothing(tmp_path: Path) -> None:
    rows, _ = log_rows("prefix-cache")
    store = make_store(tmp_path / "store", engine_spans("prefix-cache"), rows)
    pairs = pairs_of(store)
    record(store, pairs)
    before = requests_of(store)
    record(store, pairs)
    assert requests_of(store) == before


@pytest.mark.parametrize(
    "order",
    (
        "spans rows links",
        "rows spans links",
        "spans links rows",
        "spans,links rows",
        "rows,spans,links",
    ),
)
def test_the_order_of_arrival_does_not_matter(order: str, tmp_path: Path) -> None:
    """A link is never there before the engine's span: it is written for one that has settled."""
    rows, _ = log_rows("pd-nixl")
    store = make_store(tmp_path / "store", engine_spans("pd-nixl"), rows)
    record(store, pairs_of(store))
    with Session.open(store) as session:
        links = session.frame("select * from spans where scope_name = 'tracekit.join'").to_dicts()
    assert len(links) == 60
    parts = {"spans": engine_spans("pd-nixl"), "rows": rows, "links": links}
    again = Store.open(tmp_path / "again", create=True)
    settler = Settler(again, quiet_ns=0, slack_ns=0)
    for number, names in enumerate(order.split()):
        now = captures.INGESTED_NS + number * 10**9
        for name in names.split(","):
            table = "request_log" if name == "rows" else "spans"
            _append(again, table, [row | {"ingested_unix_ns": now} for row in parts[name]])
        settler.run_pass(now + 10**8)
    mine, theirs = requests_of(again), requests_of(store)
    columns = ("start_unix_ns", "e2e_ms", "leg_roles", "sources", "match_score", "kv_transfer_ms")
    assert [[r[c] for c in columns] for r in mine] == [[r[c] for c in columns] for r in theirs]


def test_a_better_join_goes_before_one_by_likeness(tmp_path: Path) -> None:
    """The client's span comes late, with the trace: the call keeps its own row's request."""
    rows, _ = log_rows("queue")
    store = make_store(tmp_path / "store", engine_spans("queue"), rows)
    pair = pairs_of(store)[0]
    # the engine's caller turns out to be traced
    callers = [
        row
        for row in captures.spans("queue").to_pylist()
        if row["trace_id"] == pair.trace_id and row["name"] != "llm_request"
    ]
    assert len(callers) == 1
    _append(store, "spans", [callers[0] | {"ingested_unix_ns": captures.INGESTED_NS + 1}])
    settle_after_import(store)
    record(store, [pair])
    found = requests_of(store)
    mine = [r for r in found if r["trace_id"] == pair.trace_id]
    assert [r["match_score"] for r in mine] == [1.0]
    assert len(found) == 240


def test_a_link_whose_engine_is_gone_is_no_request(tmp_path: Path) -> None:
    rows, _ = log_rows("queue")
    store = make_store(tmp_path / "store", engine_spans("queue")[:0], rows[:1])
    pair = Pair("c", "s", None, None, _leg_id(rows[0]), "a" * 32, "b" * 16,
                rows[0]["start_unix_ns"], 1, 1, 1.0, 0.0, 1, 0.0, 0.9)  # fmt: skip
    record(store, [pair])
    (found,) = requests_of(store)
    assert found["quarantine_reason"] is None
    assert found["sources"] == "request_log"


def _made(**changes: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One call of the recording and the engine's request of it, changed as the call's."""
    rows, truth = log_rows("queue")
    (row,) = (r for r in rows if truth[_leg_id(r)] == truth[_leg_id(rows[3])])
    spans = [s for s in engine_spans("queue") if s["trace_id"] == truth[_leg_id(row)]]
    spans = [s | {"model": "tiny-llama"} for s in spans]
    # others around it, so that there is a time in which both sides are seen
    others = [r for r in rows if r is not row]
    left = [s for s in engine_spans("queue") if s["trace_id"] != truth[_leg_id(row)]]
    return [*spans, *left], [row | changes, *others]


@pytest.mark.parametrize(
    "changes",
    (
        {"output_tokens": 5},
        {"input_tokens": 5},
        {"model": "another"},
        {"status": "aborted"},
        {"output_tokens": None},
        {"start_unix_ns": None, "end_unix_ns": None},
    ),
    ids=lambda c: ",".join(c),
)
def test_what_differs_is_not_joined(changes: dict[str, Any], tmp_path: Path) -> None:
    spans, rows = _made(**changes)
    pairs = pairs_of(make_store(tmp_path / "store", spans, rows))
    assert len(pairs) == 119
    assert _leg_id(rows[0]) not in {pair.client_leg_id for pair in pairs}


def test_clocks_that_differ_by_more_than_the_slack_join_nothing(tmp_path: Path) -> None:
    rows, _ = log_rows("queue")
    late = [
        row | {name: row[name] + 2 * 10**9 for name in ("start_unix_ns", "end_unix_ns")}
        for row in rows
    ]
    store = make_store(tmp_path / "store", engine_spans("queue"), late)
    assert len(pairs_of(store)) < 12
    with Session.open(store) as session:
        assert len(propose(session, slack_ms=2_500).pairs) < 120  # and more chance: fewer are sure
