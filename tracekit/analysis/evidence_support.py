"""What the evidence of findings refers to beyond the findings themselves, read once.

Owns reading the few supporting relations; `evidence` puts them into words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import numpy as np

from tracekit.analysis._arrow import numpy_column
from tracekit.analysis.attribution import Attribution
from tracekit.analysis.diagnosis import KvLoads
from tracekit.analysis.fit import Cell, PhaseFit
from tracekit.analysis.quantile import quantile_fit
from tracekit.analysis.rules import Rules
from tracekit.analysis.strata import Key, Mostly, finding_strata

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Waits:
    """Medians of what is told of requests in a queue; None where most of them tell nothing.

    ``kv_usage`` [1] of their worker's KV cache meanwhile, ``full_share`` [1] of its samples that
    found it full, ``alloc_ms`` the part of the queue that waited for a decode server's KV space.
    """

    kv_usage: float | None
    full_share: float | None
    alloc_ms: float | None

    def has_memory(self, rules: Rules) -> bool:
        """Whether the KV cache had room all the time: then they waited for a slot."""
        return (
            self.kv_usage is not None
            and self.full_share is not None
            and self.kv_usage < rules.filled_kv
            and self.full_share < rules.full_share
        )


@dataclass(frozen=True)
class Support:
    """What the evidence refers to beyond the finding itself."""

    source: str
    tau: float
    sampled: int
    from_baseline: bool
    calm: frozenset[str]
    errors: Mapping[str, tuple[float, float]]
    #: of KV transfers as expected, and with a baseline as they are in this window: ms whatever the
    #: size, ms a prompt token
    transfer_cost: tuple[float, float] | None
    transfer_here: tuple[float, float] | None
    inferred: Row
    usual_overlap: Mapping[str, float]
    workers: Mapping[tuple[str, str], Row]
    pressure: Sequence[Row]
    cached_share: float | None
    gaps_known: bool
    facts: Mapping[tuple[str, str], Row]
    strata: Mapping[Key, Sequence[Mostly]]
    #: of how many requests the limits are the slowest few, where a 95th percentile needs more
    few: Mapping[Key, tuple[int, int]]
    lost_loads: KvLoads | None = None
    hits_believed: bool = True

    def idle_ms(self, phase: str, cause: str) -> float | None:
        """How long nothing ran before most of these requests [ms]; None if that is nothing."""
        f = self.facts.get((phase, cause))
        return f["idle_ms"] if f is not None and is_idle(f) else None

    def waits(self, phase: str, cause: str) -> Waits | None:
        """What is told of a queue whose cause is open; None of other phases and causes."""
        f = self.facts.get((phase, cause))
        if phase != "queue" or cause != "unknown" or f is None:
            return None
        told = 2 * f["kv_told"] > f["looked_into"]
        return Waits(
            kv_usage=f["kv_usage"] if told else None,
            full_share=f["full_share"] if told else None,
            alloc_ms=f["alloc_ms"] if 2 * f["alloc_told"] > f["looked_into"] else None,
        )

    def prefill_at_most_ms(self, row: Row) -> float | None:
        """Of a finding's merged time, what the quickest of that size tell of its prefill [ms].

        Inferred; None where nothing tells, or where that is all of it.
        """
        tokens = row["uncached_tokens"]
        if row["phase"] != "queue_or_prefill" or tokens is None or not self.hits_believed:
            return None
        if self.inferred["quick_requests"] is None:
            return None
        most = float(self.inferred["quick_fixed_ms"] + self.inferred["quick_token_ms"] * tokens)
        return most if 0 < most < row["expected_ms"] + row["excess_ms"] else None

    @property
    def recompute_ms(self) -> float | None:
        """What a load's tokens take to compute [ms], where loading them takes longer."""
        loads = self.lost_loads
        return None if loads is None else 1e3 * loads.recompute_s / loads.n

    def waits_last(self, rules: Rules) -> bool:
        """Whether waiting is the rule and service is normal, for the model with most arrivals."""
        if not self.pressure:
            return False
        p = self.pressure[0]
        service = p["service_ratio"]
        return (
            p["bins"] >= rules.min_bins
            and p["waiting_share"] >= rules.lasting_share
            and (service is None or service <= rules.max_service_ratio)
        )


def read_support(
    con: duckdb.DuckDBPyConnection,
    attribution: Attribution,
    fields: Row,
    *,
    lost_loads: KvLoads | None = None,
    hits_believed: bool = True,
) -> Support:
    """Read the small relations behind the evidence once; ``fields`` is ``field_coverage``.

    Where reported hits cannot be, they are not believed, nor what is left of a prompt without them.
    """
    model = attribution.cost_model
    overlap = con.execute(
        "select phase, avg(usual_share) as share from suspect_overlaps group by phase"
    ).fetchall()
    slow = con.sql("select * from worker_residuals where is_slow = 1").to_arrow_table().to_pylist()
    pressure = con.sql(
        "select * from queue_pressure order by bins * usual_arrivals desc, model"
    ).to_arrow_table()
    return Support(
        source=attribution.slo.source,
        tau=model.tau,
        sampled=model.rows,
        from_baseline=attribution.baseline is not None,
        calm=frozenset(p for cell in model.cells for p, fit in cell.fits.items() if fit.is_calm),
        errors=fitted(model.cells),
        transfer_cost=(cost := _transfer_cost(model.cells)),
        transfer_here=_transfers_here(con) if attribution.baseline and cost else None,
        inferred=con.sql("select * from inferred_rules").to_arrow_table().to_pylist()[0],
        usual_overlap=dict(overlap),
        workers={(r["phase"], r["worker"]): r for r in slow},
        pressure=pressure.to_pylist(),
        cached_share=fields["cached_share"],
        gaps_known=2 * fields["with_gaps"] >= fields["n"] > 0,
        facts={(r["phase"], r["cause"]): r for r in _facts(con)},
        strata=finding_strata(con, attribution.rules),
        few=_few(con, attribution.rules),
        lost_loads=lost_loads,
        hits_believed=hits_believed,
    )


