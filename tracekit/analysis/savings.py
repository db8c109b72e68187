"""What the prefix cache saved, in seconds: the relation ``cache_savings`` summed up.

Owns the sum and its share of the time. A hit rate is no benefit: what counts is the prefill that
hits spared, against all that the requests took. The method is in ``cache_savings.sql``.
"""

from __future__ import annotations

import duckdb

from tracekit.analysis import sqlfiles
from tracekit.analysis._duck import one
from tracekit.analysis.diagnosis import CacheSavings


def cache_savings(con: duckdb.DuckDBPyConnection, *, completed: int) -> CacheSavings | None:
    """What hits saved, over the cells that can tell; None where none can, or there are no hits.

    ``completed`` is how many requests are. Of very many the drawn ones stand for all
    (``drawn_facts``).
    """
    (hit,) = one(
        con,
        "select count(*) from (select 1 from drawn_facts "
        "where completed = 1 and cached_known = 1 and uncached_tokens < input_tokens limit 1)",
    )
    if not hit:
        return None
    body = sqlfiles.load("attribution", "cache_savings").body
    # a name in WITH hides the relation of that name
    drawn, hits, saved_ms, e2e_ms, error, sample = one(
        con,
        f"""
        with request_facts as (select * from drawn_facts)
        select coalesce(sum(requests), 0), sum(hits), sum(saved_ms), sum(e2e_ms), max(error),
            (select count(*) from drawn_facts where completed = 1)
        from ({body})
        """,
    )
    if not drawn:
        return None
    stands_for = completed / sample
    return CacheSavings(
        saved_s=saved_ms / 1e3 * stands_for,
        saved_share=saved_ms / (saved_ms + e2e_ms),
        hits=round(hits * stands_for),
        n=round(drawn * stands_for),
        sampled=int(drawn),
        fit_error=error,
    )
