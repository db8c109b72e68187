"""Triton's OpenTelemetry spans as its source describes them (built by hand: no recording)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import Row, chat, engine, span, table

Stamps = list[tuple[str, float]]
CAME: Stamps = [("HTTP_RECV_START", -1.0), ("HTTP_RECV_END", -0.5)]
AT: Row = {"kind": 2, "service": "triton", "scope": "triton-server"}


def _root(stamps: Stamps, **more: Any) -> Row:
    values: Row = {"id": "r", "start": 0, "end": 400, "events": stamps} | AT | more
    return span("InferRequest", **values)


def _model(name: str, start: float, end: float, *, parent: str = "r", **more: Any) -> Row:
    stamps = [("REQUEST_START", start), ("QUEUE_START", start + 1), ("REQUEST_END", end)]
    named: Row = {"triton__model_name": name, "triton__model_version": 1}
    values: Row = {"id": name, "parent": parent, "start": start, "end": end, "events": stamps}
    return span(name, **(values | AT | named | more))


def _compute(model: str, start: float, end: float) -> Row:
    stamps = [("COMPUTE_START", start), ("COMPUTE_INPUT_END", start + 1),
              ("COMPUTE_OUTPUT_START", end - 1), ("COMPUTE_END", end)]  # fmt: skip
    return span("compute", id=f"{model}c", parent=model, start=start, end=end, events=stamps, **AT)


def _answers(*at: float) -> Stamps:
    return [("INFER_RESPONSE_COMPLETE", ms) for ms in at]


def _request(stamps: Stamps, **more: Any) -> list[Row]:
    """One model: queued by the batcher from 2 to 12 ms, COMPUTE until 390."""
    return [_root(stamps, **more), _model("llama", 1, 395), _compute("llama", 12, 390)]


def _only(*spans: Row) -> Row:
    con = captures.derived(table("spans", spans))
    (record,) = captures.records(con)
    total = con.sql("select sum(duration_ms) from phases").fetchall()[0][0]
    assert total == pytest.approx(record["e2e_ms"])
    return record


def test_a_stream_is_queue_then_queue_or_prefill_then_decode() -> None:
    record = _only(*_request([*CAME, *_answers(150, 200, 250, 391), ("HTTP_SEND_START", 150.0)]))
    assert record["queue_ms"] == pytest.approx(10)
    # from HTTP_RECV_START to the first response, less the batcher's queue: not to be called prefill
    assert record["queue_or_prefill_ms"] == pytest.approx(151 - 10)
    assert record["prefill_ms"] is None
    assert record["decode_ms"] == pytest.approx(391 - 150)
    assert record["ttft_ms"] == pytest.approx(151)
    assert (record["model"], record["engine"]) == ("llama", "triton")


@pytest.mark.parametrize("answers", [(390,), (390, 391)])
def test_a_whole_answer_tells_no_first_token(answers: tuple[float, ...]) -> None:
    """An answer that came whole is stamped once, or twice with the empty last response."""
    record = _only(*_request([*CAME, *_answers(*answers)]))
    assert record["queue_ms"] == pytest.approx(10)
    assert record["ttft_ms"] is None
    assert record["decode_ms"] is None
    assert record["unexplained_ms"] == pytest.approx(401 - 10)


def test_waiting_for_a_grpc_request_is_no_arrival() -> None:
    """Trap: Triton stamps GRPC_WAITREAD_START when it begins to wait for a request."""
    waited = [("GRPC_WAITREAD_START", -20_000.0), ("GRPC_WAITREAD_END", 0.0), *_answers(390)]
    assert _only(*_request(waited))["e2e_ms"] == pytest.approx(400)


def test_below_a_client_its_first_token_counts() -> None:
    call = chat("c", -10, 410, events=[("first_token", 160.0)], gen_ai__usage__output_tokens=9)
    record = _only(call, *_request([*CAME, *_answers(390)], parent="c"))
    assert record["leg_roles"] == "client,gateway"
    assert record["network_ms"] == pytest.approx(9)
    assert record["queue_ms"] == pytest.approx(10)
    assert record["queue_or_prefill_ms"] == pytest.approx(160 + 1 - 10)
    assert record["decode_ms"] == pytest.approx(250)


def test_an_engine_that_traces_itself_tells_the_rest() -> None:
    # vLLM from 14 ms on: step wait 2, queue 10, prefill 40, decode 100
    record = _only(
        *_request([*CAME, *_answers(70, 100, 170)]),
        engine("e", 14, parent="llama", tokens=(50, 11)),
    )
    assert record["leg_roles"] == "gateway,engine"
    assert (record["prefill_ms"], record["decode_ms"]) == pytest.approx((40, 100))
    # the batcher's queue, and the engine's
    assert record["queue_ms"] == pytest.approx(10 + 10)


def test_an_ensembles_queues_are_its_members() -> None:
    record = _only(
        _root([*CAME, *_answers(390)]),
        _model("ensemble", 1, 395),
        _model("pre", 3, 20, parent="ensemble"),
        _compute("pre", 9, 19),
        _model("llama", 21, 394, parent="ensemble"),
        _compute("llama", 30, 390),
    )
    assert record["model"] == "ensemble"
    assert record["queue_ms"] is None


def test_a_request_without_a_response_failed() -> None:
    record = _only(*_request(CAME))
    assert record["status"] == "error"
    assert record["error"] == "no response: failed or cancelled"


def test_a_span_that_came_twice_is_one() -> None:
    spans = _request([*CAME, *_answers(390)])
    assert _only(*spans, *spans)["queue_ms"] == pytest.approx(10)


def test_events_out_of_order_place_nothing() -> None:
    spans = _request([*CAME, *_answers(390)])
    spans[2] |= {"events": spans[2]["events"].replace(str(spans[2]["start_unix_ns"]), "5")}
    assert _only(*spans)["queue_ms"] is None


def test_a_foreign_span_of_that_name_is_no_request() -> None:
    rows = [span("InferRequest", id="x", start=0, end=10, kind=2)]
    assert not captures.records(captures.derived(table("spans", rows)))
