"""The store: a directory of Delta tables that several processes append to and many read.

Owns which files a table has now (`Snapshot`) and how rows get in (`Store.append`). Must not
know what the rows mean; `tracekit.lake.maintain` compacts, vacuums and retains.

Contract for readers: a snapshot is complete and never changes; its files stay readable for the
vacuum retention (an hour unless the store's owner chose otherwise), whatever compaction and
retention do meanwhile. Contract for writers: an append lands whole or not at all, is on disk
when `append` returns, and may be repeated if it names a transaction.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from tracekit.errors import SourceError, UsageError
from tracekit.lake import _commit
from tracekit.lake._files import (
    fsync_path,
    lacking,
    stats_columns,
    without_values,
    write_file,
)
from tracekit.lake.schema import TABLES, Column

_MARKER: Final = "tracekit-store.json"
_FORMAT: Final = 1

# A held handle gets dearer with each commit it follows (0.1 ms each); a fresh one costs 8 ms.
_REOPEN_AFTER_VERSIONS: Final = 64
# How long "no newer log entry" is believed without asking Delta; log entries live far longer.
_TRUST_ABSENCE_S: Final = 30.0

# From so many rows a file on, its footer (1 ms) tells of columns that need not be read at all.
_FOOTER_ROWS: Final = 50_000

Bound = int | float | str | None


def default_store_path() -> Path:
    """``TRACEKIT_STORE`` if set, else ``tracekit`` in the platform's user data folder."""
    if chosen := os.environ.get("TRACEKIT_STORE"):
        return Path(chosen)
    from platformdirs import user_data_path

    return user_data_path("tracekit", appauthor=False)


@dataclass(frozen=True)
class FileInfo:
    """One Parquet file of a snapshot.

    ``stats`` maps each `_unix_ns` and revision column to its (min, max), both None where the
    column holds only NULLs or the writer kept none; ``nulls`` counts NULLs where known.
    ``written_unix_ns`` is when the file was made, to the millisecond. ``lacks`` are columns that
    were added to the table after it: they read as NULL.
    """

    path: str
    date: str
    rows: int
    size_bytes: int
    stats: dict[str, tuple[Bound, Bound]]
    nulls: dict[str, int] = field(default_factory=dict)
    written_unix_ns: int = 0
    lacks: frozenset[str] = frozenset()

    def may_hold(self, column: str, low: Bound, high: Bound) -> bool:
        """Whether a row with ``low <= column <= high``, or NULL in it, may be in this file."""
        smallest, largest = self.stats.get(column, (None, None))
        if smallest is None or largest is None or self.nulls.get(column, 1) > 0:
            return True
        return not (
            (low is not None and largest < low)  # type: ignore[operator]
            or (high is not None and smallest > high)  # type: ignore[operator]
        )


@dataclass(frozen=True)
class Snapshot:
    """The files of one table at one version; version -1 and no files before its first append."""

    table: str
    version: int
    files: tuple[FileInfo, ...]

    @cached_property
    def paths(self) -> list[str]:
        return [f.path for f in self.files]

    @cached_property
    def rows(self) -> int:
        return sum(f.rows for f in self.files)

    def select(self, column: str, low: Bound = None, high: Bound = None) -> Snapshot:
        """Only the files that may hold rows with ``low <= column <= high`` (None: no bound).

        Files without statistics, or with NULLs in the column, are kept: rows without a clock
        belong to every window.
        """
        return replace(self, files=tuple(f for f in self.files if f.may_hold(column, low, high)))

    def scan_sql(self) -> str:
        """A DuckDB SELECT over the files: the table's columns by name, `date` as VARCHAR.

        Selecting by name matters: a folder named ``a=b`` above the store would otherwise add a
        column. With no files it is an empty relation of the same shape.
        """
        columns = TABLES[self.table].columns
        if not self.files:
            nulls = ", ".join(f'NULL::{c.type} AS "{c.name}"' for c in columns)
            return f"SELECT {nulls} LIMIT 0"
        alike: dict[frozenset[str], list[str]] = {}
        for file in self.files:
            alike.setdefault(file.lacks, []).append(file.path)
        empty = self._without_values()
        return " UNION ALL ".join(
            _scan(columns, lacks | empty, paths) for lacks, paths in alike.items()
        )

    def _without_values(self) -> frozenset[str]:
        """Columns of which no file has a value, where finding out costs less than reading them."""
        if self.rows < _FOOTER_ROWS * len(self.files):
            return frozenset()
        return frozenset.intersection(*(without_values(f.path) for f in self.files))


def _scan(columns: Sequence[Column], lacks: frozenset[str], paths: Sequence[str]) -> str:
    names = ", ".join(
        f'NULL::{c.type} AS "{c.name}"' if c.name in lacks else f'"{c.name}"' for c in columns
    )
    listed = ", ".join("'" + p.replace("'", "''") + "'" for p in paths)
    return (
        f"SELECT {names} FROM read_parquet([{listed}], "
        "hive_partitioning = true, hive_types = {'date': VARCHAR})"
    )


