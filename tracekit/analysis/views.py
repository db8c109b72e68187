"""Frames behind the dashboard's pages: what a chart or table draws, no more rows than it draws.

Owns aggregation for drawing: bins of time, lists with an order and a limit, counts. One request's
drawing is in :mod:`tracekit.analysis.request_view`; sentences and verdicts are made elsewhere.
Statistics here are over counted requests: not quarantined, not superseded, status ``ok``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.analysis import sqlfiles
from tracekit.analysis.rules import Rules
from tracekit.errors import UsageError
from tracekit.lake.schema import TABLES
from tracekit.names import PHASES, STATUSES

if TYPE_CHECKING:
    import polars as pl

    from tracekit.analysis.doctor import Health
    from tracekit.analysis.session import Session
    from tracekit.analysis.workbench import RelationDoc

#: Below this many requests nothing is said of them together.
MIN_ROWS: Final = Rules().min_rows
#: Below this many a 95th percentile is only a large value, so none is given.
MIN_P95_ROWS: Final = Rules().min_p95_rows

#: Widths of time bins that people read easily, in seconds.
_WIDTHS_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800),
    *(3_600, 7_200, 21_600, 43_200, 86_400, 604_800),
)
_SECOND_NS: Final = 1_000_000_000
_COUNTED: Final = "quarantine_reason is null and superseded_attempt = 0 and status = 'ok'"
_TIMED: Final = f"{_COUNTED} and has_clock = 1 and start_unix_ns is not null"

#: Columns of the request list, in display order.
_LIST_COLUMNS: Final = (
    *("request_key", "start_unix_ns", "request_id", "model", "route", "status"),
    *("input_tokens", "cached_tokens", "output_tokens", "ttft_ms", "tpot_ms", "e2e_ms"),
    *(f"{phase}_ms" for phase in PHASES),
    *("max_gap_ms", "coverage", "worker", "prefill_worker", "quarantine_reason", "note"),
)

#: Orders of the request list: SQL of ``order by`` before the tie-break on the key.
ORDERS: Final[dict[str, str]] = {
    "newest": "r.start_unix_ns desc nulls last",
    "ttft_ms": "r.ttft_ms desc nulls last",
    "tpot_ms": "r.tpot_ms desc nulls last",
    "e2e_ms": "r.e2e_ms desc nulls last",
    "max_gap_ms": "r.max_gap_ms desc nulls last",
    "input_tokens": "r.input_tokens desc nulls last",
    "output_tokens": "r.output_tokens desc nulls last",
}

#: Metrics that `latency_over_time` draws.
METRICS: Final = ("ttft_ms", "tpot_ms", "e2e_ms")


@dataclass(frozen=True)
class Overview:
    """What the window holds. Times are unix ns, None where no counted request has a clock."""

    in_store: int
    requests: int
    counted: int
    timed: int
    first_start_unix_ns: int | None
    last_start_unix_ns: int | None


@dataclass(frozen=True)
class RequestFilter:
    """Which requests a list holds; ``phase``, ``cause`` and ``metric`` are a verdict's."""

    order: str = "newest"
    status: str | None = None
    worker: str | None = None
    search: str | None = None
    slow: bool = False
    phase: str | None = None
    cause: str | None = None
    metric: str | None = None

    @property
    def needs_attribution(self) -> bool:
        """Whether `attribution.define_attribution` must have been called."""
        verdict = (self.phase, self.cause, self.metric)
        return self.slow or any(v is not None for v in verdict)


def overview(session: Session) -> Overview:
    """Counts of the window and the time its counted requests cover."""
    row = session.frame(
        f"""
        select count(*) as requests, count(*) filter ({_COUNTED}) as counted,
            count(*) filter ({_TIMED}) as timed,
            min(start_unix_ns) filter ({_TIMED}) as first,
            max(start_unix_ns) filter ({_TIMED}) as last
        from window_requests
        """
    ).row(0, named=True)
    in_store = session.frame("select count(*) from requests").item()
    return Overview(
        in_store, row["requests"], row["counted"], row["timed"], row["first"], row["last"]
    )


def arrived(session: Session) -> dict[str, int]:
    """Rows of each raw table that holds any."""
    tables = [name for name, table in TABLES.items() if table.kind == "raw"]
    counts = " union all ".join(f"select '{t}' as name, count(*) as n from {t}" for t in tables)
    return dict(session.frame(f"select * from ({counts}) where n > 0 order by n desc").rows())


def facets(session: Session) -> pl.DataFrame:
    """Values to filter by, most frequent first: ``facet`` (model, route), ``value``, ``n``.

    Over the whole store, so that choosing one does not hide the others.
    """
    return session.frame(
        """
        select 'model' as facet, model as value, count(*) as n from requests
        where model is not null group by model
        union all
        select 'route', route, count(*) from requests where route is not null group by route
        order by facet, n desc, value
        """
    )


