"""Which legs make one request: the rules of identity, one by one, on legs made by hand."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis.match import Assignment, Group, LegFacts, match

MS = 1_000_000
S = 1_000 * MS

#: span id → parent span id of the spans that are no legs, by trace
Parents = dict[str, dict[str, str | None]]


def _leg(leg_id: str, role: str, source: str, at_ms: float, for_ms: float, **more: Any) -> LegFacts:
    values: dict[str, Any] = {
        "leg_id": leg_id,
        "role": role,
        "source": source,
        "trace_id": "t",
        "span_id": leg_id,
        "parent_span_id": None,
        "norm_request_id": None,
        "instance": "vllm|i0",
        "input_tokens": None,
        "output_tokens": None,
        "start_ns": int(at_ms * MS),
        "end_ns": int((at_ms + for_ms) * MS),
        "has_clock": 1,
    }
    return LegFacts(**(values | more))


def engine(leg_id: str, at_ms: float, for_ms: float = 100, **more: Any) -> LegFacts:
    tokens = {"input_tokens": 50, "output_tokens": 9}
    return _leg(leg_id, "engine", "vllm", at_ms, for_ms, **(tokens | more))


def chat(leg_id: str, at_ms: float, for_ms: float = 100, **more: Any) -> LegFacts:
    return _leg(leg_id, "client", "genai_client", at_ms, for_ms, **({"instance": "app"} | more))


def http_client(leg_id: str, at_ms: float, for_ms: float = 100, **more: Any) -> LegFacts:
    return _leg(leg_id, "client", "http_call", at_ms, for_ms, **({"instance": "app"} | more))


def server(leg_id: str, at_ms: float, for_ms: float = 100, **more: Any) -> LegFacts:
    return _leg(leg_id, "gateway", "http_call", at_ms, for_ms, **({"instance": "gw"} | more))


def phase(leg_id: str, at_ms: float, for_ms: float = 100, **more: Any) -> LegFacts:
    return _leg(leg_id, "engine", "tracekit", at_ms, for_ms, **more)


def log_row(leg_id: str, at_ms: float | None, for_ms: float = 100, **more: Any) -> LegFacts:
    values: dict[str, Any] = {"trace_id": None, "span_id": None, "instance": "request_log"}
    if at_ms is None:
        values |= {"has_clock": 0, "start_ns": 0, "end_ns": int(for_ms * MS)}
    return _leg(leg_id, "client", "request_log", at_ms or 0, for_ms, **(values | more))


class Matched:
    """The result of a match, by request: which legs in which role, and the group's row."""

    def __init__(self, legs: Iterable[LegFacts], others: Parents | None = None) -> None:
        legs = list(legs)
        parents: Parents = {t: dict(spans) for t, spans in (others or {}).items()}
        for leg in legs:
            if leg.trace_id and leg.span_id:
                parents.setdefault(leg.trace_id, {})[leg.span_id] = leg.parent_span_id
        self.assignments, self.groups = match(legs, parents)
        _check_sound(legs, self.assignments, self.groups)

    @property
    def sets(self) -> set[frozenset[str]]:
        """The requests, each as the set of its leg ids."""
        found: dict[str, set[str]] = {}
        for row in self.assignments:
            found.setdefault(row.request_key, set()).add(row.leg_id)
        return {frozenset(legs) for legs in found.values()}

    def role(self, leg_id: str) -> str:
        (role,) = [row.role for row in self.assignments if row.leg_id == leg_id]
        return role

    def group(self, leg_id: str) -> Group:
        """The request that has this leg."""
        (key,) = [row.request_key for row in self.assignments if row.leg_id == leg_id]
        (group,) = [group for group in self.groups if group.request_key == key]
        return group


def _check_sound(
    legs: Sequence[LegFacts], assignments: Sequence[Assignment], groups: Sequence[Group]
) -> None:
    used = [row.leg_id for row in assignments]
    assert len(used) == len(set(used)), "a leg in two requests"
    assert set(used) <= {leg.leg_id for leg in legs}
    must = {
        leg.leg_id
        for leg in legs
        if leg.role not in ("client", "gateway", "router") or leg.source == "request_log"
    }
    assert must <= set(used), "an engine or log leg in no request"
    keys = [group.request_key for group in groups]
    assert len(keys) == len(set(keys))
    counts: dict[str, int] = dict.fromkeys(keys, 0)
    for row in assignments:
        counts[row.request_key] += 1
        assert 0 < row.match_score <= 1
    for group in groups:
        assert group.legs_count == counts[group.request_key] > 0
        # the key is one of its own legs
        assert group.request_key in {
            r.leg_id for r in assignments if r.request_key == group.request_key
        }


