"""What is settled already: which legs, under which request, and the raw rows they came from.

Read side of settling, shared by the settler and by the tail of every reader. It finds, for legs
that are new, the settled legs of the same trace or request id, so that a late span becomes a new
revision of its request instead of a second request. Files are pruned by Delta statistics: cost
follows what is recent, not what the day holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import duckdb

from tracekit.analysis._duck import one, run
from tracekit.analysis.clocks import Recall
from tracekit.analysis.derive import LATEST_UNIX_NS, Known
from tracekit.analysis.sqlfiles import span_sources
from tracekit.lake.store import Snapshot, StoreReader

#: How far apart spans of one request may start; bounds look-ups of raw rows.
REACH_NS: Final = 15 * 60 * 1_000_000_000

#: How far apart the clocks of two hosts may be.
_CLOCK_SLACK_NS: Final = 10 * 1_000_000_000

#: SQL over `spans`: the leg id that the sources give a span.
SPAN_LEG_ID: Final = (
    "substr(md5(concat_ws('|', trace_id, span_id, service_name, service_instance_id, "
    "process_id, process_rank)), 1, 24)"
)

#: SQL over `request_log`: the leg id of a row.
LOG_LEG_ID: Final = "substr(md5(log_key), 1, 24)"

#: How a request settled as an attempt; NULL for the first and only one, as nearly all are.
_TRIED: Final = (
    "case when attempt > 1 or superseded_attempt = 1 "
    "then [attempt, superseded_attempt, intended_start_unix_ns] end"
)


def may_be_leg() -> str:
    """SQL over `spans`, true for every span that any source takes (and for some that none does).

    Tells cheaply, from typed columns, what need not be looked at again.
    """
    return "(" + " or ".join(f"({when})" for when in span_sources().values()) + ")"


class Snapshots(Protocol):
    """Anything that hands out snapshots by table name: a StoreReader, or pinned ones."""

    def snapshot(self, table: str) -> Snapshot: ...


class Pinned:
    """Snapshots of one moment: `requests` opened first, the raw tables last.

    So a reader never takes a leg for settled whose request it does not see.
    """

    def __init__(self, reader: StoreReader, tables: Iterable[str]) -> None:
        """``tables`` in the order they are opened; `requests` must come first."""
        self._held = {table: reader.snapshot(table) for table in tables}

    def snapshot(self, table: str) -> Snapshot:
        return self._held[table]

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(s.version for s in self._held.values())


def recall_clocks(store: Snapshots, *, through_unix_ns: int | None = None) -> Recall:
    """What settle passes (until ``through_unix_ns``) learned of clocks near a time."""

    def recall(low_unix_ns: int, high_unix_ns: int) -> str | None:
        near = store.snapshot("clock_offsets")
        near = near.select("window_end_unix_ns", low_unix_ns)
        near = near.select("window_start_unix_ns", None, high_unix_ns)
        if not near.files:
            return None
        pinned = "" if through_unix_ns is None else f" and revision <= {through_unix_ns}"
        return (
            f"select * from ({near.scan_sql()}) where window_end_unix_ns >= {low_unix_ns} "
            f"and window_start_unix_ns <= {high_unix_ns}{pinned}"
        )

    return recall


def pinned_watermark(
    con: duckdb.DuckDBPyConnection,
    store: Snapshots,
    *,
    watermark_unix_ns: int,
    through_unix_ns: int | None,
) -> int:
    """From where on raw rows must be read to show a store as of ``through_unix_ns``.

    Before the watermark, if a request held rows then and has settled only with later ones: its
    settled row is not what there was to see.
    """
    if through_unix_ns is None:
        return watermark_unix_ns
    requests = store.snapshot("requests").select("revision", through_unix_ns)
    legs = store.snapshot("legs").select("revision", through_unix_ns)
    legs = legs.select("ingested_unix_ns", None, through_unix_ns)
    if not legs.files or not requests.files:
        return watermark_unix_ns
    (oldest,) = one(
        con,
        f"""
        select min(l.ingested_unix_ns) from ({legs.scan_sql()}) as l
        join ({requests.scan_sql()}) as r
            on l.request_key = r.request_key and l.revision = r.revision
        where l.revision > {through_unix_ns} and l.ingested_unix_ns <= {through_unix_ns}
            -- what a later revision supersedes is there to be seen
            and r.ingested_unix_ns > {through_unix_ns} and r.supersedes_revision is null
        """,
    )
    if oldest is None:
        return watermark_unix_ns
    # spans that only link its legs may have come before these
    return max(min(int(oldest) - REACH_NS, watermark_unix_ns), 0)


def _as_of(through_unix_ns: int | None) -> str:
    """SQL condition: rows of `requests` that a view pinned there sees."""
    return "true" if through_unix_ns is None else f"ingested_unix_ns <= {through_unix_ns}"


#: What is known of a settled leg.
_RELATED: Final = (
    "l.leg_id, l.request_key, l.revision, l.trace_id, l.norm_request_id, l.norm_response_id, "
    "l.source"
)


def done_legs(
    con: duckdb.DuckDBPyConnection,
    store: Snapshots,
    *,
    since_unix_ns: int,
    through_unix_ns: int | None = None,
) -> None:
    """Temp table ``done``: legs settled at or after ``since_unix_ns``, with key and revision.

    A leg counts only under the current revision of its request (as of ``through_unix_ns``); rows
    of a settle pass that died before `requests` committed count for nothing.
    """
    requests = store.snapshot("requests").select("revision", since_unix_ns)
    legs = store.snapshot("legs").select("revision", since_unix_ns)
    con.execute(
        f"""
        create or replace temp table done as
        with r as (
            select request_key, max(revision) as revision,
                arg_max_null(merged_into, revision) as gone,
                arg_max_null({_TRIED}, revision) as tried
            from ({requests.scan_sql()})
            where revision >= {since_unix_ns} and {_as_of(through_unix_ns)} group by request_key
        )
        select {_RELATED}, r.tried
        from ({legs.scan_sql()}) as l
        join r on l.request_key = r.request_key and l.revision = r.revision and r.gone is null
        where l.revision >= {since_unix_ns}
        """
    )


#: What legs are looked up by: ids of the legs at hand, and what was found by them.
_SOUGHT: Final = {
    "sought_traces": "trace_id",
    "sought_ids": "unnest([norm_request_id, norm_response_id])",
}

_HIT: Final = """
    (l.trace_id in (from sought_traces) or l.norm_request_id in (from sought_ids)
        or l.norm_response_id in (from sought_ids)
        -- sent or imported once more, long after it settled
        or l.leg_id in (select leg_id from new_legs)
        -- a link names a leg by its id; either may be the late one
        or l.leg_id in (
            select norm_request_id from new_legs where source = 'tracekit_join')
        or (l.source = 'tracekit_join' and l.norm_request_id in (select leg_id from new_legs)))