def _transfer_cost(cells: Sequence[Cell]) -> tuple[float, float] | None:
    """(ms whatever the size, ms a prompt token) of KV transfers, where all are fitted alike."""
    found = {
        (fit.coefficients[0], fit.coefficients[1])
        for cell in cells
        if not cell.kv_per_byte and (fit := cell.fits.get("kv_transfer")) is not None
    }
    return next(iter(found)) if len(found) == 1 else None


#: Transfers needed to say what they take, and how many times the small sizes the large ones are.
_TRANSFERS_MIN: Final = 30
_SPREAD_MIN: Final = 1.5


def _transfers_here(con: duckdb.DuckDBPyConnection) -> tuple[float, float] | None:
    """(ms whatever the size, ms a prompt token) of this window's transfers, at the median."""
    rows = con.sql(
        "select input_tokens, kv_transfer_ms from drawn_facts"
        " where completed = 1 and kv_transfer_ms > 0 and input_tokens > 0"
    ).to_arrow_table()
    tokens, took_ms = (numpy_column(rows[i]).astype(np.float64) for i in (0, 1))
    if len(tokens) < _TRANSFERS_MIN:
        return None
    small, large = np.percentile(tokens, (10, 90))
    if large < _SPREAD_MIN * small:
        return None
    features = np.column_stack([np.ones(len(tokens)), tokens])
    try:
        fixed_ms, token_ms = quantile_fit(features, took_ms, tau=0.5)
    except ArithmeticError:
        return None
    return float(fixed_ms), float(token_ms)


def _few(con: duckdb.DuckDBPyConnection, rules: Rules) -> dict[Key, tuple[int, int]]:
    """Findings most of whose limits are percentiles of too few: of how few, at least and most."""
    rows = con.execute(
        """
        with limits as (
            select f.*, case f.metric when 'ttft' then t.ttft_n when 'tpot' then t.tpot_n
                else t.e2e_n end as limit_n
            from finding_strata as f
            join slow_thresholds as t on t.model = f.model and t.route = f.route
        )
        select class, phase, cause, metric,
            min(limit_n) as fewest, max(limit_n) filter (where limit_n < $needed) as most
        from limits group by class, phase, cause, metric
        having 2 * coalesce(sum(n) filter (where limit_n < $needed), 0) > sum(n)
        """,
        {"needed": rules.min_p95_rows},
    ).fetchall()
    return {(c, p, cause, m): (int(low), int(high)) for c, p, cause, m, low, high in rows}


def fitted(cells: Iterable[Cell]) -> dict[str, tuple[float, float]]:
    """By phase how many requests its expectation was fitted on, and how far half lie from it [1].

    A pool holds the requests of its cells again, and of those whose own fit it is not: either all
    cells with a fit of their own say how many there are, or the largest pool alone.
    """
    fits: dict[str, list[PhaseFit]] = {}
    for cell in cells:
        for phase, fit in cell.fits.items():
            fits.setdefault(phase, []).append(fit)
    out: dict[str, tuple[float, float]] = {}
    for phase, found in fits.items():
        own = [f for f in found if f.level == "cell"]
        n = float(sum(f.n for f in own))
        error = sum(f.n * f.error for f in own) / n if n else 0.0
        pools = [f for f in found if f.level != "cell"]
        pool = max(pools, key=lambda f: f.n, default=None)
        out[phase] = (n, error) if pool is None or pool.n <= n else (float(pool.n), pool.error)
    return out


def is_idle(f: Row) -> bool:
    """Whether most of these requests came after an idle time of their worker."""
    return bool(2 * f["idle"] > f["looked_into"])


def _facts(con: duckdb.DuckDBPyConnection) -> list[Row]:
    """Medians of what the cause tests looked at, per phase and cause."""
    rows: list[Row] = (
        con.sql(
            """
            select c.phase, c.cause, median(d.usual) as usual, median(d.recent) as recent,
                median(d.stretch_ns) as stretch_ns, median(e.arrivals) as arrivals,
                median(e.peer_arrivals) as peer_arrivals, median(e.busy) as busy,
                median(e.peer_busy) as peer_busy, median(e.full_share) as full_share,
                median(e.kv_usage) as kv_usage,
                median(e.wire_ms) as wire_ms, median(e.alloc_ms) as alloc_ms,
                max(c.is_decode_servers) as is_decode_servers,
                median(e.clock_share) as clock_share, median(e.transfer_share) as transfer_share,
                median(l.missed_tokens) as missed_tokens, median(e.slow_share) as slow_share,
                median(e.own_share) as own_share,
                sum(e.preemptions) as preemptions,
                count(case when e.preemptions > 0 then 1 end) as preempted,
                max(e.worker_preemptions) as worker_preemptions,
                count(e.full_share) as kv_told, count(e.alloc_ms) as alloc_told,
                count(*) as looked_into, count(e.idle_ms) as idle, median(e.idle_ms) as idle_ms,
                max(i.usual_share) as idle_usual
            from causes as c join cause_evidence as e on c.suspect_id = e.suspect_id
            left join demand as d on c.suspect_id = d.suspect_id
            left join cache_losses as l on c.request_key = l.request_key
            left join after_idle as i on c.suspect_id = i.suspect_id
            group by c.phase, c.cause
            """
        )
        .to_arrow_table()
        .to_pylist()
    )
    return rows
