"""A sample of the window's requests, drawn once: ``drawn_facts`` and ``drawn_costs``.

What asks for the shape of the traffic (how far requests usually go, who is slower than whom) needs
tens of thousands of requests, not a million. Owns the draw.
"""

from __future__ import annotations

from typing import Final

import duckdb

from tracekit.analysis import sqlfiles
from tracekit.analysis._duck import one, replace

#: Requests that are drawn, about.
DRAWN_MAX: Final = 25_000


def draw_requests(con: duckdb.DuckDBPyConnection) -> None:
    """Define ``drawn_facts`` (as ``request_facts``, which must exist), by a hash of the key."""
    (rows,) = one(con, "select count(*) from request_facts")
    step = 1 + int(rows) // DRAWN_MAX
    kind, where = ("view", "") if step == 1 else ("table", f"where hash(request_key) % {step} = 0")
    replace(con, "drawn_facts", f"{kind} drawn_facts as select * from request_facts {where}")


def draw_costs(con: duckdb.DuckDBPyConnection) -> None:
    """Define ``drawn_costs``: ``request_costs`` of the drawn, once ``cost_model`` exists."""
    body = sqlfiles.load("attribution", "request_costs").body
    # a name in WITH hides the relation of that name
    query = f"with request_facts as (select * from drawn_facts) select * from ({body})"
    replace(con, "drawn_costs", f"table drawn_costs as {query}")
