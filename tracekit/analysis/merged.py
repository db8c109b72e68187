"""How much of a merged time before the first token is prefill: the quickest requests tell.

Some sources tell no queue from prefill (`queue_or_prefill`). What the quickest requests of a size
take is at most their prefill; what others of that size take beyond it is waiting. Inferred, and
only where some requests waited little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np

from tracekit.analysis.quantile import quantile_fit

#: The quickest share that is taken for not having waited.
QUICKEST: Final = 0.05
#: Requests that are looked at, at most, and needed at least.
_ROWS_MAX: Final = 20_000
_ROWS_MIN: Final = 30


@dataclass(frozen=True)
class QuickPrefill:
    """Prefill of one request is at most ``fixed_ms + token_ms x`` its uncached prompt tokens."""

    fixed_ms: float
    token_ms: float
    n: int

    def prefill_ms(self, uncached_tokens: float) -> float:
        """[ms] of a request of this size, as the quickest have it."""
        return self.fixed_ms + self.token_ms * uncached_tokens


def quick_prefill(con: duckdb.DuckDBPyConnection) -> QuickPrefill | None:
    """From ``request_facts``: None where times are not merged, sizes not known, or too few.

    Requests of one model and engine only: others' cost is another.
    """
    table = con.sql(
        f"""
        select uncached_tokens, queue_or_prefill_ms from request_facts
        where completed = 1 and queue_or_prefill_ms > 0 and prefill_ms is null
            and uncached_tokens >= 0
            and (select count(distinct (model, engine, engine_version, topology))
                from request_facts where completed = 1) = 1
        order by request_key limit {_ROWS_MAX}
        """
    ).to_arrow_table()
    if table.num_rows < _ROWS_MIN:
        return None
    tokens = table.column(0).to_numpy().astype(np.float64)
    took_ms = table.column(1).to_numpy().astype(np.float64)
    features = np.column_stack([np.ones(len(tokens)), tokens])
    try:
        fixed_ms, token_ms = quantile_fit(features, took_ms, tau=QUICKEST)
    except ArithmeticError:
        return None
    return QuickPrefill(float(fixed_ms), float(token_ms), len(tokens))
