"""What sources tell of legs (pairs, roles, parts) joins what belongs together, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis._matching import Matched, S, engine, log_row, server
from tracekit.analysis.match import LegFacts

HOUR_MS = 3_600_000.0


def _prefill(leg_id: str, at_ms: float, **more: Any) -> LegFacts:
    leg = engine(leg_id, at_ms, 80, **({"output_tokens": 1, "instance": "p"} | more))
    return leg._replace(role="prefill_engine", source="sglang")


def _decode(leg_id: str, at_ms: float, **more: Any) -> LegFacts:
    leg = engine(leg_id, at_ms, 180, **({"instance": "d"} | more))
    return leg._replace(role="decode_engine", source="sglang")


def _record(leg_id: str, at_ms: float, role: str = "engine", **more: Any) -> LegFacts:
    """A line of a log, in a made-up trace of its own, that may stand alone."""
    leg = engine(leg_id, at_ms, 50, **({"trace_id": f"tkrec-{leg_id}", "is_part": 2} | more))
    return leg._replace(role=role, source="some_log")


def _gateway(leg_id: str, at_ms: float, for_ms: float, **more: Any) -> LegFacts:
    return server(leg_id, at_ms, for_ms, **more)._replace(source="dynamo")


def _sets(*legs: LegFacts, others: dict[str, dict[str, str | None]] | None = None) -> set[Any]:
    return Matched(legs, others).sets


# -- records that stand alone


def test_records_of_one_id_are_requests_of_their_own() -> None:
    """A client that sends one id with each of its calls, or timings that are alike."""
    legs = [_record(f"r{i}", 100 * i, norm_request_id="same") for i in range(6)]
    assert _sets(*legs) == {frozenset({leg.leg_id}) for leg in legs}


def test_records_of_two_servers_of_one_request_are_one() -> None:
    p1, p2 = (_record(f"p{i}", 1000 * i, "prefill_engine", pair_id=f"room{i}") for i in (1, 2))
    d1, d2 = (_record(f"d{i}", 1000 * i + 2, "decode_engine", pair_id=f"room{i}") for i in (1, 2))
    assert _sets(p1, p2, d1, d2) == {frozenset({"p1", "d1"}), frozenset({"p2", "d2"})}


def test_pairs_of_records_that_share_an_id_stay_pairs() -> None:
    legs = [
        _record(f"{role[0]}{i}", 400 * i + 2 * (role[0] == "d"), role, pair_id="const")
        for i in range(3)
        for role in ("prefill_engine", "decode_engine")
    ]
    assert _sets(*legs) == {frozenset({f"p{i}", f"d{i}"}) for i in range(3)}


# -- ids of prefill and decode


def test_a_room_that_comes_again_an_hour_later_is_another_request() -> None:
    legs = [
        _prefill("p1", 0, trace_id="a", pair_id="1f"),
        _decode("d1", 5, trace_id="a", pair_id="1f"),
        _prefill("p2", HOUR_MS, trace_id="b", pair_id="1f"),
        _decode("d2", HOUR_MS + 5, trace_id="b", pair_id="1f"),
    ]
    assert _sets(*legs) == {frozenset({"p1", "d1"}), frozenset({"p2", "d2"})}


def test_servers_in_traces_of_their_own_are_paired_by_room_and_time() -> None:
    legs = [
        _prefill("p1", 0, trace_id="a", pair_id="1f"),
        _decode("d1", 5, trace_id="b", pair_id="1f"),
        _prefill("p2", HOUR_MS, trace_id="c", pair_id="1f"),
        _decode("d2", HOUR_MS + 5, trace_id="d", pair_id="1f"),
    ]
    assert _sets(*legs) == {frozenset({"p1", "d1"}), frozenset({"p2", "d2"})}


def test_a_room_that_all_requests_have_pairs_none() -> None:
    legs = [
        make(f"{make.__name__}{i}", 300 * i, trace_id=f"{make.__name__}{i}", pair_id="0")
        for i in range(6)
        for make in (_prefill, _decode)
    ]
    assert _sets(*legs) == {frozenset({leg.leg_id}) for leg in legs}


def test_calls_of_one_agent_with_one_id_are_apart_below_their_gateways() -> None:
    legs = []
    for i in range(6):
        legs += [
            _gateway(f"g{i}", 400 * i, 300, pair_id="const"),
            _prefill(f"p{i}", 400 * i + 5, parent_span_id=f"g{i}", pair_id="const"),
            _decode(f"d{i}", 400 * i + 90, parent_span_id=f"g{i}", pair_id="const"),
        ]
    assert _sets(*legs) == {frozenset({f"g{i}", f"p{i}", f"d{i}"}) for i in range(6)}


def test_a_second_try_on_another_decode_server_is_no_second_answer() -> None:
    found = Matched([
        _prefill("p", 0, pair_id="1f"),
        _decode("d1", 5, pair_id="1f", failed=1, output_tokens=3),
        _decode("d2", 300, pair_id="1f", instance="d2"),
    ])  # fmt: skip
    (group,) = found.groups
    assert group.choices == 1
    assert found.roles == {"p": "prefill_engine", "d1": "provider", "d2": "decode_engine"}


def test_a_migrated_request_has_one_answer() -> None:
    """Dynamo's workers tell no tokens: both tries stay, one after the other."""
    tries = [
        engine(f"w{i}", 5 + 150 * i, 140, parent_span_id="g", pair_id="id", output_tokens=None,
               input_tokens=None, instance=f"w{i}")._replace(source="dynamo")
        for i in range(2)
    ]  # fmt: skip
    (group,) = Matched([_gateway("g", 0, 300, pair_id="id"), *tries]).groups
    assert (group.choices, group.legs_count) == (1, 3)


