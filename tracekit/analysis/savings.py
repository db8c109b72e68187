"""What cached KV saved, in seconds, and what it cost to fetch it.

Owns the sums over the relations ``cache_savings`` and ``kv_loads``. A hit rate is no benefit: what
counts is the prefill that hits spared, against all that the requests took; and what was loaded from
elsewhere must be had sooner than computed. The methods are in the SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from tracekit.analysis import sqlfiles
from tracekit.analysis._duck import one
from tracekit.analysis.diagnosis import CacheSavings, KvLoads

#: Of the transfers so many must be loads for a finding about transfers to speak of loads.
_NEARLY_ALL: Final = 0.9

#: Why nothing tells what a hit spared: it was preempted; no time of its prefill is known; its cell
#: has too few requests for a fit of its own; that fit is not close; too few prompts as large were
#: computed there. The first that holds counts.
UNJUDGED: Final = ("preempted", "untimed", "unfitted", "spread", "reach")

#: Hits by the first of these that holds; the last also counts those that are judged.
_LEFT_OUT: Final = """
    with hits as (
        select
            case
                when coalesce(f.preemptions, 0) > 0 then 'preempted'
                when coalesce(f.e2e_ms, 0.0) <= 0 then 'untimed'
                when coalesce(f.prefill_ms, 0.0) <= 0
                    and (f.prefill_ms is not null or coalesce(f.queue_or_prefill_ms, 0.0) <= 0)
                    then 'untimed'
                when c.cell_index is null
                    or case when f.prefill_ms > 0 then c.prefill_borrowed
                        else c.queue_or_prefill_borrowed end = 1
                    or case when f.prefill_ms > 0 then c.prefill_error
                        else c.queue_or_prefill_error end is null then 'unfitted'
                when case when f.prefill_ms > 0 then c.prefill_error
                    else c.queue_or_prefill_error end > p.max_fit_error then 'spread'
                else 'reach'
            end as reason
        from drawn_facts as f
        cross join attribution_rules as p
        left join cost_model as c
            on f.model = c.model and f.engine = c.engine
            and f.engine_version = c.engine_version and f.topology = c.topology
        where f.completed = 1 and f.cached_known = 1 and f.input_tokens > 0
            and f.input_tokens - f.uncached_tokens >= p.hit_share * f.input_tokens
    )
    select count(*) filter (reason = 'preempted'), count(*) filter (reason = 'untimed'),
        count(*) filter (reason = 'unfitted'), count(*) filter (reason = 'spread'),
        count(*) filter (reason = 'reach')
    from hits
"""


@dataclass(frozen=True)
class CacheWork:
    """Both sides of cached KV; each None where nothing can be told, or nothing of it happened."""

    saved: CacheSavings | None
    loads: KvLoads | None

    def lost_of(self, fields: Mapping[str, Any]) -> KvLoads | None:
        """The loads, if they cost more than computing and are what moves KV here.

        ``fields`` is the row of ``field_coverage``.
        """
        if self.loads is None or not self.loads.is_loss:
            return None
        return self.loads if self.loads.n >= _NEARLY_ALL * fields["with_transfer"] else None


def cache_work(con: duckdb.DuckDBPyConnection, *, completed: int) -> CacheWork:
    """What hits saved and what loads cost, over the cells that can tell.

    ``completed`` is how many requests are. Of very many the drawn ones stand for all
    (``drawn_facts``).
    """
    hit, load = one(
        con,
        "select (select count(*) from (select 1 from drawn_facts where completed = 1 "
        "and cached_known = 1 and uncached_tokens < input_tokens limit 1)), "
        "(select count(*) from (select 1 from drawn_facts where completed = 1 "
        "and cached_known = 1 and uncached_tokens < input_tokens and kv_transfer_ms > 0 "
        "and kv_bytes > 0 limit 1))",
    )
    return CacheWork(
        saved=_savings(con, completed) if hit else None,
        loads=_loads(con, completed) if load else None,
    )


def _savings(con: duckdb.DuckDBPyConnection, completed: int) -> CacheSavings | None:
    drawn, hits, saved_ms, e2e_ms, error, sample = one(
        con,
        _over_drawn(
            "cache_savings",
            "coalesce(sum(requests), 0), sum(hits), sum(saved_ms), sum(e2e_ms), max(error)",
        ),
    )
    if not drawn:
        return None
    stands_for = completed / sample
    counts = dict(zip(UNJUDGED, one(con, _LEFT_OUT), strict=True))
    # what is fit to be judged but is not lies in a cell that ``cache_savings`` leaves out
    counts["reach"] -= hits
    return CacheSavings(
        saved_s=saved_ms / 1e3 * stands_for,
        saved_share=saved_ms / (saved_ms + e2e_ms),
        hits=round(hits * stands_for),
        n=round(drawn * stands_for),
        sampled=int(drawn),
        fit_error=error,
        unjudged={k: round(v * stands_for) for k, v in counts.items() if v * stands_for >= 0.5},
    )


def _loads(con: duckdb.DuckDBPyConnection, completed: int) -> KvLoads | None:
    drawn, slower, load_ms, compute_ms, one_ms, tokens, same_time, error, sample = one(
        con,
        _over_drawn(
            "kv_loads",
            "coalesce(sum(loads), 0), sum(slower), sum(load_ms), sum(compute_ms), "
            # the cell with most loads tells what one is like
            "arg_max(median_load_ms, loads), arg_max(median_tokens, loads), "
            "arg_max(same_time_tokens, loads), max(error)",
        ),
    )
    if not drawn:
        return None
    stands_for = completed / sample
    return KvLoads(
        load_s=load_ms / 1e3 * stands_for,
        recompute_s=compute_ms / 1e3 * stands_for,
        load_ms=one_ms,
        tokens=tokens,
        same_time_tokens=same_time,
        slower=round(slower * stands_for),
        n=round(drawn * stands_for),
        sampled=int(drawn),
        fit_error=error,
    )


def _over_drawn(name: str, sums: str) -> str:
    body = sqlfiles.load("attribution", name).body
    # a name in WITH hides the relation of that name
    return f"""
        with request_facts as (select * from drawn_facts)
        select {sums}, (select count(*) from drawn_facts where completed = 1)
        from ({body})
        """
