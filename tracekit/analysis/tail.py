"""The tail: requests whose raw rows are in the lake but not settled yet, kept up to date.

Owns the schema ``tail`` of one DuckDB database: raw rows newer than the watermark and the derived
rows computed from them. A refresh reads only files it has not seen and derives only the traces
that got new rows, so its cost follows what arrived, not what the day holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import duckdb

from tracekit.analysis._clock_rows import create_nodes, sum_nodes
from tracekit.analysis._duck import normalised_id, one, run
from tracekit.analysis.derive import DERIVED, Known, derive, load_legs
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


#: Rows of files not seen yet that are read before it is known which of them are wanted.
_FEW_ROWS: Final = 100_000


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


#: One step from what is touched, as single columns: see `Tail._spread`.
_IDS_OF_TOUCHED: Final = (
    "select norm_id from tail.ids where trace_id in (from touched) or log_key in (from touched_log)"
)
_HOLD_TOUCHED: Final = (
    "select request_key from tail.legs "
    "where trace_id in (from touched) or norm_request_id in (from touched_ids) "
    "or norm_response_id in (from touched_ids)"
)
_TRACES_OF_IDS: Final = "select trace_id from tail.ids where norm_id in (from touched_ids)"
_BESIDE: Final = "from tail.legs where request_key in (from replaced)"
_IDS_BESIDE: Final = f"select unnest([norm_request_id, norm_response_id]) {_BESIDE}"
_TRACES_BESIDE: Final = f"select trace_id {_BESIDE}"
_LOG_OF_TOUCHED: Final = (
    "select log_key from tail.ids where norm_id in (from touched_ids) "
    "union select log_key from tail.request_log where trace_id in (from touched)"
)


class Tail:
    """Tables ``tail.legs``, ``tail.requests``, ``tail.phases``, ``tail.token_gaps``."""

    def __init__(
        self, con: duckdb.DuckDBPyConnection, *, ingested_through_unix_ns: int | None = None
    ) -> None:
        """``ingested_through_unix_ns`` pins the raw rows: later ones are left out."""
        self._through = ingested_through_unix_ns
        self._seen: dict[str, frozenset[str]] = {"spans": frozenset(), "request_log": frozenset()}
        #: how many rows the last refresh brought, and whether they met others of their trace
        self._fresh = {"spans": 0, "request_log": 0}
        self._met = {"spans": False, "request_log": False}
        self._any_log = False
        #: whether rows ever came in: what holds nothing has nothing to forget
        self._held = False
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
        for table in self._fresh:
            self._con.execute(
                f"create or replace temp table new_{table} as from tail.{table} limit 0"
            )
        # request ids of the raw rows, normalised once: what joins rows of different traces
        self._con.execute(
            "create or replace table tail.ids (trace_id VARCHAR, log_key VARCHAR, norm_id VARCHAR)"
        )
        # the traces of tail.spans, and when they got rows: far fewer than spans
        self._con.execute(
            "create or replace table tail.traces (trace_id VARCHAR, ingested_unix_ns BIGINT)"
        )
        # what the tail's requests say of clocks: one refresh sees too few to know
        create_nodes(self._con, "tail.clock_nodes")
        create_nodes(self._con, "tail.clock_sums")

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
        if changed and self._held:
            self._forget_settled()
        self._held = self._held or fresh > 0
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
        self._met[table] = False
        if not unseen:
            if self._fresh[table]:
                run(con, f"create or replace temp table new_{table} as from tail.{table} limit 0")
                self._fresh[table] = 0
            return 0
        self._read(table, Snapshot(table, snapshot.version, unseen))
        # a compaction brings rows back in other files, and clients send twice
        identity = _SPAN_IDENTITY if table == "spans" else ("log_key",)
        self._met[table] = self._find_held(table, identity)
        distinct = "span_id" if table == "spans" else "log_key"
        rows, different = one(con, f"select count(*), count(distinct {distinct}) from new_{table}")
        if self._met[table] or rows != different:
            self._drop_held(table, identity)
            (rows,) = one(con, f"select count(*) from new_{table}")
        run(con, f"insert into tail.{table} select * from new_{table}")
        if table == "spans":
            run(
                con,
                "insert into tail.traces select trace_id, max(ingested_unix_ns) from new_spans "
                "group by trace_id",
            )
        self._fresh[table] = int(rows)
        return int(rows)

    def _read(self, table: str, files: Snapshot) -> None:
        """``new_spans`` or ``new_request_log``: rows of the files that are not known as settled."""
        con = self._con
        key = "trace_id" if table == "spans" else "log_key"
        # after an import everything is settled and still newer than the watermark: such rows are
        # told by their ids, and only traces that hold something else are read whole
        inside = f"from ({files.scan_sql()}) where ingested_unix_ns >= {self.watermark_unix_ns}"
        if self._through is not None:
            inside += f" and ingested_unix_ns <= {self._through}"
        into = f"create or replace temp table new_{table} as select *"
        if files.rows <= _FEW_ROWS:
            con.execute(f"{into} {inside} and {key} is not null")
            leg_id, ids = ("trace_id", key) if table == "spans" else ("leg_id", LOG_LEG_ID)
            # what is settled is looked up by the little that arrived, not the other way round
            if not one(
                con,
                "select count(*) from (from done "
                f"where {leg_id} in (select {ids} from new_{table}) limit 1)",
            )[0]:
                return
            run(con, f"create or replace temp table arrived as from new_{table}")
            inside = "from arrived where true"
        con.execute(f"create or replace temp table wanted as {_wanted(table, inside)}")
        con.execute(f"{into} {inside} and {key} in (select {key} from wanted)")

    def _find_held(self, table: str, identity: Sequence[str]) -> bool:
        """``held``: rows in the tail of the traces that got new ones; whether there are any."""
        con, key = self._con, identity[0]
        if table == "spans":
            (known,) = one(
                con,
                "select count(*) from (from tail.traces "
                "where trace_id in (select trace_id from new_spans) limit 1)",
            )
            if not known:
                return False
        run(
            con,
            f"create or replace temp table held as select {', '.join(identity)} "
            f"from tail.{table} where {key} in (select {key} from new_{table})",
        )
        return bool(one(con, "select count(*) from held")[0])

    def _drop_held(self, table: str, identity: Sequence[str]) -> None:
        """Take out of the new rows what the tail has already, and what is there twice."""
        same = " and ".join(f"t.{c} is not distinct from f.{c}" for c in identity)
        unless = (
            f"where not exists (select 1 from held as t where {same})" if self._met[table] else ""
        )
        run(self._con, f"create or replace temp table arrived as from new_{table}")
        run(
            self._con,
            f"""
            create or replace temp table new_{table} as
            select f.* from arrived as f {unless}
            qualify row_number() over (
                partition by {", ".join(f"f.{c}" for c in identity)}
                order by f.ingested_unix_ns) = 1
            """,
        )

    def _forget_settled(self) -> None:
        """Drop raw rows before the watermark and tail requests all of whose legs have settled."""
        con = self._con
        for table in ("spans", "request_log"):
            con.execute(
                f"delete from tail.{table} where ingested_unix_ns < {self.watermark_unix_ns}"
            )
        con.execute(f"delete from tail.traces where ingested_unix_ns < {self.watermark_unix_ns}")
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

        self._any_log = bool(one(con, "select count(*) from (from tail.request_log limit 1)")[0])
        self._sum_clocks()

    def _sum_clocks(self) -> None:
        self._con.execute("delete from tail.clock_sums")
        sum_nodes(self._con, "tail.clock_sums", "tail.clock_nodes")

    def _derive_touched(self) -> None:
        """Derive the traces that got new rows and put the result in the place of the old one."""
        con = self._con
        self._any_log = self._any_log or self._fresh["request_log"] > 0
        alone = self._add_ids() and not self._any_log and not self._met["spans"]
        if alone:
            # nearly always a trace comes whole: then nothing of the tail is touched
            run(con, "create or replace temp view spans as from new_spans")
            run(con, "create or replace temp view request_log as from new_request_log")
        else:
            self._touch()
        known = self._load_related()
        any_related = self._any_related()
        # rows that settled may lead on to rows that the tail holds, and these to more that settled
        while any_related and self._touch_related(anew=alone):
            alone = False
            known = self._load_related()
        any_replaced = (any_related or not alone) and self._find_replaced()
        if any_related:
            self._use_related()
        self._revision = max(self._revision + 1, self.watermark_unix_ns + 1)
        anew = any_replaced or any_related
        derive(
            con,
            revision=self._revision,
            known=known,
            recall=recall_clocks(self._pinned, through_unix_ns=self._through),
            beside="tail.clock_nodes",
            summed=None if anew else "tail.clock_sums",
            legs_loaded=not any_related,
        )
        for table in (*DERIVED, "clock_nodes"):
            if anew:
                replaced = "request_key in (select request_key from requests)"
                if any_replaced:
                    replaced += " or request_key in (from replaced)"
                    if table == "requests":
                        replaced += " or merged_into in (from replaced)"
                con.execute(f"delete from tail.{table} where {replaced}")
            run(con, f"insert into tail.{table} by name select * from {table}")
        if anew:
            self._sum_clocks()
        else:
            sum_nodes(con, "tail.clock_sums", "clock_nodes")

    def _load_related(self) -> Known:
        """``leg_rows`` of ``spans`` and ``request_log``, and what of their kin has settled."""
        load_legs(self._con)
        count_new_legs(self._con)
        return add_related(
            self._con,
            self._pinned,
            done_since_unix_ns=self.watermark_unix_ns,
            through_unix_ns=self._through,
        )

    def _any_related(self) -> bool:
        return bool(one(self._con, "select count(*) from (from related limit 1)")[0])

    def _add_ids(self) -> bool:
        """Add the request ids of the new rows to ``tail.ids``; whether none of them was there."""
        con = self._con
        parts = [
            f"select distinct trace_id, {log_key} as log_key, {normalised_id(source)} as norm_id "
            f"from new_{table} where {source} is not null and {sought}"
            for table, source, log_key, sought in (
                # an id on a span that is no leg joins nothing
                ("spans", "request_id", "null::varchar", may_be_leg()),
                ("spans", "response_id", "null::varchar", may_be_leg()),
                ("request_log", "request_id", "log_key", "true"),
                ("request_log", "response_id", "log_key", "true"),
            )
            if self._fresh[table]
        ]
        run(con, f"create or replace temp table new_ids as {' union all '.join(parts)}")
        (known,) = one(
            con,
            "select count(*) from (from tail.ids "
            "where norm_id in (select norm_id from new_ids) limit 1)",
        )
        run(con, "insert into tail.ids from new_ids")
        return not known

    def _touch(self) -> None:
        """``spans`` and ``request_log``: raw rows of what got new rows, and of what hangs on it.

        That is what shares an id with it, what a request of the tail holds beside it, and so on.
        """
        self._start_touched()
        self._spread()
        self._use_touched()

    def _start_touched(self) -> None:
        """The new rows' traces (``touched``), ids and log keys; ``replaced`` is empty yet."""
        for name, rows in (
            ("touched_ids", "select distinct norm_id from new_ids"),
            (
                "touched",
                "select trace_id from new_spans "
                "union select trace_id from new_request_log where trace_id is not null",
            ),
            ("touched_log", "select log_key from new_request_log"),
            ("replaced", "select request_key from tail.legs limit 0"),
        ):
            run(self._con, f"create or replace temp table {name} as {rows}")

    def _spread(self) -> None:
        """Go on from what is touched, until nothing is added.

        Nearly always a request is found by all its ids at once, and one round is enough.
        """
        more = True
        while more:
            self._add("touched_ids", _IDS_OF_TOUCHED)
            if self._add("replaced", _HOLD_TOUCHED):
                more = self._add("touched_ids", _IDS_BESIDE)
                more = self._add("touched", f"{_TRACES_OF_IDS} union {_TRACES_BESIDE}") or more
            else:
                more = self._add("touched", _TRACES_OF_IDS)
            more = (self._any_log and self._add("touched_log", _LOG_OF_TOUCHED)) or more

    def _add(self, table: str, found: str) -> bool:
        """Add to a table of one column what it does not hold; whether there was any."""
        con = self._con
        run(
            con,
            f"create or replace temp table added as select * from ({found}) as f(x) "
            f"where x is not null and x not in (from {table})",
        )
        if not one(con, "select count(*) from added")[0]:
            return False
        run(con, f"insert into {table} select distinct x from added")
        return True

    def _touch_related(self, *, anew: bool) -> bool:
        """Go on from settled rows that are related; whether more raw rows of the tail are touched.

        ``anew``: nothing was touched yet.
        """
        if anew:
            self._start_touched()
        before = self._count_touched()
        for table, found in (
            ("touched", "select trace_id from related"),
            ("touched_ids", "select unnest([norm_request_id, norm_response_id]) from related"),
        ):
            self._add(table, found)
        self._spread()
        if self._count_touched() == before:
            return False
        self._use_touched()
        return True

    def _count_touched(self) -> tuple[int, int]:
        """Traces and log rows of the tail that are touched."""
        traces, rows = one(
            self._con,
            "select (select count(distinct trace_id) from tail.traces "
            "where trace_id in (from touched)), (select count(*) from touched_log)",
        )
        return int(traces), int(rows)

    def _use_touched(self) -> None:
        con = self._con
        (older,) = one(
            con,
            "select count(*) from touched where trace_id not in (select trace_id from new_spans)",
        )
        source = "new_spans"
        if self._met["spans"] or older:
            run(
                con,
                "create or replace temp table touched_spans as from tail.spans "
                "where trace_id in (from touched)",
            )
            source = "touched_spans"
        run(con, f"create or replace temp view spans as from {source}")
        run(
            con,
            "create or replace temp table touched_request_log as from tail.request_log "
            "where log_key in (from touched_log)",
        )
        run(con, "create or replace temp view request_log as from touched_request_log")

    def _find_replaced(self) -> bool:
        """``replaced``: requests of the tail that are derived anew; whether there are any."""
        self._add(
            "replaced",
            "select request_key from tail.legs where leg_id in (select leg_id from leg_rows)",
        )
        return bool(one(self._con, "select count(*) from replaced")[0])

    def _use_related(self) -> None:
        """Raw rows of related settled requests stand beside those that were touched."""
        for table, related in (("spans", "related_spans"), ("request_log", "related_log")):
            run(
                self._con,
                f"create or replace temp table whole_{table} as "
                f"from {table} union all by name from {related}",
            )
            run(self._con, f"create or replace temp view {table} as from whole_{table}")
