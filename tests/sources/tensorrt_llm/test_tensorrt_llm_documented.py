"""TensorRT-LLM's spans as its sources describe them (built by hand: there is no recording)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import Row, engine, span, table

LATENCY = "gen_ai__latency__"


def _trt(
    id: str,
    start: float,
    end: float,
    *,
    queue: float,
    ttft: float,
    e2e: float,
    kv: float | None = None,
    tokens: tuple[int, int] = (80, 21),
    **more: Any,
) -> Row:
    named: Row = {
        f"{LATENCY}time_in_queue": queue / 1e3,
        f"{LATENCY}time_to_first_token": ttft / 1e3,
        f"{LATENCY}e2e": e2e / 1e3,
        "gen_ai__usage__prompt_tokens": tokens[0],
        "gen_ai__usage__completion_tokens": tokens[1],
    }
    if kv is not None:
        named[f"{LATENCY}kv_cache_transfer_time"] = kv / 1e3
    values: Row = {"service": "trtllm-" + id, "kind": 2} | named | more
    return span("llm_request", id=id, start=start, end=end, **values)


def _disaggregated(**generation: Any) -> list[Row]:
    """Context server: queue 20, prefill 50. Generation server: 90 in queue, of it 60 transfer."""
    values: Row = {"queue": 90, "ttft": 95, "e2e": 300, "kv": 60}
    return [
        span("disagg", id="g", start=0, end=420, kind=2, service="disagg",
             events=[("ctx_server.selected", 1.0), ("gen_server.selected", 80.0)]),
        _trt("c", 5, 80, queue=20, ttft=70, e2e=70, tokens=(80, 1), parent="g"),
        _trt("n", 100, 410, parent="g", **(values | generation)),
    ]  # fmt: skip


def _only(spans: list[Row]) -> tuple[Row, list[Row]]:
    con = captures.derived(table("spans", spans))
    (record,) = captures.records(con)
    phases = con.sql("select * from phases order by start_unix_ns").to_arrow_table().to_pylist()
    for before, after in pairwise(phases):
        assert before["end_unix_ns"] == after["start_unix_ns"]
    total = sum(p["end_unix_ns"] - p["start_unix_ns"] for p in phases) / 1e6
    assert total == pytest.approx(record["e2e_ms"])
    return record, phases


def test_one_server() -> None:
    record, _ = _only([_trt("a", 0, 305, queue=30, ttft=90, e2e=300)])
    assert record["engine"] == "tensorrt_llm"
    assert (record["queue_ms"], record["prefill_ms"], record["decode_ms"]) == (30, 60, 210)
    assert record["ttft_ms"] == pytest.approx(90)


def test_a_generation_servers_queue_holds_the_transfer_and_counts_once() -> None:
    """Trap: time_in_queue would count the transfer twice."""
    record, phases = _only(_disaggregated())
    assert record["leg_roles"] == "gateway,prefill_engine,decode_engine"
    assert (record["queue_ms"], record["prefill_ms"]) == pytest.approx((20, 50))
    # 90 ms in the generation server's queue, of which 60 moved bytes, and 5 ms of its first step
    assert record["kv_transfer_ms"] == pytest.approx(95)
    assert record["kv_transfer_wire_ms"] == pytest.approx(60)
    wire = [p for p in phases if p["sub_phase"] == "kv_transfer.wire"]
    assert sum(p["duration_ms"] for p in wire) == pytest.approx(60)
    assert record["decode_ms"] == pytest.approx(205)


def test_events_say_when_bytes_moved() -> None:
    record, phases = _only(
        _disaggregated(
            events=[("kv_cache_transfer_start", 110.0), ("kv_cache_transfer_end", 150.0)]
        )
    )
    (wire,) = [p for p in phases if p["sub_phase"] == "kv_transfer.wire"]
    assert wire["duration_ms"] == pytest.approx(40)
    assert wire["provenance"] == "measured"
    assert record["kv_transfer_ms"] == pytest.approx(95)


def test_zero_is_not_recorded() -> None:
    record, _ = _only(_disaggregated(kv=0))
    assert record["kv_transfer_wire_ms"] is None


def test_vllms_spans_stay_vllms_and_these_are_not_taken_for_them() -> None:
    con = captures.derived(table("spans", [
        engine("v", 0, trace_name="v"),
        _trt("a", 0, 305, queue=30, ttft=90, e2e=300, trace_name="a", service="x", kv=1),
        _trt("b", 0, 305, queue=30, ttft=90, e2e=300, trace_name="b",
             scope="tensorrt_llm.serve", service="x"),
    ]))  # fmt: skip
    found = con.execute("select source, count(*) from legs group by 1 order by 1").fetchall()
    assert found == [("tensorrt_llm", 2), ("vllm", 1)]


def test_two_requests_of_one_trace_are_two() -> None:
    """Without a disaggregation server above, nothing says that two servers share a request."""
    con = captures.derived(table("spans", [
        span("agent", id="g", start=0, end=900),
        _trt("a", 5, 80, queue=20, ttft=70, e2e=70, tokens=(80, 1), parent="g"),
        _trt("b", 100, 410, queue=9, ttft=95, e2e=300, parent="g"),
    ]))  # fmt: skip
    assert len(captures.records(con)) == 2
