"""The cache hit that a request should have had: ``cache_due`` and ``usual_hits``.

Owns the second expectation of the method. Given what came from the cache a missed prefix looks
normal, only large; so the expectation is made for the hit that was due: the leading blocks of
the prompt that an earlier request had computed on the same worker, where hashes of the blocks are
recorded, else what nearly all requests of the same model and route get. Reads no prompt text.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from tracekit.analysis._arrow import arrow_table
from tracekit.analysis._duck import one, replace
from tracekit.analysis.modes import mixture_left
from tracekit.analysis.prefixes import Prefixes

_SCHEMA: Final = pa.schema([("request_key", pa.string()), ("due_tokens", pa.float64())])
_USUAL_SCHEMA: Final = pa.schema(
    [("model", pa.string()), ("route", pa.string())]
    + [(c, pa.float64()) for c in ("due_tokens", "due_share", "least_share")]
)

#: Requests that must agree on their hits before a route's usual hit is due.
_ROWS: Final = 30
#: How far the quartiles of a route's hits may lie apart, as a share of the median.
_AGREE: Final = 0.1
#: Less than this share of what is due is a miss; so few of a route's requests miss by chance; and
#: misses are even if neighbours differ so often, beside chance.
_MISSED: Final = 0.5
_FEW: Final = 0.02
_EVEN: Final = 0.7
#: Requests that tell how the misses lie.
_SEEN_MAX: Final = 20_000
#: Quantile of what a cache gives of the prefixes it has seen: what it gives when it works.
_WHEN_IT_WORKS: Final = 0.75
#: A cache that usually gives less than this share of the prefixes it has seen owes nothing.
_GIVES: Final = 0.5

#: Requests that tell what is usual, of very many.
_DRAWN_MAX: Final = 200_000

#: SQL by name of what says that nothing was due to any request.
NOTHING_DUE: Final = {
    "cache_due": "select cast('' as varchar) as request_key, 0.0 as due_tokens where false",
    "usual_hits": "select '' as model, '' as route, 0.0 as due_tokens, 0.0 as due_share, "
    "0.0 as least_share where false",
}

_IS_MISSED: Final = f"cached_tokens < {_MISSED} * (due_tokens + due_share * input_tokens)"


def cache_due(prefixes: Prefixes) -> pa.Table:
    """The relation ``cache_due``: ``request_key``, ``due_tokens`` [tokens], by hashes of blocks.

    What it says of a request goes before what is usual.
    """
    due = _by_hashes(prefixes)
    return arrow_table({"request_key": list(due), "due_tokens": list(due.values())}, _SCHEMA)


def usual_hits(con: duckdb.DuckDBPyConnection, *, drawn_of: int | None = None) -> pa.Table:
    """The relation ``usual_hits``: what nearly all requests of a model and route get.

    So many tokens (``due_tokens``: one system prompt), or so large a part of the prompt
    (``due_share``: long conversations); the other is 0. Some requests may have nothing to hit
    (first turns): misses that are many, and spread evenly over time and workers, are such, and
    nothing is due to who got less than ``least_share`` of it.

    ``drawn_of``: the window has so many requests that about 200,000 of them, drawn by a hash of
    start and prompt size (the keys are a quarter of the work), tell what is usual. A route with
    fewer than 30 of those then has no usual hit: of ten million requests, one with under 1,500.
    """
    _define_hits(con, drawn_of)
    con.execute(
        f"""
        create or replace temp table _usual as
        with hits as (
            select model, route, quantile_cont(cached_tokens, [0.25, 0.5, 0.75]) as q,
                quantile_cont(cached_tokens / nullif(input_tokens, 0), [0.25, 0.5, 0.75]) as p
            from _hits
            where cached_tokens is not null and quarantine_reason is null
            group by model, route
            having count(*) >= {_ROWS}
        ),
        agreed as (
            select model, route, case when q[3] - q[1] <= {_AGREE} * q[2] then q[2] end as tokens,
                case when p[3] - p[1] <= {_AGREE} * p[2] then p[2] end as share
            from hits
        )
        select model, route, coalesce(tokens, 0.0) as due_tokens,
            case when tokens is null then share else 0.0 end as due_share
        from agreed
        -- where nothing is usual, nothing is due
        where tokens > 0 or (tokens is null and share > 0)
        """
    )
    usual = con.execute("select * from _usual").fetchall()
    cold = _cold(con) if usual else set()
    return arrow_table(
        {
            "model": [r[0] for r in usual],
            "route": [r[1] for r in usual],
            "due_tokens": [r[2] for r in usual],
            "due_share": [r[3] for r in usual],
            "least_share": [_MISSED if r[:2] in cold else 0.0 for r in usual],
        },
        _USUAL_SCHEMA,
    )


def _define_hits(con: duckdb.DuckDBPyConnection, drawn_of: int | None) -> None:
    """``_hits``: the requests of the window, or those drawn of very many."""
    drawn, key = "true", "request_key"
    if drawn_of is not None:
        key = "hash(start_unix_ns, input_tokens)"
        drawn = f"{key} % {1 + drawn_of // _DRAWN_MAX} = 0"
    kind = "view" if drawn_of is None else "table"
    replace(
        con,
        "_hits",
        f"""
        {kind} _hits as
        select {key} as key, coalesce(model, '') as model, coalesce(route, '') as route,
            coalesce(prefill_worker, worker, '') as worker, start_unix_ns, quarantine_reason,
            cached_tokens, input_tokens
        from window_requests
        where {drawn}
        """,
    )


def _cold(con: duckdb.DuckDBPyConnection) -> set[tuple[str, str]]:
    """Models and routes whose misses are many and lie anywhere: nothing was due to those."""
    due = "_hits join _usual using (model, route) where due_tokens + due_share * input_tokens > 0"
    count, missed = one(con, f"select count(*), count(*) filter ({_IS_MISSED}) from {due}")
    if not missed:
        return set()
    seen = con.execute(
        f"""
        select model, route, worker, {_IS_MISSED} from {due}
            and hash(key) % {1 + count // _SEEN_MAX} = 0
        order by model, route, worker, start_unix_ns, key
        """
    ).fetchall()
    groups = ((key, list(rows)) for key, rows in groupby(seen, lambda r: r[:2]))
    return {key for key, rows in groups if _is_even(rows)}


def _is_even(group: list[Any]) -> bool:
    """Whether the misses of one route, in order of worker and time, are many and lie anywhere."""
    missed = np.array([bool(r[3]) for r in group])
    _, worker = np.unique([r[2] for r in group], return_inverse=True)
    return bool(missed.mean() > _FEW and mixture_left(missed, worker) > _EVEN)


def _by_hashes(prefixes: Prefixes) -> dict[str, float]:
    # a cache loses some of what it has seen: what it usually gives is due
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    held = prefixes.held_tokens
    known = [
        (r, held[r.key], r.cached_tokens)
        for r in prefixes.requests
        if r.key in held and r.cached_tokens is not None
    ]
    for r, tokens, cached in known:
        shares[r.kind].append(min(cached / tokens, 1.0))
    usual = {k: float(np.quantile(v, _WHEN_IT_WORKS)) for k, v in shares.items()}
    # a prompt whose blocks nobody had computed before is owed nothing, whatever its route usually
    # gets
    unseen = {r.key: 0.0 for r in prefixes.requests if r.key not in held}
    return unseen | {
        r.key: usual[r.kind] * tokens
        for r, tokens, cached in known
        if usual[r.kind] >= _GIVES and cached < usual[r.kind] * tokens
    }
