"""Numbers that cannot be: the request is counted, says why, and no phase is made of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._legs import check_timelines
from tests.analysis._spans import chat, engine, http, log_row, table, trace
from tracekit.chunks import MAX_OFFSET_US, pack
from tracekit.names import PHASES

Row = dict[str, Any]


def _request(*spans: Row, log: tuple[Row, ...] = ()) -> Row:
    con = captures.derived(table("spans", spans), table("request_log", log) if log else None)
    check_timelines(con, "request_points")
    (record,) = captures.records(con)
    return record


def _phases(record: Row) -> dict[str, float]:
    return {p: record[f"{p}_ms"] for p in PHASES if record[f"{p}_ms"]}


#: What the engine writes where a timestamp was never set (0.0): uptimes with either sign.
IMPOSSIBLE: list[tuple[Row, str]] = [
    ({"queue": -48_000.0}, "negative_duration:queue"),
    ({"prefill": -1.0}, "negative_duration:prefill"),
    ({"decode": -5.0}, "negative_duration:decode"),
    ({"gen_ai__latency__time_to_first_token": -0.2}, "negative_duration:ttft"),
    ({"gen_ai__latency__e2e": -0.2}, "negative_duration:e2e"),
    ({"prefill": 864_000_000.0, "end": 200}, "absurd_duration:prefill"),
    ({"queue": 90_000.0, "end": 200}, "absurd_duration:queue"),
    ({"decode": 90_000.0, "end": 200}, "absurd_duration:decode"),
    ({"gen_ai__latency__time_to_first_token": 9e9}, "absurd_duration:ttft"),
    ({"gen_ai__latency__e2e": 9e9}, "absurd_duration:e2e"),
    ({"gen_ai__latency__time_in_queue": 1e300}, "absurd_duration:queue"),
    ({"gen_ai__latency__time_in_queue": -1e300}, "negative_duration:queue"),
    ({"gen_ai__latency__time_in_model_prefill": "Infinity"}, "absurd_duration:prefill"),
    ({"gen_ai__latency__e2e": "-Infinity"}, "negative_duration:e2e"),
    ({"gen_ai__latency__time_in_model_decode": "NaN"}, "absurd_duration:decode"),
]


def _one_each(cases: list[list[Row]], *, log: bool = False) -> list[Row]:
    """The record of each case, all derived together: one must not spoil another."""
    rows = [
        row | ({"request_id": f"x{i}", "log_key": f"x{i}"} if log else {"trace_id": trace(f"t{i}")})
        for i, case in enumerate(cases)
        for row in case
    ]
    con = (
        captures.derived(None, table("request_log", rows))
        if log
        else captures.derived(table("spans", rows))
    )
    check_timelines(con, "request_points")
    key = "request_id" if log else "trace_id"
    found = {record[key]: record for record in captures.records(con)}
    assert len(found) == len(cases)
    return [found[f"x{i}" if log else trace(f"t{i}")] for i in range(len(cases))]


def test_impossible_durations_of_the_engine_quarantine_the_request() -> None:
    def call(wrong: Row) -> list[Row]:
        more: Row = {"end": 200} | wrong
        return [
            chat("c", 0, 210, events=[("first_token", 70.0)], gen_ai__usage__output_tokens=11),
            engine("e", 5, parent="c", **more),
        ]

    *records, good = _one_each([*(call(wrong) for wrong, _ in IMPOSSIBLE), call({})])
    for record, (wrong, reason) in zip(records, IMPOSSIBLE, strict=True):
        assert record["quarantine_reason"] == reason, wrong
        assert (record["status"], record["legs_count"]) == ("ok", 2)
        assert (record["input_tokens"], record["output_tokens"]) == (50, 11)
        # wall time is the client's; the engine's leg gives its arrival and its end, no more
        assert record["e2e_ms"] == 210
        assert _phases(record) == {"network": 5 + 10, "unexplained": 195}
    assert good["quarantine_reason"] is None
    assert good["decode_ms"] == pytest.approx(100)


def test_an_impossible_engine_alone_keeps_its_wall_time() -> None:
    record = _request(engine("e", 5, queue=-48_000.0, end=200))
    assert record["quarantine_reason"] == "negative_duration:queue"
    assert record["e2e_ms"] == 195
    assert _phases(record) == {"unexplained": 195}


def test_one_impossible_choice_of_three_quarantines_the_call() -> None:
    choices: list[Row] = [{}, {"queue": -48_000.0, "end": 158}, {}]
    legs = [
        engine(f"e{i}", 5, trace_name=f"t{i}", request_id="chatcmpl-x", **more)
        for i, more in enumerate(choices)
    ]
    record = _request(*legs)
    assert record["choices"] == 3
    assert record["quarantine_reason"] == "negative_duration:queue"


def test_durations_that_disagree_a_little_are_clipped_not_quarantined() -> None:
    # the wall clock stepped back: time to first token is shorter than queue and prefill
    record = _request(engine("e", 5, gen_ai__latency__time_to_first_token=0.030))
    assert record["quarantine_reason"] is None
    assert record["prefill_ms"] == pytest.approx(30)
    assert record["queue_ms"] == 0


def test_a_first_chunk_that_cannot_be_is_not_believed() -> None:
    values = [-1.0, 1e300, "NaN", "Infinity", "soon", None, 9e8, 0.1001, 0.04]
    *wrong, good = _one_each(
        [
            [
                chat(
                    "c",
                    0,
                    100,
                    gen_ai__response__time_to_first_chunk=v,
                    gen_ai__usage__output_tokens=3,
                )
            ]
            for v in values
        ]
    )
    assert [(r["ttft_ms"], r["e2e_ms"]) for r in wrong] == [(None, 100)] * len(wrong)
    assert (good["ttft_ms"], good["ttft_kind"]) == (40, "first_chunk")


def test_hints_that_cannot_be_do_no_harm() -> None:
    values = ["soon", -1, -(2**63), 2**80, "", 1e300, "NaN", 1_795_982_400_000_000_001]
    values.append(pack([0, 5, MAX_OFFSET_US]))
    names = (
        "tracekit__intended_start_unix_ns",
        "tracekit__attempt",
        "tracekit__chunks",
        "tracekit__kv_bytes",
        "gen_ai__usage__reasoning_tokens",
        "http__response__status_code",
        "gen_ai__request__stream",
    )
    records = _one_each(
        [
            [chat("c", 0, 100, gen_ai__usage__output_tokens=3, **dict.fromkeys(names, v))]
            for v in values
        ]
    )
    for record in records:
        assert record["e2e_ms"] == 100
        assert record["quarantine_reason"] is None
        assert record["client_wait_ms"] is None
    # in 1970 is no time to be taken for a slip
    (early,) = _one_each([[chat("c", 0, 100, tracekit__intended_start_unix_ns=7)]])
    assert early["quarantine_reason"] == "absurd_duration:e2e"


def test_a_call_of_no_length_is_quarantined() -> None:
    record = _request(http("c", 5, 5, kind=3))
    assert record["quarantine_reason"] == "no_wall_time"
    assert (record["e2e_ms"], record["coverage"]) == (None, None)


def test_a_wall_time_of_days_is_quarantined() -> None:
    record = _request(chat("c", 0, 2 * 86_400_000, gen_ai__usage__output_tokens=3))
    assert record["quarantine_reason"] == "absurd_duration:e2e"


def test_impossible_tokens_are_quarantined() -> None:
    most = 2**63 - 1
    cases = [
        ([engine("e", 0, tokens=(50, -1), request_id="r0")], "negative_tokens"),
        ([engine("e", 0, tokens=(-50, 9), request_id="r1")], "negative_tokens"),
        ([engine("e", 0, tokens=(50, most), request_id="r2")], "absurd_tokens"),
        ([engine("e", 0, tokens=(most, 9), request_id="r3")], "absurd_tokens"),
        # their sum is past any integer
        (
            [engine(f"e{i}", 0, tokens=(50, most), request_id="chatcmpl-n") for i in range(3)],
            "absurd_tokens",
        ),
    ]
    records = _one_each([spans for spans, _ in cases])
    assert [r["quarantine_reason"] for r in records] == [reason for _, reason in cases]
    assert all(r["output_tokens"] is None or r["output_tokens"] < 10 for r in records)


def test_a_log_row_with_an_impossible_duration_is_counted() -> None:
    names = ("ttft", "e2e", "queue", "decode", "client_wait", "ttfa")
    values = (1e300, float("inf"), float("nan"), 1e9, -1e300, -5.0, float("-inf"))
    cases = [(name, value) for name in names for value in values]
    good = {"ttft_ms": 50.0, "e2e_ms": 150.0, "queue_ms": 10.0, "prefill_ms": 40.0}
    records = _one_each(
        [[log_row(start=0, **(good | {f"{name}_ms": value}))] for name, value in cases], log=True
    )
    for record, (name, value) in zip(records, cases, strict=True):
        sign = "negative" if value < 0 else "absurd"
        assert record["quarantine_reason"] == f"{sign}_duration:{name}"
        assert record["status"] == "ok"
        assert record["ttft_ms"] is None or 0 <= record["ttft_ms"] <= 50
        # the other columns still count
        assert record["prefill_ms"] == 40


def test_a_log_rows_own_reason_is_kept() -> None:
    record = _request(
        log=(log_row(request_id="x", start=0, e2e_ms=150.0, quarantine_reason="my own"),)
    )
    assert record["quarantine_reason"] == "my own"
