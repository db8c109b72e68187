"""What the cause tests of ``sql/attribution`` need and portable SQL cannot make itself.

Owns which requests are suspects and which are controls, the size of bins, and the small table that
cuts intervals into them. The tests themselves are SQL.
"""

from __future__ import annotations

from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

#: Phases in which another request's prefill can cost time.
STALLED_PHASES: Final = ("frontend", "prefill", "decode")

#: At most this many (request, phase) pairs are searched for culprits, and so many controls.
SUSPECTS_MAX: Final = 50_000
CONTROLS_MAX: Final = 2_000

_BIN_NS: Final = 10_000_000_000
_BINS_MAX: Final = 512
_ARRIVAL_BINS: Final = 200
_SECOND_NS: Final = 1_000_000_000


def suspect_requests(con: duckdb.DuckDBPyConnection) -> pa.Table:
    """Pairs (request, phase) to explain, and ordinary requests of the same phases as controls.

    Columns ``suspect_id``, ``request_key``, ``phase``, ``is_control`` 0/1, ``excess_ms`` and
    ``expected_ms`` [ms] (NULL for controls). Beyond 50,000 the suspects are a sample by hash of
    the key.
    """
    phases = ", ".join(f"'{p}'" for p in STALLED_PHASES)
    suspects = con.sql(
        f"""
        select request_key, phase, 0::bigint as is_control, max(excess_ms) as excess_ms,
            max(expected_ms) as expected_ms
        from winners where candidate = 'attributed' and phase in ({phases})
        group by request_key, phase
        order by hash(request_key), phase limit {SUSPECTS_MAX}
        """
    ).to_arrow_table()
    if not suspects.num_rows:
        return _numbered(suspects)
    ((rows,),) = con.sql("select count(*) from request_facts where completed = 1").fetchall()
    wanted = ", ".join(f"'{p}'" for p in sorted(set(suspects["phase"].to_pylist())))
    controls = con.sql(
        f"""
        with ordinary as (
            select request_key from request_facts as f
            where completed = 1 and hash(request_key) % {1 + rows // CONTROLS_MAX} = 0
                and not exists (
                    select 1 from slow_requests as s where s.request_key = f.request_key)
        )
        select request_key, phase, 1::bigint as is_control, null::double as excess_ms,
            null::double as expected_ms
        from ordinary cross join (select unnest([{wanted}]) as phase)
        """
    ).to_arrow_table()
    return _numbered(pa.concat_tables([suspects, controls]))


def _numbered(rows: pa.Table) -> pa.Table:
    numbers = pa.array(np.arange(1, rows.num_rows + 1), pa.int64())
    return rows.add_column(0, "suspect_id", numbers)


def overlap_bins(con: duckdb.DuckDBPyConnection) -> tuple[pa.Table, pa.Table]:
    """How intervals are cut for the join on (worker, bin): ``overlap_rules`` and ``bins``.

    The one-row ``overlap_rules`` has ``bin_ns``: 10 s, or more where an interval would otherwise
    span 512 bins. ``bins`` holds, for each span of whole bins that occurs, the offset in ns of each
    bin in it (``span_ns``, ``off_ns``).
    """
    ((longest,),) = con.sql(
        """
        select max(end_unix_ns - start_unix_ns) from (
            select start_unix_ns, end_unix_ns from suspect_intervals
            union all
            select start_unix_ns, end_unix_ns from worker_prefills
        )
        """
    ).fetchall()
    bin_ns = max(_BIN_NS, -(-(longest or 0) // (_BINS_MAX - 2)))
    # an interval that starts late in a bin reaches one bin further than its length says
    count = (longest or 0) // bin_ns + 2
    spans = np.repeat(np.arange(count), np.arange(1, count + 1))
    offsets = np.concatenate([np.arange(k + 1) for k in range(count)])
    rules = pa.table({"bin_ns": pa.array([bin_ns], pa.int64())})
    return rules, pa.table({"span_ns": spans * bin_ns, "off_ns": offsets * bin_ns})


def arrival_rules(con: duckdb.DuckDBPyConnection) -> pa.Table:
    """The one-row relation ``arrival_rules``: slices of a 200th of the window, 1 s to 60 s."""
    ((first, last),) = con.sql(
        "select min(arrival_unix_ns), max(arrival_unix_ns) from request_facts"
    ).fetchall()
    span = 0 if first is None else last - first
    bin_ns = min(max(span // _ARRIVAL_BINS, _SECOND_NS), 60 * _SECOND_NS)
    return pa.table({"bin_ns": pa.array([bin_ns], pa.int64())})
