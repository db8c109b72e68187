"""Rewriting a table's files: compaction (same rows, fewer files) and retention (fewer rows).

Owns which files are rewritten and how; each rewrite is one commit that either replaces exactly
the files it read or does nothing (`_commit.commit_rewrite`). Must not delete files: a replaced
file stays for readers that hold an older snapshot, until vacuum. Callers hold the maintenance
lock, so that two rewriters do not waste each other's work; correctness does not rest on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from tracekit.errors import SourceError
from tracekit.lake import _commit
from tracekit.lake._files import ROW_GROUP_ROWS, file_schema, write_file
from tracekit.lake.schema import TABLES
from tracekit.lake.store import FileInfo, Snapshot, Store

TARGET_BYTES: Final = 128 << 20
#: A file under a quarter of the target is small: four of them never make more than one target.
_SMALL_SHARE: Final = 4
MAX_SMALL_FILES: Final = 64
#: A partition that has been left alone is tidied sooner: nothing will come to join the files.
_QUIET_NS: Final = 3600 * 1_000_000_000
_MAX_SMALL_FILES_QUIET: Final = 8

_READ_BATCH_ROWS: Final = 16_384


@dataclass(frozen=True)
class Rewritten:
    """What a compaction or retention pass did to one table."""

    table: str
    files_before: int
    files_after: int
    rows_dropped: int
    bytes_before: int
    bytes_after: int


def small_files(files: Sequence[FileInfo], target_bytes: int = TARGET_BYTES) -> list[FileInfo]:
    """The files worth merging, smallest first."""
    limit = target_bytes // _SMALL_SHARE
    return sorted((f for f in files if f.size_bytes < limit), key=lambda f: f.size_bytes)


def compact_table(
    store: Store,
    snapshot: Snapshot,
    *,
    target_bytes: int,
    max_small_files: int,
    now_unix_ns: int,
) -> Rewritten:
    """Merge the small files of every partition that has more than ``max_small_files``."""
    before = len(snapshot.files)
    merged, made, bytes_before, bytes_after = 0, 0, 0, 0
    by_date: dict[str, list[FileInfo]] = {}
    for file in snapshot.files:
        by_date.setdefault(file.date, []).append(file)
    for date, files in sorted(by_date.items()):
        quiet = now_unix_ns - max(f.written_unix_ns for f in files) > _QUIET_NS
        limit = min(max_small_files, _MAX_SMALL_FILES_QUIET) if quiet else max_small_files
        for group in _groups(small_files(files, target_bytes), limit, target_bytes):
            replaced = _replace(store, snapshot.table, date, group, keep_from=None)
            if replaced is None:
                continue  # someone else changed these files; the next pass looks again
            merged += len(group)
            made += 1
            bytes_before += sum(f.size_bytes for f in group)
            bytes_after += replaced.size
    return Rewritten(snapshot.table, before, before - merged + made, 0, bytes_before, bytes_after)


def _groups(small: list[FileInfo], limit: int, target_bytes: int) -> Iterator[list[FileInfo]]:
    """Split small files (ascending) into groups to merge; nothing if there are few.

    A file larger than all smaller ones together is left out: merging it would rewrite mostly
    what the last pass wrote, and a trickle of tiny files would rewrite the day every minute.
    """
    if len(small) <= limit:
        return
    total = sum(f.size_bytes for f in small)
    while len(small) > 2 and small[-1].size_bytes > total - small[-1].size_bytes:
        total -= small.pop().size_bytes
    group: list[FileInfo] = []
    group_bytes = 0
    for file in small:
        if group_bytes + file.size_bytes > target_bytes and len(group) > 1:
            yield group
            group, group_bytes = [], 0
        group.append(file)
        group_bytes += file.size_bytes
    if len(group) > 1:
        yield group


def age_column(table: str) -> str:
    """The column rows age by: when they came in, or when they were settled.

    The derived tables all age by `revision`, so that a request, its phases and its gaps leave
    together, and an older revision never outlives the newer one.
    """
    return "revision" if TABLES[table].kind == "derived" else "ingested_unix_ns"


def drop_before(store: Store, snapshot: Snapshot, cutoff_unix_ns: int) -> Rewritten:
    """Delete the rows older than the cutoff: whole files, and the older part of files across it.

    Exact to the row, not to the file: after compaction an old revision may share a file with
    new rows while its successor sits in a file that is all old; dropping only whole files would
    bring the old revision back.
    """
    column = age_column(snapshot.table)
    old: list[FileInfo] = []
    across: list[FileInfo] = []
    for file in snapshot.files:
        low, high = file.stats.get(column, (None, None))
        if low is None or high is None or int(low) >= cutoff_unix_ns:
            continue
        (old if int(high) < cutoff_unix_ns else across).append(file)
    dropped_files, dropped_rows, bytes_before, bytes_after = 0, 0, 0, 0
    if old and _remove(store, snapshot.table, old):
        dropped_files += len(old)
        dropped_rows += sum(f.rows for f in old)
        bytes_before += sum(f.size_bytes for f in old)
    for file in across:
        kept = _replace(
            store, snapshot.table, file.date, [file], keep_from=(column, cutoff_unix_ns)
        )
        if kept is not None:
            dropped_rows += file.rows - _rows_of(store, snapshot.table, kept)
            bytes_before += file.size_bytes
            bytes_after += kept.size
    before = len(snapshot.files)
    return Rewritten(
        snapshot.table, before, before - dropped_files, dropped_rows, bytes_before, bytes_after
    )


def _remove(store: Store, table: str, files: Sequence[FileInfo]) -> bool:
    table_path = store.table_path(table)
    return _commit.commit_rewrite(table_path, _named(table_path, files), [], data_change=True)


def _replace(
    store: Store,
    table: str,
    date: str,
    files: Sequence[FileInfo],
    *,
    keep_from: tuple[str, int] | None,
) -> AddAction | None:
    """Write the rows of ``files`` to one new file and swap it in; None if they have changed.

    ``keep_from`` (column, least value) drops the rows below; without it every row must arrive.
    """
    table_path = store.table_path(table)
    # By name, that is in the order they were written: rows stay in order of ingest.
    ordered = sorted(files, key=lambda f: f.path)
    try:
        add = write_file(
            table_path,
            table,
            date,
            _row_groups(table, ordered, keep_from),
            data_change=keep_from is not None,
        )
    except FileNotFoundError:
        return None  # compacted and vacuumed by another process since the snapshot
    written = table_path / add.path
    if keep_from is None:
        expected, found = sum(f.rows for f in files), _rows_of(store, table, add)
        if expected != found:
            written.unlink()
            raise SourceError(
                f"compaction read {found} rows where the log says {expected}; nothing changed",
                where=f"{table}, date {date}",
            )
    named = _named(table_path, files)
    if _commit.commit_rewrite(table_path, named, [add], data_change=keep_from is not None):
        return add
    return None


def _row_groups(
    table: str, files: Sequence[FileInfo], keep_from: tuple[str, int] | None
) -> Iterator[pa.Table]:
    """The files' rows in pieces of one row group, so that memory does not grow with the files."""
    schema = file_schema(table)
    held: list[pa.Table] = []
    held_rows = 0
    for file in files:
        with pq.ParquetFile(file.path) as source:
            for batch in source.iter_batches(_READ_BATCH_ROWS):
                rows = pa.Table.from_batches([batch])
                for name in file.lacks:
                    if name not in rows.column_names:
                        rows = rows.append_column(
                            schema.field(name), pa.nulls(rows.num_rows, schema.field(name).type)
                        )
                rows = rows.select(schema.names).cast(schema)
                if keep_from is not None:
                    rows = rows.filter(pc.greater_equal(rows[keep_from[0]], keep_from[1]))
                held.append(rows)
                held_rows += rows.num_rows
                if held_rows >= ROW_GROUP_ROWS:
                    whole = pa.concat_tables(held)
                    yield whole.slice(0, ROW_GROUP_ROWS)
                    held = [whole.slice(ROW_GROUP_ROWS)]
                    held_rows = held[0].num_rows
    if held_rows:
        yield pa.concat_tables(held)


def _rows_of(store: Store, table: str, add: AddAction) -> int:
    return int(pq.read_metadata(store.table_path(table) / add.path).num_rows)


def _named(table_path: Path, files: Sequence[FileInfo]) -> list[tuple[str, int, str]]:
    return [(str(Path(f.path).relative_to(table_path)), f.size_bytes, f.date) for f in files]
