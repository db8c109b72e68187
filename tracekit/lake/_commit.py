"""Delta commits: create, open, append, rewrite. The only module that writes a Delta log.

The protocol itself is delta-rs'. What is decided here:

* An append re-opens the table for every try (one object kept for appends gets dearer with each
  commit) and compares its application transaction on that very handle. Two writers that race
  with one transaction both read "not there yet"; Delta then refuses the second commit because
  the first one wrote the same application id, the loser re-opens and sees it is done.
* A rewrite (files out, files in) commits with no retry inside delta-rs, i.e. only directly onto
  the version whose file list it has just checked. delta-rs 1.6 does not notice two transactions
  that remove one file, and two compactions that both go through double every row they touch.
* Files and log entries are synced to disk, since the spool is cut on the strength of a commit.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tracekit.errors import SourceError
from tracekit.lake._files import fsync_path, stats_columns
from tracekit.lake.schema import TABLES

_log = logging.getLogger(__name__)

#: Longer than any query: how long a replaced file stays readable, and the log that led to it.
DEFAULT_RETENTION_S: Final = 3600

# Opening costs 0.25 ms for each commit since the last checkpoint, a checkpoint about 20 ms.
_CHECKPOINT_EVERY: Final = 20
_OPEN_TRIES: Final = 4
_APPEND_TRIES: Final = 20
_REWRITE_TRIES: Final = 100

# delta-rs checkpoints after the commit; if that failed, the commit would look failed too.
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def exists(table_path: Path) -> bool:
    """Whether the table has a log (a directory alone may be a creation under way)."""
    return (table_path / "_delta_log").is_dir()


def open_table(table_path: Path) -> DeltaTable | None:
    """The table at its newest version, or None if it has not been created.

    Raises `SourceError` if it uses Delta features that a plain Parquet reader would get wrong.
    """
    failure: Exception | None = None
    for tries in range(_OPEN_TRIES):
        if not exists(table_path):
            return None
        try:
            handle = DeltaTable(table_path)
        except TableNotFoundError:
            return None  # its creator has made the directory and not yet the first commit
        except (DeltaError, OSError) as exc:
            failure = exc  # log clean-up may have taken an entry between listing and reading
            _back_off(tries)
        else:
            check_protocol(handle, table_path)
            return handle
    raise SourceError(
        f"the table's log cannot be read ({failure})",
        where=str(table_path),
        how="restore the file it names, or move the table's directory away",
    ) from failure


def check_protocol(handle: DeltaTable, table_path: Path) -> None:
    """Refuse deletion vectors, column mapping and the like: the files alone would lie."""
    protocol = handle.protocol()
    if protocol.min_reader_version != 1 or protocol.reader_features:
        features = ", ".join(protocol.reader_features or ()) or "none named"
        raise SourceError(
            f"the table needs Delta reader version {protocol.min_reader_version} "
            f"(features: {features}); tracekit reads version 1",
            where=str(table_path),
            how="copy it with the tool that changed it, without deletion vectors or column mapping",
        )


def create_table(table_path: Path, table: str) -> DeltaTable:
    """Create the table unless another process is faster; return it open."""
    config = {
        # All our columns come after Delta's default of 32 somewhere; these are pruned by.
        "delta.dataSkippingStatsColumns": ",".join(stats_columns(table)),
        "delta.deletedFileRetentionDuration": f"interval {DEFAULT_RETENTION_S} seconds",
        "delta.logRetentionDuration": f"interval {DEFAULT_RETENTION_S} seconds",
    }
    failure: DeltaError | None = None
    for tries in range(_APPEND_TRIES):
        handle = open_table(table_path)
        if handle is not None:
            return handle
        table_path.mkdir(exist_ok=True)
        try:
            DeltaTable.create(
                table_path,
                Schema.from_arrow(TABLES[table].schema),
                mode="error",
                partition_by=["date"],
                description=TABLES[table].doc,
                configuration=config,
                post_commithook_properties=_NO_HOOKS,
            )
        except DeltaError as exc:
            failure = exc
            _back_off(tries)
        else:
            _sync_log(table_path, -1)
            fsync_path(table_path.parent)
    raise SourceError("the table could not be created", where=str(table_path)) from failure


def check_columns(handle: DeltaTable, table_path: Path, table: str) -> frozenset[str]:
    """The columns that were added since the table was made, and that it still lacks.

    Refuses a table that differs in anything else from `lake.schema` (another version wrote it).
    """
    found = column_names(handle)
    wanted = frozenset(TABLES[table].column_names)
    missing = wanted - found
    if found - wanted or missing - TABLES[table].added_after(1):
        raise SourceError(
            f"the table's columns are not this version's: missing "
            f"{sorted(missing)}, unknown {sorted(found - wanted)}",
            where=str(table_path),
            how="use the tracekit version that wrote the store, or a new store",
        )
    return missing


def column_names(handle: DeltaTable) -> frozenset[str]:
    """The columns the table has on disk."""
    return frozenset(field.name for field in handle.schema().fields)


def add_columns(table_path: Path, table: str) -> DeltaTable:
    """Give a table of an older version the columns it lacks; return it open.

    Only the log changes: rows that are there have NULL in them. Other processes may be at it.
    """
    failure: DeltaError | None = None
    for tries in range(_APPEND_TRIES):
        handle = create_table(table_path, table)
        missing = check_columns(handle, table_path, table)
        if not missing:
            return handle
        base = handle.version()
        fields = Schema.from_arrow(TABLES[table].schema).fields
        try:
            handle.alter.add_columns(
                [field for field in fields if field.name in missing],
                post_commithook_properties=_NO_HOOKS,
            )
        except DeltaError as exc:
            failure = exc
            _back_off(tries)
        else:
            _sync_log(table_path, base)
    raise SourceError(f"columns could not be added ({failure})", where=str(table_path)) from failure


def commit_append(
    table_path: Path,
    table: str,
    adds: Sequence[AddAction],
    txn: tuple[str, int] | None,
    *,
    handle: DeltaTable,
) -> bool:
    """Commit files that are already on disk. False: the transaction had landed before.

    ``handle`` is what the caller compared ``txn`` with: the first try commits on top of it, so
    that no other writer's commit can slip in unseen. Raises `SourceError` after about 20 s of
    losing against other writers.
    """
    failure: DeltaError | None = None
    for tries in range(_APPEND_TRIES):
        if tries:
            handle = create_table(table_path, table)
            if txn is not None and has_landed(handle, txn):
                return _holds(handle, adds)  # the try that reported a failure may have landed
        base = handle.version()
        try:
            _commit(handle, adds, txn=txn)
        except CommitFailedError as exc:
            failure = exc
            _back_off(tries)
            continue
        except OSError:
            # The disk is full, say: files no commit names would fill it further at each retry.
            _discard(table_path, adds)
            raise
        newest = _sync_log(table_path, base)
        if newest // _CHECKPOINT_EVERY != base // _CHECKPOINT_EVERY:
            checkpoint(table_path)
        return True
    raise SourceError(
        f"the commit failed {_APPEND_TRIES} times ({failure})", where=str(table_path)
    ) from failure


def commit_rewrite(
    table_path: Path,
    removes: Sequence[tuple[str, int, str]],
    adds: Sequence[AddAction],
    *,
    data_change: bool,
) -> bool:
    """Replace files ``(path, size_bytes, date)`` by others in one commit.

    False, and nothing changed, if any of them is no longer in the table or if other writers
    were faster 100 times in a row: the caller picks files again next time.
    """
    gone = {path for path, _, _ in removes}
    for tries in range(_REWRITE_TRIES):
        handle = open_table(table_path)
        if handle is None:
            return False
        live = _live(handle)
        if tries and adds and adds[0].path in live:
            return True  # the try that reported a failure had landed
        if not gone <= live:
            return False
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(path, data_change, now_ms, size, {"date": date})
            for path, size, date in removes
        ]
        base = handle.version()
        try:
            _commit(handle, [*actions, *adds], retries=0)
        except CommitFailedError:
            _back_off(min(tries, 2))
            continue
        _sync_log(table_path, base)
        return True
    return False


def checkpoint(table_path: Path) -> None:
    """Write a checkpoint: opening cost falls back to reading one file.

    A checkpoint only saves time, so its failure is logged and never fails the append before it.
    """
    try:
        DeltaTable(table_path).create_checkpoint()
    except (DeltaError, OSError) as exc:
        _log.warning("no checkpoint written for %s: %s", table_path.name, exc)


def _commit(
    handle: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    *,
    txn: tuple[str, int] | None = None,
    retries: int | None = None,
) -> None:
    handle.create_write_transaction(
        list(actions),
        mode="append",
        schema=handle.schema(),
        partition_by=["date"],
        commit_properties=CommitProperties(
            max_commit_retries=retries,
            app_transactions=None if txn is None else [Transaction(*txn)],
        ),
        post_commithook_properties=_NO_HOOKS,
    )


def has_landed(handle: DeltaTable, txn: tuple[str, int]) -> bool:
    """Whether the table, as ``handle`` sees it, has this transaction version or a later one."""
    stored = handle.transaction_version(txn[0])
    return stored is not None and stored >= txn[1]


def _holds(handle: DeltaTable, adds: Sequence[AddAction]) -> bool:
    return bool(adds) and adds[0].path in _live(handle)


def _live(handle: DeltaTable) -> set[str]:
    actions = pa.RecordBatchReader.from_stream(handle.get_add_actions()).read_all()
    return set(actions["path"].to_pylist())


def _discard(table_path: Path, adds: Sequence[AddAction]) -> None:
    """Delete files of a commit that failed, unless the table has them after all."""
    handle = open_table(table_path)
    if handle is not None and not _holds(handle, adds):
        for add in adds:
            (table_path / add.path).unlink(missing_ok=True)


def _sync_log(table_path: Path, base: int) -> int:
    """Sync the commits after version ``base``; return the newest version seen.

    Ours is among them (delta-rs does not say which it was). An entry lost with the power comes
    back empty, which Delta reads as a commit of nothing: the caller was not told of success.
    """
    log = table_path / "_delta_log"
    version = base
    while (entry := log / f"{version + 1:020d}.json").exists():
        fsync_path(entry)
        version += 1
    fsync_path(log)
    return version


def _back_off(tries: int) -> None:
    time.sleep(min(2.0, 0.005 * 2**tries) * random.uniform(0.5, 1.5))
