"""What one input brings into the store: batches, idempotency, what was refused and where.

A batch is cut by what the file holds and not by what the store holds, so that the n-th batch of
a file is the same rows whenever it is imported: its Delta transaction is (hash of the file, n).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from tracekit.ingest._import_run import Run
from tracekit.ingest._messages import Unreadable
from tracekit.ingest._streams import Source
from tracekit.ingest.batch import Rejected, quarantine_rows, stamp_rows
from tracekit.ingest.summary import DifferingRow, FileSummary, Tally
from tracekit.words import plural, verb

#: Refused items that wait for their commit at most.
_REFUSED_ROWS: Final = 5_000
_ORIGIN: Final = "import"


class FileWrites:
    """Writes what is read of one input, and counts; `summary` at the end."""

    def __init__(self, run: Run, source: Source, sha256: str, *, named: bool) -> None:
        self._run = run
        self._source = source
        self._named = named
        self._sha256 = sha256
        self._tally = Tally()
        self._tables: dict[str, int] = {}
        self._duplicates = 0
        self._differing = 0
        self._differs: DifferingRow | None = None
        self._batches: dict[str, int] = {}
        self._refused: list[Rejected] = []
        self._refused_rows: list[int | None] = []
        self._mapped: dict[str, str] = {}
        self._unmapped: dict[str, None] = {}
        self._notices: dict[str, None] = {}

    def summary(self, file_format: str) -> FileSummary:
        there = self._duplicates or self._differing
        if there and self._run.mapping and not any(self._tables.values()):
            self.remark(
                "every row is in the store already and stays as it was first read; --map changes "
                "nothing there: to read the file anew, import it into a fresh --store"
            )
        return FileSummary(
            path=self._source.name,
            format=file_format,
            taken=sum(self._tables.values()),
            refused=self._tally.refusals(),
            duplicates=self._duplicates,
            tables=dict(self._tables),
            mapped=dict(self._mapped),
            unmapped=tuple(self._unmapped),
            notices=tuple(self._notices),
            differing=self._differing,
            differs=self._differs,
        )

    def remark(self, text: str) -> None:
        """A notice for the summary and, the first time, for whoever watches."""
        if text not in self._notices:
            self._notices[text] = None
            self._run.note(f"{self._source.name}: {text}")

    @property
    def _in_store(self) -> int:
        """Rows of this file that the store holds now."""
        return sum(self._tables.values()) + self._duplicates + self._differing

    def _check_usable(self) -> None:
        """SourceError for a damaged file of which nothing but the damage is to be told."""
        damage = self._source.damage
        if damage is not None and not self._in_store:
            if all(refused.reason == damage.reason for refused in self._refused):
                raise self._source.unusable(damage)

    def _commit(self, table: str, rows: pa.Table) -> None:
        """Writes what is new of one batch, once, whoever else imports the same file."""
        number = self._batches[table] = self._batches.get(table, 0) + 1
        if not rows.num_rows:
            return
        run = self._run
        with run.stamping() as now_unix_ns:
            rows = stamp_rows(table, rows, origin=_ORIGIN, now_unix_ns=now_unix_ns)
            fresh = self._append_new(table, rows, number)
            differing = run.seen.differing(rows, fresh) if table == "request_log" else None
        self._duplicates += rows.num_rows - fresh.num_rows
        if differing is not None:
            self._duplicates -= differing.count
            self._differing += differing.count
            if self._differs is None:
                self._differs = DifferingRow(self._source.name, differing.row, differing.fields)
        self._tables[table] = self._tables.get(table, 0) + fresh.num_rows
        run.taken(fresh.num_rows)

    def _append_new(self, table: str, rows: pa.Table, number: int) -> pa.Table:
        """Writes the rows that the store does not hold yet, and returns them."""
        run = self._run
        fresh = run.seen.fresh(table, rows)
        twins = run.seen.twins(fresh) if table == "request_log" else 0
        if twins:
            equal = verb(twins, "equals", "equal")
            are = verb(twins, "is", "are")
            self.remark(
                f"{plural(twins, 'row')} without a start time {equal} rows imported from another "
                f"file (or another state of this one) and {are} counted again, since nothing tells "
                "them apart: to replace a sheet, import it into a fresh --store, or add a start "
                "time"
            )
        if fresh.num_rows and not run.store.append(table, fresh, txn=(self._sha256, number)):
            # This batch of this file was committed before, yet its rows were not seen: another
            # import is at it right now, or they have aged out and are wanted again.
            fresh = run.seen.absent(table, fresh)
            if fresh.num_rows:
                run.store.append(table, fresh)
        return fresh

    def _refuse(self, rejected: Rejected, row: int | None) -> None:
        name = self._source.name
        where = name if row is None else f"{name}:{row}"
        self._tally.add(rejected.reason, where, rejected.detail)
        self._refused.append(rejected)
        self._refused_rows.append(row)
        if len(self._refused) >= _REFUSED_ROWS:
            self._flush_refused()

    def _refuse_place(self, signal: str, place: Unreadable) -> None:
        """A place that is no message: filed without payload, for what cannot be read cannot be
        searched for text either."""
        rejected = Rejected(signal, place.reason, place.detail, None, None, None, "")
        self._refuse(rejected, place.row)

    def _flush_refused(self) -> None:
        number = self._batches["quarantine"] = self._batches.get("quarantine", 0) + 1
        if not self._refused:
            return
        rows = quarantine_rows(
            self._refused,
            origin=_ORIGIN,
            now_unix_ns=self._run.now_unix_ns,
            source_file=self._source.name,
            source_rows=self._refused_rows,
        )
        self._run.store.append("quarantine", rows, txn=(self._sha256, number))
        self._refused = []
        self._refused_rows = []
