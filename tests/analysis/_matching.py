"""Legs for tests of `match`, and a match that is checked to be sound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

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
        check_sound(legs, self.assignments, self.groups)

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

    @property
    def roles(self) -> dict[str, str]:
        return {row.leg_id: row.role for row in self.assignments}

    def group(self, leg_id: str) -> Group:
        """The request that has this leg."""
        (key,) = [row.request_key for row in self.assignments if row.leg_id == leg_id]
        (group,) = [group for group in self.groups if group.request_key == key]
        return group


def check_sound(
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


def leg_sets(*requests: str) -> set[frozenset[str]]:
    return {frozenset(legs.split()) for legs in requests}
