"""Joins that somebody asked for and that were written down: `tracekit join`.

Owns what such a link may still do once everything that traces and ids tell is done; who is alike
enough was decided when it was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tracekit.analysis._match_unit import LegFacts, Unit

#: The source whose legs are links: ``norm_request_id`` is the leg id of the client's leg.
LINKS: Final = "tracekit_join"


def join_links(links: Iterable[LegFacts], units: Sequence[Unit]) -> list[Unit]:
    """Units after the calls that ``links`` name joined the engine's requests that they lie below.

    A link is a leg of the request whose engine it lies below. It joins nothing where either side
    has found a counterpart by itself meanwhile, and is dropped where its engine is not there.
    """
    by_leg: dict[str, Unit] = {}
    by_span: dict[tuple[str | None, str | None], Unit] = {}
    for unit in units:
        for leg in unit.legs:
            by_leg[leg.leg_id] = unit
        for engine in unit.servers:
            by_span[(engine.trace_id, engine.span_id)] = unit
    gone: set[int] = set()
    for link in sorted(links, key=lambda leg: leg.leg_id):
        served = by_span.get((link.trace_id, link.parent_span_id))
        if served is None:
            continue
        served.links.append(link)
        call = by_leg.get(link.norm_request_id or "")
        if call is None or link.likeness is None or id(call) in gone:
            continue
        if _is_lone_call(call) and not any(leg.role == "client" for leg in served.legs):
            served.absorb(call, score=link.likeness)
            gone.add(id(call))
    return [u for u in units if id(u) not in gone]


def _is_lone_call(unit: Unit) -> bool:
    """Whether no engine told of the call; what a log row says of its own server is no engine."""
    return not unit.superseded and all(leg.source == "request_log" for leg in unit.servers)
