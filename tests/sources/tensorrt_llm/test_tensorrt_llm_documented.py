"""TensorRT-LLM's spans as its sources describe them (built by hand: there is no recording)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import Row, engine, span, table, trace

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
    """Both name the span `llm_request`; TensorRT-LLM's tracer is "trt.llm"."""
    times: Row = {"queue": 30, "ttft": 90, "e2e": 300}
    con = captures.derived(table("spans", [
        engine("v", 0, trace_name="v"),
        engine("w", 0, trace_name="w", scope="vllm.tracing.otel", service="beside-trtllm"),
        _trt("a", 0, 305, trace_name="a", service="x", kv=1, **times),
        _trt("b", 0, 305, trace_name="b", scope="tensorrt_llm.serve", service="x", **times),
        _trt("c", 0, 305, trace_name="c", scope="trt.llm", service="unknown_service", **times),
    ]))  # fmt: skip
    found = dict(con.execute("select trace_id, source from legs").fetchall())
    assert len(found) == con.execute("select count(*) from legs").fetchall()[0][0] == 5
    assert found == {trace(name): "vllm" if name in "vw" else "tensorrt_llm" for name in "vwabc"}


def test_a_context_server_tells_its_sending_by_events_only() -> None:
    """Its time_in_queue holds no transfer: cutting one out of it would be a guess."""
    (spans, context) = (_disaggregated(), {"queue": 20, "ttft": 70, "e2e": 70, "kv": 15})
    spans[1] = _trt("c", 5, 80, tokens=(80, 1), parent="g", **context)
    record, _ = _only(spans)
    assert record["leg_roles"] == "gateway,prefill_engine,decode_engine"
    assert (record["queue_ms"], record["prefill_ms"]) == pytest.approx((20, 50))
    assert record["kv_transfer_wire_ms"] == pytest.approx(60)


def test_one_token_answers_are_told_apart_by_their_order() -> None:
    spans = _disaggregated(tokens=(80, 1), e2e=95)
    record, _ = _only(spans)
    assert record["leg_roles"] == "gateway,prefill_engine,decode_engine"
    assert record["kv_transfer_wire_ms"] == pytest.approx(60)


def test_a_generation_server_that_served_alone_waited_for_a_slot() -> None:
    """Conditional disaggregation: no context server was selected, and nothing was transferred."""
    record, _ = _only([
        span("disaggregated_request", id="g", start=0, end=420, kind=2, scope="trt.llm",
             service="disagg", events=[("gen_server.selected", 2.0)]),
        _trt("n", 10, 410, queue=90, ttft=150, e2e=390, parent="g"),
    ])  # fmt: skip
    assert record["leg_roles"] == "gateway,engine"
    assert (record["queue_ms"], record["prefill_ms"]) == pytest.approx((90, 60))
    assert record["kv_transfer_ms"] is None


def test_a_stream_outlives_the_disaggregation_servers_span() -> None:
    """The span ends when the handler returns the stream, here before the first token."""
    spans = _disaggregated()
    spans[0] |= {"end_unix_ns": spans[0]["start_unix_ns"] + 90_000_000}
    record, _ = _only(spans)
    assert record["clipped_ms"] == 0
    assert record["decode_ms"] == pytest.approx(205)
    assert record["quarantine_reason"] is None


def test_its_span_is_known_without_events() -> None:
    spans = _disaggregated()
    spans[0] |= {"name": "disaggregated_request", "events": None}
    record, _ = _only(spans)
    assert record["leg_roles"] == "gateway,prefill_engine,decode_engine"


def test_a_span_that_came_twice_is_no_second_server() -> None:
    spans = _disaggregated()
    alone = [spans[0], spans[1], spans[1]]
    record, _ = _only(alone)
    assert record["leg_roles"] == "gateway,prefill_engine"


def test_numbers_that_each_server_counts_join_nothing() -> None:
    """Two servers without propagation, both with a request 7 of 80 tokens: two requests."""
    seven: Row = {"gen_ai__request__id": "7"}
    con = captures.derived(table("spans", [
        _trt("a", 0, 80, queue=20, ttft=70, e2e=70, tokens=(80, 1), trace_name="a", **seven),
        _trt("b", 100, 410, queue=9, ttft=95, e2e=300, trace_name="b", **seven),
    ]))  # fmt: skip
    assert len(captures.records(con)) == 2


def test_two_requests_of_one_trace_are_two() -> None:
    """Without a disaggregation server above, nothing says that two servers share a request."""
    con = captures.derived(table("spans", [
        span("agent", id="g", start=0, end=900),
        _trt("a", 5, 80, queue=20, ttft=70, e2e=70, tokens=(80, 1), parent="g"),
        _trt("b", 100, 410, queue=9, ttft=95, e2e=300, parent="g"),
    ]))  # fmt: skip
    assert len(captures.records(con)) == 2
