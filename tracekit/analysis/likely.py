"""Calls and engines' requests that share no trace and no id, paired by time and token counts.

Owns asking ``sql/health/join_candidates.sql`` and what is written down of its answer: spans of
`SCOPE` in the engine's trace, read by ``sql/sources/tracekit_join.sql``. That a pair becomes one
request is for the matching.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from tracekit.analysis import sqlfiles
from tracekit.ingest.batch import stamp_rows, unstamped_schema
from tracekit.lake.stamping import stamping

if TYPE_CHECKING:
    from tracekit.analysis.session import Session
    from tracekit.lake.store import Store

SCHEMA: Final = "tracekit.join/1"
#: Instrumentation scope of the spans that stand for such a join, and their name.
SCOPE: Final = "tracekit.join"

#: By how much the clocks of a client and an engine may differ, unless said otherwise.
SLACK_MS: Final = 50.0
#: How likely it may be, at most, that another request lies in the call by accident.
CHANCE_MAX: Final = 0.05

_SCORE: Final = "tracekit.join.score"


@dataclass(frozen=True)
class Pair:
    """One row of ``sql/health/join_candidates.sql``, with the names that people know them by."""

    client_key: str
    server_key: str
    client_request_id: str | None
    server_request_id: str | None
    client_leg_id: str
    trace_id: str
    span_id: str
    start_unix_ns: int
    input_tokens: int
    output_tokens: int
    call_ms: float
    outside_ms: float
    alike: int
    chance: float
    score: float


@dataclass(frozen=True)
class Proposal:
    """Pairs, surest first, and how many calls and engine's requests have no counterpart so far."""

    pairs: tuple[Pair, ...]
    calls: int
    served: int
    slack_ms: float

    def to_json(self) -> dict[str, Any]:
        """The document of ``tracekit join --json``, without what was written."""
        return {
            "schema": SCHEMA,
            "calls_alone": self.calls,
            "served_alone": self.served,
            "slack_ms": self.slack_ms,
            "chance_max": CHANCE_MAX,
            "pairs": [asdict(pair) for pair in self.pairs],
        }


_NAMED: Final = """
    select p.*, c.request_id as client_request_id, s.request_id as server_request_id
    from ({pairs}) as p
    join requests as c on c.request_key = p.client_key
    join requests as s on s.request_key = p.server_key
    order by p.score desc, p.start_unix_ns, p.client_key
"""


def propose(session: Session, *, slack_ms: float = SLACK_MS) -> Proposal:
    """Pairs among the requests of the session's window; ``slack_ms`` is for their clocks."""
    query = _NAMED.format(pairs=sqlfiles.load("health", "join_candidates").body)
    rows = session.frame(
        query, {"slack_ns": round(slack_ms * 1e6), "chance_max": CHANCE_MAX}
    ).to_dicts()
    joins = session.frame(sqlfiles.load("health", "joins").body).to_dicts()[0]
    return Proposal(
        tuple(Pair(**{name: row[name] for name in Pair.__annotations__}) for row in rows),
        joins["client_only"],
        joins["server_only"],
        slack_ms,
    )


def record(store: Store, pairs: Sequence[Pair]) -> bool:
    """Write the joins down and settle them; False if another process settles this store.

    It does so once they have been quiet. What is written twice counts once.
    """
    from tracekit.analysis.settle import settle_after_import

    if not pairs:
        return True
    rows = pa.table(_columns(pairs), schema=unstamped_schema("spans"))
    with stamping(store) as now_unix_ns:
        store.append("spans", stamp_rows("spans", rows, origin="join", now_unix_ns=now_unix_ns))
    return settle_after_import(store) is not None


def _columns(pairs: Sequence[Pair]) -> dict[str, list[Any]]:
    known: dict[str, list[Any]] = {
        "trace_id": [p.trace_id for p in pairs],
        "span_id": [_span_id(p) for p in pairs],
        "parent_span_id": [p.span_id for p in pairs],
        "name": [SCOPE] * len(pairs),
        "kind": [1] * len(pairs),
        "start_unix_ns": [p.start_unix_ns for p in pairs],
        "end_unix_ns": [p.start_unix_ns for p in pairs],
        "status_code": [0] * len(pairs),
        "service_name": [SCOPE] * len(pairs),
        "scope_name": [SCOPE] * len(pairs),
        "request_id": [p.client_leg_id for p in pairs],
        "attributes": [
            orjson.dumps({"request_id": p.client_leg_id, _SCORE: p.score}).decode() for p in pairs
        ],
        "resource": [orjson.dumps({"service.name": SCOPE}).decode()] * len(pairs),
    }
    return {name: known.get(name, [None] * len(pairs)) for name in unstamped_schema("spans").names}


def _span_id(pair: Pair) -> str:
    """The same for the same pair, so that a join written twice is one span."""
    text = f"{SCOPE}|{pair.client_leg_id}|{pair.trace_id}|{pair.span_id}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
