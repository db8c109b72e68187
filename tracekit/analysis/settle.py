"""Settling: raw rows that have been quiet become rows of the derived tables, once.

One process settles, under the store's settle lock (the receiver; an importer if none runs).
A request settles when its own spans have been quiet for ``quiet_ns``, at the latest
``latest_ns`` after its end. Each pass writes what it learned of clocks (`clock_offsets`), `legs`,
`phases`, `token_gaps` and, last, `requests`;
then `requests` takes the watermark as an application transaction: every raw row prepared before
it is settled or belongs to no request. A pass that dies half way leaves rows of a revision that
no `requests` row has, which nobody reads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

from tracekit.analysis._duck import one
from tracekit.analysis.clocks import Aligned, learned
from tracekit.analysis.derive import derive, load_legs
from tracekit.analysis.settled import (
    LOG_LEG_ID,
    SPAN_LEG_ID,
    add_related,
    count_new_legs,
    done_legs,
    may_be_leg,
    recall_clocks,
)
from tracekit.lake.duck import connect, stand_back
from tracekit.lake.lock import settle_lock
from tracekit.lake.maintain import maintenance_pass
from tracekit.lake.schema import TABLES
from tracekit.lake.stamping import WATERMARK_APP, oldest_stamp_unix_ns
from tracekit.lake.store import Store, StoreReader

QUIET_NS: Final = 60 * 1_000_000_000
LATEST_NS: Final = 600 * 1_000_000_000

#: Traces derived at a time: bounds the memory of settling a large import.
_CHUNK_TRACES: Final = 150_000

#: A watermark that moves while rows come in stays this far behind: clocks are set back sometimes.
_CLOCK_SLACK_NS: Final = 60 * 1_000_000_000

#: Passes and their chunks are told apart by revision; all of a pass lie below its time.
_CHUNKS_MAX: Final = 10_000


@dataclass(frozen=True)
class SettleReport:
    """What one pass did: counts of requests, and where the watermark [unix ns] stands."""

    settled: int
    revised: int
    waiting: int
    watermark_unix_ns: int


class Settler:
    """Runs settle passes over one store; the caller holds the settle lock."""

    def __init__(
        self,
        store: Store,
        *,
        quiet_ns: int = QUIET_NS,
        latest_ns: int = LATEST_NS,
        slack_ns: int = _CLOCK_SLACK_NS,
        stands_back: bool = False,
    ) -> None:
        """``slack_ns``: how far behind now the watermark stays at least.

        ``stands_back``: take half of the cores only.
        """
        self._stands_back = stands_back
        self._store = store
        self._reader = StoreReader(store)
        self._quiet_ns = quiet_ns
        self._latest_ns = latest_ns
        self._slack_ns = slack_ns
        self._revision = 0

    def run_pass(self, now_unix_ns: int | None = None) -> SettleReport:
        """Settle what is ripe at ``now_unix_ns`` (default: now)."""
        now = time.time_ns() if now_unix_ns is None else now_unix_ns
        watermark = self._store.txn_version("requests", WATERMARK_APP) or 0
        # revisions order passes, also where the clock was set back
        self._revision = max(now - _CHUNKS_MAX, self._revision + 1, watermark + 1)
        con = connect()
        try:
            con.execute("set preserve_insertion_order = false")
            if self._stands_back:
                stand_back(con)
            return self._pass(con, now, watermark)
        finally:
            con.close()

    def _pass(self, con: duckdb.DuckDBPyConnection, now: int, watermark: int) -> SettleReport:
        ripe_before = now - self._quiet_ns
        on_its_way = oldest_stamp_unix_ns(self._store)
        _fresh_views(con, self._reader, watermark)
        done_legs(con, self._reader, since_unix_ns=watermark)
        chunks = _choose_traces(con, ripe_before)
        con.execute("create or replace temp table waiting_legs (leg_id VARCHAR, at_ns BIGINT)")
        settled = revised = waiting = 0
        for chunk in range(chunks):
            _chunk_views(con, chunk, last=chunk == chunks - 1)
            load_legs(con)
            if chunk:
                # what this pass has settled so far is settled
                done_legs(con, self._reader, since_unix_ns=watermark)
            aligned = self._prepare(con, watermark)
            if aligned is None:
                continue
            self._keep_quiet(con, now, ripe_before)
            counts = _counts(con)
            settled, revised, waiting = (
                settled + counts[0],
                revised + counts[1],
                waiting + counts[2],
            )
            if counts[0]:
                self._write(con, aligned)
                # later chunks must see this one as settled; orders passes within the pass too
                self._revision += 1
        new_watermark = self._watermark(con, now - self._slack_ns)
        if on_its_way is not None:
            new_watermark = min(new_watermark, on_its_way)
        if new_watermark > watermark:
            self._store.append(
                "requests",
                TABLES["requests"].schema.empty_table(),
                txn=(WATERMARK_APP, new_watermark),
            )
        return SettleReport(settled, revised, waiting, max(new_watermark, watermark))

    def _prepare(self, con: duckdb.DuckDBPyConnection, watermark: int) -> Aligned | None:
        """Derive requests that hold a leg not settled yet; None if there is none."""
        count_new_legs(con)
        if not one(con, "select count(*) from new_legs")[0]:
            return None
        known = add_related(con, self._reader, done_since_unix_ns=watermark)
        any_related = bool(one(con, "select count(*) from (from related limit 1)")[0])
        if any_related:
            use_related(con)
        return derive(
            con,
            revision=self._revision,
            known=known,
            recall=recall_clocks(self._reader),
            legs_loaded=not any_related,
        )

    def _keep_quiet(self, con: duckdb.DuckDBPyConnection, now: int, ripe_before: int) -> None:
        con.execute(
            f"""
            create or replace temp table settling as
            select request_key from requests
            where merged_into is null and (ingested_unix_ns <= {ripe_before}
                or (has_clock = 1 and end_unix_ns <= {now - self._latest_ns}))
            """
        )
        con.execute(
            """
            delete from requests where request_key not in (select request_key from settling)
                and (merged_into is null or merged_into not in (select request_key from settling))
            """
        )
        for table in ("phases", "token_gaps"):
            con.execute(
                f"delete from {table} where request_key not in (select request_key from settling)"
            )

    def _write(self, con: duckdb.DuckDBPyConnection, aligned: Aligned) -> None:
        clocks = learned(con, aligned, revision=self._revision, keys="settling")
        self._store.append("clock_offsets", clocks)
        for table in ("legs", "phases", "token_gaps"):
            rows = _rows(con, table, "where request_key in (select request_key from settling)")
            self._store.append(table, rows)
        con.execute(f"update requests set settled_unix_ns = {self._revision}")
        self._store.append("requests", _rows(con, "requests", ""))

    def _watermark(self, con: duckdb.DuckDBPyConnection, bound: int) -> int:
        """At most ``bound``, and no raw row stamped before it is still to settle.

        Waiting legs and unripe traces hold it.
        """
        held = one(
            con,
            """
            select min(held) from (
                select min(first_ingested) as held from trace_age
                where trace_id not in (select trace_id from chosen)
                union all
                select min(at_ns) as held from waiting_legs
            )
            """,
        )
        return bound if held[0] is None else min(bound, int(held[0]))


def _fresh_views(con: duckdb.DuckDBPyConnection, reader: StoreReader, watermark: int) -> None:
    for view, table in (("fresh_spans", "spans"), ("fresh_log", "request_log")):
        snapshot = reader.snapshot(table).select("ingested_unix_ns", watermark)
        con.execute(
            f"create or replace view {view} as select * from ({snapshot.scan_sql()}) "
            f"where ingested_unix_ns >= {watermark}"
        )


def _choose_traces(con: duckdb.DuckDBPyConnection, ripe_before: int) -> int:
    """``chosen``: traces with a ripe row, those that log rows name, and those sharing an id.

    They are numbered into chunks, oldest first, so that a large import needs bounded memory;
    returns how many chunks there are.
    """
    con.execute(
        f"""
        create or replace temp table trace_age as
        with wanted as (
            -- traces that hold nothing but what is settled, or no LLM call, need no look
            select distinct trace_id from (select * from fresh_spans where {may_be_leg()})
            where {SPAN_LEG_ID} not in (select leg_id from done)
        )
        select trace_id, min(ingested_unix_ns) as first_ingested, min(start_unix_ns) as first_start
        from fresh_spans
        where trace_id in (select trace_id from wanted)
        group by trace_id
        """
    )
    con.execute(
        f"""
        create or replace temp table unsettled_log as
        select * from fresh_log where {LOG_LEG_ID} not in (select leg_id from done)
        """
    )
    con.execute(
        f"""
        create or replace temp table chosen as
        with base as (
            select trace_id from trace_age where first_ingested <= {ripe_before}
            union
            select trace_id from unsettled_log where trace_id is not null
        ),
        base_ids as (
            select distinct unnest([request_id, response_id]) as id from fresh_spans
            where coalesce(request_id, response_id) is not null and {may_be_leg()}
                and trace_id in (select trace_id from base)
        ),
        shared as (
            select distinct f.trace_id from fresh_spans as f
            where (f.request_id in (from base_ids) or f.response_id in (from base_ids))
                and {may_be_leg()}
        ),
        every as (select trace_id from base union select trace_id from shared)
        select trace_id,
            (row_number() over (order by first_start, trace_id) - 1) // {_CHUNK_TRACES} as chunk
        from every left join trace_age using (trace_id)
        """
    )
    any_rows, chunks = one(
        con,
        "select (select count(*) from (from unsettled_log limit 1)), coalesce(max(chunk) + 1, 0) "
        "from chosen",
    )
    return max(int(chunks), int(any_rows))


def _chunk_views(con: duckdb.DuckDBPyConnection, chunk: int, *, last: bool) -> None:
    """``spans`` and ``request_log`` of one chunk; log rows without a trace go with the last."""
    con.execute(
        "create or replace view chunk_spans as select * from fresh_spans "
        f"where trace_id in (select trace_id from chosen where chunk = {chunk})"
    )
    con.execute(
        "create or replace view chunk_log as select * from unsettled_log "
        f"where trace_id in (select trace_id from chosen where chunk = {chunk})"
        + (" or trace_id is null" if last else "")
    )
    con.execute("create or replace view spans as from chunk_spans")
    con.execute("create or replace view request_log as from chunk_log")


def use_related(con: duckdb.DuckDBPyConnection) -> None:
    """Add the raw rows of related settled requests to ``spans`` and ``request_log``."""
    con.execute(
        """
        create or replace view spans as
        select * from chunk_spans union all by name select * from related_spans
        """
    )
    con.execute(
        "create or replace view request_log as "
        "select * from chunk_log union all by name select * from related_log"
    )


def _counts(con: duckdb.DuckDBPyConnection) -> tuple[int, int, int]:
    """(settling, of these revised, waiting); legs that wait are added to ``waiting_legs``."""
    con.execute(
        """
        create or replace temp table held as
        select n.leg_id, l.request_key, n.ingested_unix_ns from new_legs as n
        join legs as l on n.leg_id = l.leg_id
        where l.request_key not in (select request_key from settling)
        """
    )
    con.execute("insert into waiting_legs select leg_id, ingested_unix_ns from held")
    settled, revised = one(
        con, "select count(*), count(supersedes_revision) from requests where merged_into is null"
    )
    (waiting,) = one(con, "select count(distinct request_key) from held")
    return settled, revised, waiting


def _rows(con: duckdb.DuckDBPyConnection, table: str, where: str) -> pa.Table:
    names = ", ".join(f'"{c.name}"' for c in TABLES[table].columns)
    rows: pa.Table = con.sql(f"select {names} from {table} {where}").to_arrow_table()
    return rows.cast(TABLES[table].schema)


def settle_after_import(store: Store) -> SettleReport | None:
    """Settle everything at once after an import, unless another process settles this store.

    Returns None in that case: the receiver will settle the rows once they have been quiet.
    """
    with settle_lock(store, blocking=False) as mine:
        if not mine:
            return None
        # no slack: stamps are never older than the watermark, and so the next reader has no tail
        report = Settler(store, quiet_ns=0, slack_ns=0).run_pass()
        # nobody else compacts where no receiver runs
        maintenance_pass(store)
        return report
