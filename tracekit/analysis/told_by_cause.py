"""Losses that stand out by what made them, though they are no more than this traffic's usual.

Prompts of another kind than usual explain some; others have a cause with an evidence of its own.
Both add to the relation ``outstanding``; owns these two tests.
"""

from __future__ import annotations

from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from tracekit.analysis._arrow import arrow_table, numpy_column
from tracekit.analysis.rules import Rules

#: A heap of prompts is no fewer.
_HEAP_ROWS: Final = 5
#: Causes that ordinary contention has, too, or that are not a request's own.
_ORDINARY: Final = (
    "'prefill_interference', 'capacity', 'arrival_burst', 'router_imbalance', 'preemption', "
    "'unknown'"
)


def prompt_kinds(con: duckdb.DuckDBPyConnection, rules: Rules) -> pa.Table:
    """The one-row relation ``prompt_kinds``: from what cost on a prompt is of the long kind.

    ``long_ms`` [ms] is the upper edge of the widest gap between the costs of prefills, NULL where
    they are of one kind: sizes that thin out leave no gap before the last few.
    """
    values = con.sql(
        """
        select prefill_cost_ms as ms from drawn_costs where prefill_cost_ms > 0
        """
    ).to_arrow_table()
    costs = np.sort(numpy_column(values["ms"]).astype(np.float64))
    upper = costs[len(costs) // 2 : max(len(costs) - _HEAP_ROWS + 1, 0)]
    ratios = upper[1:] / upper[:-1]
    long_ms = None
    if len(ratios) and ratios.max() >= rules.kind_gap:
        long_ms = float(upper[1:][ratios.argmax()])
    return arrow_table({"long_ms": [long_ms]}, pa.schema([("long_ms", pa.float64())]))


def add_long_culprits(con: duckdb.DuckDBPyConnection, rules: Rules) -> None:
    """Add to ``outstanding``, reason ``culprit``, what prompts of another kind explain."""
    con.execute(
        f"""
        insert into outstanding
        select w.slow_id, 'culprit'
        from winners as w
        join suspect_requests as s
            on w.request_key = s.request_key and w.phase = s.phase and s.is_control = 0
        join long_culprits as l on s.suspect_id = l.suspect_id
        where w.candidate = 'attributed' and l.long_ms >= {rules.cause_share} * w.excess_ms
            and w.slow_id not in (select slow_id from outstanding)
        """
    )


def add_told(con: duckdb.DuckDBPyConnection, rules: Rules) -> None:
    """Add to ``outstanding``, reason ``cause``, losses whose cause is no ordinary one.

    A full memory, a slow worker, a wait for a transfer have evidence that healthy traffic does not
    show; load has not, since there is always a moment with more of it (`surges` asks whether that
    is chance). One or two with a cause, or few of those looked into, may be chance. Preemption is
    counted by engine, not by request: a stream that did not freeze may not have been it.

    Of very many losses only some are looked into: where most of these are told, so are the others
    of that phase.
    """
    con.execute(
        f"""
        insert into outstanding
        with looked as (
            select c.request_key, c.phase,
                case when c.cause not in ({_ORDINARY}) then 1 else 0 end as has_own,
                count(*) over (partition by c.phase, c.cause) as n,
                count(*) over (partition by c.phase) as of_n
            from causes as c
        ),
        judged as (
            select *, case when has_own = 1 and n >= {rules.min_told_rows}
                and n >= {rules.stray_share} * of_n then 1 else 0 end as is_told
            from looked
        ),
        quiet as (
            select w.slow_id, w.request_key, w.phase, j.is_told,
                avg(j.is_told) over (partition by w.phase) as told_share
            from winners as w
            left join judged as j on w.request_key = j.request_key and w.phase = j.phase
            where w.candidate = 'attributed'
                and w.slow_id not in (select slow_id from outstanding)
        )
        select slow_id, 'cause' from quiet
        where is_told = 1 or (is_told is null and told_share > 0.5)
        """
    )