def _sets(*requests: str) -> set[frozenset[str]]:
    return {frozenset(legs.split()) for legs in requests}


# ---------------------------------------------------------------------------------------------
# an agent's trace
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same_id", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("apart_ms", [3, 300])
def test_six_calls_of_one_agent_stay_six(same_id: bool, replicas: int, apart_ms: int) -> None:
    legs = []
    for i in range(6):
        norm_id = "x" if same_id else f"x{i}"
        parent = "agent" if i < 3 else "tool"
        at = 10 + i * apart_ms
        legs.append(chat(f"c{i}", at, 210, parent_span_id=parent, norm_request_id=norm_id))
        tokens = {"input_tokens": 40 + i, "output_tokens": 1 if i == 1 else 20}
        legs.append(
            engine(
                f"e{i}",
                at + 5,
                200,
                parent_span_id=f"c{i}",
                norm_request_id=norm_id,
                instance=f"vllm|i{i % replicas}",
                **tokens,
            )
        )
    # the agent's own endpoint is an LLM route too, but it holds six calls
    legs.append(server("endpoint", 0, 5000))
    found = Matched(legs, {"t": {"agent": "endpoint", "tool": "agent"}})
    assert found.sets == _sets(*(f"c{i} e{i}" for i in range(6)))
    assert all(g.attempt == 1 and not g.superseded_attempt and g.choices == 1 for g in found.groups)


@pytest.mark.parametrize("same_id", [False, True])
def test_six_engine_calls_right_under_the_agents_span_stay_six(same_id: bool) -> None:
    legs = [
        engine(
            f"e{i}",
            10 + i * 2,
            200,
            parent_span_id="agent",
            norm_request_id="x" if same_id else f"x{i}",
            input_tokens=40 + i,
            output_tokens=1 if i == 1 else 20,
        )
        for i in range(6)
    ]
    assert Matched(legs, {"t": {"agent": None}}).sets == _sets(*(f"e{i}" for i in range(6)))


def test_equal_prompts_sent_side_by_side_under_one_id_are_not_choices_of_one() -> None:
    # n > 1 is stamped with one arrival; calls of a fan-out arrive one after the other
    legs = [
        engine(f"e{i}", 10 + i * 0.2, parent_span_id="agent", norm_request_id="x") for i in range(3)
    ]
    assert len(Matched(legs, {"t": {"agent": None}}).sets) == 3
    legs = [engine(f"e{i}", 10 + i * 0.2, trace_id=f"t{i}", norm_request_id="x") for i in range(3)]
    assert len(Matched(legs).sets) == 3


def test_a_trace_id_alone_never_merges_two_calls() -> None:
    legs = [engine("e0", 0), engine("e1", 10), chat("c0", 500), chat("c1", 700)]
    assert Matched(legs).sets == _sets("e0", "e1", "c0", "c1")


# ---------------------------------------------------------------------------------------------
# n > 1, prefill and decode servers
# ---------------------------------------------------------------------------------------------


def test_choices_of_one_prompt_are_one_request() -> None:
    legs = [chat("c", 0, 300)]
    legs += [engine(f"e{i}", 5, 200 + i, parent_span_id="c", norm_request_id="x") for i in range(3)]
    found = Matched(legs)
    assert found.sets == _sets("c e0 e1 e2")
    assert (found.group("c").choices, found.group("c").match_score) == (3, 1.0)


def test_choices_without_traceparent_are_one_request_less_surely() -> None:
    legs = [engine(f"e{i}", 5, 200 + i, trace_id=f"t{i}", norm_request_id="x") for i in range(3)]
    found = Matched(legs)
    assert found.sets == _sets("e0 e1 e2")
    assert found.group("e0").choices == 3
    assert found.group("e0").match_score < 1


def _pair(**more: Any) -> list[LegFacts]:
    shared = {"norm_request_id": "x", "input_tokens": 70} | more
    return [
        engine("p", 10, 100, **(shared | {"instance": "prefill", "output_tokens": 1})),
        engine("d", 120, 300, **(shared | {"instance": "decode", "output_tokens": 20})),
    ]


