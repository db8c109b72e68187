"""Request logs for tests: bytes in, rows and refusals out."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.ingest.batch import unstamped_schema
from tracekit.ingest.request_log import LogBatch, read_request_log

DATA = Path(__file__).parent.parent / "data"
NS = 10**9
#: 2026-11-29T12:00:00Z.
NOON = 1_795_953_600
NOW = (NOON + 3600) * NS


def batches(
    data: bytes | str | BinaryIO, name: str = "log", mapping: Mapping[str, str] | None = None
) -> list[LogBatch]:
    if isinstance(data, str):
        data = data.encode()
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    return list(read_request_log(name, file, mapping=mapping, now_unix_ns=NOW))


def read(
    data: bytes | str, name: str = "log", mapping: Mapping[str, str] | None = None
) -> LogBatch:
    """The one batch of a small file."""
    (batch,) = batches(data, name, mapping)
    assert batch.table.schema == unstamped_schema("request_log")
    assert len(batch.rejected) == len(batch.rejected_rows)
    return batch


def rows(batch: LogBatch) -> list[dict[str, Any]]:
    """Rows without empty columns and without where they came from."""
    return [
        {k: v for k, v in row.items() if v is not None and not k.startswith(("source", "log_"))}
        for row in batch.table.to_pylist()
    ]


def refused(batch: LogBatch) -> list[tuple[int, str]]:
    return [(n, r.reason) for n, r in zip(batch.rejected_rows, batch.rejected, strict=True)]


def lines(*items: object) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


def parquet(**columns: pa.Array) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()
