"""Parquet of a request log: nested columns flattened, points in time kept to the nanosecond."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.errors import SourceError
from tracekit.ingest._cells import UnixNs
from tracekit.ingest._request_files import (
    BLOCK_ROWS,
    MAX_FIELDS,
    Block,
    Double,
    unique_names,
)


def read_parquet(file: BinaryIO, where: str) -> Iterator[Block]:
    """Blocks of a Parquet file; nested columns are dotted, a row's number is its place, from 1."""
    try:
        parquet = pq.ParquetFile(file)
        batches = parquet.iter_batches(batch_size=BLOCK_ROWS)
        names, doubles = _leaf_names(parquet.schema_arrow)
        block = Block(names, complete=True, doubles=doubles)
        number = 0
        for batch in batches:
            table = pa.Table.from_batches([batch])
            while any(pa.types.is_struct(kind) for kind in table.schema.types):
                table = table.flatten()
            block.notices += _naive_times(table) if number == 0 else []
            columns = [_cells_of(table.column(i)) for i in range(table.num_columns)]
            for cells in zip(*columns, strict=True):
                number += 1
                block.add(number, dict(zip(names, cells, strict=True)), 0)
            yield block
            block = block.next()
        if number == 0:
            yield block
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SourceError(f"not a readable Parquet file: {first[:200]}", where=where) from None


def _leaf_names(schema: pa.Schema) -> tuple[list[str], dict[str, Double]]:
    table = schema.empty_table()
    while any(pa.types.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
    names, doubles = unique_names([name.strip() for name in table.schema.names])
    if len(names) > MAX_FIELDS:
        raise ValueError(f"{len(names)} columns are too many for a request log")
    return names, doubles


def _naive_times(table: pa.Table) -> list[str]:
    naive = [f.name for f in table.schema if pa.types.is_timestamp(f.type) and f.type.tz is None]
    return [f"times without a zone are taken as UTC: {', '.join(naive)}"] if naive else []


def _cells_of(column: pa.ChunkedArray) -> list[Any]:
    """Python values; points in time keep their nanoseconds."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        times = column.cast(pa.timestamp("ns", tz=kind.tz)).cast(pa.int64()).to_pylist()
        return [None if time is None else UnixNs(time) for time in times]
    if pa.types.is_duration(kind):
        micros = column.cast(pa.duration("us"), safe=False).cast(pa.int64()).to_pylist()
        return [None if us is None else dt.timedelta(microseconds=us) for us in micros]
    values: list[Any] = column.to_pylist()
    return values
