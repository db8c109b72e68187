"""The tail: requests whose raw rows are in the lake but not settled yet, kept up to date.

Owns the schema ``tail`` of one DuckDB database: raw rows newer than the watermark and the derived
rows computed from them. A refresh reads only files it has not seen and derives only the traces
that got new rows, so its cost follows what arrived, not what the day holds.
"""

from __future__ import annotations

from typing import Final

import duckdb

from tracekit.analysis._clock_rows import create_nodes
from tracekit.analysis._duck import normalised_id, one
from tracekit.analysis.derive import DERIVED, derive, load_legs
from tracekit.analysis.settled import (
    LOG_LEG_ID,
    SPAN_LEG_ID,
    Snapshots,
    add_related,
    count_new_legs,
    done_legs,
    may_be_leg,
    pinned_watermark,
    recall_clocks,
)
from tracekit.lake.schema import TABLES
from tracekit.lake.store import Snapshot

_SPAN_IDENTITY: Final = (
    "trace_id",
    "span_id",
    "service_name",
    "service_instance_id",
    "process_id",
    "process_rank",
)


def _wanted(table: str, inside: str) -> str:
    """SQL: keys of the rows ``inside`` that are not known to be settled already."""
    if table == "request_log":
        return f"select log_key {inside} and {LOG_LEG_ID} not in (select leg_id from done)"
    return f"""
        select trace_id from (
            select trace_id,
                {may_be_leg()} and {SPAN_LEG_ID} not in (select leg_id from done) as is_new
            {inside})
        group by trace_id
        having bool_or(is_new) or trace_id not in (select trace_id from done
            where trace_id is not null)
    """


