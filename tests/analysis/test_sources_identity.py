"""From raw spans to requests: who is one request, end to end through sources, matching and core."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import at as unix_ns
from tests.analysis._spans import chat, engine, http, log_row, phase, span, table, trace

Row = dict[str, Any]


def _requests(*spans: Row, log: tuple[Row, ...] = ()) -> list[Row]:
    return captures.records(
        captures.derived(table("spans", spans), table("request_log", log) if log else None)
    )


@pytest.mark.parametrize("same_id", [False, True])
def test_six_calls_in_one_agents_trace_stay_six_requests(same_id: bool) -> None:
    rows = [
        span("invoke_agent", id="agent", start=0, end=9000, gen_ai__operation__name="invoke_agent"),
        span("tool", id="tool", parent="agent", start=2000, end=5000),
    ]
    for i in range(6):
        start = 100 + 600 * i
        rid = "chatcmpl-same" if same_id else f"chatcmpl-r{i}"
        tokens = (40, 1) if i == 2 else (40 + 30 * i, 11)
        rows.append(
            chat(
                f"c{i}",
                start,
                start + 200,
                parent="agent" if i % 2 else "tool",
                gen_ai__response__id=rid,
                gen_ai__usage__output_tokens=tokens[1],
            )
        )
        rows.append(
            engine(
                f"e{i}",
                start + 5,
                parent=f"c{i}",
                request_id=rid,
                tokens=tokens,
                instance=f"replica-{i % 2}",
                decode=0 if i == 2 else 100,
            )
        )
    records = _requests(*rows)
    assert len(records) == 6
    assert {r["trace_id"] for r in records} == {trace("t")}
    assert [r["output_tokens"] for r in records] == [11, 11, 1, 11, 11, 11]
    assert all(r["leg_roles"] == "client,engine" and r["match_score"] == 1 for r in records)
    assert all(r["superseded_attempt"] == 0 and r["attempt"] == 1 for r in records)


def test_choices_of_one_prompt_add_up_their_tokens() -> None:
    call = [chat("c", 0, 200, trace_name="a", gen_ai__response__id="chatcmpl-x")]
    inside = [
        engine(f"e{i}", 5, parent="c", trace_name="a", request_id="chatcmpl-x", decode=100 + i)
        for i in range(3)
    ]
    apart = [engine(f"f{i}", 1005, trace_name=f"b{i}", request_id="chatcmpl-y") for i in range(3)]
    first, second = _requests(*call, *inside, *apart)
    assert (first["choices"], first["output_tokens"], first["match_score"]) == (3, 33, 1)
    assert (second["choices"], second["output_tokens"], second["match_score"]) == (3, 33, 0.9)
    assert second["input_tokens"] == 50
    assert second["tpot_ms"] == pytest.approx(100 / 10)


def test_prefill_and_decode_servers_pair_up_without_propagation() -> None:
    (record,) = _requests(
        engine(
            "p", 0, trace_name="a", request_id="chatcmpl-x", service="pre", tokens=(50, 1), decode=0
        ),
        engine(
            "d", 60, trace_name="b", request_id="chatcmpl-x", service="dec", queue=20, prefill=5
        ),
    )
    assert record["leg_roles"] == "prefill_engine,decode_engine"
    assert record["match_score"] < 1
    assert record["queue_ms"] == 10
    assert record["prefill_ms"] == 40
    assert record["kv_transfer_wait_ms"] == pytest.approx(20)
    assert record["kv_transfer_recompute_ms"] == pytest.approx(5)
    assert record["route_ms"] == pytest.approx(60 - 53)
    assert record["output_tokens"] == 11


def test_one_request_id_used_twice_minutes_apart_is_two_requests() -> None:
    first, second = _requests(
        engine("e0", 0, trace_name="a", request_id="chatcmpl-x"),
        engine("e1", 240_000, trace_name="b", request_id="chatcmpl-x"),
        log=(
            log_row(request_id="x", start=-3, ttft_ms=60.0, e2e_ms=160.0),
            log_row(request_id="x", start=239_997, ttft_ms=61.0, e2e_ms=161.0),
        ),
    )
    assert [first["ttft_ms"], second["ttft_ms"]] == [60, 61]
    assert first["leg_roles"] == second["leg_roles"] == "client,engine"


def test_gateway_and_sdk_around_one_call_are_its_outer_legs() -> None:
    (record,) = _requests(
        chat("sdk", 0, 200),
        http("post", 1, 199, kind=3, parent="sdk"),
        http("gw", 5, 195, kind=2, parent="post", service="gateway"),
        http("on", 8, 190, kind=3, parent="gw", service="gateway"),
        engine("e", 12, parent="on"),
    )
    assert record["legs_count"] == 5
    assert record["leg_roles"] == "client,gateway,engine"
    assert record["e2e_ms"] == 200
    assert record["route_ms"] == pytest.approx(7 + (195 - (12 + 153)))
    assert record["network_ms"] == pytest.approx(5 + 5)
    assert record["decode_ms"] == pytest.approx(100)


def test_a_call_that_holds_several_is_a_leg_of_none() -> None:
    records = _requests(
        http("endpoint", 0, 900, kind=2, service="agent"),
        chat("c0", 10, 200, parent="endpoint"),
        engine("e0", 12, parent="c0"),
        chat("c1", 300, 500, parent="endpoint"),
        engine("e1", 302, parent="c1", tokens=(80, 11)),
    )
    assert len(records) == 2
    assert all(r["leg_roles"] == "client,engine" for r in records)


def test_of_retries_only_the_last_keeps_the_client_and_waited_for_the_others() -> None:
    first, second = _requests(
        chat("c", 0, 700, events=[("first_token", 560.0)], gen_ai__usage__output_tokens=11),
        engine("e0", 5, parent="c", request_id="chatcmpl-x"),
        engine("e1", 500, parent="c", request_id="chatcmpl-y"),
    )
    assert (first["attempt"], first["superseded_attempt"]) == (1, 1)
    assert first["leg_roles"] == "engine"
    assert (second["attempt"], second["superseded_attempt"]) == (2, 0)
    assert second["leg_roles"] == "client,engine"
    # the wall time runs from the first attempt; what came before the last one was waiting
    assert second["intended_start_unix_ns"] == unix_ns(0)
    assert second["start_unix_ns"] == unix_ns(500)
    assert (second["e2e_ms"], second["ttft_ms"]) == (700, 560)
    assert second["client_wait_ms"] == 500
    assert second["network_ms"] == pytest.approx(700 - 653)
    assert second["prefill_ms"] == pytest.approx(40)


def test_a_refused_post_before_the_good_one_is_a_superseded_attempt() -> None:
    first, second = _requests(
        chat("c", 0, 700, events=[("first_token", 560.0)], gen_ai__usage__output_tokens=11),
        http("h0", 3, 20, kind=3, parent="c", status=2, http__response__status_code=503),
        http("h1", 490, 699, kind=3, parent="c"),
        engine("e1", 500, parent="h1"),
    )
    assert (first["status"], first["superseded_attempt"]) == ("error", 1)
    assert (second["status"], second["attempt"]) == ("ok", 2)
    assert second["leg_roles"] == "client,engine"
    assert second["client_wait_ms"] == 490
    assert second["ttft_ms"] == 560


def test_attempts_that_the_source_numbers() -> None:
    first, second = _requests(
        log=(
            log_row(request_id="x", attempt=1, start=0, e2e_ms=50.0, status="timeout"),
            log_row(request_id="x", attempt=2, start=100, ttft_ms=30.0, e2e_ms=90.0),
        )
    )
    assert (first["attempt"], first["superseded_attempt"]) == (1, 1)
    assert (second["attempt"], second["superseded_attempt"]) == (2, 0)
    assert second["intended_start_unix_ns"] == unix_ns(0)
    assert (second["client_wait_ms"], second["e2e_ms"]) == (100, 190)
    (lone,) = _requests(chat("c", 0, 9, tracekit__attempt=3))
    assert (lone["attempt"], lone["superseded_attempt"]) == (3, 0)


def test_calls_that_left_no_engine_span_are_requests() -> None:
    records = _requests(
        chat("a", 0, 300, trace_name="a", status=2, error__type="CancelledError"),
        chat("b", 1000, 1300, trace_name="b", status=2, error__type="APITimeoutError"),
        chat("c", 2000, 2005, trace_name="c", status=2, error__type="BadRequestError"),
        http("d", 3000, 3005, kind=3, trace_name="d", status=2, http__response__status_code=429),
        # a stream that just stopped: no finish reason, no tokens
        chat("e", 4000, 4100, trace_name="e", events=[("first_token", 4050.0)]),
    )
    assert [r["status"] for r in records] == ["aborted", "timeout", "error", "error", "aborted"]
    assert [r["error"] for r in records] == [
        None,
        "APITimeoutError",
        "BadRequestError",
        "http 429",
        None,
    ]


def test_a_client_that_gave_up_beside_an_engine_that_finished_is_aborted() -> None:
    (record,) = _requests(
        chat("c", 0, 100, status=2, error__type="CancelledError", events=[("first_token", 60.0)]),
        engine("e", 3, parent="c"),
    )
    assert record["status"] == "aborted"
    assert record["e2e_ms"] == 100
    assert record["decode_ms"] == pytest.approx(100 - 55)


def test_startup_and_other_spans_are_no_requests() -> None:
    assert captures.records(captures.derived(captures.spans("startup-base"))) == []
    others = [
        span("GET /users", id="a", start=0, end=9, kind=2, http__route="/users"),
        span("SELECT", id="b", start=0, end=9, kind=3, db__system="postgresql"),
        span("embeddings m", id="c", start=0, end=9, kind=3, gen_ai__operation__name="embeddings"),
        span("execute_tool", id="d", start=0, end=9, gen_ai__operation__name="execute_tool"),
        span("POST", id="e", start=0, end=9, kind=3, url__path="/v1/embeddings"),
        span("phase", id="f", start=0, end=9, tracekit__phase="lunch"),
    ]
    assert _requests(*others) == []


def test_a_span_received_twice_counts_once_and_a_shared_id_of_two_processes_twice() -> None:
    row = engine("e", 0, request_id="chatcmpl-x")
    late = row | {"ingested_unix_ns": row["ingested_unix_ns"] + 1}
    assert len(_requests(row, row, late)) == 1
    # workers seed their random ids alike: only the process tells them apart
    one, other = _requests(row, engine("e", 500, request_id="chatcmpl-y", process="2"))
    assert one["request_key"] != other["request_key"]


def test_an_unsampled_call_is_there_through_its_log_row() -> None:
    (record,) = _requests(
        log=(log_row(request_id="x", trace_id=trace("gone"), start=0, ttft_ms=50.0, e2e_ms=150.0),)
    )
    assert (record["status"], record["trace_id"]) == ("ok", trace("gone"))
    assert (record["queue_or_prefill_ms"], record["decode_ms"]) == (50, 100)
    assert record["queue_ms"] is None


@pytest.mark.parametrize("ring", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_circular_parents_end_and_lose_nothing(ring: list[str]) -> None:
    around = [
        span("x", id=name, start=0, end=9, parent=ring[(i + 1) % len(ring)])
        for i, name in enumerate(ring)
    ]
    records = _requests(
        *around, chat("c0", 0, 200, parent="a"), engine("e0", 5, parent="c0"), chat("c1", 300, 400)
    )
    assert Counter(r["leg_roles"] for r in records) == {"client,engine": 1, "client": 1}
    calls = [
        chat(name, 0, 9, parent=ring[(i + 1) % len(ring)], trace_name="u")
        for i, name in enumerate(ring)
    ]
    assert len(_requests(*calls)) == 1


def test_phase_spans_are_the_engines_legs_of_their_call() -> None:
    (record,) = _requests(
        chat("c", 0, 300, gen_ai__usage__output_tokens=11, events=[("first_token", 110.0)]),
        phase("q", "queue", 10, 40, parent="c"),
        phase("p", "prefill", 40, 100, parent="c"),
        phase("k", "kv_transfer", 100, 105, parent="c", tracekit__kv_bytes=4096),
        phase("d", "decode", 105, 290, parent="c", tracekit__worker="w7"),
    )
    assert record["sources"] == "genai_client,tracekit"
    assert (record["queue_ms"], record["prefill_ms"]) == (30, 60)
    assert (record["kv_transfer_ms"], record["decode_ms"]) == (5, 185)
    assert record["kv_bytes"] == 4096
    assert record["choices"] == 1
    # nothing says when the server got the call: before and after are not taken for network
    assert (record["unexplained_ms"], record["network_ms"]) == (20, None)
    # only phases that are known: between queue and decode nothing tells
    (gap,) = _requests(
        chat("c", 0, 300),
        phase("q", "queue", 10, 40, parent="c"),
        phase("d", "decode", 105, 290, parent="c"),
    )
    assert (gap["queue_ms"], gap["prefill_ms"], gap["decode_ms"]) == (30, None, 185)
    assert gap["unexplained_ms"] == 20 + 65