class Store:
    """A handle on a store directory: cheap, holds no file open, may be shared by threads."""

    def __init__(self, path: Path) -> None:
        """Use `Store.open`, which checks the directory."""
        self.path = path
        self._checked: set[str] = set()
        self._complete: set[str] = set()

    @classmethod
    def open(cls, path: Path | str, *, create: bool = False) -> Store:
        """Open the store at ``path``, making it first if ``create``.

        Raises `UsageError` if there is none (or something else is there), `SourceError` if a
        newer tracekit made it.
        """
        where = Path(path).expanduser().absolute()
        if "%" in str(where):
            raise UsageError(f"store path {where} contains '%', which Delta would decode")
        marker = where / _MARKER
        if not marker.exists():
            if not create:
                raise UsageError(
                    f"no tracekit store at {where}; make one with `tracekit import PATH` or "
                    "`tracekit collect`, or name another with --store or TRACEKIT_STORE"
                )
            _make_store(where)
        try:
            store_format = int(json.loads(marker.read_text())["format"])
        except (ValueError, KeyError, TypeError) as exc:
            raise SourceError("not a tracekit store's marker", where=str(marker)) from exc
        if store_format > _FORMAT:
            raise SourceError(
                f"the store has format {store_format}, this tracekit knows {_FORMAT}",
                where=str(where),
                how="upgrade tracekit",
            )
        return cls(where)

    def table_path(self, table: str) -> Path:
        """Where the table's Delta directory is (or will be). `UsageError` on an unknown name."""
        if table not in TABLES:
            raise UsageError(f"no table {table!r}; there are {', '.join(TABLES)}")
        return self.path / table

    def append(self, table: str, rows: pa.Table, *, txn: tuple[str, int] | None = None) -> bool:
        """Append ``rows`` in one commit; on disk when this returns.

        ``rows`` has exactly the columns of ``TABLES[table]``, in any order, of types that cast
        without loss; `date` is set in every row. ``txn`` is (application id, version): if the
        table has that version of it or a later one, nothing is written and False returned, and
        of two processes racing with one transaction only one writes. No rows and a transaction
        records the transaction; no rows and none does nothing.

        Raises `UsageError` for rows of another shape, `SourceError` if the table cannot be
        committed to, ``OSError`` if the disk refuses. After an error the same call may be
        repeated; without ``txn`` an error leaves open whether the rows landed only where the
        disk itself failed.
        """
        table_path = self.table_path(table)
        parts = split_by_date(conform(table, rows))
        if not parts and txn is None:
            return True
        handle = _commit.create_table(table_path, table)
        if table not in self._complete:
            if _commit.check_columns(handle, table_path, table):
                handle = _commit.add_columns(table_path, table)
            self._complete.add(table)
        if txn is not None and _commit.has_landed(handle, txn):
            return False
        adds: list[AddAction] = [
            write_file(table_path, table, date, [part], data_change=True) for date, part in parts
        ]
        return _commit.commit_append(table_path, table, adds, txn, handle=handle)

    def txn_version(self, table: str, app_id: str) -> int | None:
        """The newest transaction version of ``app_id`` in the table, None if it has none."""
        handle = _commit.open_table(self.table_path(table))
        return None if handle is None else handle.transaction_version(app_id)

    def snapshot(self, table: str) -> Snapshot:
        """The table's files now. Opens the log anew: a polling reader wants `StoreReader`."""
        table_path = self.table_path(table)
        handle = _commit.open_table(table_path)
        if handle is None:
            return _empty(table)
        self.check_columns(handle, table)
        return _snapshot_of(handle, table, table_path)

    def check_columns(self, handle: DeltaTable, table: str) -> None:
        """Raise `SourceError` if the table has other columns than `lake.schema` ever said."""
        if table not in self._checked:
            _commit.check_columns(handle, self.table_path(table), table)
            self._checked.add(table)


class StoreReader:
    """Snapshots for a process that keeps asking: holds handles, parses a version once.

    Returns the same `Snapshot` object while nothing changed. Not for several threads at once.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._held: dict[str, _Held] = {}

    def snapshot(self, table: str) -> Snapshot:
        """The table's files now; under 0.1 ms if it has not changed."""
        table_path = self.store.table_path(table)
        held = self._held.get(table)
        if held is not None and held.is_current(table_path):
            return held.snapshot
        handle = None if held is None else held.advance()
        if handle is None:
            handle = _commit.open_table(table_path)
            if handle is None:
                return _empty(table)
            self.store.check_columns(handle, table)
            opened_version = handle.version()
        else:
            assert held is not None
            opened_version = held.opened_version
            _commit.check_protocol(handle, table_path)
        if held is not None and held.snapshot.version == handle.version():
            snapshot = held.snapshot
        else:
            snapshot = _snapshot_of(handle, table, table_path)
        self._held[table] = _Held(handle, opened_version, snapshot, time.monotonic())
        return snapshot


