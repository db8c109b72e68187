"""TGI's spans as its sources describe them (built by hand: there is no recording of it)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import Row, span, table


def _handler(**more: Any) -> Row:
    values: Row = {
        "validation_time": "1.5ms",
        "queue_time": "40.25ms",
        "inference_time": "2.5s",
        "total_time": "2.54175s",
        "time_per_token": "25ms",
    }
    return span("generate_stream", id="h", start=0, end=2600, service="tgi", **(values | more))


def _record(*spans: Row) -> Row:
    (record,) = captures.records(captures.derived(table("spans", spans)))
    return record


def test_debug_strings_are_read_in_their_units() -> None:
    record = _record(_handler())
    assert record["frontend_ms"] == pytest.approx(1.5)
    assert record["queue_ms"] == pytest.approx(40.25)
    # inference is prefill and decode together
    assert record["prefill_ms"] is None
    assert record["ttft_ms"] is None
    assert record["unexplained_ms"] == pytest.approx(2500)


@pytest.mark.parametrize(
    ("text", "ms"), [("300µs", 0.3), ("300us", 0.3), ("2s", 2000), ("1ns", 1e-6), ("0ns", 0)]
)
def test_every_unit(text: str, ms: float) -> None:
    record = _record(_handler(queue_time=text, inference_time="10ms"))
    assert record["queue_ms"] == pytest.approx(ms)


def test_the_first_token_sent_on_splits_prefill_from_decode() -> None:
    record = _record(
        _handler(),
        span("infer", id="i", parent="h", start=42, end=2541, service="tgi"),
        span("send_generation", id="s1", parent="i", start=142, end=142.1, service="tgi"),
        span("send_generation", id="s2", parent="i", start=170, end=170.1, service="tgi"),
    )
    assert record["ttft_ms"] == pytest.approx(142)
    assert record["prefill_ms"] == pytest.approx(142 - 41.75)
    assert record["decode_ms"] == pytest.approx(2541.75 - 142)


@pytest.mark.parametrize("bad", ["", "abc", "1.2.3ms", "-5ms", "5", "1m", "99999999999s"])
def test_what_is_no_duration_is_not_known(bad: str) -> None:
    record = _record(_handler(queue_time=bad))
    assert record["queue_ms"] is None


def test_a_foreign_span_of_that_name_is_no_request() -> None:
    spans = [span("generate", id="x", start=0, end=10, foo="bar")]
    assert not captures.records(captures.derived(table("spans", spans)))


def test_durations_longer_than_the_call_are_set_aside() -> None:
    record = _record(_handler(inference_time="9s"))
    assert record["quarantine_reason"] == "inconsistent_durations:phases>e2e"
