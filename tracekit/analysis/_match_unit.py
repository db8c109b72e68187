"""What is gathered while legs are matched: the facts of a leg, and a unit of legs.

Owns the shapes and what a unit says of itself; who belongs to whom is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

#: The sequences of one n > 1 call carry one arrival time; this much is rounding.
SAME_ARRIVAL_NS: Final = 1_000
#: Slack when a call of one clock must contain a leg of another.
CLOCK_SLACK_NS: Final = 2_000_000_000

#: A caller that fails so long after a server was done was waiting for another server.
_LEFT_WAITING_NS: Final = 1_000_000_000

CALL_ROLES: Final = frozenset({"client", "gateway", "router"})


class LegFacts(NamedTuple):
    """What the matching needs of a leg; times in unix ns (or from the request's start)."""

    leg_id: str
    role: str
    source: str
    trace_id: str | None
    span_id: str | None
    parent_span_id: str | None
    norm_request_id: str | None
    instance: str
    input_tokens: int | None
    output_tokens: int | None
    start_ns: int | None
    end_ns: int | None
    has_clock: int
    failed: int = 0
    attempt: int | None = None
    #: 1 if the leg knows of a first token
    answered: int = 0
    #: answers to the one prompt, where the source says
    choices: int | None = None
    #: 1 if it tells a part of the call or engine leg above it, 2 if it may also stand alone,
    #: 0 if it is a leg of its own
    is_part: int = 0
    #: what a prefill and a decode server share of one request, where the source says
    pair_id: str | None = None
    #: how sure the join is that a link stands for
    likeness: float | None = None
    #: id of the server's answer, where a log row has it beside an id of its own
    norm_response_id: str | None = None


class Assignment(NamedTuple):
    """One row of the relation ``leg_request``."""

    leg_id: str
    request_key: str
    role: str
    match_score: float


class Group(NamedTuple):
    """One row of the relation ``request_groups``.

    Of a client's later attempt, ``first_start_ns`` is when the first one started and
    ``attempt_start_ns`` when it started itself; both are None for first attempts.
    """

    request_key: str
    attempt: int
    superseded_attempt: int
    first_start_ns: int | None
    attempt_start_ns: int | None
    choices: int
    legs_count: int
    leg_roles: str
    sources: str
    match_score: float
    #: 1 if it holds parts of a request only: the leg that they hang on is not there
    is_partial: int = 0


@dataclass(eq=False)
class Unit:
    """Legs of one generation while they are gathered."""

    engines: list[LegFacts] = field(default_factory=list)
    prefill: LegFacts | None = None
    calls: list[LegFacts] = field(default_factory=list)
    phases: list[LegFacts] = field(default_factory=list)
    #: spans that tell a part of it
    parts: list[LegFacts] = field(default_factory=list)
    logs: list[LegFacts] = field(default_factory=list)
    #: joins by likeness that were written down for it
    links: list[LegFacts] = field(default_factory=list)
    score: float = 1.0
    attempt: int = 1
    superseded: bool = False
    first_start_ns: int | None = None
    attempt_start_ns: int | None = None
    #: leg id of a call → how many calls are above it, by parentage
    depth_of: dict[str, int] = field(default_factory=dict)
    #: leg id of a part → the engine leg that it is a part of
    owner_of: dict[str, LegFacts] = field(default_factory=dict)

    @property
    def norm_id(self) -> str | None:
        for leg in (*self.engines, *self.calls, *self.logs):
            if leg.norm_request_id:
                return leg.norm_request_id
        return None

    @property
    def norm_ids(self) -> set[str]:
        """Every id that a leg of it has: a gateway may give the call one of its own."""
        return {leg.norm_request_id for leg in self.legs if leg.norm_request_id}

    @property
    def names(self) -> set[str]:
        """Every id that a leg of it has: of the request, and of its P/D pair."""
        return self.norm_ids | {leg.pair_id for leg in self.legs if leg.pair_id}

    @property
    def input_tokens(self) -> int | None:
        for leg in (*self.engines, *self.calls, *self.logs):
            if leg.input_tokens is not None:
                return leg.input_tokens
        return None

    @property
    def legs(self) -> list[LegFacts]:
        head = [self.prefill] if self.prefill else []
        return [*self.logs, *self.calls, *head, *self.engines, *self.phases, *self.parts]

    @property
    def servers(self) -> list[LegFacts]:
        """Its engine legs, that of a prefill server too."""
        return [*self.engines, *([self.prefill] if self.prefill else [])]

    def tell_with(self, other: Unit) -> None:
        """Take over what tells parts and phases of the engine legs of ``other``."""
        self.phases.extend(other.phases)
        self.parts.extend(other.parts)
        self.owner_of.update(other.owner_of)

    def absorb(self, other: Unit, *, score: float = 1.0) -> None:
        """Take over the legs of ``other``, of which only one may have a prefill leg."""
        self.prefill = self.prefill or other.prefill
        for name in ("engines", "calls", "logs", "links"):
            getattr(self, name).extend(getattr(other, name))
        self.tell_with(other)
        self.depth_of.update(other.depth_of)
        self.score = min(self.score, other.score, score)

    @property
    def start_ns(self) -> int:
        starts = [leg.start_ns for leg in self.legs if leg.start_ns is not None]
        return min(starts) if starts else 0

    @property
    def end_ns(self) -> int:
        ends = [leg.end_ns for leg in self.legs if leg.end_ns is not None]
        return max(ends) if ends else self.start_ns

    @property
    def has_parts_only(self) -> bool:
        """Whether the leg that its parts hang on is not there."""
        return bool(self.parts) and len(self.legs) == len(self.parts)

    @property
    def is_partial(self) -> bool:
        """Whether it is too little to be a request: it may still be under way, or was lost."""
        return self.has_parts_only and not any(p.is_part == 2 or p.failed for p in self.parts)

    @property
    def never_decoded(self) -> bool:
        """Whether the one engine leg prefilled for a decode server of which nothing was heard.

        It made one token and was done, and the caller went on waiting for the first one until it
        failed. An answer of one token that got lost on its way would look the same, and so would a
        small call before the one that failed, unless the lengths of their prompts are known.
        """
        if len(self.engines) != 1 or self.prefill is not None:
            return False
        (engine,) = self.engines
        callers = [*self.calls, *self.logs]
        if engine.output_tokens != 1 or engine.failed or engine.end_ns is None:
            return False
        if any(c.answered or (c.output_tokens or 0) > 1 for c in callers):
            return False
        if not all(same_tokens(c.input_tokens, engine.input_tokens) for c in callers):
            return False
        done_ns = engine.end_ns + _LEFT_WAITING_NS
        return any(c.failed and c.end_ns is not None and c.end_ns > done_ns for c in callers)

    @property
    def key_leg(self) -> LegFacts:
        """The leg that names the request: the engine's, so that a late client changes nothing."""
        spans = [e for e in self.engines if e.source != "request_log"]
        if len(spans) == 1 and self.prefill is None:
            return spans[0]
        calls = [c for c in self.calls if c.source != "request_log"]
        told = self.phases or self.parts
        for legs in ([self.prefill] if self.prefill else [], spans, calls, told):
            if legs and not (legs is told and self.logs):
                return min(legs, key=lambda leg: (leg.start_ns or 0, leg.leg_id))
        return min(self.logs, key=lambda leg: (leg.start_ns or 0, leg.leg_id))


def same_tokens(a: int | None, b: int | None) -> bool:
    return a is None or b is None or a == b


def number_attempts(units: Sequence[Unit]) -> None:
    first, last = units[0], units[-1]
    for number, unit in enumerate(units, start=1):
        unit.attempt = max(number, unit.attempt)
        unit.superseded = unit.superseded or unit is not last
        if unit is not first:
            unit.first_start_ns = first.start_ns
            unit.attempt_start_ns = unit.start_ns
