"""The cache hit that a request should have had: the relation ``cache_due``.

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
from tracekit.analysis._duck import one
from tracekit.analysis.modes import mixture_left
from tracekit.analysis.prefixes import Prefixes

_SCHEMA: Final = pa.schema([("request_key", pa.string()), ("due_tokens", pa.float64())])

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

_NOTHING: Final = arrow_table({"request_key": [], "due_tokens": []}, _SCHEMA)

_NO_HASHES: Final = Prefixes()
_IS_MISSED: Final = f"cached_tokens < {_MISSED} * tokens"
_ANY_HIT: Final = "select 1 from window_requests where cached_tokens > 0 limit 1"


def cache_due(
    con: duckdb.DuckDBPyConnection, prefixes: Prefixes = _NO_HASHES, *, are_many: bool = False
) -> pa.Table:
    """The relation ``cache_due``: ``request_key``, ``due_tokens`` [tokens] from the cache.

    Only requests whose cached tokens are known, and to which something was due, have a row.
    ``are_many``: a look whether anything came from a cache pays before the hits are ranked.
    """
    nothing = are_many and not one(con, f"select count(*) from ({_ANY_HIT})")[0]
    usual = _NOTHING if nothing else _by_route(con)
    due = _by_hashes(prefixes)
    if not due:
        return usual
    import pyarrow.compute as pc  # 0.05 s that a store without hashes need not pay

    # what the hashes say of a request goes before what is usual
    hashed = arrow_table({"request_key": list(due), "due_tokens": list(due.values())}, _SCHEMA)
    rest = usual.filter(pc.invert(pc.is_in(usual["request_key"], hashed["request_key"])))
    return pa.concat_tables([hashed, rest])


def _by_route(con: duckdb.DuckDBPyConnection) -> pa.Table:
    """What nearly all requests of a route get: so many tokens (one system prompt), or so large a
    part of the prompt (long conversations). Some may have nothing to hit (first turns): misses that
    are many, and spread evenly over time and workers, are such.
    """
    # making a table tells how many rows it has
    (usual_hits,) = one(
        con,
        f"""
        create or replace temp table _usual_hits as
        select model, route, quantile_cont(cached_tokens, [0.25, 0.5, 0.75]) as q,
            quantile_cont(cached_tokens / nullif(input_tokens, 0), [0.25, 0.5, 0.75]) as p
        from window_requests
        where cached_tokens is not null and quarantine_reason is null
        group by model, route
        -- where nothing is usual, nothing is due
        having count(*) >= {_ROWS} and greatest(q[2], p[2]) > 0
        """,
    )
    if not usual_hits:
        return _NOTHING
    usual = f"""
        with due as (
            select r.request_key, r.cached_tokens, r.input_tokens,
                coalesce(r.model, '') as model, coalesce(r.route, '') as route,
                coalesce(r.prefill_worker, r.worker, '') as worker, r.start_unix_ns,
                case when u.q[3] - u.q[1] <= {_AGREE} * u.q[2] then u.q[2]
                     when u.p[3] - u.p[1] <= {_AGREE} * u.p[2] then u.p[2] * r.input_tokens
                end as tokens
            from window_requests as r
            join _usual_hits as u on r.model is not distinct from u.model
                and r.route is not distinct from u.route
        )
    """
    # kept there: of very many requests half may be due a little more than they got
    (lacking,) = one(
        con,
        f"""
        create or replace temp table _usual_due as
        {usual}
        select request_key, tokens as due_tokens, model, route, {_IS_MISSED} as is_missed from due
        where tokens > 0 and cached_tokens < tokens and input_tokens > tokens
        """,
    )
    if not lacking:
        return _NOTHING
    (missed,) = one(con, "select count(*) from _usual_due where is_missed")
    cold = _cold(con, usual) if missed else []
    where = " where not (is_missed and list_contains($cold, [model, route]))" if cold else ""
    rows = con.sql(
        f"select request_key, due_tokens from _usual_due{where}",
        params={"cold": cold} if cold else None,
    )
    return rows.to_arrow_table().cast(_SCHEMA)


def _cold(con: duckdb.DuckDBPyConnection, usual: str) -> list[list[str]]:
    """Models and routes whose misses are many and lie anywhere: nothing was due to those."""
    (count,) = one(con, f"{usual} select count(*) from due where tokens > 0")
    seen = con.execute(
        f"""
        {usual}
        select model, route, worker, {_IS_MISSED} from due
        where tokens > 0 and hash(request_key) % {1 + count // _SEEN_MAX} = 0
        order by model, route, worker, start_unix_ns, request_key
        """
    ).fetchall()
    groups = ((key, list(rows)) for key, rows in groupby(seen, lambda r: r[:2]))
    return [[str(k) for k in key] for key, rows in groups if _is_even(rows)]


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
    return {
        r.key: usual[r.kind] * tokens
        for r, tokens, cached in known
        if usual[r.kind] >= _GIVES and cached < usual[r.kind] * tokens
    }