"""


def _relate_done(con: duckdb.DuckDBPyConnection, since: int) -> None:
    """``related`` from ``done``, which holds current revisions only."""
    run(
        con,
        f"""
        create or replace temp table related as
        select {_RELATED}, l.tried
        from done as l
        where l.request_key in (
            select l.request_key from done_hit as l where l.revision >= $since and {_HIT})
        """,
        {"since": since},
    )


def _relate_files(
    con: duckdb.DuckDBPyConnection, store: Snapshots, since: int, through_unix_ns: int | None
) -> None:
    """``related`` from the lake: rows may have settled before those of ``done``."""
    requests = store.snapshot("requests").select("revision", since)
    legs = store.snapshot("legs").select("revision", since)
    con.execute(
        f"""
        create or replace temp table related as
        with hit as (
            select l.request_key, l.revision
            from ({legs.scan_sql()}) as l
            where {_HIT}
        ),
        r as (
            select request_key, max(revision) as revision,
                arg_max_null(merged_into, revision) as gone,
                arg_max_null({_TRIED}, revision) as tried
            from ({requests.scan_sql()})
            where request_key in (select request_key from hit) and {_as_of(through_unix_ns)}
            group by request_key
        ),
        keys as (
            select distinct r.request_key, r.revision, r.tried
            from r join hit on hit.request_key = r.request_key and hit.revision = r.revision
            where r.gone is null
        )
        -- all legs of the requests that were hit, not only those that share an id
        select {_RELATED}, keys.tried
        from ({legs.scan_sql()}) as l
        join keys on l.request_key = keys.request_key and l.revision = keys.revision
        """
    )


def _seek(con: duckdb.DuckDBPyConnection) -> None:
    """``sought_traces`` and ``sought_ids`` of the legs that are new."""
    for name, found in _SOUGHT.items():
        run(
            con,
            f"create or replace temp table {name} as "
            f"select distinct id from (select {found} as id from new_legs) where id is not null",
        )


def _seek_on(con: duckdb.DuckDBPyConnection) -> bool:
    """Add the traces and ids of ``related`` to what is sought; whether there are any more."""
    more = 0
    for name, ids in _SOUGHT.items():
        found = (
            f"select distinct id from (select {ids} as id from related) "
            f"where id is not null and id not in (from {name})"
        )
        more += one(con, f"select count(*) from ({found})")[0]
        run(con, f"insert into {name} {found}")
    return more > 0


def add_related(
    con: duckdb.DuckDBPyConnection,
    store: Snapshots,
    *,
    done_since_unix_ns: int,
    through_unix_ns: int | None = None,
) -> Known:
    """Settled legs related to ``new_legs`` and those of ``done``, as `Known`, and raw rows.

    All as of ``through_unix_ns``.

    ``con`` has ``done``, of all that settled at or after ``done_since_unix_ns``, and what
    `count_new_legs` makes; then it has ``related`` (settled legs of the same
    traces or request ids, all legs of their requests, what shares a trace or id with those, and so
    on) and, if there are any, the tables ``related_spans`` and ``related_log`` of their raw rows.
    """
    low, high = one(
        con,
        # a leg without a clock may belong to any time
        "select case when count(start_ns) = count(*) then coalesce(min(start_ns), 0) else 0 end, "
        f"case when count(start_ns) = count(*) then coalesce(max(start_ns), 0) "
        f"else {LATEST_UNIX_NS} end from new_legs",
    )
    _seek(con)
    # a leg is settled after it ended, so older settle passes cannot hold a related one
    since = max(low - _CLOCK_SLACK_NS, 0)
    if since >= done_since_unix_ns:
        # what settled since then is at hand: no file is read for the many that are related to none
        _relate_done(con, since)
    else:
        _relate_files(con, store, since, through_unix_ns)
    if one(con, "select count(*) from (from related limit 1)")[0]:
        # their traces are read whole, as far back as this: every leg that comes in so must be known
        since = max(low - REACH_NS - _CLOCK_SLACK_NS, 0)
        _seek_on(con)
        while True:
            _relate_files(con, store, since, through_unix_ns)
            if not _seek_on(con):
                break
    rows = con.execute("select leg_id, request_key, revision, tried from related").fetchall()
    done = []
    if one(con, "select count(*) from done_hit")[0]:
        done = con.execute(
            """
            select leg_id, request_key, revision, tried from done
            -- the others are none of this derivation's business, and there may be very many
            where request_key in (
                select request_key from done_hit where leg_id in (select leg_id from leg_rows))
            """
        ).fetchall()
    if rows:
        spans = store.snapshot("spans")
        log = store.snapshot("request_log")
        until = high + REACH_NS if high < LATEST_UNIX_NS else None
        near = spans.select("start_unix_ns", low - REACH_NS, until)
        con.execute(
            f"create or replace temp table related_spans as select * from ({near.scan_sql()}) "
            "where trace_id in (select trace_id from related where trace_id is not null) "
            f"and start_unix_ns >= {low - REACH_NS} and {_as_of(through_unix_ns)}"
        )
        con.execute(
            f"create or replace temp table related_log as select * from ({log.scan_sql()}) "
            f"where {LOG_LEG_ID} in "
            "(select leg_id from related where source = 'request_log') "
            f"and {_as_of(through_unix_ns)}"
        )
    return Known(
        {leg: key for leg, key, _, _ in (*done, *rows)},
        {key: revision for _, key, revision, _ in (*done, *rows)},
        {key: (t[0], t[1], t[2]) for _, key, _, t in (*done, *rows) if t is not None},
    )


def count_new_legs(con: duckdb.DuckDBPyConnection) -> None:
    """``new_legs``: legs of ``leg_rows`` that are not in ``done``.

    Also ``done_hit``: what of ``done`` shares a leg, trace or request id with ``leg_rows``. Much
    has settled and little arrived, so the former is looked up by the latter.
    """
    run(
        con,
        """
        create or replace temp table done_hit as
        with ids_at_hand as (
            select norm_request_id from leg_rows where norm_request_id is not null
            union all
            select norm_response_id from leg_rows where norm_response_id is not null
        )
        select * from done
        where leg_id in (select leg_id from leg_rows)
            or trace_id in (select trace_id from leg_rows where trace_id is not null)
            or norm_request_id in (from ids_at_hand) or norm_response_id in (from ids_at_hand)
            or leg_id in (select norm_request_id from leg_rows where source = 'tracekit_join')
            or (source = 'tracekit_join' and norm_request_id in (select leg_id from leg_rows))
        """,
    )
    run(
        con,
        """
        create or replace temp table new_legs as
        select leg_id, trace_id, norm_request_id, norm_response_id, source, ingested_unix_ns,
            case when has_clock = 1 then
                coalesce(send_unix_ns, recv_unix_ns, queued_unix_ns, scheduled_unix_ns,
                    first_token_unix_ns, leg_end_unix_ns)
            end as start_ns
        from leg_rows
        where leg_id not in (select leg_id from done_hit)
        """,
    )
