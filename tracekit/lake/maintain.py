"""Keeping a store fast and bounded: compact, vacuum, retain; `maintenance_pass` does all of it.

Owns when things happen and in which order; `_rewrite` owns how files are replaced, `_export`
what is reported. Everything here may run beside appends and readers: it never makes a reader
fail or see a row twice, as long as no query takes longer than the retention of replaced files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tracekit.errors import UsageError
from tracekit.lake import _commit
from tracekit.lake._commit import DEFAULT_RETENTION_S
from tracekit.lake._export import Exported, StoreInfo, TableInfo, export, info
from tracekit.lake._rewrite import (
    MAX_SMALL_FILES,
    TARGET_BYTES,
    Rewritten,
    age_column,
    compact_table,
    drop_before,
)
from tracekit.lake.lock import exclusive
from tracekit.lake.schema import TABLES
from tracekit.lake.store import Store, StoreReader

__all__ = [
    "DEFAULT_RETENTION_S",
    "Exported",
    "MaintenanceReport",
    "Rewritten",
    "StoreInfo",
    "TableInfo",
    "Vacuumed",
    "compact",
    "export",
    "info",
    "maintenance_pass",
    "retain",
    "vacuum",
]

_LOCK: Final = ".maintain.lock"
_VACUUM_STAMP: Final = ".vacuumed"

#: Retention acts in steps of this, or of a sixteenth of what is kept if that is less: a file
#: across the border is rewritten once a step, not once a pass.
_RETAIN_STEP_NS: Final = 3600 * 1_000_000_000

_TRIES: Final = 10


@dataclass(frozen=True)
class Vacuumed:
    """Files that vacuum deleted (or would delete) in one table."""

    table: str
    files: int
    size_bytes: int


@dataclass(frozen=True)
class MaintenanceReport:
    """What one `maintenance_pass` did; ``ran`` False: another process was at it."""

    ran: bool
    retained: tuple[Rewritten, ...] = ()
    compacted: tuple[Rewritten, ...] = ()
    vacuumed: tuple[Vacuumed, ...] = ()


def compact(
    store: Store,
    *,
    tables: Sequence[str] | None = None,
    target_bytes: int = TARGET_BYTES,
    max_small_files: int = MAX_SMALL_FILES,
) -> list[Rewritten]:
    """Merge the small files of each partition that has more than ``max_small_files`` of them.

    Files of about ``target_bytes`` come out; one under a quarter of it is small. Waits for a
    maintenance pass under way. Returns the tables that changed.
    """
    with exclusive(store, _LOCK, blocking=True):
        return _compact(StoreReader(store), _chosen(tables), target_bytes, max_small_files)


def vacuum(
    store: Store,
    *,
    tables: Sequence[str] | None = None,
    retention_s: int = DEFAULT_RETENTION_S,
    dry_run: bool = False,
) -> list[Vacuumed]:
    """Delete files no snapshot younger than ``retention_s`` needs, and old log entries.

    Files that compaction or retention replaced go ``retention_s`` after their replacement; files
    that a killed writer left uncommitted go when they are that old. A query that runs longer
    than ``retention_s`` may lose its files, as may a commit that takes longer. A dry run counts
    in whole hours, rounded up.
    """
    if retention_s < 1:
        raise UsageError("vacuum keeps replaced files for 1 s at least")
    with exclusive(store, _LOCK, blocking=True):
        return _vacuum(store, _chosen(tables), retention_s, dry_run)


def retain(
    store: Store,
    retain_ns: int | None = None,
    max_bytes: int | None = None,
    *,
    now_unix_ns: int | None = None,
) -> list[Rewritten]:
    """Delete rows that came in more than ``retain_ns`` ago, and the oldest beyond ``max_bytes``.

    Rows age by ingest time (derived rows by the settle pass that wrote them), never by the time
    they speak of, so an import of last year's log is as young as its import. ``max_bytes``
    bounds the live files of all tables together; replaced ones leave the disk with vacuum.
    The cutoff falls on a step (an hour, or a sixteenth of ``retain_ns``): rows may stay one
    step longer, none goes early.
    """
    with exclusive(store, _LOCK, blocking=True):
        now = time.time_ns() if now_unix_ns is None else now_unix_ns
        return _retain(StoreReader(store), retain_ns, max_bytes, now)


def maintenance_pass(
    store: Store,
    *,
    reader: StoreReader | None = None,
    retain_ns: int | None = None,
    max_bytes: int | None = None,
    retention_s: int = DEFAULT_RETENTION_S,
    vacuum_every_s: float = 600.0,
    target_bytes: int = TARGET_BYTES,
    max_small_files: int = MAX_SMALL_FILES,
) -> MaintenanceReport:
    """Retain, compact, and every ``vacuum_every_s`` vacuum: call it every few seconds.

    Does nothing if another process is at it. With a ``reader`` kept between calls a pass over
    an unchanged store costs about a millisecond. The time of the last vacuum is kept in the
    store, so that several callers share one schedule.
    """
    with exclusive(store, _LOCK, blocking=False) as held:
        if not held:
            return MaintenanceReport(ran=False)
        if reader is None:
            reader = StoreReader(store)
        retained: list[Rewritten] = []
        if retain_ns is not None or max_bytes is not None:
            retained = _retain(reader, retain_ns, max_bytes, time.time_ns())
        compacted = _compact(reader, tuple(TABLES), target_bytes, max_small_files)
        vacuumed: list[Vacuumed] = []
        stamp = store.path / _VACUUM_STAMP
        if not stamp.exists() or time.time() - stamp.stat().st_mtime >= vacuum_every_s:
            vacuumed = _vacuum(store, tuple(TABLES), retention_s, dry_run=False)
            stamp.touch()
        return MaintenanceReport(True, tuple(retained), tuple(compacted), tuple(vacuumed))


# -- below: called with the maintenance lock held --


def _chosen(tables: Sequence[str] | None) -> tuple[str, ...]:
    unknown = [t for t in tables or () if t not in TABLES]
    if unknown:
        raise UsageError(f"no table {unknown[0]!r}; there are {', '.join(TABLES)}")
    return tuple(TABLES if tables is None else tables)


def _compact(
    reader: StoreReader, tables: Sequence[str], target_bytes: int, max_small_files: int
) -> list[Rewritten]:
    done = []
    for table in tables:
        result = compact_table(
            reader.store,
            reader.snapshot(table),
            target_bytes=target_bytes,
            max_small_files=max_small_files,
            now_unix_ns=time.time_ns(),
        )
        if result.bytes_before:
            done.append(result)
    return done


def _retain(
    reader: StoreReader, retain_ns: int | None, max_bytes: int | None, now_unix_ns: int
) -> list[Rewritten]:
    cutoff: int | None = None
    if retain_ns is not None:
        step = max(1, min(_RETAIN_STEP_NS, retain_ns // 16))
        cutoff = (now_unix_ns - retain_ns) // step * step
    if max_bytes is not None:
        over = _cutoff_for_bytes(reader, max_bytes)
        if over is not None:
            cutoff = over if cutoff is None else max(cutoff, over)
    if cutoff is None:
        return []
    # `requests` first: a request without its phases would show, phases without one do not.
    names = sorted(TABLES, key=lambda name: name != "requests")
    results = [drop_before(reader.store, reader.snapshot(name), cutoff) for name in names]
    return [r for r in results if r.rows_dropped]


def _cutoff_for_bytes(reader: StoreReader, max_bytes: int) -> int | None:
    """The age below which everything must go so that the live files fit; None if they do.

    Cuts a twentieth deeper than asked, or at the bound every pass would cut again.
    """
    files = []
    for name in TABLES:
        for file in reader.snapshot(name).files:
            youngest = file.stats.get(age_column(name), (None, None))[1]
            files.append((0 if youngest is None else int(youngest), file.size_bytes))
    total = sum(size for _, size in files)
    if total <= max_bytes:
        return None
    cutoff = None
    for youngest, size in sorted(files):
        if total <= max_bytes - max_bytes // 20:
            break
        total -= size
        cutoff = youngest + 1
    return cutoff


def _vacuum(store: Store, tables: Sequence[str], retention_s: int, dry_run: bool) -> list[Vacuumed]:
    done = []
    for table in tables:
        table_path = store.table_path(table)
        handle = _commit.open_table(table_path)
        if handle is None:
            continue
        if not dry_run:
            handle = _set_retention(table_path, handle, retention_s)
        # delta-rs decides (tombstones by their time of death, unknown files by age) and we
        # delete: its own deletion adds two commits, which every reader would have to follow.
        hours = -(-retention_s // 3600) if dry_run else None
        listed = handle.vacuum(
            retention_hours=hours, dry_run=True, full=True, enforce_retention_duration=False
        )
        files, size_bytes = 0, 0
        for name in listed:
            path = table_path / name
            try:
                size = path.stat().st_size
                if not dry_run:
                    path.unlink()
            except FileNotFoundError:
                continue  # deleted before; its tombstone is still in the log
            files += 1
            size_bytes += size
        if files:
            done.append(Vacuumed(table, files, size_bytes))
        if not dry_run:
            _clean_log(table_path, handle)
    return done


def _set_retention(table_path: Path, handle: DeltaTable, retention_s: int) -> DeltaTable:
    """Make the table remember tombstones, and keep its log, for ``retention_s``.

    It must know: a checkpoint forgets tombstones older than this, and a file without a
    tombstone counts as a killed writer's, to be judged by the age of the file itself.
    """
    wanted = {
        "delta.deletedFileRetentionDuration": f"interval {retention_s} seconds",
        "delta.logRetentionDuration": f"interval {max(retention_s, 60)} seconds",
    }
    for tries in range(_TRIES):
        found = handle.metadata().configuration
        if all(found.get(key) == value for key, value in wanted.items()):
            return handle
        try:
            handle.alter.set_table_properties(wanted)
        except CommitFailedError:
            if tries == _TRIES - 1:
                raise
        handle = DeltaTable(table_path)
    return handle


def _clean_log(table_path: Path, handle: DeltaTable) -> None:
    """Checkpoint if there is something new since the last one, and drop expired log entries."""
    pointer = table_path / "_delta_log" / "_last_checkpoint"
    newest = json.loads(pointer.read_text())["version"] if pointer.exists() else -1
    if newest < handle.version():
        _commit.checkpoint(table_path)
    DeltaTable(table_path).cleanup_metadata()
