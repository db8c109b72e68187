"""Which rows of an import are in the store already, or came earlier in the same import.

Identity is what design gives it: a span is its ids and its process, a log row its key. Metric
points and log records have none, so there it is all that they say; without a time they are never
taken for duplicates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.ingest.batch import TIME_COLUMN
from tracekit.lake.duck import connect
from tracekit.lake.store import Snapshot, Store

_IDENTITY: Final[dict[str, tuple[str, ...]]] = {
    "spans": (
        "trace_id",
        "span_id",
        "service_name",
        "service_instance_id",
        "process_id",
        "process_rank",
    ),
    "request_log": ("log_key",),
    "metric_samples": (
        "name",
        "metric_type",
        "start_unix_ns",
        "at_unix_ns",
        "attributes",
        "resource",
        "scope_name",
    ),
    "log_records": (
        "at_unix_ns",
        "severity_number",
        "event_name",
        "body",
        "attributes",
        "resource",
        "scope_name",
        "trace_id",
        "span_id",
    ),
}

#: Tables whose rows are told apart by their time too: no time, no identity.
_NEEDS_TIME: Final = frozenset({"metric_samples", "log_records"})


#: Columns of a log row that say how it came here, not what it says.
_NOT_SAID: Final = frozenset(
    (
        "source_file",
        "source_sha256",
        "source_row",
        "log_key",
        "origin",
        "ingested_unix_ns",
        "date",
    )
)


@dataclass(frozen=True)
class Differing:
    """``count`` rows that differ from what is kept; where the first is, and in which columns."""

    count: int
    row: int
    fields: tuple[str, ...]


class SeenRows:
    """Remembers the identities of an import (16 bytes a row, DuckDB keeps them) and looks up
    those of the store as it was when the import first asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._snapshots: dict[str, Snapshot] = {}
        self._connection = connect()

    def close(self) -> None:
        self._connection.close()

    def fresh(self, table: str, rows: pa.Table) -> pa.Table:
        """The rows that are new, each identity once; they count as seen from now on."""
        if table not in self._snapshots:
            self._snapshots[table] = self._store.snapshot(table)
            self._connection.execute(f"CREATE TABLE seen_{table} (key UHUGEINT, time_ns BIGINT)")
        near = _Near(table, rows)
        self._load(table, rows)
        # The time lets DuckDB skip what lies far away, which in most files is nearly all.
        known = f"SELECT key FROM seen_{table} WHERE {near.where('time_ns')}"
        stored = near.stored_sql(self._snapshots[table])
        if stored is not None:
            known += f" UNION ALL {stored}"
        fresh = self._new_indices(known)
        self._connection.execute(
            f"INSERT INTO seen_{table} SELECT key, time_ns FROM batch "
            "WHERE key IS NOT NULL AND i IN (SELECT i FROM fresh)"
        )
        return rows if len(fresh) == rows.num_rows else rows.take(pa.array(fresh))

    def twins(self, rows: pa.Table) -> int:
        """How many log rows without a start time say the same as rows of another file.

        Their identity is file and row (there is nothing else), so they are no duplicates; but a
        sheet that was edited and imported again looks like this.
        """
        if not rows.num_rows or not rows.column("start_unix_ns").null_count:
            return 0
        snapshot = self._snapshots["request_log"]
        if not snapshot.files:
            return 0
        says = ("request_id", "input_tokens", "output_tokens", "ttft_ms", "e2e_ms", "note")
        self._connection.register("incoming", rows.select([*says, "start_unix_ns"]))
        columns = ", ".join(says)
        found = self._connection.execute(
            f"SELECT count(*) FROM (SELECT {columns} FROM incoming WHERE start_unix_ns IS NULL) "
            f"AS n WHERE EXISTS (SELECT 1 FROM ({snapshot.scan_sql()}) AS s "
            "WHERE s.start_unix_ns IS NULL AND "
            + " AND ".join(f"s.{c} IS NOT DISTINCT FROM n.{c}" for c in says)
            + ")"
        ).fetchall()
        self._connection.unregister("incoming")
        return int(found[0][0])

    def moved(self, rows: pa.Table) -> int:
        """How many of these record spans are in the store at another time: a log that has no clock
        of its own was imported before, and was said to start at another time then."""
        snapshot = self._store.snapshot("spans")
        if not snapshot.files:
            return 0
        self._connection.register(
            "incoming", rows.select(["trace_id", "start_unix_ns", "scope_name"])
        )
        found = self._connection.execute(
            "SELECT count(DISTINCT n.trace_id) FROM incoming AS n "
            f"JOIN ({snapshot.scan_sql()}) AS s "
            "ON s.scope_name = n.scope_name AND s.trace_id = n.trace_id "
            "WHERE s.start_unix_ns <> n.start_unix_ns"
        ).fetchall()
        self._connection.unregister("incoming")
        return int(found[0][0])

    def differing(self, rows: pa.Table, fresh: pa.Table) -> Differing | None:
        """Log rows that are not among the ``fresh`` ones, yet say something else than the row of
        the same identity that is kept: in the store, or earlier in this batch."""
        dropped = rows.filter(pc.invert(pc.is_in(rows["source_row"], fresh["source_row"])))
        if not dropped.num_rows:
            return None
        says = [n for n in rows.column_names if n not in _NOT_SAID]
        wanted = ", ".join(["log_key", *says])
        kept = f"SELECT {wanted} FROM first_ones"
        near = _Near("request_log", dropped)
        # as the store is now: what this import wrote before is kept there too
        snapshot = near.stored(self._store.snapshot("request_log"))
        if snapshot.files:
            kept += (
                f" UNION ALL SELECT {wanted} FROM ({snapshot.scan_sql()}) "
                f"WHERE {near.where('start_unix_ns')}"
            )
        other = {n: _differ(n, rows.schema.field(n).type) for n in says}
        differs = " OR ".join(other.values())
        fields = ", ".join(f"CASE WHEN {test} THEN '{name}' END" for name, test in other.items())
        self._connection.register("dropped", dropped)
        self._connection.register("first_ones", fresh)
        found = self._connection.execute(
            f"SELECT d.source_row, any_value([{fields}]) "
            f"FROM dropped AS d JOIN ({kept}) AS k ON d.log_key = k.log_key "
            f"GROUP BY d.source_row HAVING bool_and({differs}) ORDER BY d.source_row"
        ).fetchall()
        self._connection.unregister("dropped")
        self._connection.unregister("first_ones")
        if not found:
            return None
        return Differing(len(found), int(found[0][0]), tuple(filter(None, found[0][1])))

    def absent(self, table: str, rows: pa.Table) -> pa.Table:
        """The rows that the store, as it is now, does not hold.

        Asked after a transaction was found committed, so rows without an identity are taken to
        be there.
        """
        self._load(table, rows)
        self._connection.execute("DELETE FROM batch WHERE key IS NULL")
        stored = _Near(table, rows).stored_sql(self._store.snapshot(table))
        known = stored or "SELECT key FROM batch WHERE false"
        return rows.take(pa.array(self._new_indices(known)))

    def _load(self, table: str, rows: pa.Table) -> None:
        wanted = {*_IDENTITY[table], TIME_COLUMN[table]}
        keys = rows.select([n for n in rows.column_names if n in wanted])
        keys = keys.append_column("i", pa.array(np.arange(rows.num_rows, dtype=np.int64)))
        self._connection.register("incoming", keys)
        self._connection.execute(
            f"CREATE OR REPLACE TEMP TABLE batch AS SELECT i, {TIME_COLUMN[table]} AS time_ns, "
            f"{_key_sql(table)} AS key FROM incoming"
        )
        self._connection.unregister("incoming")

    def _new_indices(self, known: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        self._connection.execute(
            "CREATE OR REPLACE TEMP TABLE fresh AS "
            f"SELECT min(i) AS i FROM batch ANTI JOIN ({known}) AS known USING (key) "
            "WHERE key IS NOT NULL GROUP BY key "
            "UNION ALL SELECT i FROM batch WHERE key IS NULL"
        )
        found = self._connection.execute("SELECT i FROM fresh ORDER BY i").fetchnumpy()
        return np.asarray(found["i"], dtype=np.int64)


class _Near:
    """The times of some rows, and where others of the same identity can lie."""

    def __init__(self, table: str, rows: pa.Table) -> None:
        self._table = table
        times = rows.column(TIME_COLUMN[table])
        self._nulls = times.null_count > 0
        self._ends: tuple[int, int] | None = None
        if times.null_count < len(times):
            ends = pc.min_max(times)
            self._ends = (ends["min"].as_py(), ends["max"].as_py())

    def where(self, column: str) -> str:
        """SQL that keeps rows near these in time."""
        parts = []
        if self._ends is not None:
            parts.append(f"{column} BETWEEN {self._ends[0]} AND {self._ends[1]}")
        if self._nulls or not parts:
            parts.append(f"{column} IS NULL")
        return f"({' OR '.join(parts)})"

    def stored_sql(self, snapshot: Snapshot) -> str | None:
        """Keys of the stored rows near these; None if no file can hold one."""
        snapshot = self.stored(snapshot)
        if not snapshot.files:
            return None
        return (
            f"SELECT {_key_sql(self._table)} AS key FROM ({snapshot.scan_sql()}) "
            f"WHERE {self.where(TIME_COLUMN[self._table])}"
        )

    def stored(self, snapshot: Snapshot) -> Snapshot:
        """The files that can hold rows near these."""
        if self._ends is None:
            return snapshot
        # Files with rows that have no time are kept by select, as those rows need.
        return snapshot.select(TIME_COLUMN[self._table], *self._ends)


def _key_sql(table: str) -> str:
    parts = ", ".join(f"coalesce(CAST({name} AS VARCHAR), chr(1))" for name in _IDENTITY[table])
    key = f"md5_number(concat_ws(chr(31), {parts}))"
    if table in _NEEDS_TIME:
        return f"CASE WHEN {TIME_COLUMN[table]} IS NULL THEN NULL ELSE {key} END"
    return key


def _differ(name: str, kind: pa.DataType) -> str:
    """SQL: whether a column says something else. A number may be rounded: 67.1 ms, 0.0671 s."""
    test = f"d.{name} IS DISTINCT FROM k.{name}"
    if not pa.types.is_floating(kind):
        return test
    return f"({test} AND coalesce(abs(d.{name} - k.{name}) > 1e-6 * abs(k.{name}), true))"
