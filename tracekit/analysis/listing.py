"""Lists of requests: the rows behind ``tracekit requests``.

Owns which rows and columns a list has and their order: newest first, then rows without a clock by
their id, as numbers where they are numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tracekit import chunks
from tracekit.errors import UsageError
from tracekit.lake.schema import RECORD_COLUMNS
from tracekit.names import STATUSES

if TYPE_CHECKING:
    from tracekit.analysis.session import Session

#: Rows in memory at one time while a long list is written out.
_BATCH_ROWS: Final = 4_096


def list_requests(
    session: Session,
    *,
    last: int | None = None,
    slow: bool = False,
    status: str | None = None,
    worker: str | None = None,
    with_chunks: bool = False,
) -> Iterator[dict[str, Any]]:
    """Requests of the session's window, newest first, with the columns of the record.

    Each row also has ``request_key`` (first) and, ``with_chunks``, ``chunk_offsets_ms`` and
    ``chunk_tokens`` where a client kept them. ``slow`` keeps the requests over a limit and wants
    `attribution.define_attribution` called before. Raises UsageError for an unknown status.
    """
    query, params = _query(last, slow=slow, status=status, worker=worker, with_chunks=with_chunks)
    reader = session.con.sql(query, params=params).to_arrow_reader(_BATCH_ROWS)
    for batch in reader:
        for row in batch.to_pylist():
            if with_chunks:
                _unpack(row)
            yield row


def count_requests(
    session: Session, *, slow: bool = False, status: str | None = None, worker: str | None = None
) -> int:
    """How many requests `list_requests` has without ``last``."""
    where, params = _where(slow=slow, status=status, worker=worker)
    query = f"select count(*) from window_requests as r{where}"
    [(total,)] = session.con.execute(query, params).fetchall()
    return int(total)


def _query(
    last: int | None, *, slow: bool, status: str | None, worker: str | None, with_chunks: bool
) -> tuple[str, list[Any]]:
    if last is not None and last <= 0:
        raise UsageError("the number of requests must be above 0")
    columns = ["r.request_key", *(f'r."{name}"' for name in RECORD_COLUMNS)]
    source = "window_requests as r"
    if with_chunks:
        columns.append("c.chunk_times")
        source += """
            left join (
                select request_key, revision, max(chunk_times) as chunk_times
                from legs group by request_key, revision
            ) as c on c.request_key = r.request_key and c.revision = r.revision"""
    where, params = _where(slow=slow, status=status, worker=worker)
    query = f"select {', '.join(columns)} from {source}{where}"
    query += (
        " order by r.start_unix_ns desc nulls last, try_cast(r.request_id as hugeint) nulls last, "
        "r.request_id, r.request_key"
    )
    if last is not None:
        query += f" limit {int(last)}"
    return query, params


def _where(*, slow: bool, status: str | None, worker: str | None) -> tuple[str, list[Any]]:
    if status is not None and status not in STATUSES:
        raise UsageError(f"no status {status!r}; there are {', '.join(STATUSES)}")
    where: list[str] = []
    params: list[Any] = []
    if slow:
        where.append("r.request_key in (select request_key from slow_requests)")
    if status is not None:
        where.append("r.status = ?")
        params.append(status)
    if worker is not None:
        where.append("? in (r.worker, r.prefill_worker, r.decode_worker)")
        params.append(worker)
    return f" where {' and '.join(where)}" if where else "", params


def _unpack(row: dict[str, Any]) -> None:
    packed = row.pop("chunk_times")
    if packed is None:
        row["chunk_offsets_ms"] = row["chunk_tokens"] = None
        return
    stream = chunks.unpack(packed)
    row["chunk_offsets_ms"] = [offset / 1e3 for offset in stream.offsets_us]
    row["chunk_tokens"] = stream.tokens
