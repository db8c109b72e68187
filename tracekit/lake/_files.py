"""Parquet files of the lake: how one is written, and the statistics the Delta log keeps of it.

Owns encodings, row-group size, fsync and min/max. Must not know about commits: a file written
here belongs to nobody until `_commit` names it in the log, and vacuum removes it if none does.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Set
from contextlib import closing
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from tracekit.lake.schema import TABLES

#: Rows a row group holds: DuckDB's vector-friendly size, and small enough that a time filter
#: inside a 128 MB file skips most of it.
ROW_GROUP_ROWS: Final = 122_880

# A file of ours, and its generation of columns.
_OUR_NAME: Final = re.compile(r"\d{20}-[0-9a-f]{32}(?:-g(\d+))?\.parquet$")

# Measured on span tables: levels 2 to 5 cost more CPU and make the files no smaller.
_ZSTD_LEVEL: Final = 1

# Text columns whose values hardly ever repeat: a dictionary would be built and thrown away.
# `_REPEATED` names where they do.
_DISTINCT_TEXT: Final = frozenset(
    {
        "trace_id",
        "span_id",
        "parent_span_id",
        "request_id",
        "norm_request_id",
        "response_id",
        "request_key",
        "leg_id",
        "log_key",
        "attributes",
        "events",
        "links",
        "body",
        "buckets",
        "chunk_times",
        "prefix_hashes",
        "extra",
        "payload",
        "detail",
    }
)

# Tables with several rows of one request side by side: with a dictionary its key is read in half
# the time, for 2 % more bytes.
_REPEATED: Final = frozenset({("phases", "request_key"), ("token_gaps", "request_key")})
# The keys of one row group must fit, or the rest of it is written plain.
_DICTIONARY_BYTES: Final = 4 << 20


@cache
def stats_columns(table: str) -> tuple[str, ...]:
    """Columns whose min/max the Delta log keeps: times and revisions, what readers prune by."""
    return tuple(
        c.name
        for c in TABLES[table].columns
        if c.name.endswith("_unix_ns") or c.name in ("revision", "supersedes_revision")
    )


@cache
def file_schema(table: str) -> pa.Schema:
    """The schema inside the files: `date` lives in the path, as Delta wants it."""
    schema = TABLES[table].schema
    return schema.remove(schema.get_field_index("date"))


@cache
def _writer_options(table: str) -> dict[str, Any]:
    dictionary, encodings = [], {}
    for field in file_schema(table):
        if pa.types.is_int64(field.type) and field.name.endswith("_ns"):
            # Consecutive times differ by little: half the bytes of a dictionary, and cheaper.
            encodings[field.name] = "DELTA_BINARY_PACKED"
        elif field.name not in _DISTINCT_TEXT or (table, field.name) in _REPEATED:
            dictionary.append(field.name)
    return {
        "compression": "zstd",
        "compression_level": _ZSTD_LEVEL,
        "use_dictionary": dictionary,
        "dictionary_pagesize_limit": _DICTIONARY_BYTES,
        "column_encoding": encodings,
        "write_statistics": True,
    }


def _mark(table: str) -> str:
    """What tells in a file's name which generation of columns it has: nothing for the first."""
    generation = TABLES[table].generation
    return "" if generation == 1 else f"-g{generation}"


def lacking(table: str, path: Path, on_disk: Set[str]) -> frozenset[str]:
    """Columns of `lake.schema` that a file lacks; ``on_disk`` are those that the table has."""
    added = TABLES[table].added_after(1)
    missing = added - on_disk
    ours = _OUR_NAME.search(path.name)
    if ours is not None:
        return missing | TABLES[table].added_after(int(ours.group(1) or 1))
    # another writer's (a Spark job that compacts): it had the columns of its day
    return missing | (added - _columns_in(path)) if missing != added else missing


@cache
def _columns_in(path: Path) -> frozenset[str]:
    return frozenset(pq.read_schema(path).names)


@lru_cache(maxsize=4_096)
def without_values(path: str) -> frozenset[str]:
    """Columns that are NULL in every row of a file, as its footer says: they need not be read.

    None of a file that is gone or no Parquet: who reads its rows will say so.
    """
    try:
        footer = pq.read_metadata(path)
    except (OSError, pa.ArrowInvalid):
        return frozenset()
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    return frozenset(
        footer.schema.column(k).path
        for k in range(footer.num_columns)
        if groups and all(_is_empty(group.column(k)) for group in groups)
    )


def _is_empty(chunk: pq.ColumnChunkMetaData) -> bool:
    stats = chunk.statistics
    return stats is not None and stats.has_null_count and stats.null_count == chunk.num_values


class _Stats:
    """Min, max and NULL count of the stats columns over the batches of one file."""

    def __init__(self, table: str) -> None:
        self._columns = stats_columns(table)
        self._low: dict[str, int] = {}
        self._high: dict[str, int] = {}
        self._nulls = dict.fromkeys(self._columns, 0)
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        import pyarrow.compute as pc  # only writers need it

        self._rows += rows.num_rows
        for name in self._columns:
            column = rows[name]
            self._nulls[name] += column.null_count
            found = pc.min_max(column).as_py()
            if found["min"] is not None:
                self._low[name] = min(found["min"], self._low.get(name, found["min"]))
                self._high[name] = max(found["max"], self._high.get(name, found["max"]))

    def to_json(self) -> str:
        return json.dumps(
            {
                "numRecords": self._rows,
                "minValues": self._low,
                "maxValues": self._high,
                "nullCount": self._nulls,
            }
        )


def write_file(
    table_path: Path,
    table: str,
    date: str,
    chunks: Iterable[pa.Table],
    *,
    data_change: bool,
) -> AddAction:
    """Write one Parquet file of one date and sync it to disk; return the action that adds it.

    ``chunks`` have `file_schema(table)` and are written one at a time, so that a compaction
    holds one row group in memory, not a file. Raises ``OSError`` (a full disk, say); what was
    written by then is removed.
    """
    relative = f"date={date}/{time.time_ns():020d}-{uuid.uuid4().hex}{_mark(table)}.parquet"
    target = table_path / relative
    target.parent.mkdir(exist_ok=True)
    stats = _Stats(table)
    try:
        with closing(
            pq.ParquetWriter(target, file_schema(table), **_writer_options(table))
        ) as writer:
            for chunk in chunks:
                stats.add(chunk)
                writer.write_table(chunk, row_group_size=ROW_GROUP_ROWS)
        fsync_path(target)
        fsync_path(target.parent)
        fsync_path(table_path)  # the partition's own entry: this or another writer made it
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return AddAction(
        path=relative,
        size=target.stat().st_size,
        partition_values={"date": date},
        modification_time=time.time_ns() // 1_000_000,
        data_change=data_change,
        stats=stats.to_json(),
    )


def fsync_path(path: Path) -> None:
    """Sync a file, or a directory's entries, to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
