"""What is in a store, and how to take it out: `info` and `export`. Reads only."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tracekit.errors import UsageError
from tracekit.lake._rewrite import small_files
from tracekit.lake.duck import connect
from tracekit.lake.schema import TABLES
from tracekit.lake.store import Store

_FORMATS: Final = {
    "parquet": "FORMAT parquet, COMPRESSION zstd",
    "csv": "FORMAT csv, HEADER true",
}


@dataclass(frozen=True)
class TableInfo:
    """One table: what a reader sees now, and what it takes on disk.

    ``size_bytes`` are the live files; ``disk_bytes`` also counts the log and replaced files
    that vacuum has yet to remove. ``version`` is the Delta version, one per commit.
    """

    table: str
    kind: str
    rows: int
    files: int
    small_files: int
    size_bytes: int
    disk_bytes: int
    version: int
    first_date: str | None
    last_date: str | None


@dataclass(frozen=True)
class StoreInfo:
    """A store: its tables (those that exist) and their sums."""

    path: str
    tables: tuple[TableInfo, ...]
    rows: int
    files: int
    size_bytes: int
    disk_bytes: int

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts and lists."""
        out = dataclasses.asdict(self)
        out["tables"] = list(out["tables"])
        return out


@dataclass(frozen=True)
class Exported:
    """One file that `export` wrote."""

    table: str
    path: str
    rows: int


def info(store: Store) -> StoreInfo:
    """Rows, files, bytes, versions and dates of every table that exists."""
    tables = []
    for name, table in TABLES.items():
        snapshot = store.snapshot(name)
        if snapshot.version < 0:
            continue
        dates = [f.date for f in snapshot.files]
        tables.append(
            TableInfo(
                table=name,
                kind=table.kind,
                rows=snapshot.rows,
                files=len(snapshot.files),
                small_files=len(small_files(snapshot.files)),
                size_bytes=sum(f.size_bytes for f in snapshot.files),
                disk_bytes=_disk_bytes(store.table_path(name)),
                version=snapshot.version,
                first_date=min(dates, default=None),
                last_date=max(dates, default=None),
            )
        )
    return StoreInfo(
        path=str(store.path),
        tables=tuple(tables),
        rows=sum(t.rows for t in tables),
        files=sum(t.files for t in tables),
        size_bytes=sum(t.size_bytes for t in tables),
        disk_bytes=sum(t.disk_bytes for t in tables),
    )


def export(
    store: Store,
    dest: Path | str,
    *,
    format: str = "parquet",
    tables: Sequence[str] | None = None,
) -> list[Exported]:
    """Write each table to ``dest/<table>.<format>``; rows as stored, duplicates included.

    ``tables`` None: every table that has rows. All tables are read as they were when the call
    began, `requests` first, so that no derived row refers to a later one. A file appears under
    its name when it is complete. Raises `UsageError` if ``dest`` holds anything, or on an
    unknown format or table.
    """
    if format not in _FORMATS:
        raise UsageError(f"no export format {format!r}; there are {', '.join(_FORMATS)}")
    unknown = [t for t in tables or () if t not in TABLES]
    if unknown:
        raise UsageError(f"no table {unknown[0]!r}; there are {', '.join(TABLES)}")
    where = Path(dest).expanduser().absolute()
    if where.exists() and (not where.is_dir() or any(where.iterdir())):
        raise UsageError(f"{where} is not an empty directory; export writes only to a new one")
    wanted = sorted(tables or TABLES, key=lambda name: name != "requests")
    snapshots = [store.snapshot(name) for name in dict.fromkeys(wanted)]
    where.mkdir(parents=True, exist_ok=True)
    written = []
    with connect() as con:
        # The rows' order means nothing in a table, and keeping it costs memory.
        con.execute("SET preserve_insertion_order = false")
        for snapshot in snapshots:
            if tables is None and not snapshot.files:
                continue
            target = where / f"{snapshot.table}.{format}"
            partial = target.with_suffix(target.suffix + ".partial")
            quoted = str(partial).replace("'", "''")
            copied = con.execute(
                f"COPY ({snapshot.scan_sql()}) TO '{quoted}' ({_FORMATS[format]})"
            ).fetchone()
            os.replace(partial, target)
            written.append(Exported(snapshot.table, str(target), copied[0] if copied else 0))
    return written


def _disk_bytes(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue  # vacuumed while we walked
    return total
