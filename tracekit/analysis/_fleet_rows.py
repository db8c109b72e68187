"""The rows behind `tracekit.analysis.fleet`: the window's misses, and those of its baseline.

Owns the draws. The baseline's rows come from the same files of ``sql/attribution``: a name in WITH
hides the relation of that name, so other requests and limits only take the place of the window's.
What the rows mean together is the business of `fleet`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb

from tracekit.analysis import sqlfiles
from tracekit.analysis._arrow import Columns, columns_of
from tracekit.names import SLO_METRICS

#: A model and a route.
Stratum = tuple[str, str]
#: metric → stratum → how many
Counted = Mapping[str, Mapping[Stratum, int]]


@dataclass(frozen=True)
class Baseline:
    """The baseline's misses under the limits of the window, as rows of ``fleet_misses``.

    ``per`` counts the requests of the baseline that have a metric, ``times`` those of the window.
    """

    misses: Columns
    per: Counted
    times: Counted


def count_misses(con: duckdb.DuckDBPyConnection) -> dict[str, dict[Stratum, int]]:
    """How many violations there are; metrics without any are absent."""
    out: dict[str, dict[Stratum, int]] = {}
    query = "select metric, model, route, count(*) from slow_requests group by all order by all"
    for metric, model, route, n in con.execute(query).fetchall():
        out.setdefault(metric, {})[model, route] = n
    return out


def draw_ordinary(con: duckdb.DuckDBPyConnection) -> Columns:
    """Completed requests of the window that are over no limit: model, route, the metrics in ms.

    Leaves what is ordinary for their phases as ``_fleet_ranges`` (see ``fleet_ranges``).
    """
    con.execute(
        """
        create or replace temp table _fleet_ordinary as
        select * from drawn_facts as d
        where completed = 1 and not exists (
            select 1 from slow_requests as s where s.request_key = d.request_key)
        """
    )
    hidden = {"request_facts": "_fleet_ordinary", "request_costs": "drawn_costs"}
    ranges = _with(hidden, ("excess",), "fleet_ranges")
    con.execute(f"create or replace temp table _fleet_ranges as {ranges}")
    columns = ", ".join(f"{m}_ms as {m}" for m in SLO_METRICS)
    query = f"select model, route, {columns} from _fleet_ordinary order by request_key"
    return columns_of(con.sql(query))


def draw_misses(con: duckdb.DuckDBPyConnection) -> Columns:
    """``fleet_misses`` of every violation that is judged.

    Needs the ranges that `draw_ordinary` leaves.
    """
    hidden = {"slow_requests": "judged", "fleet_ranges": "_fleet_ranges"}
    query = f"{_with(hidden, (), 'fleet_misses')} order by metric, slow_id"
    return columns_of(con.sql(query))


def draw_baseline(con: duckdb.DuckDBPyConnection) -> Baseline:
    """The requests of ``baseline_facts`` under the limits of the window."""
    con.execute(
        """
        create or replace temp table _fleet_baseline as
        select f.* from baseline_facts as f
        join slow_thresholds as t on f.model = t.model and f.route = t.route
        where f.ttft_ms > t.ttft_ms or f.tpot_ms > t.tpot_ms or f.e2e_ms > t.e2e_ms
        """
    )
    hidden = {"request_facts": "_fleet_baseline", "fleet_ranges": "_fleet_ranges"}
    through = ("slow_requests", "request_costs", "excess", "slow_phases")
    return Baseline(
        columns_of(con.sql(f"{_with(hidden, through, 'fleet_misses')} order by metric, slow_id")),
        _count_requests(con, "baseline_facts"),
        _count_requests(con, "request_facts"),
    )


def _count_requests(con: duckdb.DuckDBPyConnection, relation: str) -> Counted:
    """The usable requests that have each metric."""
    counts = ", ".join(f"count({m}_ms)" for m in SLO_METRICS)
    out: dict[str, dict[Stratum, int]] = {m: {} for m in SLO_METRICS}
    for model, route, *numbers in con.execute(
        f"select model, route, {counts} from {relation} where completed + censored > 0 "
        "group by model, route"
    ).fetchall():
        for metric, n in zip(SLO_METRICS, numbers, strict=True):
            out[metric][model, route] = n
    return out


def _with(hidden: Mapping[str, str], through: Sequence[str], name: str) -> str:
    """The query of file ``name``, read ``through`` others, with other rows as ``hidden``."""
    given = [f"{n} as not materialized (select * from {other})" for n, other in hidden.items()]
    given += [f"{n} as ({sqlfiles.load('attribution', n).body})" for n in through]
    body = sqlfiles.load("attribution", name).body
    return f"with {', '.join(given)} select * from ({body})"