def list_facets(session: Session) -> pl.DataFrame:
    """Values of the window to filter lists by: ``facet`` (status, worker), ``value``, ``n``."""
    return session.frame(
        """
        select 'status' as facet, status as value, count(*) as n from window_requests
        where status is not null group by status
        union all
        select 'worker', w, count(*) from (
            select distinct request_key, unnest([worker, prefill_worker, decode_worker]) as w
            from window_requests
        ) where w is not null group by w
        order by facet, n desc, value
        """
    )


def bins_for(view: Overview, *, rows: int = MIN_ROWS) -> int:
    """How many bins of time to draw: as many as could hold ``rows`` requests each, 8 to 60."""
    return min(max(view.timed // rows, 8), 60)


def bin_width_ns(view: Overview, *, bins: int) -> int:
    """Width of a time bin such that at most about ``bins`` of them cover the window's requests."""
    if view.first_start_unix_ns is None or view.last_start_unix_ns is None:
        return _SECOND_NS
    span_s = (view.last_start_unix_ns - view.first_start_unix_ns) / _SECOND_NS
    for width in _WIDTHS_S:
        if span_s <= width * bins:
            return width * _SECOND_NS
    return _WIDTHS_S[-1] * _SECOND_NS


def phases_over_time(session: Session, view: Overview, *, bins: int) -> pl.DataFrame:
    """Mean time per request in each phase, by start: one row per bin and phase with any time.

    Columns ``bin_start`` and ``bin_end`` [UTC], ``phase``, ``phase_order``, ``mean_ms`` (over all
    ``n`` requests of the bin, so that the phases stack to the mean wall time), ``n``.
    """
    width = bin_width_ns(view, bins=bins)
    columns = ", ".join(f"sum({phase}_ms) / count(*) as {phase}" for phase in PHASES)
    order = " ".join(f"when '{phase}' then {i}" for i, phase in enumerate(PHASES))
    frame = session.frame(
        f"""
        with binned as (
            select start_unix_ns // {width} * {width} as bin_ns, count(*) as n, {columns}
            from window_requests where {_TIMED} group by bin_ns
        )
        select {_utc("bin_ns")} as bin_start, {_utc(f"bin_ns + {width}")} as bin_end, phase,
            case phase {order} end as phase_order, mean_ms, n
        from (unpivot binned on {", ".join(PHASES)} into name phase value mean_ms)
        where mean_ms > 0
        order by bin_ns, phase_order
        """
    )
    return _zoned(frame, "bin_start", "bin_end")


def latency_over_time(session: Session, view: Overview, metric: str, *, bins: int) -> pl.DataFrame:
    """Percentiles of one of METRICS by start: one row per bin and percentile.

    Columns ``bin_start`` and ``bin_end`` [UTC], ``percentile`` (p50, p95), ``ms``, ``n``. A bin
    with fewer than MIN_P95_ROWS requests has no p95.
    """
    _check_metric(metric)
    width = bin_width_ns(view, bins=bins)
    frame = session.frame(
        f"""
        with binned as (
            select start_unix_ns // {width} * {width} as bin_ns, count({metric}) as n,
                quantile_cont({metric}, 0.5) as p50,
                case when count({metric}) >= {MIN_P95_ROWS}
                    then quantile_cont({metric}, 0.95) end as p95
            from window_requests where {_TIMED} group by bin_ns
        )
        select {_utc("bin_ns")} as bin_start, {_utc(f"bin_ns + {width}")} as bin_end,
            percentile, ms, n
        from (unpivot binned on p50, p95 into name percentile value ms)
        order by bin_ns, percentile
        """
    )
    return _zoned(frame, "bin_start", "bin_end")


def latency_dots(session: Session, metric: str, *, limit: int) -> pl.DataFrame | None:
    """Every counted request with a clock and the metric, in order of start; None if over ``limit``.

    Columns ``start`` [UTC], ``ms``, ``request_key``, ``request_id``, ``input_tokens``,
    ``output_tokens``.
    """
    _check_metric(metric)
    frame = session.frame(
        f"""
        select {_utc("start_unix_ns")} as start, {metric} as ms, request_key,
            coalesce(request_id, request_key) as request_id, input_tokens, output_tokens
        from window_requests where {_TIMED} and {metric} is not null
        order by start_unix_ns, request_key limit {int(limit) + 1}
        """
    )
    return None if frame.height > limit else _zoned(frame, "start")


def coverage_histogram(session: Session) -> pl.DataFrame:
    """How much of each counted request is explained: ``from_share``, ``to_share``, ``n``; 20 bins.

    The last bin holds full coverage too.
    """
    return session.frame(
        f"""
        select b / 20.0 as from_share, (b + 1) / 20.0 as to_share, count(*) as n
        from (
            select least(floor(coverage * 20), 19)::bigint as b
            from window_requests where {_COUNTED} and coverage is not null
        ) group by b order by b
        """
    )


def count_requests(session: Session, chosen: RequestFilter) -> int:
    """How many requests of the window pass the filter."""
    where, params = _conditions(chosen)
    return int(
        session.frame(f"select count(*) from window_requests as r where {where}", params).item()
    )


def request_list(session: Session, chosen: RequestFilter, *, limit: int) -> pl.DataFrame:
    """The first ``limit`` requests of the window that pass the filter, in its order.

    Columns are the record's that a list shows, ``start`` [UTC] in front. Raises UsageError for an
    unknown order or status.
    """
    if chosen.order not in ORDERS:
        raise UsageError(f"no order {chosen.order!r}; there are {', '.join(ORDERS)}")
    where, params = _conditions(chosen)
    columns = ", ".join(f'r."{name}"' for name in _LIST_COLUMNS)
    frame = session.frame(
        f"""
        select {_utc("r.start_unix_ns")} as start, {columns}
        from window_requests as r where {where}
        order by {ORDERS[chosen.order]}, r.request_key limit {int(limit)}
        """,
        params,
    )
    return _zoned(frame, "start")


def _conditions(chosen: RequestFilter) -> tuple[str, dict[str, Any]]:
    parts = ["true"]
    params: dict[str, Any] = {}
    if chosen.status is not None:
        if chosen.status not in STATUSES:
            raise UsageError(f"no status {chosen.status!r}; there are {', '.join(STATUSES)}")
        parts.append("r.status = $status")
        params["status"] = chosen.status
    if chosen.worker is not None:
        parts.append("list_contains([r.worker, r.prefill_worker, r.decode_worker], $worker)")
        params["worker"] = chosen.worker
    if chosen.search:
        parts.append(
            "(contains(r.request_id, $search) or starts_with(r.trace_id, $search)"
            " or starts_with(r.request_key, $search) or contains(r.note, $search))"
        )
        params["search"] = chosen.search
    if chosen.slow:
        parts.append("r.request_key in (select request_key from slow_requests)")
    verdict = []
    for name, value in (
        ("phase", chosen.phase),
        ("cause", chosen.cause),
        ("metric", chosen.metric),
    ):
        if value is not None:
            verdict.append(f"v.{name} = ${name}")
            params[name] = value
    if verdict:
        parts.append(
            "r.request_key in (select v.request_key from verdicts as v"
            f" where {' and '.join(verdict)})"
        )
    return " and ".join(parts), params


def relation_docs(session: Session) -> tuple[RelationDoc, ...]:
    """What a person may query, whether or not attribution is defined already."""
    from tracekit.analysis.attribution import ATTRIBUTION
    from tracekit.analysis.workbench import ColumnDoc, RelationDoc, describe, relation_names

    present = relation_names(session)
    docs = [describe(session, name) for name in present if name not in ATTRIBUTION]
    for name in ATTRIBUTION:
        file = sqlfiles.load("attribution", name)
        columns = tuple(ColumnDoc(column, "", doc) for column, doc in file.columns.items())
        docs.append(RelationDoc(name, file.purpose, file.grain, columns))
    return tuple(docs)


def funnel(session: Session, health: Health) -> dict[str, int]:
    """From rows to requests: counts of spans, log rows, legs, requests and how they joined."""
    arrived = {row["table_name"]: row["total"] for row in health.arrivals}
    legs = int(session.frame("select count(*) from legs").item())
    counts = {"spans": arrived["spans"], "log_rows": arrived["request_log"], "legs": legs}
    joined = ("requests", "with_client", "with_server", "joined", "completed")
    return counts | {name: health.joins[name] for name in joined}


def needs_attribution(query: str) -> bool:
    """Whether a query may read a relation that `attribution.define_attribution` makes."""
    names = {*sqlfiles.names("attribution"), "cost_model", "slo"}
    catalogue = {"duckdb_views", "duckdb_tables", "duckdb_columns", "tables", "information_schema"}
    return bool(set(re.findall(r"\w+", query.lower())) & (names | catalogue))


def _check_metric(metric: str) -> None:
    if metric not in METRICS:
        raise UsageError(f"no metric {metric!r}; there are {', '.join(METRICS)}")


def _utc(expression: str) -> str:
    return f"make_timestamp_ns({expression})"


def _zoned(frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """The columns as UTC: a time without a zone is drawn in the reader's."""
    import polars as pl

    return frame.with_columns(pl.col(c).dt.replace_time_zone("UTC") for c in columns)