class Tail:
    """Tables ``tail.legs``, ``tail.requests``, ``tail.phases``, ``tail.token_gaps``."""

    def __init__(
        self, con: duckdb.DuckDBPyConnection, *, ingested_through_unix_ns: int | None = None
    ) -> None:
        """``ingested_through_unix_ns`` pins the raw rows: later ones are left out."""
        self._through = ingested_through_unix_ns
        self._seen: dict[str, frozenset[str]] = {"spans": frozenset(), "request_log": frozenset()}
        #: whether the last rows that came in met others of their trace
        self._met = {"spans": False, "request_log": False}
        self._requests_version: int | None = None
        self._pinned: Snapshots
        self._revision = 0
        self.watermark_unix_ns = 0
        # its own connection: the derivation's temporary tables must not meet the session's views
        self._con = con.cursor()
        self._con.execute("create schema if not exists tail")
        for table in ("spans", "request_log", *DERIVED):
            columns = ", ".join(f'"{c.name}" {c.type}' for c in TABLES[table].columns)
            self._con.execute(f"create or replace table tail.{table} ({columns})")
        # request ids of the raw rows, normalised once: what joins rows of different traces
        self._con.execute(
            "create or replace table tail.ids (trace_id VARCHAR, log_key VARCHAR, norm_id VARCHAR)"
        )
        # what the tail's requests say of clocks: one refresh sees too few to know
        create_nodes(self._con, "tail.clock_nodes")

    def refresh(self, pinned: Snapshots, watermark_unix_ns: int) -> bool:
        """Bring the tail up to ``pinned``, whose `requests` is not older than the watermark."""
        self._pinned = pinned
        changed = False
        version = pinned.snapshot("requests").version
        if version != self._requests_version:
            self._requests_version = version
            self.watermark_unix_ns = pinned_watermark(
                self._con,
                pinned,
                watermark_unix_ns=watermark_unix_ns,
                through_unix_ns=self._through,
            )
            changed = True
            done_legs(
                self._con,
                pinned,
                since_unix_ns=self.watermark_unix_ns,
                through_unix_ns=self._through,
            )
        fresh = self._load("spans") + self._load("request_log")
        if changed:
            self._forget_settled()
        if fresh:
            self._derive_touched()
        return changed or fresh > 0

    def _load(self, table: str) -> int:
        """Insert rows of files not seen yet; returns how many were new."""
        con = self._con
        snapshot = self._pinned.snapshot(table).select("ingested_unix_ns", self.watermark_unix_ns)
        paths = frozenset(snapshot.paths)
        unseen = tuple(f for f in snapshot.files if f.path not in self._seen[table])
        self._seen[table] = paths
        con.execute(f"create or replace temp table new_{table} as from tail.{table} limit 0")
        self._met[table] = False
        if not unseen:
            return 0
        files = Snapshot(table, snapshot.version, unseen)
        # a compaction brings rows back in other files, and clients send twice
        identity = _SPAN_IDENTITY if table == "spans" else ("log_key",)
        same = " and ".join(f"t.{c} is not distinct from f.{c}" for c in identity)
        key = identity[0]
        # after an import everything is settled and still newer than the watermark: such rows are
        # told by their ids, and only traces that hold something else are read whole
        inside = f"from ({files.scan_sql()}) where ingested_unix_ns >= {self.watermark_unix_ns}"
        if self._through is not None:
            inside += f" and ingested_unix_ns <= {self._through}"
        con.execute(f"create or replace temp table wanted as {_wanted(table, inside)}")
        con.execute(
            f"create or replace temp table arrived as select * {inside} "
            f"and {key} in (select {key} from wanted)"
        )
        # held rows are looked up by the little that arrived, not the other way round
        con.execute(
            f"create or replace temp table held as select {', '.join(identity)} "
            f"from tail.{table} where {key} in (select {key} from arrived)"
        )
        self._met[table] = bool(one(con, "select count(*) from held")[0])
        con.execute(
            f"""
            insert into new_{table}
            select f.* from arrived as f
            where not exists (select 1 from held as t where {same})
            qualify row_number() over (
                partition by {", ".join(f"f.{c}" for c in identity)}
                order by f.ingested_unix_ns) = 1
            """
        )
        con.execute(f"insert into tail.{table} select * from new_{table}")
        source, log_key = (
            ("coalesce(request_id, response_id)", "null")
            if table == "spans"
            else ("request_id", "log_key")
        )
        con.execute(
            f"insert into tail.ids select distinct trace_id, {log_key}, {normalised_id(source)} "
            f"from new_{table} where {source} is not null"
        )
        return int(one(con, f"select count(*) from new_{table}")[0])

    def _forget_settled(self) -> None:
        """Drop raw rows before the watermark and tail requests all of whose legs have settled."""
        con = self._con
        for table in ("spans", "request_log"):
            con.execute(
                f"delete from tail.{table} where ingested_unix_ns < {self.watermark_unix_ns}"
            )
        con.execute(
            "delete from tail.ids where coalesce(trace_id not in "
            "(select trace_id from tail.spans), true) and coalesce(log_key not in "
            "(select log_key from tail.request_log), true)"
        )
        con.execute(
            f"""
            create or replace temp table gone as
            select request_key from tail.legs group by request_key
            having count(*) = count(case when leg_id in (select leg_id from done)
                or ingested_unix_ns < {self.watermark_unix_ns} then 1 end)
            """
        )
        for table in (*DERIVED, "clock_nodes"):
            con.execute(
                f"delete from tail.{table} where request_key in (select request_key from gone)"
            )

    def _derive_touched(self) -> None:
        """Derive the traces that got new rows and put the result in the place of the old one."""
        con = self._con
        con.execute(
            """
            create or replace temp table touched_ids as
            select norm_id from tail.ids
            where trace_id in (select trace_id from new_spans)
                or trace_id in (select trace_id from new_request_log)
                or log_key in (select log_key from new_request_log)
            """
        )
        con.execute(
            """
            create or replace temp table touched as
            select trace_id from new_spans
            union select trace_id from new_request_log where trace_id is not null
            union select trace_id from tail.ids
            where trace_id is not null and norm_id in (select norm_id from touched_ids)
            """
        )
        con.execute(
            """
            create or replace temp table touched_log as
            select log_key from new_request_log
            union select log_key from tail.request_log
            where trace_id in (select trace_id from touched)
            union select log_key from tail.ids
            where log_key is not null and norm_id in (select norm_id from touched_ids)
            """
        )
        self._use_rows()
        load_legs(con)
        count_new_legs(con)
        con.execute(
            """
            create or replace temp table replaced as
            select distinct l.request_key from tail.legs as l
            where l.trace_id in (select trace_id from touched)
                or l.leg_id in (select leg_id from leg_rows)
            """
        )
        known = add_related(con, self._pinned, through_unix_ns=self._through)
        any_related = bool(one(con, "select count(*) from (from related limit 1)")[0])
        # nearly always a trace comes whole: then nothing of it is in the tail yet
        any_replaced = bool(one(con, "select count(*) from replaced")[0])
        if any_related:
            con.execute("insert into spans by name select * from related_spans")
            con.execute("insert into request_log by name select * from related_log")
        self._revision = max(self._revision + 1, self.watermark_unix_ns + 1)
        derive(
            con,
            revision=self._revision,
            known=known,
            recall=recall_clocks(self._pinned, through_unix_ns=self._through),
            beside="tail.clock_nodes",
            legs_loaded=not any_related,
        )
        for table in (*DERIVED, "clock_nodes"):
            if any_replaced or any_related:
                con.execute(
                    f"delete from tail.{table} where "
                    "request_key in (select request_key from replaced) "
                    "or request_key in (select request_key from requests)"
                )
            con.execute(f"insert into tail.{table} by name select * from {table}")

    def _use_rows(self) -> None:
        """``spans`` and ``request_log``: the raw rows of what was touched, read once."""
        (older,) = one(
            self._con,
            "select count(*) from touched where trace_id not in (select trace_id from new_spans)",
        )
        whole = not self._met["spans"] and not older
        self._con.execute(
            "create or replace temp table spans as "
            + (
                "from new_spans"
                if whole
                else "from tail.spans where trace_id in (select trace_id from touched)"
            )
        )
        self._con.execute(
            "create or replace temp table request_log as select * from tail.request_log "
            "where log_key in (select log_key from touched_log)"
        )
