"""Outer calls, attempts and retries; ids that are used again, chains that are broken."""

from __future__ import annotations

from itertools import permutations

import pytest

from tests.analysis._matching import (
    Matched,
    S,
    chat,
    engine,
    http_client,
    log_row,
    server,
)
from tests.analysis._matching import leg_sets as _sets

# ---------------------------------------------------------------------------------------------
# calls around calls, attempts
# ---------------------------------------------------------------------------------------------


def test_an_outer_call_that_holds_one_call_is_its_leg() -> None:
    legs = [
        chat("sdk", 0, 300),
        http_client("post", 2, 290, parent_span_id="sdk"),
        server("gw", 5, 280, parent_span_id="post"),
        chat("gw-sdk", 8, 270, parent_span_id="gw", instance="gw"),
        engine("e", 12, 250, parent_span_id="inner"),
    ]
    found = Matched(legs, {"t": {"inner": "gw-sdk"}})
    assert found.sets == _sets("sdk post gw gw-sdk e")
    assert [found.role(x) for x in ("sdk", "post", "gw", "gw-sdk")] == [
        "client",
        "client",
        "gateway",
        "gateway",
    ]


def test_an_outer_call_that_holds_several_calls_is_a_leg_of_none() -> None:
    legs = [
        chat("outer", 0, 900),
        chat("c0", 10, 300, parent_span_id="outer"),
        engine("e0", 12, 250, parent_span_id="c0", input_tokens=50),
        chat("c1", 400, 300, parent_span_id="outer"),
        engine("e1", 402, 250, parent_span_id="c1", input_tokens=90),
    ]
    found = Matched(legs)
    assert found.sets == _sets("c0 e0", "c1 e1")
    assert all(not g.superseded_attempt for g in found.groups)


def test_calls_side_by_side_under_one_inference_span_are_no_attempts() -> None:
    legs = [
        chat("outer", 0, 900),
        engine("e0", 10, 250, parent_span_id="outer"),
        engine("e1", 100, 250, parent_span_id="outer"),
    ]
    found = Matched(legs)
    assert found.sets == _sets("e0", "e1")
    assert [g.superseded_attempt for g in found.groups] == [0, 0]


def test_retries_under_one_inference_span_are_attempts_and_the_last_one_stands() -> None:
    legs = [
        chat("c", 0, 900),
        engine("e0", 10, 200, parent_span_id="c", output_tokens=None),
        engine("e1", 300, 200, parent_span_id="c", output_tokens=None),
        engine("e2", 600, 250, parent_span_id="c"),
    ]
    found = Matched(legs)
    assert found.sets == _sets("e0", "e1", "c e2")
    assert [
        (found.group(e).attempt, found.group(e).superseded_attempt) for e in ("e0", "e1", "e2")
    ] == [
        (1, 1),
        (2, 1),
        (3, 0),
    ]


def test_a_retry_after_a_refused_post_is_an_attempt_too() -> None:
    # the first POST was refused: no engine span tells of it
    legs = [
        chat("c", 0, 900),
        http_client("h0", 5, 20, parent_span_id="c", failed=1),
        http_client("h1", 300, 580, parent_span_id="c"),
        engine("e1", 310, 550, parent_span_id="h1"),
    ]
    found = Matched(legs)
    assert found.sets == _sets("h0", "c h1 e1")
    assert (found.group("h0").attempt, found.group("h0").superseded_attempt) == (1, 1)
    assert (found.group("e1").attempt, found.group("e1").superseded_attempt) == (2, 0)


def test_posts_that_all_went_well_under_one_span_are_no_attempts() -> None:
    legs = [
        chat("c", 0, 900),
        http_client("h0", 5, 200, parent_span_id="c"),
        http_client("h1", 300, 580, parent_span_id="c"),
    ]
    found = Matched(legs)
    assert found.sets == _sets("h0", "h1")
    assert [g.superseded_attempt for g in found.groups] == [0, 0]


