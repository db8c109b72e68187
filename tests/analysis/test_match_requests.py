"""Which legs are one request: calls stay apart, choices and P/D pairs come together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis._matching import (
    MS,
    Matched,
    S,
    chat,
    engine,
    http_client,
    server,
)
from tests.analysis._matching import leg_sets as _sets
from tracekit.analysis.match import LegFacts

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
