"""LMCache's server spans as its source describes them (built by hand: there is no recording)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import Row, engine, span, table


def _retrieve(
    start: float, end: float, *, session: str = "chatcmpl-a", on: str = "request"
) -> list[Row]:
    """The server's `request` with a lookup, a retrieve and a store, in a trace of its own."""
    named: Row = {"session_id": session}
    on_request: Row = named if on == "request" else {}
    on_retrieve: Row = named if on == "retrieve" else {}
    return [
        span("request", id="r", start=start - 1, end=end + 50, trace_name="lm", service="lmcache",
             **on_request),
        span("mp.lookup_prefetch", id="l", parent="r", start=start - 1, end=start,
             trace_name="lm", service="lmcache"),
        span("mp.retrieve", id="x", parent="r", start=start, end=end, trace_name="lm",
             service="lmcache", **on_retrieve),
        span("mp.store", id="s", parent="r", start=end + 10, end=end + 50, trace_name="lm",
             service="lmcache"),
    ]  # fmt: skip


def _only(spans: list[Row]) -> tuple[Row, list[Row]]:
    con = captures.derived(table("spans", spans))
    (record,) = [r for r in captures.records(con) if r["quarantine_reason"] is None]
    phases = con.sql(
        f"select * from phases where request_key = '{record['request_key']}' order by start_unix_ns"
    ).to_arrow_table().to_pylist()  # fmt: skip
    for before, after in pairwise(phases):
        assert before["end_unix_ns"] == after["start_unix_ns"]
    total = sum(p["end_unix_ns"] - p["start_unix_ns"] for p in phases) / 1e6
    assert total == pytest.approx(record["e2e_ms"])
    return record, phases


# engine("a", 0): step wait until 2, queue until 92, prefill until 132, decode until 232 ms
ENGINE: Row = {"queue": 90, "prefill": 40}


@pytest.mark.parametrize("on", ["request", "retrieve"])
def test_a_load_in_the_queue_is_a_transfer_and_no_wait_for_a_slot(on: str) -> None:
    record, _ = _only([engine("a", 0, **ENGINE), *_retrieve(20, 80, on=on)])
    assert record["sources"] == "lmcache,vllm"
    assert record["kv_transfer_ms"] == pytest.approx(60)
    assert record["kv_transfer_wire_ms"] == pytest.approx(60)
    assert record["queue_ms"] == pytest.approx(30)
    assert record["prefill_ms"] == pytest.approx(40)
    assert record["ttft_ms"] == pytest.approx(132)


def test_a_load_within_the_prefill_is_hidden_there() -> None:
    record, _ = _only([engine("a", 0, **ENGINE), *_retrieve(85, 120)])
    assert record["kv_transfer_ms"] == pytest.approx(7)
    assert record["kv_hidden_ms"] == pytest.approx(28)
    assert record["prefill_ms"] == pytest.approx(40)


def test_lookups_and_stores_are_not_on_the_way() -> None:
    record, phases = _only([engine("a", 0, **ENGINE), *_retrieve(20, 20.5)])
    assert record["kv_transfer_ms"] == pytest.approx(0.5)
    assert {p["phase"] for p in phases} == {"frontend", "queue", "kv_transfer", "prefill", "decode"}


def test_another_requests_load_is_nobodys() -> None:
    record, _ = _only([engine("a", 0, **ENGINE), *_retrieve(20, 80, session="chatcmpl-b")])
    assert record["sources"] == "vllm"
    assert record["queue_ms"] == pytest.approx(90)
