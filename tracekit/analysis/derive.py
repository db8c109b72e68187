"""Raw rows → legs → requests, phases, token gaps, in one DuckDB connection.

Owns the order of ``sql/sources``, the matching and ``sql/core``; decides nothing about time
(what is ripe to settle is `settle`'s) and writes nothing to the lake.

The connection must have the relations ``spans`` (raw spans, duplicates allowed) and
``request_log``; afterwards it has the tables ``legs``, ``requests``, ``phases`` and
``token_gaps`` with the lake's columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import duckdb
import pyarrow as pa

from tracekit.analysis._duck import one, run
from tracekit.analysis.clocks import Aligned, Recall, align
from tracekit.analysis.gaps import GapSummary, summarize
from tracekit.analysis.match import Assignment, Group, LegFacts, match, needs_parents
from tracekit.analysis.sqlfiles import SOURCES, load, span_sources
from tracekit.lake.schema import LEGS, PHASES_TABLE, REQUESTS, TABLES, TOKEN_GAPS
from tracekit.names import BOUNDARIES

DERIVED: Final = ("legs", "phases", "token_gaps", "requests")

#: Columns of `legs` that matching and aligning add; the sources give the rest.
_ADDED: Final = frozenset({"request_key", "revision", "match_score", "clock_offset_ns", "date"})

#: What sources tell the matching alone, and its type.
_MATCHED: Final = {
    "choices": "integer",
    "is_part": "integer",
    "pair_id": "varchar",
    "likeness": "double",
}

#: Year 2200: what is dated later is no time. Far below the end of BIGINT, so that sums fit.
LATEST_UNIX_NS: Final = 7_258_118_400_000_000_000

#: Files that only requests with overlapping legs need, in their order.
_SWEEP: Final = ("claims", "phases_sweep")

_DAY: Final = "strftime(make_timestamp({} // 1000), '%Y-%m-%d')"


@dataclass(frozen=True)
class Known:
    """Request keys that settled legs already have: leg id → request key, key → its revision.

    ``tried`` holds how keys settled that were not the only attempt: (attempt, superseded_attempt,
    intended start [unix ns]).
    """

    key_of_leg: Mapping[str, str]
    revision_of_key: Mapping[str, int]
    tried: Mapping[str, tuple[int, int, int | None]] = field(default_factory=dict)


NOTHING_KNOWN: Final = Known({}, {})


def derive(
    con: duckdb.DuckDBPyConnection,
    *,
    revision: int,
    known: Known = NOTHING_KNOWN,
    recall: Recall | None = None,
    beside: str | None = None,
    summed: str | None = None,
    legs_loaded: bool = False,
) -> Aligned:
    """Build the four derived tables from ``spans`` and ``request_log`` in ``con``.

    ``revision`` [unix ns] marks the rows. With ``known``, only requests that hold at least one leg
    which is not yet settled are kept, under their settled key, as a revision of it; keys that
    turn out to be part of another request get a row with ``merged_into``. ``recall``,
    ``beside`` and ``summed`` are what is known of clocks: see `clocks.align`, whose result is
    returned.
    ``legs_loaded`` says that ``leg_rows`` are those of ``spans`` and ``request_log`` already.
    """
    if not legs_loaded:
        load_legs(con)
    legs = leg_facts(con)
    assignments, groups, merged = _keep_keys(legs, *_match(con, legs), known)
    _register(con, "leg_request", _assignment_table(assignments))
    _register(con, "request_groups", _group_table(groups))
    _build_legs(con, revision)
    aligned = align(con, recall=recall, beside=beside, summed=summed)
    if one(con, "select count(*) from (select 1 from legs where has_clock = 0 limit 1)")[0]:
        _give_clock(con)
    _build_gaps(con, revision)
    _build_core(con)
    _build_phases(con)
    _build_requests(con, known, merged, revision)
    return aligned


def load_legs(con: duckdb.DuckDBPyConnection) -> None:
    """``leg_rows``: every source's legs of ``spans`` and ``request_log``, duplicates removed."""
    union = "".join(
        f"\nunion all by name\n({load('sources', s).body}\n)" for s in _sources_present(con)
    )
    latest = f"greatest({', '.join(f'{b}_unix_ns' for b in BOUNDARIES)})"
    absurd = f"case when {latest} >= {LATEST_UNIX_NS} then 'absurd_time' else leg_quarantine end"
    wanted = ", ".join(
        f'try_cast({absurd if c.name == "leg_quarantine" else c.name} as {c.type}) as "{c.name}"'
        for c in LEGS.columns
        if c.name not in _ADDED
    )
    # for the matching: no columns of `legs`
    wanted += ", ".join(("", *(f"try_cast({c} as {t}) as {c}" for c, t in _MATCHED.items())))
    shape = ", ".join(f'null::{c.type} as "{c.name}"' for c in LEGS.columns if c.name not in _ADDED)
    shape += ", ".join(("", *(f"null::{t} as {c}" for c, t in _MATCHED.items())))
    run(
        con,
        f"""
        create or replace temp table leg_rows as
        with u as (
            (select {shape} where false)
            {union}
        )
        select {wanted} from u
        """,
    )
    rows, distinct = one(con, "select count(*), count(distinct leg_id) from leg_rows")
    if rows != distinct:
        # duplicates are rare, and a window over every column is not cheap
        con.execute(
            "create or replace temp table leg_rows as select * from leg_rows "
            "qualify row_number() over (partition by leg_id order by ingested_unix_ns) = 1"
        )