def test_calls_that_no_engine_saw_are_requests() -> None:
    legs = [
        chat("aborted", 0, trace_id="t0"),
        http_client("refused", 0, trace_id="t1"),
        # in one trace, with the library's own span above the POST
        chat("sdk", 500, trace_id="t2"),
        http_client("post", 502, 90, trace_id="t2", parent_span_id="sdk"),
        chat("other", 700, trace_id="t2"),
    ]
    assert Matched(legs).sets == _sets("aborted", "refused", "sdk post", "other")


# ---------------------------------------------------------------------------------------------
# ids that are used again, traces that do not reach
# ---------------------------------------------------------------------------------------------


def test_one_request_id_used_again_minutes_later_is_two_requests() -> None:
    legs = [
        engine("e0", 0, trace_id="t0", norm_request_id="x"),
        engine("e1", 180_000, trace_id="t1", norm_request_id="x"),
        log_row("l0", -5, 110, norm_request_id="x", input_tokens=50),
        log_row("l1", 179_995, 110, norm_request_id="x", input_tokens=50),
        chat("c2", 400_000, trace_id="t2", norm_request_id="x"),
        engine("e2", 400_005, 90, trace_id="t3", norm_request_id="x"),
    ]
    assert Matched(legs).sets == _sets("e0 l0", "e1 l1", "c2 e2")


def test_an_engine_whose_trace_was_cut_joins_the_call_that_contains_it() -> None:
    legs = [
        chat("c", 0, 300, trace_id="t0", norm_request_id="x"),
        engine("e", 5, 250, trace_id="t1", norm_request_id="x"),
    ]
    found = Matched(legs)
    assert found.sets == _sets("c e")
    assert found.group("c").match_score < 1
    far = [legs[0], legs[1]._replace(start_ns=60 * S, end_ns=61 * S)]
    assert Matched(far).sets == _sets("c", "e")


def test_two_calls_that_could_hold_the_same_engine_do_not_share_it() -> None:
    legs = [
        chat("c0", 0, 300, trace_id="t0", norm_request_id="x"),
        chat("c1", 1, 300, trace_id="t1", norm_request_id="x"),
        engine("e", 5, 250, trace_id="t2", norm_request_id="x"),
    ]
    found = {len(legs) for legs in Matched(legs).sets}
    assert found <= {1, 2}
    assert len(Matched(legs).sets) >= 2


def test_any_id_of_a_call_finds_its_engine_in_whatever_order_they_came() -> None:
    # the gateway gave the call another id, and counted the prompt in its own way
    legs = [
        chat("sdk", 0, 300, norm_request_id="x", input_tokens=50),
        http_client("post", 2, 290, parent_span_id="sdk", norm_request_id="y", input_tokens=70),
        log_row("l", 1, 280, norm_request_id="x", input_tokens=70),
        engine("e", 5, 250, trace_id="u", norm_request_id="x", input_tokens=70),
    ]
    for order in permutations(legs):
        assert Matched(order).sets == _sets("sdk post l e")
    # three spans that count differently: which of them is believed must not depend on the order
    legs = [
        chat("sdk", 0, 300, parent_span_id="agent", input_tokens=50),
        chat("agent", -2, 310, input_tokens=99),
        http_client("post", 2, 290, parent_span_id="sdk"),
        log_row("l", 1, 280, trace_id="t", input_tokens=50),
    ]
    found = [Matched(order).sets for order in permutations(legs)]
    assert all(sets == found[0] for sets in found)


@pytest.mark.parametrize(
    "others",
    [
        {},  # the parent never came
        {"a": "b", "b": "a"},  # a circle above the call
        {"a": "a"},
    ],
)
def test_broken_and_circular_chains_end(others: dict[str, str | None]) -> None:
    legs = [chat("c", 0, parent_span_id="a"), engine("e", 5, 80, parent_span_id="c")]
    assert Matched(legs, {"t": others}).sets == _sets("c e")


def test_calls_in_a_circle_are_not_lost() -> None:
    legs = [chat("c0", 0, parent_span_id="c1"), chat("c1", 1, parent_span_id="c0")]
    assert Matched(legs).sets == _sets("c0 c1")
    alone = [chat("c", 0, parent_span_id="c"), chat("other", 500)]
    assert Matched(alone).sets == _sets("c", "other")
