"""TGI's spans as its sources describe them (built by hand: there is no recording of it)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import START_NS, Row, span, table
from tests.analysis._stores import S, commit
from tracekit.analysis.session import Session
from tracekit.analysis.settle import Settler
from tracekit.lake.store import Store


def _handler(**more: Any) -> Row:
    values: Row = {
        "validation_time": "1.5ms",
        "queue_time": "40.25ms",
        "inference_time": "2.5s",
        "total_time": "2.54175s",
        "time_per_token": "25ms",
    }
    named: Row = {"id": "h", "start": 0, "end": 2600, "service": "tgi"} | values | more
    return span("generate_stream", **named)


def _queued(parent: str = "h", start: float = 1.5, end: float = 41.75, **more: Any) -> Row:
    """The first span of a request to end, with the place in the code that Rust's tracing adds."""
    named: Row = {"code__namespace": "text_generation_router_v3::queue"} | more
    return span("queued", id=f"{parent}q", parent=parent, start=start, end=end, service="tgi",
                **named)  # fmt: skip


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
        _queued(),
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


def _call(name: str, start: float, first: float) -> list[Row]:
    """A handler's spans as deep as they lie: the steps' spans are below `schedule`."""
    at: Row = {"service": "tgi"}
    deep = ("async_stream", "generate_stream", "schedule")
    chain = (f"{name}h", *(f"{name}{inner}" for inner in deep))
    rows = [_handler(id=chain[0], start=start, end=start + 2600, parent="agent")]
    rows += [
        span(deep[i], id=chain[i + 1], parent=chain[i], start=start, end=start + 2500, **at)
        for i in range(3)
    ]
    rows.append(_queued(chain[-1], start + 1.5, start + 41.75))
    for step in range(3):
        when = first + 30 * step
        kind = "waiting" if step == 1 else "infer"
        rows.append(span(kind, id=f"{name}i{step}", parent=chain[-1], start=when - 25, end=when,
                         **at))  # fmt: skip
        rows.append(span("send_generation", id=f"{name}s{step}", parent=f"{name}i{step}",
                         start=when, end=when + 0.1, **at))  # fmt: skip
    return rows


def test_calls_beside_each_other_in_one_trace_keep_their_own_first_tokens() -> None:
    """Trap: by time alone the second call's first token would be the first call's fourth."""
    con = captures.derived(table("spans", [
        span("agent", id="agent", start=0, end=5000),
        *_call("a", 0, 142),
        *_call("b", 100, 900),
    ]))  # fmt: skip
    assert [r["ttft_ms"] for r in captures.records(con)] == pytest.approx([142, 800])
    # inner spans of the handlers' names are no requests
    assert con.execute("select count(*) from legs where role = 'engine'").fetchall() == [(2,)]


def test_where_the_first_spans_are_missing_the_first_there_is_no_first_token() -> None:
    """Trap: of a long answer the first spans came long before: the earliest left is no first."""
    late = span("send_generation", id="s", parent="h", start=900, end=900.1, service="tgi")
    record = _record(_handler(), late)
    assert record["ttft_ms"] is None
    assert record["unexplained_ms"] == pytest.approx(2500)


def test_an_answer_of_minutes_keeps_its_first_token_in_a_receiver(tmp_path: Path) -> None:
    """Inner spans arrive as they end, the handler's when all is done: settled in between."""
    m = 60_000.0
    early = [_queued("h"), span("send_generation", id="s0", parent="h", start=142, end=142.1,
                                service="tgi")]  # fmt: skip
    last = [
        span("send_generation", id="s1", parent="h", start=5 * m, end=5 * m, service="tgi"),
        _handler(end=5 * m + 100, inference_time="300s", total_time="300.04175s"),
    ]
    store = Store.open(tmp_path / "s", create=True)
    now = START_NS
    for spans, minutes in ((early, 1), (last, 5)):
        commit(store, "spans", table("spans", spans), now + minutes * 60 * S)
        for later in (0, 30, 61, 90, 121, 180):
            Settler(store).run_pass(now + (minutes * 60 + later) * S)
    with Session.open(store) as session:
        (record,) = session.frame("select * from requests").to_dicts()
    assert record["quarantine_reason"] is None
    assert record["ttft_ms"] == pytest.approx(142)


def test_a_queue_of_others_is_no_part_of_it() -> None:
    con = captures.derived(table("spans", [_queued("agent", code__namespace="shop::orders")]))
    assert con.execute("select count(*) from legs").fetchall() == [(0,)]


def test_the_time_of_a_token_tells_how_many_were_made() -> None:
    # 2.5 s / 41 tokens = 60.975609 ms, as Rust cuts it
    record = _record(
        _handler(time_per_token="60.975609ms"),
        _queued(),
        span("send_generation", id="s", parent="h", start=142, end=142.1, service="tgi"),
    )
    assert record["output_tokens"] == 41
    assert record["tpot_ms"] == pytest.approx((2541.75 - 142) / 40)


@pytest.mark.parametrize("text", ["0ns", "", "abc", "61.7ms", "3s"])
def test_what_is_no_number_of_tokens_is_not_known(text: str) -> None:
    assert _record(_handler(time_per_token=text))["output_tokens"] is None