def _sources_present(con: duckdb.DuckDBPyConnection) -> list[str]:
    """Sources that have a row at all: planning the others would cost more than running these."""
    spans = span_sources()
    *found, any_log = one(
        con,
        f"select {', '.join(f'bool_or({when})' for when in spans.values())}, "
        "(select count(*) from (from request_log limit 1)) from spans",
    )
    present = {name for name, any_row in zip(spans, found, strict=True) if any_row}
    return [s for s in SOURCES if s in present or (any_log and s not in spans)]


def _columns(con: duckdb.DuckDBPyConnection, query: str) -> list[list[object]]:
    """Columns of a result as Python lists: an order of magnitude cheaper than rows of tuples."""
    table = con.sql(query).to_arrow_table()
    return [column.to_pylist() for column in table.columns]


def leg_facts(con: duckdb.DuckDBPyConnection) -> list[LegFacts]:
    """What the matching needs of ``leg_rows``."""
    columns = _columns(
        con,
        """
        select leg_id, role, source, trace_id, span_id, parent_span_id, norm_request_id,
            concat_ws('|', service_name, service_instance_id, host_name) as instance,
            input_tokens, output_tokens,
            coalesce(recv_unix_ns, send_unix_ns, queued_unix_ns, scheduled_unix_ns,
                kv_start_unix_ns, first_token_unix_ns) as start_ns,
            coalesce(leg_end_unix_ns, last_token_unix_ns, kv_end_unix_ns, prefill_end_unix_ns,
                scheduled_unix_ns) as end_ns,
            has_clock, (status in ('error', 'aborted', 'timeout'))::integer as failed, attempt,
            (first_token_unix_ns is not null)::integer as answered, choices,
            coalesce(is_part, 0) as is_part, pair_id, likeness, norm_response_id
        from leg_rows
        """,
    )
    return [LegFacts(*row) for row in zip(*columns, strict=True)]


def _match(
    con: duckdb.DuckDBPyConnection, legs: Sequence[LegFacts]
) -> tuple[list[Assignment], list[Group]]:
    crowded = needs_parents(legs)
    parents: dict[str, dict[str, str | None]] = defaultdict(dict)
    if crowded:
        _register(con, "crowded_traces", pa.table({"trace_id": pa.array(crowded, pa.string())}))
        for trace_id, span_id, parent in zip(
            *_columns(
                con,
                "select trace_id, span_id, parent_span_id from spans "
                "where trace_id in (select trace_id from crowded_traces)",
            ),
            strict=True,
        ):
            parents[str(trace_id)][str(span_id)] = None if parent is None else str(parent)
    return match(legs, parents)


def _tried_alike(group: Group, settled: tuple[int, int, int | None]) -> bool:
    """Whether a request settled as the attempt that it is: a try before or after it may be late."""
    if (group.attempt, group.superseded_attempt) != settled[:2]:
        return False
    return group.first_start_ns is None or group.first_start_ns == settled[2]