def test_a_worker_in_a_trace_of_its_own_is_found_by_the_gateways_id() -> None:
    worker = engine("w", 5, 280, trace_id="t2", pair_id="uuid", norm_request_id="uuid")
    gateway = _gateway("g", 0, 300, pair_id="uuid", norm_request_id="mine")
    assert _sets(gateway, worker._replace(source="dynamo")) == {frozenset({"g", "w"})}


# -- n > 1, attempts


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_parallel_calls_for_two_answers_each_are_as_many(calls: int) -> None:
    legs = [
        engine(f"r{i}", i, parent_span_id="agent", choices=2)._replace(source="sglang")
        for i in range(2 * calls)
    ]
    expected = {frozenset({f"r{2 * i}", f"r{2 * i + 1}"}) for i in range(calls)}
    assert _sets(*legs, others={"t": {"agent": None}}) == expected


def test_a_routers_second_worker_is_a_second_attempt() -> None:
    router = server("R", 0, 600, norm_request_id="rq")._replace(source="sglang_router")
    found = Matched([
        router,
        engine("a", 10, 60, parent_span_id="R", failed=1, instance="w1"),
        engine("b", 300, 200, parent_span_id="R", instance="w2"),
        log_row("L", -5, 620, norm_request_id="rq"),
    ])  # fmt: skip
    assert found.sets == {frozenset({"a"}), frozenset({"R", "b", "L"})}
    by_key = {g.request_key: g for g in found.groups}
    assert (by_key["a"].superseded_attempt, by_key["b"].attempt) == (1, 2)


# -- parts


def _sidecar(name: str, at_ms: float) -> list[LegFacts]:
    """A proxy's span, which may stand alone, and its two calls below it."""
    post = server(f"{name}-post", at_ms, 300, parent_span_id="agent", is_part=2)
    calls = [
        engine(f"{name}-{role}", at_ms + shift, 90, parent_span_id=f"{name}-post", is_part=1,
               input_tokens=None, output_tokens=None)._replace(role=f"{role}_engine")
        for role, shift in (("prefill", 5), ("decode", 100))
    ]  # fmt: skip
    return [leg._replace(source="llm_d") for leg in (post, *calls)]


@pytest.mark.parametrize("apart_ms", [1000, 3])
def test_a_proxys_calls_of_one_agent_are_requests_of_their_own(apart_ms: float) -> None:
    legs = [leg for i, name in enumerate("abc") for leg in _sidecar(name, apart_ms * i)]
    found = Matched(legs, {"t": {"agent": None}}).sets
    assert found == {frozenset({f"{n}-post", f"{n}-prefill", f"{n}-decode"}) for n in "abc"}


@pytest.mark.parametrize(
    ("at_ms", "tokens", "failed", "role"),
    [
        (120, 11, 0, "decode_engine"),
        (20, 1, 0, "prefill_engine"),
        (120, 11, 1, "engine"),  # the prefill failed: the decode server prefilled
        (20, 11, 0, "engine"),  # no prefill for another: it made all tokens
    ],
)
def test_which_server_the_only_engine_is_by_its_proxys_word(
    at_ms: float, tokens: int, failed: int, role: str
) -> None:
    gateway = server("gw", 0, 400)._replace(source="llm_d")
    prefill = engine("pp", 10, 100, parent_span_id="gw", is_part=1, failed=failed)
    own = engine("e", at_ms, 85, parent_span_id="gw", output_tokens=tokens)
    part = prefill._replace(source="llm_d", role="prefill_engine")
    assert Matched([gateway, part, own]).roles["e"] == role


def test_a_decode_servers_log_counts_where_its_span_is_missing() -> None:
    found = Matched([
        _prefill("p", 0, pair_id="1f"),
        _record("line", 2, "decode_engine", pair_id="1f", end_ns=S),
    ])  # fmt: skip
    assert found.roles == {"p": "prefill_engine", "line": "decode_engine"}
