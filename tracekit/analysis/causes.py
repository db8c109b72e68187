"""What the cause tests of ``sql/attribution`` need and portable SQL cannot make itself.

Owns which requests are suspects and which are controls, the size of bins, and the small table that
cuts intervals into them. The tests themselves are SQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from tracekit.analysis import sqlfiles
from tracekit.analysis._arrow import arrow_table
from tracekit.analysis._duck import one

#: Phases whose time is lost on a worker.
SUSPECT_PHASES: Final = (
    "frontend",
    "queue",
    "prefill",
    "queue_or_prefill",
    "kv_transfer",
    "decode",
)

#: Phases in which a request waits for its worker.
WAITING_PHASES: Final = ("frontend", "queue", "kv_transfer")

#: At most this many (request, phase) pairs that stand out are looked into for the cause, and so
#: many controls.
SUSPECTS_MAX: Final = 2_000
CONTROLS_MAX: Final = 4_000
#: Of those that do not stand out (but may by their cause) as many as are left, or one in so many.
_QUIET_ONE_IN: Final = 8
#: Of so many that waited it is looked at how they were served.
_SERVICE_MAX: Final = 1_000
#: The same for a list of verdicts, which is read request by request.
SUSPECTS_LISTED: Final = 100_000

_BIN_NS: Final = 10_000_000_000
_BINS_MAX: Final = 512
_ARRIVAL_BINS: Final = 200
_ARRIVAL_SLICES: Final = 20_000
_SECOND_NS: Final = 1_000_000_000


def suspect_requests(
    con: duckdb.DuckDBPyConnection, *, at_most: int = SUSPECTS_MAX, also: str | None = None
) -> pa.Table:
    """Pairs (request, phase) to explain, and ordinary requests of the same phases as controls.

    Columns ``suspect_id``, ``request_key``, ``phase``, ``is_control``, ``actual_ms``,
    ``excess_ms`` and ``expected_ms`` [ms]. ``is_control`` is 0 for what is to be explained, 1 for
    controls, 2 for how those that waited were served then (``excess_ms`` is NULL for both).

    Beyond ``at_most`` the suspects that stand out are drawn by hash of the key, alike from every
    phase; `verdicts` says ``unsearched`` of the rest and `findings` counts the drawn ones for them.
    Those that do not stand out fill what is left, or are an eighth of ``at_most`` beside it.
    ``also`` is a key to draw in any case.
    """
    phases = ", ".join(f"'{p}'" for p in SUSPECT_PHASES)
    suspects = con.sql(
        f"""
        with candidates as (
            select w.request_key, w.phase, max(w.actual_ms) as actual_ms,
                max(w.excess_ms) as excess_ms, max(w.expected_ms) as expected_ms,
                max(case when o.slow_id is null then 0 else 1 end) as stands_out
            from winners as w
            left join outstanding as o on w.slow_id = o.slow_id
            where w.candidate = 'attributed' and w.phase in ({phases})
                -- those that do not stand out may yet, by their cause
            group by w.request_key, w.phase
        ),
        placed as (
            select *, request_key is distinct from $also as is_drawn,
                row_number() over (
                    partition by phase, stands_out order by hash(request_key)) as place
            from candidates
        ),
        ranked as (
            select *, count(*) filter (stands_out = 1) over () as standing,
                row_number() over (
                    partition by stands_out order by is_drawn, place, phase, request_key) as nth
            from placed
        )
        select request_key, phase, 0::bigint as is_control, actual_ms, excess_ms, expected_ms
        from ranked
        where nth <= case when stands_out = 1 then {int(at_most)}
            else greatest({int(at_most)} - standing, {int(at_most) // _QUIET_ONE_IN}, 1) end
        order by is_drawn, place, phase, request_key
        """,
        params={"also": also},
    ).to_arrow_table()
    if not suspects.num_rows:
        return _numbered(suspects)
    ((rows,),) = con.execute("select count(*) from drawn_costs where completed = 1").fetchall()
    # service is looked at for all: a wait may be the consequence of slow service
    seen = {*suspects["phase"].to_pylist(), "prefill", "decode"}
    wanted = ", ".join(f"'{p}'" for p in sorted(seen))
    controls = con.sql(
        f"""
        -- the same SELECT over a few rows: a name in WITH hides the relation of that name
        with request_costs as not materialized (
            select d.* from drawn_costs as d
            -- another hash than the one that drew them
            where completed = 1 and hash(request_key, 1) % {1 + rows // CONTROLS_MAX} = 0
                and not exists (
                    select 1 from slow_requests as s where s.request_key = d.request_key)
        ),
        costs as ({sqlfiles.load("attribution", "excess").body})
        select request_key, phase, 1::bigint as is_control, actual_ms,
            null::double as excess_ms, expected_ms
        from costs where phase in ({wanted})
        """
    ).to_arrow_table()
    return _numbered(pa.concat_tables([suspects, controls, *_service(con, suspects)]))


def _service(con: duckdb.DuckDBPyConnection, suspects: pa.Table) -> Iterator[pa.Table]:
    """The service phases of suspects that waited: they tell best how their worker served then.

    Controls cannot: on a worker that is slow all day nobody is within the limits.
    """
    con.register("_suspects", suspects)
    try:
        waits = ", ".join(f"'{p}'" for p in WAITING_PHASES)
        (waiting,) = one(con, f"select count(*) from _suspects where phase in ({waits})")
        if not waiting:
            return
        costs = {n: sqlfiles.load("attribution", n).body for n in ("request_costs", "excess")}
        yield con.sql(
            f"""
            with waited as (
                select distinct request_key from _suspects where phase in ({waits})
                order by hash(request_key), request_key limit {_SERVICE_MAX}
            ),
            request_facts as not materialized (
                select * from temp.request_facts
                where request_key in (select request_key from waited)
            ),
            request_costs as ({costs["request_costs"]}),
            costs as ({costs["excess"]})
            select c.request_key, c.phase, 2::bigint as is_control, c.actual_ms,
                null::double as excess_ms, c.expected_ms
            from costs as c
            where c.phase in ('prefill', 'decode') and c.actual_ms > 0 and c.expected_ms > 0
                and not exists (select 1 from _suspects as s
                    where s.request_key = c.request_key and s.phase = c.phase)
            order by c.request_key, c.phase
            """
        ).to_arrow_table()
    finally:
        con.unregister("_suspects")


def _numbered(rows: pa.Table) -> pa.Table:
    numbers = arrow_table({"suspect_id": np.arange(1, rows.num_rows + 1, dtype=np.int64)})
    return rows.add_column(0, "suspect_id", numbers["suspect_id"])


def overlap_bins(con: duckdb.DuckDBPyConnection) -> tuple[pa.Table, pa.Table]:
    """How intervals are cut for the join on (worker, bin): ``overlap_rules`` and ``bins``.

    The one-row ``overlap_rules`` has ``bin_ns``: 10 s, or more where an interval would otherwise
    span 512 bins. ``bins`` holds, for each span of whole bins that occurs, the offset in ns of each
    bin in it (``span_ns``, ``off_ns``).
    """
    ((longest,),) = con.execute(
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
    rules = arrow_table({"bin_ns": [bin_ns]})
    return rules, arrow_table({"span_ns": spans * bin_ns, "off_ns": offsets * bin_ns})


def arrival_rules(con: duckdb.DuckDBPyConnection) -> pa.Table:
    """The one-row relation ``arrival_rules``: ``bin_ns`` and ``slice_ns``.

    Waiting is told per bin, a 200th of the window, 1 s to 60 s; arrivals are counted in slices of
    1 s, longer ones where the window would have more than 20,000.
    """
    ((first, last),) = con.execute(
        "select min(arrival_unix_ns), max(arrival_unix_ns) from request_facts"
    ).fetchall()
    span = 0 if first is None else last - first
    bin_ns = min(max(span // _ARRIVAL_BINS, _SECOND_NS), 60 * _SECOND_NS)
    slice_ns = max(_SECOND_NS, -(-span // _ARRIVAL_SLICES))
    return arrow_table({"bin_ns": [bin_ns], "slice_ns": [slice_ns]})