def _keep_keys(
    facts: Sequence[LegFacts], assignments: list[Assignment], groups: list[Group], known: Known
) -> tuple[list[Assignment], list[Group], dict[str, str]]:
    """Requests with a settled leg keep its key; unchanged ones go; lost keys are merged."""
    if not known.key_of_leg:
        return assignments, groups, {}
    trace_of = {leg.leg_id: leg.trace_id for leg in facts}
    legs_of: dict[str, set[str]] = defaultdict(set)
    for row in assignments:
        legs_of[row.request_key].add(row.leg_id)
    settled_of: dict[str, set[str]] = defaultdict(set)
    for leg, key in known.key_of_leg.items():
        settled_of[key].add(leg)
    rename: dict[str, str | None] = {}
    taken: set[str] = set()
    changed: list[tuple[bool, str, list[str]]] = []
    for group in groups:
        legs = legs_of[group.request_key]
        old = sorted({known.key_of_leg[leg] for leg in legs if leg in known.key_of_leg})
        if (
            len(old) == 1
            and all(leg in known.key_of_leg for leg in legs)
            # legs may have gone over to a call that came later
            and not any(leg in trace_of for leg in settled_of[old[0]] - legs)
            # a request that is not here whole (others of its trace were wanted) tells no attempts
            and (
                not settled_of[old[0]] <= trace_of.keys()
                or _tried_alike(group, known.tried.get(old[0], (1, 0, None)))
            )
        ):
            rename[group.request_key] = None
            taken.add(old[0])
        else:
            changed.append((group.request_key not in old, group.request_key, old))
    merged: dict[str, str] = {}
    # a settled request that split (its legs turn out to be two calls) leaves its key to one
    for _, request_key, old in sorted(changed):
        free = [key for key in old if key not in taken]
        key = request_key if request_key in free or not free else free[0]
        rename[request_key] = key
        taken.add(key)
        merged.update((lost, key) for lost in free if lost != key)
    # a call taken for a request that turns out to hold several is a leg of none of them
    assigned = {row.leg_id for row in assignments}
    in_trace = {
        trace_of[leg]: named
        for _, request_key, _ in sorted(changed, reverse=True)
        for leg in legs_of[request_key]
        if (named := rename[request_key]) is not None
    }
    for lost, legs in settled_of.items():
        into = next(
            (in_trace[t] for leg in sorted(legs) if (t := trace_of.get(leg)) in in_trace), None
        )
        if into is not None and not legs & assigned and all(leg in trace_of for leg in legs):
            merged.setdefault(lost, into)
    kept = [
        row._replace(request_key=named)
        for row in assignments
        if (named := rename[row.request_key]) is not None
    ]
    return (
        kept,
        [
            group._replace(request_key=named)
            for group in groups
            if (named := rename[group.request_key]) is not None
        ],
        {lost: into for lost, into in merged.items() if lost not in taken},
    )


