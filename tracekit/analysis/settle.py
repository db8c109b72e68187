"""Settling: raw rows that have been quiet become rows of the derived tables, once.

One process settles, under the store's settle lock (the receiver; an importer if none runs).
A request settles when its own spans have been quiet for ``quiet_ns``, at the latest
``latest_ns`` after its end. Each pass writes `legs`, `phases`, `token_gaps` and, last, `requests`
with the watermark as an application transaction: every raw row prepared before the watermark is
settled or belongs to no request. A pass that dies half way leaves rows of a revision that no
`requests` row has, which nobody reads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

from tracekit.analysis._duck import one
from tracekit.analysis.derive import derive, load_legs
from tracekit.analysis.settled import WATERMARK_APP, add_related, done_legs
from tracekit.lake.lock import settle_lock
from tracekit.lake.schema import TABLES
from tracekit.lake.store import Store, StoreReader

QUIET_NS: Final = 60 * 1_000_000_000
LATEST_NS: Final = 600 * 1_000_000_000

#: Writers commit within this long of stamping a row (they restamp else), so a row prepared
#: earlier than this is visible.
COMMIT_SLACK_NS: Final = 60 * 1_000_000_000


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
        self, store: Store, *, quiet_ns: int = QUIET_NS, latest_ns: int = LATEST_NS
    ) -> None:
        self._store = store
        self._reader = StoreReader(store)
        self._quiet_ns = quiet_ns
        self._latest_ns = latest_ns
        self._revision = 0

    def run_pass(self, now_unix_ns: int | None = None) -> SettleReport:
        """Settle what is ripe at ``now_unix_ns`` (default: now)."""
        now = time.time_ns() if now_unix_ns is None else now_unix_ns
        watermark = self._store.txn_version("requests", WATERMARK_APP) or 0
        # revisions order passes, also where the clock was set back
        self._revision = max(now, self._revision + 1, watermark + 1)
        con = duckdb.connect()
        try:
            con.execute("set preserve_insertion_order = false")
            return self._pass(con, now, watermark)
        finally:
            con.close()

    def _pass(self, con: duckdb.DuckDBPyConnection, now: int, watermark: int) -> SettleReport:
        ripe_before = now - self._quiet_ns
        _fresh_views(con, self._reader, watermark)
        _choose_traces(con, ripe_before)
        con.execute(
            "create or replace view spans as select * from fresh_spans "
            "where trace_id in (select trace_id from chosen)"
        )
        con.execute("create or replace view request_log as select * from fresh_log")
        load_legs(con)
        done_legs(con, self._reader, since_unix_ns=watermark)
        fresh = self._prepare(con)
        settled = revised = waiting = 0
        if fresh:
            self._keep_quiet(con, now, ripe_before)
            settled, revised, waiting = _counts(con)
            if settled:
                self._write(con)
        new_watermark = self._watermark(con, now, watermark)
        if settled or new_watermark > watermark:
            self._commit_requests(con, settled > 0, new_watermark)
        return SettleReport(settled, revised, waiting, max(new_watermark, watermark))

    def _prepare(self, con: duckdb.DuckDBPyConnection) -> bool:
        """Derive requests that hold a leg not settled yet; False if there is none."""
        count_new_legs(con)
        if not one(con, "select count(*) from new_legs")[0]:
            return False
        known = add_related(con, self._reader)
        use_related(con)
        derive(con, revision=self._revision, known=known)
        return True

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

    def _write(self, con: duckdb.DuckDBPyConnection) -> None:
        for table in ("legs", "phases", "token_gaps"):
            rows = _rows(con, table, "where request_key in (select request_key from settling)")
            self._store.append(table, rows)

    def _commit_requests(
        self, con: duckdb.DuckDBPyConnection, any_rows: bool, watermark: int
    ) -> None:
        if any_rows:
            con.execute(f"update requests set settled_unix_ns = {self._revision}")
            rows = _rows(con, "requests", "")
        else:
            rows = TABLES["requests"].schema.empty_table()
        self._store.append("requests", rows, txn=(WATERMARK_APP, watermark))

    def _watermark(self, con: duckdb.DuckDBPyConnection, now: int, old: int) -> int:
        """No raw row prepared before it is to settle: waiting legs and unripe traces hold it."""
        held = one(
            con,
            """
            select min(held) from (
                select min(first_ingested) as held from trace_age
                where trace_id not in (select trace_id from chosen)
                union all
                select min(l.ingested_unix_ns) from leg_rows as l
                where l.leg_id in (select leg_id from waiting_legs)
            )
            """,
        )
        bound = now - COMMIT_SLACK_NS
        if held[0] is not None:
            bound = min(bound, int(held[0]))
        # the transaction must advance for the commit to land
        return max(bound, old + 1)


def _fresh_views(con: duckdb.DuckDBPyConnection, reader: StoreReader, watermark: int) -> None:
    for view, table in (("fresh_spans", "spans"), ("fresh_log", "request_log")):
        snapshot = reader.snapshot(table).select("ingested_unix_ns", watermark)
        con.execute(
            f"create or replace view {view} as select * from ({snapshot.scan_sql()}) "
            f"where ingested_unix_ns >= {watermark}"
        )


def _choose_traces(con: duckdb.DuckDBPyConnection, ripe_before: int) -> None:
    """``chosen``: traces with a ripe row, those that log rows name, and those sharing an id."""
    con.execute(
        """
        create or replace temp table trace_age as
        select trace_id, min(ingested_unix_ns) as first_ingested
        from fresh_spans group by trace_id
        """
    )
    con.execute(
        f"""
        create or replace temp table chosen as
        with base as (
            select trace_id from trace_age where first_ingested <= {ripe_before}
            union
            select trace_id from fresh_log where trace_id is not null
        ),
        shared as (
            select distinct f.trace_id from fresh_spans as f
            where f.request_id in (
                select b.request_id from fresh_spans as b
                where b.request_id is not null and b.trace_id in (select trace_id from base))
        )
        select trace_id from base union select trace_id from shared
        """
    )


def count_new_legs(con: duckdb.DuckDBPyConnection) -> None:
    """``new_legs``: legs of ``leg_rows`` that are not in ``done``."""
    con.execute(
        """
        create or replace temp table new_legs as
        select leg_id, trace_id, norm_request_id,
            coalesce(send_unix_ns, recv_unix_ns, queued_unix_ns, scheduled_unix_ns,
                first_token_unix_ns, leg_end_unix_ns) as start_ns
        from leg_rows
        where leg_id not in (select leg_id from done)
        """
    )
    con.execute("create or replace temp table waiting_legs as select leg_id from new_legs")


def use_related(con: duckdb.DuckDBPyConnection) -> None:
    """Add the raw rows of related settled requests to ``spans`` and ``request_log``."""
    con.execute(
        """
        create or replace view spans as
        select * from fresh_spans where trace_id in (select trace_id from chosen)
        union all by name select * from related_spans
        """
    )
    con.execute(
        "create or replace view request_log as "
        "select * from fresh_log union all by name select * from related_log"
    )


def _counts(con: duckdb.DuckDBPyConnection) -> tuple[int, int, int]:
    """(settling, of these revised, waiting) and drop the settling legs from ``waiting_legs``."""
    con.execute(
        """
        create or replace temp table waiting_legs as
        select n.leg_id from new_legs as n
        join legs as l on n.leg_id = l.leg_id
        where l.request_key not in (select request_key from settling)
        """
    )
    settled, revised = one(
        con, "select count(*), count(supersedes_revision) from requests where merged_into is null"
    )
    (waiting,) = one(
        con,
        "select count(distinct l.request_key) from waiting_legs as w "
        "join legs as l on w.leg_id = l.leg_id",
    )
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
        return Settler(store, quiet_ns=0).run_pass()
