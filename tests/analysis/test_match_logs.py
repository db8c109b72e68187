"""Log rows and phase spans find their calls; and what holds whatever the legs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis._matching import (
    Matched,
    Parents,
    chat,
    check_sound,
    engine,
    http_client,
    log_row,
    phase,
    server,
)
from tests.analysis._matching import leg_sets as _sets
from tracekit.analysis.match import LegFacts, match

# ---------------------------------------------------------------------------------------------
# log rows, phase spans
# ---------------------------------------------------------------------------------------------


def test_a_log_row_is_the_client_of_the_call_it_names() -> None:
    call = [chat("c", 0, 300), engine("e", 5, 250, parent_span_id="c", norm_request_id="x")]
    by_trace = Matched([*call, log_row("l", 1, 290, trace_id="t", input_tokens=50)])
    assert by_trace.sets == _sets("c e l")
    assert by_trace.role("l") == "client"
    assert by_trace.group("l").match_score == 1
    by_id = Matched([*call, log_row("l", 1, 290, norm_request_id="x")])
    assert by_id.sets == _sets("c e l")
    assert by_id.group("l").match_score < 1
    # without a clock the id must do
    no_clock = Matched([*call, log_row("l", None, 290, norm_request_id="x")])
    assert no_clock.sets == _sets("c e l")


def test_what_a_row_tells_of_a_gateway_is_a_gateways_though_no_engine_told_anything() -> None:
    row = log_row("l", 1, 290, trace_id="t")
    own = [row._replace(leg_id="l-route", role="gateway"), row._replace(leg_id="l-phases")]
    own[1] = own[1]._replace(role="engine")
    found = Matched([chat("c", 0, 300), row, *own])
    assert found.sets == _sets("c l l-phases l-route")
    assert (found.role("l-route"), found.role("l-phases")) == ("gateway", "engine")


def test_a_log_row_names_its_call_by_the_id_of_the_answer_too() -> None:
    call = [engine("e", 5, 250, norm_request_id="rid")]
    row = log_row("l", 1, 290, norm_request_id="mine", norm_response_id="rid")
    found = Matched([*call, row])
    assert found.sets == _sets("e l")
    assert found.group("l").match_score == 0.95
    # where a gateway has the client's own id, that is the nearer one
    gateway = server("g", 2, 280, trace_id="u", norm_request_id="mine")
    assert Matched([*call, gateway, row]).sets == _sets("e", "g l")
    # another time, another prompt: another call
    assert Matched([*call, row._replace(start_ns=10**12, end_ns=10**12)]).sets == _sets("e", "l")
    assert Matched([*call, row._replace(input_tokens=99)]).sets == _sets("e", "l")


@pytest.mark.parametrize(
    "row",
    [
        log_row("l", 1, 290, trace_id="t", input_tokens=99),  # another prompt
        log_row("l", 90_000, 290, trace_id="t", input_tokens=50),  # another time
        log_row("l", 1, 290, norm_request_id="y"),
        log_row("l", None, 290),
    ],
)
def test_a_log_row_that_fits_no_call_is_a_request_of_its_own(row: LegFacts) -> None:
    call = [chat("c", 0, 300), engine("e", 5, 250, parent_span_id="c", norm_request_id="x")]
    assert Matched([*call, row]).sets == _sets("c e", "l")


def test_log_rows_of_an_agents_trace_find_their_calls() -> None:
    legs: list[LegFacts] = []
    for i in range(6):
        at = i * 300
        legs += [
            chat(f"c{i}", at, 250, parent_span_id="agent"),
            engine(f"e{i}", at + 5, 200, parent_span_id=f"c{i}", norm_request_id="x"),
            log_row(f"l{i}", at + 1, 240, trace_id="t", norm_request_id="x"),
        ]
    agent: Parents = {"t": {"agent": None}}
    expected = _sets(*(f"c{i} e{i} l{i}" for i in range(6)))
    assert Matched(legs, agent).sets == expected
    # and where only the trace id is told
    bare = [leg._replace(norm_request_id=None) for leg in legs]
    assert Matched(bare, agent).sets == expected


def test_a_log_row_tells_the_last_attempt() -> None:
    legs = [
        chat("c", 0, 900),
        engine("e0", 10, 200, parent_span_id="c", norm_request_id="x", output_tokens=None),
        engine("e1", 300, 550, parent_span_id="c", norm_request_id="x"),
        log_row("l", 0, 890, norm_request_id="x"),
    ]
    assert Matched(legs).sets == _sets("e0", "c e1 l")


def test_a_log_row_with_phases_brings_an_engine_leg_only_where_there_is_none() -> None:
    row, own = log_row("l", 0, 300, norm_request_id="x"), log_row("l-phases", 0, 300)
    own = own._replace(role="engine", norm_request_id="x")
    alone = Matched([row, own])
    assert alone.sets == _sets("l l-phases")
    assert alone.role("l-phases") == "engine"
    beside = Matched([row, own, engine("e", 5, 200, norm_request_id="x")])
    assert beside.sets == _sets("l l-phases e")
    assert beside.role("l-phases") == "provider"


def test_phase_spans_are_the_call_they_lie_under() -> None:
    spans = [phase(n, at, parent_span_id="c") for n, at in (("q", 1), ("pre", 30), ("dec", 90))]
    found = Matched([chat("c", 0, 300), *spans])
    assert found.sets == _sets("c q pre dec")
    assert found.role("q") == "engine"
    assert found.group("c").choices == 1
    # an engine's own span knows better
    beside = Matched([chat("c", 0, 300), *spans, engine("e", 5, 250, parent_span_id="c")])
    assert beside.sets == _sets("c q pre dec e")
    assert beside.role("q") == "provider"


# ---------------------------------------------------------------------------------------------
# any legs, in any order
# ---------------------------------------------------------------------------------------------

_NAMES = [f"s{i}" for i in range(7)]


@st.composite
def _any_legs(draw: st.DrawFn) -> list[LegFacts]:
    legs = []
    for i in range(draw(st.integers(1, 9))):
        kind = draw(st.sampled_from([engine, engine, chat, http_client, server, phase, log_row]))
        leg = kind(
            f"s{i}",
            draw(st.sampled_from([0, 0.0005, 10, 150, 200_000])),
            draw(st.sampled_from([5, 90, 400])),
            trace_id=draw(st.sampled_from(["t", "t", "t", "u", None])),
            norm_request_id=draw(st.sampled_from([None, "x", "x", "y"])),
            input_tokens=draw(st.sampled_from([None, 50, 50, 70])),
        )
        leg = leg._replace(
            output_tokens=draw(st.sampled_from([None, 1, 9])),
            instance=draw(st.sampled_from(["i0", "i1"])),
        )
        if kind is not log_row:
            leg = leg._replace(
                span_id=draw(st.sampled_from([leg.leg_id, leg.leg_id, leg.leg_id, "s0"])),
                parent_span_id=draw(st.none() | st.sampled_from(_NAMES)),
            )
        legs.append(leg)
    return legs


@settings(max_examples=150, deadline=None)
@given(_any_legs(), st.randoms(use_true_random=False))
def test_the_order_of_legs_does_not_matter(legs: list[LegFacts], rng: random.Random) -> None:
    parents: Parents = {"t": {n: f"s{(i + 1) % 7}" for i, n in enumerate(_NAMES[:4])}, "u": {}}
    for leg in sorted(legs):
        if leg.trace_id and leg.span_id:
            parents[leg.trace_id][leg.span_id] = leg.parent_span_id
    first = match(legs, parents)
    check_sound(legs, *first)
    shuffled = list(legs)
    rng.shuffle(shuffled)
    again = match(shuffled, parents)
    assert sorted(again[0]) == sorted(first[0])
    assert sorted(again[1]) == sorted(first[1])


@settings(max_examples=100, deadline=None)
@given(_any_legs())
def test_no_call_is_lost_unless_it_holds_several(legs: list[LegFacts]) -> None:
    parents: Parents = {}
    for leg in sorted(legs):
        if leg.trace_id and leg.span_id:
            parents.setdefault(leg.trace_id, {})[leg.span_id] = leg.parent_span_id
    assignments, _ = match(legs, parents)
    used = {row.leg_id: row.request_key for row in assignments}

    def below(call: LegFacts) -> set[str]:
        """Requests with a leg beneath this call."""
        keys = set()
        for leg in legs:
            at, seen = leg.parent_span_id, set()
            while leg.trace_id == call.trace_id and at and at not in seen:
                seen.add(at)
                if at == call.span_id and leg is not call and leg.leg_id in used:
                    keys.add(used[leg.leg_id])
                at = parents[call.trace_id or ""].get(at)
        return keys

    for leg in legs:
        if leg.leg_id not in used:
            assert len(below(leg)) > 1
