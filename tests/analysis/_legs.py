"""Legs made by hand, and the core SQL run over them as it stands on disk.

Owns the way from plain dicts to the relations that ``sql/core`` reads; knows no source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import duckdb
import pyarrow as pa

from tracekit.analysis.sqlfiles import CORE, load
from tracekit.lake.schema import LEGS, TOKEN_GAPS

START_NS = 1_795_982_400_000_000_000
REVISION = 7

_GROUPS = pa.schema(
    [
        ("request_key", pa.string()),
        ("attempt", pa.int32()),
        ("superseded_attempt", pa.int32()),
        ("first_start_ns", pa.int64()),
        ("attempt_start_ns", pa.int64()),
        ("choices", pa.int32()),
        ("legs_count", pa.int32()),
        ("leg_roles", pa.string()),
        ("sources", pa.string()),
        ("match_score", pa.float64()),
        ("is_partial", pa.int32()),
    ]
)

#: One interval of a timeline: (phase, sub_phase or '', start, end).
Interval = tuple[str, str, int, int]


def leg(role: str, **values: Any) -> dict[str, Any]:
    """One row of `legs` as a dict: boundaries by bare name (``send=0``), the rest by column name.

    Boundary times are in ns from `START_NS`; each gets a provenance unless one is given.
    """
    row: dict[str, Any] = {"role": role, "revision": REVISION, "has_clock": 1, "source": "made"}
    for name, value in values.items():
        if f"{name}_unix_ns" in LEGS.column_names:
            row[f"{name}_unix_ns"] = None if value is None else START_NS + value
            if value is not None:
                row.setdefault(f"{name}_src", f"measured {name}")
        else:
            row[name] = value
    return row


def run_core(
    requests: Mapping[str, Iterable[dict[str, Any]]],
    *,
    force_sweep: bool = False,
    gaps: Mapping[str, Iterable[tuple[int, int, int]]] | None = None,
) -> duckdb.DuckDBPyConnection:
    """Run ``sql/core`` over the legs of each request key; its relations are tables of the result.

    With ``force_sweep`` every timeline is swept, those too that could be cut. ``gaps`` are stalls
    by request key: (start, end, part over the median) in ns, start and end from `START_NS`.
    """
    rows = []
    groups = []
    for key, legs in requests.items():
        members = [dict(row, request_key=key, leg_id=f"{key}-{i}") for i, row in enumerate(legs)]
        rows += members
        engines = [m for m in members if m["role"] in ("engine", "decode_engine")]
        groups.append(
            {
                "request_key": key,
                "attempt": 1,
                "superseded_attempt": 0,
                "first_start_ns": None,
                "attempt_start_ns": None,
                "choices": max(len(engines), 1),
                "legs_count": len(members),
                "leg_roles": ",".join(sorted({m["role"] for m in members})),
                "sources": "made",
                "match_score": 1.0,
                "is_partial": 0,
            }
        )
    con = duckdb.connect()
    _table(con, "legs", pa.Table.from_pylist(rows, schema=LEGS.schema))
    _table(con, "request_groups", pa.Table.from_pylist(groups, schema=_GROUPS))
    stalls = [
        {
            "request_key": key,
            "revision": REVISION,
            "gap_index": i,
            "start_unix_ns": START_NS + start,
            "end_unix_ns": START_NS + end,
            "gap_ms": (end - start) / 1e6,
            "is_stall": 1,
            "excess_ms": excess / 1e6,
        }
        for key, found in (gaps or {}).items()
        for i, (start, end, excess) in enumerate(found, start=1)
    ]
    _table(con, "token_gaps", pa.Table.from_pylist(stalls, schema=TOKEN_GAPS.schema))
    con.execute(
        "create table gap_summary (request_key varchar, chunk_count bigint, max_gap_ms double, "
        "stall_ms double, tokens_per_chunk double)"
    )
    con.execute(
        "create table request_clocks (request_key varchar, network_in_ns bigint, "
        "network_out_ns bigint, route_in_ns bigint, route_out_ns bigint, kv_ns bigint, "
        "widest_ns bigint)"
    )
    _core(con, force_sweep=force_sweep)
    return con


def rerun_core(
    derived: duckdb.DuckDBPyConnection, *, force_sweep: bool
) -> duckdb.DuckDBPyConnection:
    """Run ``sql/core`` anew over the legs that a derivation left in ``derived``."""
    con = duckdb.connect()
    for name in ("legs", "request_groups", "token_gaps", "gap_summary", "request_clocks"):
        _table(con, name, derived.sql(f"select * from {name}").to_arrow_table())
    _core(con, force_sweep=force_sweep)
    return con


def _core(con: duckdb.DuckDBPyConnection, *, force_sweep: bool) -> None:
    for name in CORE:
        con.execute(f"create table {name} as {load('core', name).body}")
        if name == "request_points" and force_sweep:
            con.execute("update request_points set path = 'sweep'")


def _table(con: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    con.register("incoming", rows)
    con.execute(f"create table {name} as select * from incoming")
    con.unregister("incoming")


def timelines(con: duckdb.DuckDBPyConnection, *, raw: bool = False) -> dict[str, list[Interval]]:
    """Request key → its intervals in time order; neighbours of one (sub-)phase are merged.

    With ``raw`` the rows of `phases` stay as they are.
    """
    out: dict[str, list[Interval]] = {}
    for key, phase, sub_phase, start, end in con.execute(
        "select request_key, phase, coalesce(sub_phase, ''), start_unix_ns, end_unix_ns "
        "from phases order by request_key, start_unix_ns, end_unix_ns"
    ).fetchall():
        line = out.setdefault(key, [])
        if not raw and line and line[-1][:2] == (phase, sub_phase) and line[-1][3] == start:
            start = line.pop()[2]
        line.append((phase, sub_phase, start, end))
    return out


def walls(
    con: duckdb.DuckDBPyConnection, points: str = "request_points"
) -> dict[str, tuple[int, int]]:
    """Request key → (start, end) of its wall time."""
    return {
        key: (start, end)
        for key, start, end in con.execute(
            f"select request_key, wall_start, wall_end from {points}"
        ).fetchall()
    }


def check_timelines(con: duckdb.DuckDBPyConnection, points: str = "request_points") -> None:
    """Assert that every request's phases tile its wall time exactly and its record agrees.

    ``points`` is the relation `request_points` (a derivation leaves `core_request_points`).
    """
    lines = timelines(con, raw=True)
    wall_of = walls(con, points)
    for key, (start, end) in wall_of.items():
        at = start
        for phase, _, a, b in lines.get(key, []):
            assert a == at, f"{key}: {phase} starts {a - at} ns after the phase before it ended"
            assert b > a, f"{key}: {phase} lasts {b - a} ns"
            at = b
        assert at == end, f"{key}: the phases end {end - at} ns before the wall time does"
    assert set(lines) <= set(wall_of)
    bad = con.execute(
        f"""
        select r.request_key, r.coverage, r.e2e_ms, r.ttft_ms from requests as r
        join {points} as p on r.request_key = p.request_key
        where (r.coverage is null) <> (p.wall_end = p.wall_start)
            or r.coverage not between 0 and 1
            or r.e2e_ms <> (p.wall_end - p.wall_start) / 1e6
            or r.ttft_ms < 0 or r.tpot_ms < 0 or r.ttfa_ms < 0
            or least(r.client_wait_ms, r.network_ms, r.frontend_ms, r.route_ms, r.queue_ms,
                r.prefill_ms, r.queue_or_prefill_ms, r.kv_transfer_ms, r.decode_ms,
                r.unexplained_ms) < 0
            or abs(coalesce(r.client_wait_ms, 0) + coalesce(r.network_ms, 0)
                + coalesce(r.frontend_ms, 0) + coalesce(r.route_ms, 0) + coalesce(r.queue_ms, 0)
                + coalesce(r.prefill_ms, 0) + coalesce(r.queue_or_prefill_ms, 0)
                + coalesce(r.kv_transfer_ms, 0) + coalesce(r.decode_ms, 0) + r.unexplained_ms
                - r.e2e_ms) > 1e-6
        """
    ).fetchall()
    assert bad == []
