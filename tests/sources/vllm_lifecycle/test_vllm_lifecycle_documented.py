"""vLLM's lifecycle spans as the open change describes them (built by hand)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import Row, engine, span, span_id, table


def _stage(name: str, start: float, end: float, parent: str = "e", **more: Any) -> Row:
    values: Row = {"service": "vllm"} | more
    return span(
        f"vllm_{name}", id=f"{parent}-{name}", start=start, end=end, parent=parent, **values
    )


def _records(*spans: Row) -> list[Row]:
    return captures.records(captures.derived(table("spans", spans)))


def test_they_are_parts_of_the_engines_span() -> None:
    # llm_request: step wait 2, queue 10, prefill 40, decode 100 ms
    (record,) = _records(
        engine("e", 0),
        _stage("queue", 2, 12),
        _stage("prefill", 12, 52),
        _stage("decode", 52, 152),
    )
    assert record["sources"] == "vllm,vllm_lifecycle"
    assert (record["queue_ms"], record["prefill_ms"], record["decode_ms"]) == pytest.approx(
        (10, 40, 100)
    )


def test_in_place_of_the_engines_span_they_stand_alone() -> None:
    (record,) = _records(
        _stage("queue", 2, 12), _stage("prefill", 12, 52), _stage("decode", 52, 152)
    )
    assert (record["queue_ms"], record["prefill_ms"], record["decode_ms"]) == pytest.approx(
        (10, 40, 100)
    )
    assert record["quarantine_reason"] is None


def test_a_transfer_that_is_stamped_is_wire_and_the_rest_a_wait() -> None:
    same: Row = {"request_id": "cmpl-7-0", "tokens": (80, 1)}
    spans = [
        engine("p", 0, service="vp", instance="p0", decode=0, queue=5, prefill=50, **same),
        engine("d", 60, service="vd", instance="d0", queue=70, prefill=8, decode=200,
               request_id="cmpl-7-0", tokens=(80, 21)),
        _stage("async_kv_transfer", 70, 110, parent="d", service="vd"),
    ]  # fmt: skip
    (record,) = _records(*spans)
    assert record["kv_transfer_wire_ms"] == pytest.approx(40)
    assert record["kv_transfer_ms"] == pytest.approx(78)


def _again(name: str, start: float, end: float) -> Row:
    return _stage(name, start, end) | {"span_id": span_id(f"again-{name}"[:8])}


@pytest.mark.parametrize("is_beside", [True, False])
def test_queueing_again_after_a_preemption_is_decode(is_beside: bool) -> None:
    """Preempted from 100 to 140 ms: queued until 130, its tokens computed again until 140."""
    record, *others = _records(
        *([engine("e", 0, decode=140)] if is_beside else []),
        _stage("queue", 2, 12),
        _stage("prefill", 12, 52),
        _stage("decode", 52, 100),
        _again("queue", 100, 130),
        _again("prefill", 130, 140),
        _again("decode", 140, 192),
    )
    assert not others
    assert (record["queue_ms"], record["prefill_ms"], record["decode_ms"]) == pytest.approx(
        (10, 40, 140)
    )
    assert record["decode_preempted_ms"] == pytest.approx(40)
    assert record["unexplained_ms"] == 0