@dataclass(frozen=True)
class _Held:
    """A reader's handle on one table and what it last read from it."""

    handle: DeltaTable
    opened_version: int
    snapshot: Snapshot
    asked_at_s: float

    def is_current(self, table_path: Path) -> bool:
        """No newer log entry, judged by its file; only soon after asking Delta itself."""
        if time.monotonic() - self.asked_at_s > _TRUST_ABSENCE_S:
            return False
        log = table_path / "_delta_log"
        version = self.snapshot.version
        # In this order: log clean-up takes the older entry first.
        newer = (log / f"{version + 1:020d}.json").exists()
        return not newer and (log / f"{version:020d}.json").exists()

    def advance(self) -> DeltaTable | None:
        """The handle at the newest version, or None if it is better opened afresh."""
        if self.snapshot.version - self.opened_version > _REOPEN_AFTER_VERSIONS:
            return None
        try:
            self.handle.update_incremental()
        except (DeltaError, OSError):
            return None  # the log it would have followed is cleaned up; a fresh open tells
        return self.handle


def conform(table: str, rows: pa.Table) -> pa.Table:
    """``rows`` with the table's columns in order and cast. `UsageError` if that cannot be."""
    schema = TABLES[table].schema
    if rows.schema.equals(schema):
        return rows
    missing = [n for n in schema.names if n not in rows.column_names]
    unknown = [n for n in rows.column_names if n not in schema.names]
    if missing or unknown or len(rows.column_names) != len(schema.names):
        raise UsageError(f"rows for {table}: missing columns {missing}, unknown {unknown}")
    try:
        return rows.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise UsageError(f"rows for {table} do not fit its types: {exc}") from exc


def split_by_date(rows: pa.Table) -> list[tuple[str, pa.Table]]:
    """Rows by `date`, without that column. `UsageError` on a date that is none."""
    import pyarrow.compute as pc  # only writers need it

    names = rows["date"].unique().to_pylist()
    for name in names:
        if not _is_date(name):
            raise UsageError(f"date must be YYYY-MM-DD in every row, found {name!r}")
    bare = rows.drop_columns(["date"])
    if len(names) <= 1:
        return [(name, bare) for name in names]
    return [(name, bare.filter(pc.equal(rows["date"], name))) for name in sorted(names)]


def _is_date(text: str | None) -> bool:
    try:
        return text is not None and dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _empty(table: str) -> Snapshot:
    return Snapshot(table, -1, ())


def _snapshot_of(handle: DeltaTable, table: str, table_path: Path) -> Snapshot:
    version = handle.version()
    # not pa.table(): that would import pandas, where it is installed
    batch = handle.get_add_actions(flatten=True)
    actions = pa.RecordBatchReader.from_stream(batch).read_all()

    def values(name: str) -> list[Bound]:
        if name not in actions.column_names:
            return [None] * actions.num_rows
        found: list[Bound] = actions[name].to_pylist()
        return found

    columns = stats_columns(table)
    on_disk = _commit.column_names(handle) if TABLES[table].generation > 1 else frozenset[str]()
    bounds = [list(zip(values(f"min.{c}"), values(f"max.{c}"), strict=True)) for c in columns]
    nulls = [values(f"null_count.{c}") for c in columns]
    files = []
    for i, (path, date, rows, size, made_ms) in enumerate(
        zip(
            values("path"),
            values("partition.date"),
            values("num_records"),
            values("size_bytes"),
            values("modification_time"),
            strict=True,
        )
    ):
        files.append(
            FileInfo(
                path=str(table_path / str(path)),
                date=str(date),
                rows=int(rows or 0),
                size_bytes=int(size or 0),
                written_unix_ns=int(made_ms or 0) * 1_000_000,
                stats={c: bounds[k][i] for k, c in enumerate(columns)},
                nulls={c: int(n) for k, c in enumerate(columns) if (n := nulls[k][i]) is not None},
                lacks=lacking(table, table_path / str(path), on_disk),
            )
        )
    files.sort(key=lambda f: f.path)
    return Snapshot(table, version, tuple(files))


def _make_store(where: Path) -> None:
    """Make the directory and its marker; `UsageError` if something else lives there."""
    if where.exists() and not where.is_dir():
        raise UsageError(f"{where} is a file, not a directory for a store")
    if where.is_dir() and (foreign := _foreign(where.iterdir())):
        raise UsageError(f"{where} holds other files ({foreign}); name an empty directory")
    where.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=where, prefix=f".{_MARKER}.")
    with os.fdopen(fd, "w") as out:
        json.dump({"format": _FORMAT}, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, where / _MARKER)
    fsync_path(where)


def _foreign(entries: Iterable[Path]) -> str | None:
    """The first entry that is neither hidden nor one of our tables."""
    return next(
        (p.name for p in sorted(entries) if not p.name.startswith(".") and p.name not in TABLES),
        None,
    )
