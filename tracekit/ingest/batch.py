"""What a decoder hands over, and what a batch needs before it can be appended.

Owns `Decoded`, `Rejected` and `stamp`. Knows nothing of wire formats and opens nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import orjson
import pyarrow as pa

from tracekit.errors import UsageError
from tracekit.lake.schema import TABLES

#: Raw table behind each OTLP signal.
TABLE_OF_SIGNAL: Final[dict[str, str]] = {
    "traces": "spans",
    "metrics": "metric_samples",
    "logs": "log_records",
}

#: Column that dates a row of each raw table.
TIME_COLUMN: Final[dict[str, str]] = {
    "spans": "start_unix_ns",
    "metric_samples": "at_unix_ns",
    "log_records": "at_unix_ns",
    "request_log": "start_unix_ns",
}

#: Longest payload kept of a refused item.
PAYLOAD_BYTES: Final = 8192

_STAMPED: Final = ("origin", "ingested_unix_ns", "date")
_DAY_NS: Final = 86_400 * 10**9
_EPOCH: Final = dt.date(1970, 1, 1)


def unstamped_schema(table: str) -> pa.Schema:
    """Schema of a raw table without the columns that `stamp` adds."""
    return pa.schema([f for f in TABLES[table].schema if f.name not in _STAMPED])


#: What `Decoded.table` looks like, by signal.
DECODED_SCHEMA: Final[dict[str, pa.Schema]] = {
    signal: unstamped_schema(table) for signal, table in TABLE_OF_SIGNAL.items()
}


@dataclass(frozen=True)
class Rejected:
    """One item that was refused: ``payload`` is JSON, at most 8 KiB, without prompt text."""

    signal: str
    reason: str
    detail: str
    trace_id: str | None
    span_id: str | None
    service_name: str | None
    payload: str


@dataclass(frozen=True)
class Decoded:
    """Rows of one message (or several): ``table`` has the raw schema without origin,
    ingested_unix_ns and date; ``rejected`` is what was refused of it."""

    signal: str
    table: pa.Table
    rejected: tuple[Rejected, ...]


def check_signal(signal: str) -> str:
    """The signal itself, or UsageError naming those that exist."""
    if signal not in TABLE_OF_SIGNAL:
        raise UsageError(f"unknown signal {signal!r}; one of {', '.join(TABLE_OF_SIGNAL)}")
    return signal


def cut_payload(text: str) -> str:
    """``text`` cut at `PAYLOAD_BYTES` on a character boundary."""
    data = text.encode("utf-8", "replace")
    if len(data) <= PAYLOAD_BYTES:
        return data.decode()
    return data[:PAYLOAD_BYTES].decode("utf-8", "ignore")


def stamp(
    decoded: Decoded,
    *,
    origin: str,
    now_unix_ns: int,
    oldest_unix_ns: int | None,
    newest_unix_ns: int | None,
    source_file: str | None = None,
    source_row: int | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Dates the rows and sets aside what must not be stored as data.

    Returns (rows with origin, ingested_unix_ns and date; rows of `quarantine`). Rows dated
    outside [oldest, newest] become quarantine rows ``start_out_of_range``; None = no bound
    (imports keep their dates). Rows without a time get the ingest day. Quarantine rows are filed
    under the ingest day: a wrong clock must not make partitions.
    """
    name = TABLE_OF_SIGNAL[check_signal(decoded.signal)]
    rows = decoded.table
    refused: list[Rejected] = list(decoded.rejected)
    if rows.num_rows and (oldest_unix_ns is not None or newest_unix_ns is not None):
        outside = _outside(rows.column(TIME_COLUMN[name]), oldest_unix_ns, newest_unix_ns)
        if outside.any():
            span = f"[{oldest_unix_ns}, {newest_unix_ns}]"
            refused += _out_of_range(decoded.signal, rows.filter(pa.array(outside)), span)
            rows = rows.filter(pa.array(~outside))
    return (
        stamp_rows(name, rows, origin=origin, now_unix_ns=now_unix_ns),
        quarantine_rows(
            refused,
            origin=origin,
            now_unix_ns=now_unix_ns,
            source_file=source_file,
            source_rows=[source_row] * len(refused),
        ),
    )


def stamp_rows(name: str, rows: pa.Table, *, origin: str, now_unix_ns: int) -> pa.Table:
    """``rows`` of raw table ``name`` with origin, ingested_unix_ns and date appended."""
    count = rows.num_rows
    dates = _dates(rows.column(TIME_COLUMN[name]), now_unix_ns)
    return (
        rows.append_column("origin", pa.repeat(pa.scalar(origin, pa.string()), count))
        .append_column("ingested_unix_ns", pa.repeat(pa.scalar(now_unix_ns, pa.int64()), count))
        .append_column("date", dates)
    )


def quarantine_rows(
    refused: Sequence[Rejected],
    *,
    origin: str,
    now_unix_ns: int,
    source_file: str | None,
    source_rows: Sequence[int | None],
) -> pa.Table:
    """Rows of `quarantine`, one an item; ``source_rows`` runs beside ``refused``."""
    schema = TABLES["quarantine"].schema
    if not refused:
        return schema.empty_table()
    count = len(refused)
    columns = {
        "signal": [r.signal for r in refused],
        "reason": [r.reason for r in refused],
        "detail": [r.detail for r in refused],
        "trace_id": [r.trace_id for r in refused],
        "span_id": [r.span_id for r in refused],
        "service_name": [r.service_name for r in refused],
        "payload": [r.payload for r in refused],
        "source_file": [source_file] * count,
        "source_row": list(source_rows),
        "origin": [origin] * count,
        "ingested_unix_ns": [now_unix_ns] * count,
        "date": [_day_text(now_unix_ns // _DAY_NS)] * count,
    }
    return pa.table(columns, schema=schema)


def _day_text(day: int) -> str:
    return (_EPOCH + dt.timedelta(days=day)).isoformat()


def _dates(times: pa.ChunkedArray, now_unix_ns: int) -> pa.Array:
    days = times.fill_null(now_unix_ns).to_numpy() // _DAY_NS
    if not len(days):
        return pa.array([], pa.string())
    first = int(days[0])
    if (days == first).all():  # nearly every batch lies in one day
        return pa.repeat(pa.scalar(_day_text(first), pa.string()), len(days))
    known, index = np.unique(days, return_inverse=True)
    return pa.array([_day_text(int(d)) for d in known], pa.string()).take(pa.array(index))


def _outside(
    times: pa.ChunkedArray, oldest: int | None, newest: int | None
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    inside = oldest if oldest is not None else newest  # rows without a time are not out of range
    values = times.fill_null(inside).to_numpy()
    outside = np.zeros(len(values), dtype=bool)
    if oldest is not None:
        outside |= values < oldest
    if newest is not None:
        outside |= values > newest
    return outside


def _out_of_range(signal: str, rows: pa.Table, allowed: str) -> list[Rejected]:
    column = TIME_COLUMN[TABLE_OF_SIGNAL[signal]]
    return [
        Rejected(
            signal=signal,
            reason="start_out_of_range",
            detail=f"{column}={row[column]}, allowed {allowed}",
            trace_id=row.get("trace_id"),
            span_id=row.get("span_id"),
            service_name=row["service_name"],
            payload=cut_payload(orjson.dumps(row).decode()),
        )
        for row in rows.to_pylist()
    ]
