"""What the other requests tell of a phase that a source knows only as a whole: ``inferred_rules``.

* Some sources tell no queue from prefill (`queue_or_prefill`). What the quickest requests of a size
  take is at most their prefill; what others of that size take beyond it is waiting.
* A transfer without a sub-phase holds what does not grow with its size (rendezvous, polls, the
  decode server's first step) beside the moving of bytes. Sizes that differ tell the two apart.

Owns the fits and when they may be used; ``sql/attribution/inferred_parts.sql`` applies them.
"""

from __future__ import annotations

from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from tracekit.analysis._arrow import arrow_table, numpy_column
from tracekit.analysis.quantile import quantile_fit

#: The quickest share that is taken for not having waited.
QUICKEST: Final = 0.05
#: Requests needed.
_ROWS_MIN: Final = 30
#: The large sizes (90th percentile) are at least so many times the small ones (10th).
_SPREAD_MIN: Final = 1.5

_SCHEMA: Final = pa.schema(
    [
        ("quick_fixed_ms", pa.float64()),
        ("quick_token_ms", pa.float64()),
        ("quick_requests", pa.int64()),
        ("kv_requests", pa.int64()),
    ]
)


def inferred_rules(con: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row of ``inferred_rules``, from ``drawn_facts``; NULL what may not be inferred.

    Prefill of a request is at most ``quick_fixed_ms + quick_token_ms x`` its uncached prompt
    tokens, from ``quick_requests``; of one model and engine only: others' cost is another.
    ``kv_requests`` tell a transfer's fixed part from what grows.
    """
    (quick_fixed_ms, quick_token_ms, quick_requests) = _quick_prefill(con) or (None, None, None)
    sizes = con.execute(
        "select count(*), quantile_cont(input_tokens, 0.1), quantile_cont(input_tokens, 0.9)"
        " from drawn_facts where completed = 1 and kv_transfer_ms > 0"
        " and kv_transfer_wire_ms is null and input_tokens > 0"
    ).fetchall()
    ((kv_requests, small, large),) = sizes
    told = kv_requests >= _ROWS_MIN and large >= _SPREAD_MIN * small
    row = {
        "quick_fixed_ms": [quick_fixed_ms],
        "quick_token_ms": [quick_token_ms],
        "quick_requests": [quick_requests],
        "kv_requests": [kv_requests if told else None],
    }
    return arrow_table(row, _SCHEMA)


def _quick_prefill(con: duckdb.DuckDBPyConnection) -> tuple[float, float, int] | None:
    table = con.sql(
        """
        select uncached_tokens, queue_or_prefill_ms from drawn_facts
        where completed = 1 and queue_or_prefill_ms > 0 and prefill_ms is null
            and uncached_tokens >= 0
            and (select count(distinct (model, engine, engine_version, topology))
                from drawn_facts where completed = 1) = 1
        """
    ).to_arrow_table()
    if table.num_rows < _ROWS_MIN:
        return None
    tokens = numpy_column(table.column(0)).astype(np.float64)
    took_ms = numpy_column(table.column(1)).astype(np.float64)
    features = np.column_stack([np.ones(len(tokens)), tokens])
    try:
        fixed_ms, token_ms = quantile_fit(features, took_ms, tau=QUICKEST)
    except ArithmeticError:
        return None
    return float(fixed_ms), float(token_ms), table.num_rows
