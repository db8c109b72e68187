"""The current rows of ``requests``, ``legs``, ``phases`` and ``token_gaps``: settled ones and tail.

Owns which settled rows still hold: those of a whole pass, not superseded by a later one, and not
derived anew in the tail. A condition that no row of the snapshot can fail is left out of the view:
over a million requests each costs up to a second of every reader.
"""

from __future__ import annotations

from typing import Final

import duckdb
import pyarrow as pa

from tracekit.analysis._arrow import arrow_table
from tracekit.analysis._duck import one, put
from tracekit.analysis.settled import Pinned
from tracekit.lake.store import Snapshot

_BESIDE: Final = ("legs", "phases", "token_gaps")
_REVISIONS: Final = pa.schema([("revision", pa.int64())])


class Current:
    """Defines the views on a connection whose schema ``tail`` is kept by `tail.Tail`."""

    def __init__(
        self, con: duckdb.DuckDBPyConnection, *, ingested_through_unix_ns: int | None = None
    ) -> None:
        """``ingested_through_unix_ns`` pins a view: rows that came in later are left out."""
        self._con = con
        self._through = ingested_through_unix_ns
        self._revisions: dict[str, frozenset[int]] = {}
        self._any_tail: bool | None = None

    def define(self, snapshots: Pinned, *, anew: bool) -> bool:
        """Define the views if ``anew``, or if the tail became empty or no longer is.

        Returns whether it did. Views over ``requests`` must then be defined again.
        """
        (rows,) = one(self._con, "select count(*) from (from tail.requests limit 1)")
        if not anew and bool(rows) is self._any_tail:
            return False
        self._any_tail = bool(rows)
        self._define_requests(snapshots.snapshot("requests"))
        if self._through is None:
            self._learn_revisions(snapshots)
        whole = self._revisions_of(snapshots.snapshot("requests"))
        for name in _BESIDE:
            self._define_beside(snapshots.snapshot(name), whole)
        return True

    def _view(self, name: str, query: str) -> None:
        self._con.execute(f"create or replace view {name} as {query}")

    def _pinned(self, column: str) -> str:
        return "" if self._through is None else f" and {column} <= {self._through}"

    def _define_requests(self, requests: Snapshot) -> None:
        # revisions are rare: only files that hold one are read for them
        revised = Snapshot(
            "requests",
            requests.version,
            tuple(f for f in requests.files if f.nulls.get("supersedes_revision", 0) < f.rows),
        )
        self._con.execute(
            f"""
            create or replace temp table superseded as
            select distinct request_key, supersedes_revision as revision
            from ({revised.scan_sql()}) where supersedes_revision is not null
                {self._pinned("ingested_unix_ns")}
            """
        )
        (rows,) = one(self._con, "select count(*) from superseded")
        self._any_superseded = bool(rows)
        through = self._pinned("r.ingested_unix_ns")
        self._view(
            "settled_requests",
            f"select r.* from ({requests.scan_sql()}) as r "
            f"where r.merged_into is null{through}{self._still('r')}",
        )
        self._view("tail_requests", f"from tail.requests as r where r.merged_into is null{through}")
        self._view("requests", "from settled_requests union all from tail_requests")

    def _still(self, row: str) -> str:
        """SQL: conditions that the row is not superseded and not derived anew in the tail."""
        out = ""
        if self._any_superseded:
            out += (
                " and not exists (select 1 from superseded as s where "
                f"s.request_key = {row}.request_key and s.revision = {row}.revision)"
            )
        if self._any_tail:
            out += (
                " and not exists (select 1 from tail.requests as t where "
                f"t.request_key = {row}.request_key)"
            )
        return out

    def _learn_revisions(self, snapshots: Pinned) -> None:
        """Which passes each file holds rows of: a file of one pass tells in its statistics, a
        compacted one is read once."""
        seen, self._revisions = self._revisions, {}
        for snapshot in (snapshots.snapshot(name) for name in ("requests", *_BESIDE)):
            for file in snapshot.files:
                low, high = file.stats.get("revision", (None, None))
                if file.path in seen:
                    known = seen[file.path]
                elif low is not None and low == high:
                    known = frozenset((int(low),))
                else:
                    alone = Snapshot(snapshot.table, snapshot.version, (file,))
                    rows = self._con.execute(f"select distinct revision from ({alone.scan_sql()})")
                    known = frozenset(int(r) for (r,) in rows.fetchall())
                self._revisions[file.path] = known

    def _revisions_of(self, snapshot: Snapshot) -> frozenset[int]:
        known = (self._revisions.get(f.path, frozenset()) for f in snapshot.files)
        return frozenset[int]().union(*known)

    def _define_beside(self, snapshot: Snapshot, whole: frozenset[int]) -> None:
        """The view of a table beside `requests`: the rows of the requests that are seen."""
        if self._through is not None:
            # the moment may lie within a pass: some of its requests are seen, some are not
            current = (
                " and exists (select 1 from settled_requests as r "
                "where r.request_key = d.request_key and r.revision = d.revision)"
            )
        else:
            # a pass commits all its rows of `requests` at once, after the other tables: where
            # its revision is, they are whole
            current = self._still("d")
            if not self._revisions_of(snapshot) <= whole:
                rows = arrow_table({"revision": sorted(whole)}, _REVISIONS)
                put(self._con, "settled_revisions", rows)
                current += " and d.revision in (select revision from settled_revisions)"
        self._view(
            snapshot.table,
            f"select d.* from ({snapshot.scan_sql()}) as d where true{current} "
            f"union all select * from tail.{snapshot.table} "
            "where request_key in (select request_key from tail_requests)",
        )
