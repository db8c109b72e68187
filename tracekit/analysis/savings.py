"""What the prefix cache saved, in seconds: the relation ``cache_savings`` summed up.

Owns the sum and its share of the time. A hit rate is no benefit: what counts is the prefill that
hits spared, against all that the requests took. The method is in ``cache_savings.sql``.
"""

from __future__ import annotations

import duckdb

from tracekit.analysis import sqlfiles
from tracekit.analysis._duck import one
from tracekit.analysis.diagnosis import CacheSavings


def cache_savings(con: duckdb.DuckDBPyConnection) -> CacheSavings | None:
    """What hits saved, over the cells that can tell; None where none can, or there are no hits.

    Of very many requests the drawn ones stand for all (``drawn_facts``).
    """
    body = sqlfiles.load("attribution", "cache_savings").body
    # a name in WITH hides the relation of that name
    drawn, hits, saved_ms, e2e_ms, error = one(
        con,
        f"""
        with request_facts as (select * from drawn_facts)
        select coalesce(sum(requests), 0), sum(hits), sum(saved_ms), sum(e2e_ms), max(error)
        from ({body})
        """,
    )
    if not drawn:
        return None
    sample, n = one(
        con,
        "select (select count(*) from drawn_facts where completed = 1), "
        "(select n from field_coverage)",
    )
    stands_for = n / sample
    saved_s = saved_ms / 1e3 * stands_for
    return CacheSavings(
        saved_s=saved_s,
        saved_share=saved_ms / (saved_ms + e2e_ms),
        hits=round(hits * stands_for),
        n=round(drawn * stands_for),
        sampled=int(drawn),
        fit_error=error,
    )