def _register(con: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    """A temp table of its own: DuckDB plans better with it and the Arrow memory goes."""
    con.register("incoming", table)
    con.execute(f"create or replace temp table {name} as select * from incoming")
    con.unregister("incoming")


def _assignment_table(rows: Iterable[Assignment]) -> pa.Table:
    rows = list(rows)
    return pa.table(
        {
            "leg_id": pa.array([r.leg_id for r in rows], pa.string()),
            "request_key": pa.array([r.request_key for r in rows], pa.string()),
            "role": pa.array([r.role for r in rows], pa.string()),
            "match_score": pa.array([r.match_score for r in rows], pa.float64()),
        }
    )


def _group_table(groups: Iterable[Group]) -> pa.Table:
    rows = list(groups)
    types = dict.fromkeys(Group._fields, pa.string()) | {
        "attempt": pa.int32(),
        "superseded_attempt": pa.int32(),
        "first_start_ns": pa.int64(),
        "attempt_start_ns": pa.int64(),
        "choices": pa.int32(),
        "legs_count": pa.int32(),
        "match_score": pa.float64(),
        "is_partial": pa.int32(),
    }
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    return pa.table(
        {f: pa.array(column, t) for (f, t), column in zip(types.items(), columns, strict=True)}
    )


def _build_legs(con: duckdb.DuckDBPyConnection, revision: int) -> None:
    columns = ", ".join(
        {
            "request_key": "m.request_key",
            "revision": "$revision::bigint as revision",
            "role": "m.role",
            "match_score": "m.match_score",
            "clock_offset_ns": "0::bigint as clock_offset_ns",
            "date": "null::varchar as date",
        }.get(c.name, f'r."{c.name}"')
        for c in LEGS.columns
    )
    run(
        con,
        f"create or replace temp table legs as select {columns} "
        "from leg_rows as r join leg_request as m on r.leg_id = m.leg_id",
        {"revision": revision},
    )


def _give_clock(con: duckdb.DuckDBPyConnection) -> None:
    """Legs that count from the request's start, beside legs with a clock: put on that clock."""
    moved = ", ".join(f"{b}_unix_ns = {b}_unix_ns + base.at_ns" for b in BOUNDARIES)
    con.execute(
        f"""
        update legs set has_clock = 1, {moved}
        from (
            select request_key, coalesce(
                min(case when role = 'client' then send_unix_ns end),
                min(coalesce(recv_unix_ns, send_unix_ns, queued_unix_ns, scheduled_unix_ns,
                    kv_start_unix_ns, first_token_unix_ns))) as at_ns
            from legs where has_clock = 1 group by request_key
        ) as base
        where legs.request_key = base.request_key and legs.has_clock = 0
            and base.at_ns is not null
        """
    )


def _build_gaps(con: duckdb.DuckDBPyConnection, revision: int) -> None:
    """``token_gaps`` and ``gap_summary`` from the packed chunk strings, richest stream first."""
    best: dict[str, tuple[GapSummary, int]] = {}
    keys, texts, bases = _columns(
        con,
        "select request_key, chunk_times, coalesce(send_unix_ns, recv_unix_ns, 0) from legs "
        "where chunk_times is not null order by request_key, leg_id",
    )
    for key, text, base in zip(keys, texts, bases, strict=True):
        summary = summarize(str(text))
        if summary is None:
            continue
        held = best.get(str(key))
        if held is None or summary.chunk_count > held[0].chunk_count:
            best[str(key)] = (summary, int(base))  # type: ignore[call-overload]
    gaps: dict[str, list[object]] = {c.name: [] for c in TOKEN_GAPS.columns}
    summaries: dict[str, list[object]] = {
        name: []
        for name in ("request_key", "chunk_count", "max_gap_ms", "stall_ms", "tokens_per_chunk")
    }
    for request_key, (summary, send_ns) in best.items():
        summaries["request_key"].append(request_key)
        summaries["chunk_count"].append(summary.chunk_count)
        known = summary.max_gap_us is not None
        summaries["max_gap_ms"].append((summary.max_gap_us or 0) / 1e3 if known else None)
        summaries["stall_ms"].append(summary.stall_us / 1e3 if known else None)
        summaries["tokens_per_chunk"].append(summary.tokens_per_chunk)
        for gap in summary.kept:
            gaps["request_key"].append(request_key)
            gaps["revision"].append(revision)
            gaps["gap_index"].append(gap.index)
            gaps["start_unix_ns"].append(send_ns + gap.start_us * 1000)
            gaps["end_unix_ns"].append(send_ns + gap.end_us * 1000)
            gaps["gap_ms"].append((gap.end_us - gap.start_us) / 1e3)
            gaps["tokens"].append(gap.tokens)
            gaps["is_stall"].append(int(gap.is_stall))
            gaps["excess_ms"].append(gap.excess_us / 1e3)
            gaps["date"].append(None)
    _register(con, "token_gaps", pa.table(gaps, schema=TOKEN_GAPS.schema))
    _register(
        con,
        "gap_summary",
        pa.table(
            summaries,
            schema=pa.schema(
                [
                    ("request_key", pa.string()),
                    ("chunk_count", pa.int64()),
                    ("max_gap_ms", pa.float64()),
                    ("stall_ms", pa.float64()),
                    ("tokens_per_chunk", pa.float64()),
                ]
            ),
        ),
    )


def _build_core(con: duckdb.DuckDBPyConnection) -> None:
    """The relations of ``sql/core`` up to `phases`, each a temp table of its own name."""
    _build(con, "request_points")
    _build(con, "phases_cut")
    told, _ = _told(con)
    if told:
        _build(con, "phase_parts")
    else:
        # most requests never stall, and are told nothing of the inside of their phases: planning
        # these files would cost a small batch more than all its rows
        run(
            con,
            "create or replace temp table phase_parts as "
            "select *, 0::bigint as place, 0::bigint as prio from phases_cut limit 0",
        )
    if one(con, "select count(*) from (from request_points where path = 'sweep' limit 1)")[0]:
        for name in _SWEEP:
            _build(con, name)
    else:
        # nearly all requests have their legs in sequence
        run(con, "create or replace temp table phases_sweep as from phases_cut limit 0")
    if told:
        _build(con, "phases_split")
    else:
        run(
            con,
            "create or replace temp table phases_split as select *, "
            "start_unix_ns as whole_start_unix_ns, end_unix_ns as whole_end_unix_ns "
            "from phases_cut limit 0",
        )


def _told(con: duckdb.DuckDBPyConnection) -> tuple[bool, bool]:
    """Whether anything is known of the inside of phases, and whether when KV cache moved."""
    stretch, moved, stalls = one(
        con,
        """
        select
            bool_or(sub_phase is not null or (scheduled_unix_ns is not null
                and prefill_end_unix_ns is not null and queued_unix_ns is null
                and first_token_unix_ns is null)),
            bool_or(kv_start_src like 'measured %'),
            (select count(*) from (from token_gaps where is_stall = 1 limit 1))
        from legs
        """,
    )
    return bool(stretch or stalls), bool(moved)


def _build(con: duckdb.DuckDBPyConnection, name: str) -> None:
    run(con, f"create or replace temp table {name} as {load('core', name).body}")


def _select(table: str, alias: str, special: Mapping[str, str]) -> str:
    return ", ".join(
        f'{special[c.name]} as "{c.name}"'
        if c.name in special
        else f'{alias}."{c.name}"::{c.type} as "{c.name}"'
        for c in TABLES[table].columns
    )


def _build_phases(con: duckdb.DuckDBPyConnection) -> None:
    columns = _select(PHASES_TABLE.name, "p", {"date": "null::varchar"})
    run(
        con,
        f"create or replace temp table phases as select {columns} "
        f"from (\n{load('core', 'phases').body}\n) as p order by request_key, start_unix_ns",
    )


def _build_requests(
    con: duckdb.DuckDBPyConnection, known: Known, merged: Mapping[str, str], revision: int
) -> None:
    keys = list(known.revision_of_key)
    if keys:
        revisions = pa.array([known.revision_of_key[k] for k in keys], pa.int64())
        _register(
            con,
            "known_requests",
            pa.table({"request_key": pa.array(keys, pa.string()), "revision": revisions}),
        )
    if any(_told(con)):
        _build(con, "request_inside")
    else:
        said = ", ".join(
            f"null::double as {name}"
            for name in load("core", "request_inside").columns
            if name not in ("request_key", "revision")
        )
        run(
            con,
            "create or replace temp table request_inside as "
            f"select request_key, revision, {said} from request_points limit 0",
        )
    columns = _select(
        REQUESTS.name,
        "r",
        {
            "supersedes_revision": "k.revision" if keys else "null::bigint",
            "merged_into": "null::varchar",
            "settled_unix_ns": "null::bigint",
            "date": _DAY.format("coalesce(r.start_unix_ns, r.ingested_unix_ns)"),
        },
    )
    run(
        con,
        f"create or replace temp table requests as select {columns} "
        f"from (\n{load('core', 'requests').body}\n) as r"
        + (" left join known_requests as k on r.request_key = k.request_key" if keys else ""),
    )
    if merged:
        gone = pa.table(
            {
                "request_key": pa.array(list(merged), pa.string()),
                "merged_into": pa.array(list(merged.values()), pa.string()),
                "supersedes_revision": pa.array(
                    [known.revision_of_key[k] for k in merged], pa.int64()
                ),
            }
        )
        _register(con, "merged_requests", gone)
        con.execute(
            f"""
            insert into requests by name
            select m.request_key, {revision}::bigint as revision, m.supersedes_revision,
                m.merged_into, r.has_clock, r.start_unix_ns, r.ingested_unix_ns, r.date
            from merged_requests as m join requests as r on m.merged_into = r.request_key
            """
        )
    for table in ("legs", "phases", "token_gaps"):
        run(
            con,
            f"update {table} set date = r.date from requests as r "
            f"where {table}.request_key = r.request_key and r.merged_into is null",
        )
