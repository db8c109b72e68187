"""Defines the relations of ``sql/attribution`` on a connection, in order.

Owns the order, and the relations that Python hands to SQL between the files (the cost model, the
confidence, the suspects). Reads ``window_requests``, ``requests``, ``phases`` and ``token_gaps``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import duckdb
import pyarrow as pa

from tracekit.analysis import causes, load, sqlfiles
from tracekit.analysis._drawn import draw_costs, draw_requests, drawn_part, is_drawn
from tracekit.analysis._duck import one, put, replace
from tracekit.analysis.cache import NOTHING_DUE, cache_due, usual_hits
from tracekit.analysis.confidence import winner_confidence
from tracekit.analysis.fit import CostModel, fit_cost_model
from tracekit.analysis.idle import after_idle
from tracekit.analysis.inferred import inferred_rules
from tracekit.analysis.judged import draw_judged
from tracekit.analysis.outstanding import outstanding
from tracekit.analysis.prefixes import Prefixes, read_prefixes
from tracekit.analysis.rules import Rules
from tracekit.analysis.slo import Slo
from tracekit.analysis.speculation import speculation
from tracekit.analysis.told_by_cause import add_long_culprits, add_told, prompt_kinds
from tracekit.analysis.window import Window
from tracekit.errors import UsageError

#: The files of ``sql/attribution`` in load order; each reads only those before it.
ATTRIBUTION: Final[tuple[str, ...]] = (
    "request_facts",
    "request_costs",
    "excess",
    "expected",
    "slow_thresholds",
    "slow_requests",
    "slow_phases",
    "winners",
    "marked_requests",
    "stall_phases",
    "suspect_intervals",
    "worker_prefills",
    "overlap_segments",
    "suspect_overlaps",
    "overlap_pairs",
    "stalls_explained",
    "long_culprits",
    "load_bins",
    "load_usual",
    "suspect_load",
    "interference",
    "peer_load",
    "arrival_slices",
    "demand",
    "pressure_usual",
    "pressure_bins",
    "suspect_pressure",
    "cache_losses",
    "coincidences",
    "cause_evidence",
    "causes",
    "standing",
    "worker_residuals",
    "arrival_bins",
    "queue_pressure",
    "judgements",
    "findings",
    "finding_culprits",
    "finding_workers",
    "finding_strata",
    "outcomes",
    "metric_percentiles",
    "phase_totals",
    "goodput",
    "field_coverage",
    "verdicts",
    "cache_savings",
    "kv_loads",
    "inferred_parts",
    "over_limit",
    "fleet_ranges",
    "fleet_misses",
)

#: Computed for every request on demand; everything else is computed once and kept.
_VIEWS: Final = frozenset(
    {
        "request_costs",
        "excess",
        "expected",
        "cache_savings",
        "kv_loads",
        "inferred_parts",
        "verdicts",
        "findings",
        "finding_culprits",
        "finding_workers",
        "finding_strata",
        "outcomes",
        "metric_percentiles",
        "phase_totals",
        "goodput",
        "field_coverage",
        "fleet_ranges",
        "fleet_misses",
    }
)

#: Requests whose facts are kept in memory: 0.4 GiB a million.
_KEPT_MAX: Final = 2_000_000

#: Where the facts look up what hashes say was due.
_BY_KEY: Final = "on w.request_key = d.request_key"

#: Views that no other file reads, and no diagnosis: for who asks afterwards.
_FOR_READERS: Final = (
    "expected",
    "verdicts",
    "cache_savings",
    "kv_loads",
    "inferred_parts",
    "fleet_ranges",
    "fleet_misses",
)


@dataclass(frozen=True)
class Attribution:
    """What was defined: the limits, the gates and the fitted model behind the relations."""

    slo: Slo
    rules: Rules
    cost_model: CostModel
    baseline: Window | None
    prefixes: Prefixes = field(repr=False)


def define_attribution(
    con: duckdb.DuckDBPyConnection,
    slo: Slo,
    *,
    baseline: Window | None = None,
    rules: Rules | None = None,
    judged_max: int | None = None,
    suspects_max: int = causes.SUSPECTS_MAX,
    include: str | None = None,
    for_readers: bool = True,
) -> Attribution:
    """Define (or define anew) every relation of ATTRIBUTION as temporary tables and views.

    ``baseline`` names a window of ``requests`` that was healthy: expectations are then its medians
    instead of the low quantile of the window itself. UsageError if it holds too few requests.
    Of more than ``judged_max`` violations a sample gets a verdict, and of more than
    ``suspects_max`` losses a sample is looked into for the cause; ``include`` is the key of a
    request that is in both in any case. Not ``for_readers``: without the views that only somebody
    who queries the connection afterwards would read.
    """
    rules = rules or Rules()
    prefixes = read_prefixes(con)
    model = define_winners(
        con,
        slo,
        rules,
        prefixes=prefixes,
        baseline=baseline,
        judged_max=judged_max,
        include=include,
    )
    healthy = "baseline_facts" if baseline is not None else None
    drawn = drawn_part(_count_requests(con))
    put(con, "outstanding", outstanding(con, rules, baseline=healthy, drawn=drawn))
    put(con, "prompt_kinds", prompt_kinds(con, rules))
    put(con, "suspect_requests", causes.suspect_requests(con, at_most=suspects_max, also=include))
    _define_load(con)
    _define_all(con, "marked_requests", "worker_prefills")
    rules_row, bins = causes.overlap_bins(con)
    put(con, "overlap_rules", rules_row)
    put(con, "bins", bins)
    _define_all(con, "overlap_segments", "long_culprits")
    add_long_culprits(con, rules)
    _define_all(con, "load_bins", "demand")
    _define_samples(con)
    _define_all(con, "pressure_usual", "coincidences")
    for name, rows in zip(
        ("contention", "worker_slices", "slice_rules"), load.service(con), strict=True
    ):
        put(con, name, rows)
    put(con, "transfer_costs", load.transfer_costs(con))
    put(con, "after_idle", after_idle(con, rules))
    _define_all(con, "cause_evidence", "causes")
    add_told(con, rules)
    _define_all(con, "standing", "standing")
    put(con, "inferred_rules", inferred_rules(con))
    put(con, "winner_confidence", winner_confidence(con, model, rules))
    # ranks what requests usually do: the drawn ones tell it
    _define_of(con, "worker_residuals", {"request_costs": "select * from drawn_costs"})
    _define_all(con, "arrival_bins", "field_coverage")
    _define_over_limit(con)
    if for_readers:
        for name in _FOR_READERS:
            _define(con, name)
    return Attribution(slo, rules, model, baseline, prefixes)


def define_winners(
    con: duckdb.DuckDBPyConnection,
    slo: Slo,
    rules: Rules,
    *,
    prefixes: Prefixes,
    baseline: Window | None = None,
    judged_max: int | None = None,
    include: str | None = None,
) -> CostModel:
    """The first half of `define_attribution`: what each phase should have taken, which requests
    are slow, and by which phase (``winners``). Returns the fitted model.
    """
    _spare_checkpoints(con)
    put(con, "slo", slo.to_arrow())
    put(con, "attribution_rules", rules.to_arrow())
    rows = _count_requests(con)
    hashed = cache_due(prefixes)
    _put_due(con, "cache_due", hashed)
    _put_due(con, "usual_hits", usual_hits(con, drawn_of=rows if rows > _KEPT_MAX else None))
    put(con, "speculation", speculation(con, baseline=baseline))
    _define_facts(con, rows, are_hashed=hashed.num_rows > 0)
    _define_limits(con, rows)
    _define_slow(con, rows, judged_max=judged_max, include=include)
    kept = "request_facts" if rows <= _KEPT_MAX else _keep_some(con, rows)
    draw_requests(con, rows, kept)
    reference = "request_facts"
    if baseline is not None:
        reference = _define_baseline(con, baseline, min_rows=rules.min_rows)
    model = fit_cost_model(
        con, reference=reference, baseline=baseline is not None, size_reach=rules.size_reach
    )
    put(con, "cost_model", model.to_arrow())
    draw_costs(con)
    _define_all(con, "request_costs", "excess")
    _define_phases(con, kept)
    return model


def _count_requests(con: duckdb.DuckDBPyConnection) -> int:
    # of a cheap column: to count rows of a union DuckDB reads its first one, the keys
    (rows,) = one(con, "select count(coalesce(start_unix_ns, 0)) from window_requests")
    return int(rows)


def _define_all(con: duckdb.DuckDBPyConnection, first: str, last: str) -> None:
    """Define the files from one to another, in load order."""
    for name in ATTRIBUTION[ATTRIBUTION.index(first) : ATTRIBUTION.index(last) + 1]:
        _define(con, name)


def _define_load(con: duckdb.DuckDBPyConnection) -> None:
    rules_row, times = load.time_slices(con)
    put(con, "load_rules", rules_row)
    put(con, "time_bins", times)
    arrivals = causes.arrival_rules(con)
    put(con, "arrival_rules", arrivals)
    put(con, "arrival_times", load.arrival_times(con, arrivals["slice_ns"][0].as_py()))


def _define_samples(con: duckdb.DuckDBPyConnection) -> None:
    """``worker_samples`` and its slices; empty where the connection has no raw samples."""
    put(con, "worker_samples", load.worker_samples(con))
    rules_row, times = load.pressure_slices(con)
    put(con, "pressure_rules", rules_row)
    put(con, "pressure_times", times)


def _spare_checkpoints(con: duckdb.DuckDBPyConnection) -> None:
    """Keep DuckDB from compressing tables that live for one diagnosis.

    It checkpoints a database in memory whenever 16 MB have been written, which rewrites every
    table there: 2 CPU s over a million requests. A locked connection keeps its setting.
    """
    ((locked,),) = con.execute("select current_setting('lock_configuration')").fetchall()
    if not locked:
        con.execute("set checkpoint_threshold = '1TB'")


def _define(con: duckdb.DuckDBPyConnection, name: str) -> None:
    kind = "view" if name in _VIEWS else "table"
    body = sqlfiles.load("attribution", name).body
    con.execute(f"create or replace temp {kind} {name} as {body}")


def _put_due(con: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    """Make `rows` the relation ``name``: where there are none a view, which costs no join."""
    replace(con, name, f"view {name} as {NOTHING_DUE[name]}")
    if rows.num_rows:
        con.execute(f"drop view {name}")
        put(con, name, rows)


def _define_facts(con: duckdb.DuckDBPyConnection, rows: int, *, are_hashed: bool) -> None:
    """``request_facts``: kept, unless so many rows would take more memory than a diagnosis may.

    Read anew by each statement that asks them, they cost about as much CPU. ``are_hashed``:
    ``cache_due`` has rows.
    """
    kind = "table" if rows <= _KEPT_MAX else "view"
    body = sqlfiles.load("attribution", "request_facts").body
    if kind == "view" and not are_hashed:
        # reading all keys is a quarter of the work, and DuckDB sees too late that none will match
        body = body.replace(_BY_KEY, f"{_BY_KEY} and 1 = 0")
    replace(con, "request_facts", f"{kind} request_facts as {body}")


def _facts_of(
    con: duckdb.DuckDBPyConnection, name: str, query: str, *, with_due: bool = False
) -> str:
    """SQL of the facts of some of the window's rows: those of ``query``, the view ``name``.

    Very many rows are sorted out before their facts are worked out, not afterwards. Without the
    cache hits that were due where nobody asks for those.
    """
    con.execute(f"create or replace temp view {name} as {query}")
    body = sqlfiles.load("attribution", "request_facts").body
    given = {"window_requests": f"select * from {name}"} | ({} if with_due else NOTHING_DUE)
    hidden = ", ".join(f"{n} as not materialized ({rows})" for n, rows in given.items())
    return f"with {hidden} select * from ({body})"


def _define_limits(con: duckdb.DuckDBPyConnection, rows: int) -> None:
    """``slow_thresholds``."""
    if rows <= _KEPT_MAX:
        _define(con, "slow_thresholds")
    else:
        # whose the values are does not matter, and reading the keys is a quarter of the work
        query = "select * replace (cast(null as varchar) as request_key) from window_requests"
        _define_of(
            con, "slow_thresholds", {"request_facts": _facts_of(con, "nameless_requests", query)}
        )


def _define_slow(
    con: duckdb.DuckDBPyConnection, rows: int, *, judged_max: int | None, include: str | None
) -> None:
    """``slow_requests``, and which of them are judged."""
    if rows <= _KEPT_MAX:
        _define(con, "slow_requests")
    else:
        # over none of the limits is what is under the lowest of each; what is not told may be over
        facts = _facts_of(
            con,
            "near_limits",
            """
            select w.* from window_requests as w
            cross join (
                select coalesce(min(ttft_ms), 'infinity') as ttft_ms,
                    coalesce(min(tpot_ms), 'infinity') as tpot_ms,
                    coalesce(min(e2e_ms), 'infinity') as e2e_ms
                from slow_thresholds
            ) as t
            where (w.ttft_ms <= t.ttft_ms and w.tpot_ms <= t.tpot_ms and w.e2e_ms <= t.e2e_ms)
                is not true
            """,
        )
        _define_of(con, "slow_requests", {"request_facts": facts})
    draw_judged(con, at_most=judged_max, also=include)


def _keep_some(con: duckdb.DuckDBPyConnection, rows: int) -> str:
    """The facts of requests that are judged and of those that are drawn, of very many.

    Returns the name of the table.
    """
    facts = _facts_of(
        con,
        "kept_requests",
        "select * from window_requests "
        f"where {is_drawn(rows)} or request_key in (select request_key from judged)",
        with_due=True,
    )
    con.execute(f"create or replace temp table kept_facts as {facts}")
    return "kept_facts"


def _define_phases(con: duckdb.DuckDBPyConnection, kept: str) -> None:
    """``slow_phases`` and ``winners`` of the requests that are judged.

    The files say the same over all of ``request_facts``; this only spares the cost of every
    request's expectation. ``kept`` has at least the facts of who is judged.
    """
    judged = {"slow_requests": "select * from judged"}
    costs = {n: sqlfiles.load("attribution", n).body for n in ("request_costs", "excess")}
    _define_of(con, "slow_phases", judged | _judged_facts(kept) | costs)
    _define_of(con, "winners", judged)


def _define_over_limit(con: duckdb.DuckDBPyConnection) -> None:
    """``over_limit``, with the inferred parts of the requests that are judged and no others."""
    kept = "request_facts" if _count_requests(con) <= _KEPT_MAX else "kept_facts"
    parts = {n: sqlfiles.load("attribution", n).body for n in ("request_costs", "inferred_parts")}
    _define_of(con, "over_limit", _judged_facts(kept) | parts)


def _judged_facts(kept: str) -> dict[str, str]:
    """The facts of requests that are judged, out of ``kept``, for `_define_of`."""
    # qualified: inside WITH the bare name is the relation that is being made
    facts = f"""
        select * from temp.{kept}
        where request_key in (select request_key from judged)
    """
    return {"request_facts": facts}


def _define_of(con: duckdb.DuckDBPyConnection, name: str, given: Mapping[str, str]) -> None:
    """Define a file's table over other rows: a name in WITH hides the relation of that name."""
    hidden = ", ".join(f"{n} as not materialized ({query})" for n, query in given.items())
    body = sqlfiles.load("attribution", name).body
    con.execute(f"create or replace temp table {name} as with {hidden} select * from ({body})")


def _define_baseline(con: duckdb.DuckDBPyConnection, baseline: Window, *, min_rows: int) -> str:
    low = baseline.since_unix_ns if baseline.since_unix_ns is not None else -(2**63)
    high = baseline.until_unix_ns if baseline.until_unix_ns is not None else 2**63 - 1
    healthy = (
        "select * from requests "
        f"where start_unix_ns >= {low} and start_unix_ns < {high} and merged_into is null"
    )
    # what is usual in the window says nothing of what was due to who is not in it
    inside = "request_key in (select request_key from window_requests)"
    within = _facts_of(con, "healthy_within", f"{healthy} and {inside}", with_due=True)
    apart = _facts_of(con, "healthy_apart", f"{healthy} and not {inside}")
    con.execute(
        "create or replace temp table baseline_facts as "
        f"select * from ({within}) union all select * from ({apart})"
    )
    ((rows,),) = con.execute("select count(*) from baseline_facts where completed = 1").fetchall()
    if rows < min_rows:
        raise UsageError(
            f"the baseline window ({baseline.text}) holds {rows or 'no'} completed "
            f"request{'' if rows == 1 else 's'}; {min_rows} are needed to say what is ordinary"
        )
    return "baseline_facts"
