"""When a one-token leg and a decode leg of one id are one call, and when they are two."""

from __future__ import annotations

from tracekit.analysis.match import LegFacts, match

MS = 1_000_000


def _leg(leg_id: str, role: str, source: str, parent: str | None, **more: object) -> LegFacts:
    facts: dict[str, object] = {
        "leg_id": leg_id,
        "role": role,
        "source": source,
        "trace_id": "t",
        "span_id": leg_id,
        "parent_span_id": parent,
        "norm_request_id": None,
        "instance": "app",
        "input_tokens": None,
        "output_tokens": None,
        "start_ns": 0,
        "end_ns": 1000 * MS,
        "has_clock": 1,
    }
    facts |= more
    return LegFacts(**facts)  # type: ignore[arg-type]


def _engines(parent_p: str, parent_d: str) -> list[LegFacts]:
    shared = {"norm_request_id": "x", "input_tokens": 60}
    return [
        _leg("p", "engine", "vllm", parent_p, instance="w1", output_tokens=1, start_ns=10 * MS,
             end_ns=200 * MS, **shared),
        _leg("d", "engine", "vllm", parent_d, instance="w2", output_tokens=20, start_ns=300 * MS,
             end_ns=900 * MS, **shared),
    ]  # fmt: skip


def _way_up(root: str) -> dict[str, dict[str, str | None]]:
    return {"t": {root: None, "c1": root, "c2": root, "p": "c1", "d": "c2"}}


def test_two_inference_spans_of_an_agent_are_two_calls_even_with_one_id() -> None:
    calls = [
        _leg("c1", "client", "genai_client", "agent", end_ns=250 * MS),
        _leg("c2", "client", "genai_client", "agent", start_ns=260 * MS),
    ]
    _, groups = match([*calls, *_engines("c1", "c2")], _way_up("agent"))
    assert sorted(g.leg_roles for g in groups) == ["client,engine", "client,engine"]


def test_two_inference_spans_of_one_proxy_are_one_call() -> None:
    calls = [
        _leg("s", "gateway", "http_call", None),
        _leg("c1", "client", "genai_client", "s", start_ns=5 * MS, end_ns=250 * MS),
        _leg("c2", "client", "genai_client", "s", start_ns=260 * MS),
    ]
    _, groups = match([*calls, *_engines("c1", "c2")], _way_up("s"))
    assert len(groups) == 1
    assert {"prefill_engine", "decode_engine"} <= set(groups[0].leg_roles.split(","))


def test_an_id_that_many_untraced_calls_carry_pairs_none_of_them() -> None:
    legs = [
        _leg(f"e{i}", "engine", "vllm", None, trace_id=f"t{i}", norm_request_id="constant",
             instance=f"w{i % 2}", input_tokens=60, output_tokens=1 if i % 2 == 0 else 20,
             start_ns=i * 1000 * MS, end_ns=(i * 1000 + 500) * MS)
        for i in range(10)
    ]  # fmt: skip
    _, groups = match(legs, {})
    assert len(groups) == 10
