"""A sample of the window's requests, drawn once: ``drawn_facts`` and ``drawn_costs``.

What asks for the shape of the traffic (how far requests usually go, who is slower than whom) needs
tens of thousands of requests, not a million. Owns the draw.
"""

from __future__ import annotations

from typing import Final

import duckdb

from tracekit.analysis import sqlfiles
from tracekit.analysis._duck import replace

#: Requests that are drawn, about.
DRAWN_MAX: Final = 25_000


def is_drawn(rows: int) -> str:
    """SQL over facts: whether a request is one of those that are drawn of ``rows``."""
    return f"hash(request_key) % {_one_in(rows)} = 0"


def drawn_part(rows: int) -> float:
    """[1] the part of ``rows`` requests that is drawn."""
    return 1.0 / _one_in(rows)


def _one_in(rows: int) -> int:
    return 1 + rows // DRAWN_MAX


def draw_requests(con: duckdb.DuckDBPyConnection, rows: int, facts: str = "request_facts") -> None:
    """Define ``drawn_facts`` (as ``request_facts``) of ``rows`` requests, by a hash of the key.

    ``facts`` is where they are found: all requests, or at least those that are drawn.
    """
    kind, where = ("view", "") if rows < DRAWN_MAX else ("table", f"where {is_drawn(rows)}")
    replace(con, "drawn_facts", f"{kind} drawn_facts as select * from {facts} {where}")


def draw_costs(con: duckdb.DuckDBPyConnection) -> None:
    """Define ``drawn_costs``: ``request_costs`` of the drawn, once ``cost_model`` exists."""
    body = sqlfiles.load("attribution", "request_costs").body
    # a name in WITH hides the relation of that name
    query = f"with request_facts as (select * from drawn_facts) select * from ({body})"
    replace(con, "drawn_costs", f"table drawn_costs as {query}")
