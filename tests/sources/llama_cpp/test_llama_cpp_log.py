"""llama.cpp's server log against the client of the same traffic: counts, timings, queue, ends.

The client's `timings` objects and clock are the outside truth; numbers from the recording's own
notes are named as such.
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from tests.analysis._captures import attributes
from tests.sources.llama_cpp import _llama_cpp as llama
from tests.sources.llama_cpp._llama_cpp import client, of_scenario, requests, timings_of
from tracekit.ingest.engine_logs import MADE_UP

MS = 1_000_000


def _told(request: dict[str, Any]) -> tuple[object, ...]:
    """A request as `_llama_cpp.timings_of` gives the client's; sizes unknown of a cut prompt."""
    known = request["cached_tokens"] is not None
    return (
        request["input_tokens"] - request["cached_tokens"] if known else None,
        round(request["prefill_ms"], 2),
        request["cached_tokens"],
        request["output_tokens"],
        round(request["decode_ms"], 2),
    )


def _with_timings(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # of n = 2 the client is told the timings of either choice
    return [row for row in rows if "timings" in row and row.get("n") is None]


def _found(log: str, scenario: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(client, request) pairs, by the server's own timings."""
    by_timings = {_told(r): r for r in requests(log) if r["status"] == "ok" and r["choices"] == 1}
    return [(row, by_timings[timings_of(row)]) for row in _with_timings(client(scenario))]


@pytest.mark.parametrize("scenario", llama.BASE)
def test_each_request_of_a_client_is_one_request(scenario: str) -> None:
    # a malformed body never becomes a task: its refusal has no line that names one
    sent = [row for row in client(scenario) if row["kind"] != "bad-body"]
    assert len(of_scenario(scenario)) == len(sent)


def test_the_whole_logs() -> None:
    # 266 kept client records, 4 of them bad bodies, and 60 of a load without any
    assert len(requests("base")) == 266 - 4 + 60
    assert len(requests("trace")) == len(client("overload-trace")) == 40


@pytest.mark.parametrize("scenario", (*llama.BASE, "overload-trace"))
def test_durations_and_tokens_are_those_that_the_server_told_its_client(scenario: str) -> None:
    rows = requests("trace") if scenario == "overload-trace" else of_scenario(scenario)
    told = [_told(r) for r in rows if r["status"] == "ok" and r["choices"] == 1]
    expected = [timings_of(row) for row in _with_timings(client(scenario))]
    # a client that left got no timings, even if the server went on to the end
    unseen = sum(row.get("cancelled_by_client", False) for row in client(scenario)) - sum(
        r["status"] == "aborted" for r in rows
    )
    assert len(told) == len(expected) + unseen
    assert set(expected) <= set(told)


@pytest.mark.trap("llama_cpp", 2)
def test_prefill_begins_where_the_answer_of_a_stream_begins() -> None:
    # trap 2: the launch line is up to 3.5 s earlier (long-prompt)
    apart = []
    for scenario in llama.BASE:
        for row, request in _found("base", scenario):
            if row["stream"]:
                leg = request["leg"]
                assert leg["scheduled_src"] == "reported prompt_ms"
                apart.append((leg["scheduled_unix_ns"] - row["headers_unix_ns"]) / MS)
    near = [a for a in apart if abs(a) <= 10]
    assert len(apart) == 160
    assert abs(statistics.median(apart)) < 0.3
    # the recording's notes: 94 % within 10 ms
    assert len(near) >= 0.94 * len(apart)
    # and the recording has launches that would have said otherwise
    long = [r["leg"] for r in of_scenario("long-prompt")]
    launched = {
        span["span_id"]: attributes(span).get("launched_us", 0)
        for span in llama.imported("base").to_pylist()
    }
    waits = [
        leg["scheduled_unix_ns"] - llama.LOG_START_NS["base"] - launched[leg["span_id"]] * 1_000
        for leg in long
    ]
    assert max(waits) > 3_400 * MS


def test_queue_where_arrivals_are_logged() -> None:
    found = _found("trace", "overload-trace")
    assert len(found) == 40
    arrivals, streamed, whole = [], [], []
    for row, request in found:
        leg = request["leg"]
        assert leg["queued_src"] == "measured post: new task"
        arrivals.append((leg["queued_unix_ns"] - row["send_unix_ns"]) / MS)
        if row["stream"]:
            waited = (row["headers_unix_ns"] - row["send_unix_ns"]) / MS
            streamed.append(request["queue_ms"] - waited)
        else:
            told = row["timings"]
            took = (row["end_unix_ns"] - row["send_unix_ns"]) / MS
            whole.append(request["queue_ms"] - (took - told["prompt_ms"] - told["predicted_ms"]))
        assert request["ttft_kind"] == "server"
        assert request["ttft_ms"] == pytest.approx(
            request["queue_ms"] + row["timings"]["prompt_ms"], abs=0.02
        )
        assert request["coverage"] == pytest.approx(1.0)
    # the notes: arrival is a median of 3 ms after the sending; never before it
    assert min(arrivals) > 0
    assert statistics.median(arrivals) == pytest.approx(3, abs=1.5)
    # what lies between the sending and the arrival is no queue
    assert all(-100 < apart < 0 for apart in streamed)
    assert statistics.median(streamed) == pytest.approx(-3, abs=1.5)
    # headers come with the body here: median 1-5 ms more than the log says
    assert -5.5 < statistics.median(whole) < -1


def test_no_queue_and_no_arrival_where_none_is_logged() -> None:
    for request in requests("base"):
        assert request["queue_ms"] is None
        if request["status"] == "ok":
            assert request["ttft_kind"] == "server_excl_queue"
            assert request["ttft_ms"] == request["prefill_ms"]
            assert request["leg"]["recv_unix_ns"] is None


@pytest.mark.trap("llama_cpp", 4)
def test_cancelled_requests_are_aborted() -> None:
    # of 24 that the client left, three that were not streamed ran to their 300 tokens
    found = of_scenario("cancelled")
    left = [r for r in found if r["status"] == "aborted"]
    assert len(left) == 21
    assert {r["decode_ms"] for r in left} == {None}
    assert {r["output_tokens"] for r in left} == {None}
    ran_on = [r for r in found if r["output_tokens"] == 300 and r["status"] == "ok"]
    assert len(ran_on) == 3
    # two left before they had a slot: nothing but that is known of them
    assert [r["quarantine_reason"] for r in left].count("no_wall_time") == 2


@pytest.mark.trap("llama_cpp", 5)
def test_a_prompt_that_is_too_long_is_an_error() -> None:
    told = [row for row in client("edge") if row.get("error") == "exceed_context_size_error"]
    found = [r for r in of_scenario("edge") if r["status"] == "error"]
    assert len(found) == len(told) == 2
    assert all("exceeds the available context size (2048 tokens)" in r["error"] for r in found)
    # it is "cancelled" after its error too, which does not make it the client's doing
    assert not [r for r in of_scenario("edge") if r["status"] == "aborted"]


@pytest.mark.trap("llama_cpp", 3)
def test_choices_of_one_call_are_one_request() -> None:
    calls = sorted(
        (row for row in client("edge") if row.get("n") == 2), key=lambda row: row["end_unix_ns"]
    )
    found = sorted(
        (r for r in requests("base") if r["choices"] == 2), key=lambda r: r["end_unix_ns"]
    )
    assert len(found) == len(calls) == 4
    # trap 3: the client is told the tokens of one of its two answers
    assert [r["output_tokens"] for r in found] == [
        2 * row["usage"]["completion_tokens"] for row in calls
    ]
    for row, request in zip(calls, found, strict=True):
        told = row["timings"]
        # the choices begin within a millisecond or two of each other
        assert request["prefill_ms"] == pytest.approx(told["prompt_ms"], abs=2)
        assert request["decode_ms"] == pytest.approx(told["predicted_ms"], abs=2)
        assert request["tpot_ms"] == pytest.approx(told["predicted_per_token_ms"], rel=0.01)


@pytest.mark.trap("llama_cpp", 3)
def test_one_token_takes_no_decode() -> None:
    ones = [row for row in _with_timings(client("edge")) if row["timings"]["predicted_n"] == 1]
    found = [r for r in of_scenario("edge") if r["output_tokens"] == 1 and r["status"] == "ok"]
    assert len(found) == len(ones) > 3
    assert {r["decode_ms"] for r in found} == {0.0}
    assert {r["tpot_ms"] for r in found} == {None}


@pytest.mark.trap("llama_cpp", 1)
def test_a_cached_prompt_beside_anothers_prefill_takes_the_others_time() -> None:
    # trap 1: prompt_ms is the slot's wall time; so it is kept, and is no cost of one token
    (row,) = [
        row
        for row in client("prefix-cache")
        if row["timings"]["prompt_n"] == 1 and row["timings"]["prompt_ms"] > 2_000
    ]
    (request,) = [r for r in of_scenario("prefix-cache") if _told(r) == timings_of(row)]
    assert request["cached_tokens"] == 266
    assert request["prefill_ms"] == pytest.approx(2_222, abs=1)


def test_made_up_trace_ids_are_shown_to_nobody() -> None:
    spans = llama.imported("base").column("trace_id").to_pylist()
    assert all(trace.startswith(MADE_UP.hex()) for trace in spans)
    assert len(set(spans)) == len(spans)
    assert {r["trace_id"] for r in requests("base")} == {None}
