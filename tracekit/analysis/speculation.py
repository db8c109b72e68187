"""Several tokens per decode step: whether steps may be counted, and how a stream's chunks come.

Owns the relation ``speculation`` and the pace of chunks. How many tokens a chunk brings is told by
the source, or derived from its chunks (`tracekit.analysis.gaps`).
"""

from __future__ import annotations

from typing import Final

import duckdb
import pyarrow as pa

from tracekit.analysis._arrow import arrow_table
from tracekit.analysis._duck import one
from tracekit.analysis.diagnosis import ChunkPace
from tracekit.analysis.window import Window

_SCHEMA: Final = pa.schema([("seen", pa.int64()), ("counted", pa.int64())])

#: Of the requests of a model that speculates, this share must say how many tokens a step accepts:
#: steps of some and tokens of others are no common measure of decode.
_KNOWN: Final = 0.9
#: A chunk's gap and a token's that differ by less than this need no telling apart.
_APART: Final = 1.1

_COMPLETED: Final = (
    "quarantine_reason is null and coalesce(superseded_attempt, 0) = 0 "
    "and coalesce(status, 'ok') = 'ok'"
)


def speculation(con: duckdb.DuckDBPyConnection, *, baseline: Window | None = None) -> pa.Table:
    """The one-row relation ``speculation``.

    ``seen``: 1 if any request accepts more than one token per step. ``counted``: 1 if decode may be
    measured in steps, because nearly all requests of such models (those of ``baseline`` as well)
    say how many tokens a step accepts; else it is measured in tokens.
    """
    (seen,) = one(
        con,
        "select count(*) from "
        "(select 1 from window_requests where accepted_tokens_per_step > 1 limit 1)",
    )
    if not seen:
        return arrow_table({"seen": [0], "counted": [0]}, _SCHEMA)
    rows = f"select * from window_requests where {_COMPLETED}"
    if baseline is not None:
        since, until = baseline.since_unix_ns, baseline.until_unix_ns
        inside = [f"start_unix_ns >= {since}"] if since is not None else []
        inside += [f"start_unix_ns < {until}"] if until is not None else []
        rows += " union all select * from requests where "
        rows += " and ".join([*inside, "merged_into is null", _COMPLETED])
    known, n = one(
        con,
        f"""
        select sum(known), sum(n) from (
            select count(accepted_tokens_per_step) as known, count(*) as n
            from ({rows}) where output_tokens > 1 group by model
        ) where known > 0
        """,
    )
    counted = int(bool(n) and known >= _KNOWN * n)
    return arrow_table({"seen": [1], "counted": [counted]}, _SCHEMA)


def chunk_pace(con: duckdb.DuckDBPyConnection, *, min_rows: int) -> ChunkPace | None:
    """How chunks and tokens come where one brings several of the other; None where none does.

    Reads ``speculation`` first: without any there is nothing to look at.
    """
    (seen,) = one(con, "select seen from speculation")
    if not seen:
        return None
    # both gaps leave out the first token; a stall's chunk is in neither count of tokens
    n, chunk_ms, token_ms, tokens = one(
        con,
        f"""
        select count(*), median(tpot_ms * accepted_tokens_per_step), median(tpot_ms),
            median(accepted_tokens_per_step)
        from window_requests
        where accepted_tokens_per_step > 1 and chunk_count > 1 and tpot_ms > 0 and {_COMPLETED}
        """,
    )
    if n < min_rows or tokens < _APART:
        return None
    return ChunkPace(chunk_gap_ms=chunk_ms, token_gap_ms=token_ms, tokens_per_chunk=tokens, n=n)