def test_prefill_and_decode_servers_under_one_call() -> None:
    p, d = _pair()
    legs = [
        chat("c", 0, 500),
        server("s", 5, 480, parent_span_id="c"),
        http_client("hp", 8, 104, parent_span_id="s"),
        http_client("hd", 115, 310, parent_span_id="s"),
        p._replace(parent_span_id="hp"),
        d._replace(parent_span_id="hd"),
    ]
    found = Matched(legs)
    assert found.sets == _sets("c s hp hd p d")
    assert [found.role(x) for x in ("c", "s", "hp", "hd", "p", "d")] == [
        "client",
        "gateway",
        "gateway",
        "gateway",
        "prefill_engine",
        "decode_engine",
    ]
    assert found.group("d").match_score == 1
    assert found.group("d").leg_roles == "client,gateway,prefill_engine,decode_engine"


def test_prefill_and_decode_servers_in_traces_of_their_own() -> None:
    p, d = _pair()
    found = Matched([p._replace(trace_id="tp"), d._replace(trace_id="td")])
    assert found.sets == _sets("p d")
    assert (found.role("p"), found.role("d")) == ("prefill_engine", "decode_engine")
    assert found.group("d").match_score < 1
    assert found.group("d").choices == 1


def test_an_output_of_one_token_under_prefill_and_decode() -> None:
    p, d = _pair()
    assert Matched([p, d._replace(output_tokens=1)]).sets == _sets("p d")


@pytest.mark.parametrize(
    "other",
    [
        {"input_tokens": 71},  # another prompt
        {"norm_request_id": "y"},  # another call
        {"instance": "prefill"},  # the same server: a classifier, then an answer
        {"start_ns": 60 * S, "end_ns": 61 * S},  # much later
    ],
)
def test_a_one_token_call_before_another_is_no_prefill_leg(other: dict[str, Any]) -> None:
    p, d = _pair()
    assert Matched([p, d._replace(**other)]).sets == _sets("p", "d")
    apart = [p._replace(trace_id="tp"), d._replace(trace_id="td", **other)]
    assert Matched(apart).sets == _sets("p", "d")


def _unheard_of(*, with_decode_call: bool = False, **client: Any) -> list[LegFacts]:
    """A call that was prefilled, handed over and given up: the decode server sent no span."""
    p, _ = _pair()
    legs = [
        chat("c", 0, 9_000, **({"failed": 1} | client)),
        server("s", 5, 8_990, parent_span_id="c", failed=1),
        http_client("hp", 8, 104, parent_span_id="s"),
        p._replace(parent_span_id="hp"),
    ]
    if with_decode_call:
        legs.append(http_client("hd", 115, 8_800, parent_span_id="s", failed=1))
    return legs


@pytest.mark.parametrize("with_decode_call", [False, True])
def test_a_call_of_which_only_the_prefill_server_told(with_decode_call: bool) -> None:
    legs = _unheard_of(with_decode_call=with_decode_call)
    found = Matched(legs)
    assert found.sets == _sets("c s hp hd p" if with_decode_call else "c s hp p")
    assert found.role("p") == "prefill_engine"
    assert found.group("p").leg_roles == "client,gateway,prefill_engine"
    # its decode server's span, should it come, makes a new revision of the same request
    _, d = _pair()
    d = d._replace(parent_span_id="hd" if with_decode_call else "s")
    assert Matched([*legs, d]).group("p").request_key == found.group("p").request_key


@pytest.mark.parametrize(
    ("client", "engine_leg"),
    [
        ({"answered": 1}, {}),  # it did get a token
        ({"failed": 0}, {}),
        ({"output_tokens": 7}, {}),
        ({"input_tokens": 71}, {}),  # another prompt: a classifier, then the call that failed
        ({}, {"output_tokens": 2}),
        ({}, {"output_tokens": None}),
        ({}, {"failed": 1}),
        ({}, {"end_ns": 8_500 * MS}),  # it ended with the call, not before
    ],
)
def test_a_one_token_answer_is_no_prefill_leg(
    client: dict[str, Any], engine_leg: dict[str, Any]
) -> None:
    c, s, hp, p = _unheard_of(**client)
    if "failed" in client:
        s = s._replace(failed=0)
    found = Matched([c, s, hp, p._replace(**engine_leg)])
    assert found.sets == _sets("c s hp p")
    assert found.role("p") == "engine"


def test_two_pairs_under_one_reused_id_pair_up_in_order() -> None:
    first = _pair()
    then = [
        leg._replace(
            leg_id=leg.leg_id + "2",
            span_id=leg.leg_id + "2",
            start_ns=(leg.start_ns or 0) + 900 * MS,
            end_ns=(leg.end_ns or 0) + 900 * MS,
        )
        for leg in _pair()
    ]
    assert Matched([*then, *first]).sets == _sets("p d", "p2 d2")


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
    _check_sound(legs, *first)
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
