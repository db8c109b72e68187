"""The lines of evidence under a finding: plain sentences, each with its numbers.

Owns reading the few supporting relations and putting them into words. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from tracekit.analysis.attribution import Attribution
from tracekit.analysis.diagnosis import KvLoads
from tracekit.analysis.finding_words import FindingWords
from tracekit.analysis.fit import WAITS, Cell, PhaseFit
from tracekit.analysis.inferred import QUICKEST
from tracekit.analysis.rules import Rules
from tracekit.analysis.sentence import NOBODY_NAMED
from tracekit.analysis.slo import GIVEN
from tracekit.analysis.strata import Key, Mostly, finding_strata
from tracekit.analysis.wording import (
    METRIC_WORDS,
    PHASE_WORDS,
    format_about,
    format_ms,
    format_share,
    tokens,
)
from tracekit.words import plural, verb

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Support:
    """What the evidence refers to beyond the finding itself."""

    source: str
    tau: float
    sampled: int
    from_baseline: bool
    calm: frozenset[str]
    errors: Mapping[str, tuple[float, float]]
    transfer_cost: tuple[float, float] | None
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
        return f["idle_ms"] if f is not None and _is_idle(f) else None

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


def support(
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
        transfer_cost=_transfer_cost(model.cells),
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


#: So much slower than at other times is worth saying.
_SLOWER: Final = 0.3


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
                median(e.clock_share) as clock_share, median(e.transfer_share) as transfer_share,
                median(l.missed_tokens) as missed_tokens, median(e.slow_share) as slow_share,
                median(e.own_share) as own_share,
                sum(e.preemptions) as preemptions,
                count(case when e.preemptions > 0 then 1 end) as preempted,
                max(e.worker_preemptions) as worker_preemptions,
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


def lines(
    row: Row,
    words: FindingWords,
    *,
    metric_misses: int,
    workers: Sequence[tuple[str, int]],
    support: Support,
) -> Iterator[str]:
    """The evidence of one row of ``findings``."""
    key = (row["class"], row["phase"], row["cause"], row["metric"])
    few = support.few.get(key)
    value = f"median {METRIC_WORDS[words.metric]} {format_ms(row['value_ms'])}"
    of = f"{row['n']:,} of {plural(metric_misses, 'request')}"
    if support.source == GIVEN:
        limit = f"that {verb(metric_misses, 'misses', 'miss')} the SLO"
    elif few is None:
        limit = "over the 95th percentile of the requests of the same model and route in the window"
    else:
        fewest, most = few
        limit = (
            f"that {verb(metric_misses, 'is', 'are')} among the slowest few of "
            f"{plural(most, 'request') if fewest == most else f'{fewest} to {most} requests'} of a "
            "model and route in the window (too few for a 95th percentile)"
        )
    against = "" if few is not None else f" against {format_ms(row['threshold_ms'])}"
    yield f"{of} {limit}: {value}{against}"
    for m in support.strata.get(key, ()):
        whose = "all of them are"
        if m.share != 1:
            whose = f"{format_share(m.share)} of them are"
        elif row["n"] == 1:
            whose = "it is"
        yield f"{whose} of {m.kind} {m.name}, which has {format_share(m.usual)} of all requests"
    phase = PHASE_WORDS[words.phase]
    yield (
        f"{phase} took {format_ms(words.expected_ms + words.excess_ms)} at the median, "
        f"{format_ms(words.expected_ms)} is expected for the shape of these requests"
    )
    yield from _merged_line(words, support)
    yield from _cause_lines(row, words, support)
    if row["censored"]:
        were = verb(row["censored"], "was", "were")
        yield f"{row['censored']:,} of them {were} killed: their times are lower bounds"
    looked_into, n = row["searched"], row["n"]
    if looked_into < n:
        yield (
            f"the cause was looked for in {looked_into:,} of these requests, drawn at random; "
            "they count for all"
        )
    if len(workers) > 1:
        top, there = workers[0]
        many = round(there * n / looked_into)
        yield f"{len(workers)} workers are affected; {top} has {many:,} of these requests"
    yield _expectation_line(words, support)


def _merged_line(words: FindingWords, support: Support) -> Iterator[str]:
    """What of a merged time is prefill, where the quickest requests of that size tell."""
    rules = support.inferred
    if (
        words.phase != "queue_or_prefill"
        or rules["quick_requests"] is None
        or words.uncached_tokens is None
    ):
        return
    took_ms = words.expected_ms + words.excess_ms
    prefill_ms = rules["quick_fixed_ms"] + rules["quick_token_ms"] * words.uncached_tokens
    if 0 < prefill_ms < took_ms:
        yield (
            f"inferred: at most {format_ms(prefill_ms)} of it is prefill (the quickest "
            f"{format_share(QUICKEST)} of {plural(rules['quick_requests'], 'request')} of that size"
            f" take so long), and about {format_ms(took_ms - prefill_ms)} a wait"
        )


def _cause_lines(row: Row, words: FindingWords, support: Support) -> Iterator[str]:
    if words.recompute_ms is not None and (loads := support.lost_loads) is not None:
        yield (
            f"a load brings {tokens(loads.tokens, 'prompt')} at the median; to compute "
            f"them again takes about {format_ms(words.recompute_ms)}; the break-even is at about "
            f"{format_about(loads.same_time_tokens)} tokens, if a larger load takes no longer"
        )
    if words.is_shape:
        if words.uncached_tokens is not None and words.phase in ("prefill", "queue_or_prefill"):
            size = tokens(words.uncached_tokens, "uncached prompt")
            yield f"these requests have {size} (median)"
            if support.cached_share is not None:
                cached = format_share(support.cached_share)
                yield f"over all requests {cached} of a prompt came from the cache"
        elif words.output_tokens is not None and words.phase == "decode":
            yield f"these requests have {tokens(words.output_tokens, 'output')} (median)"
        elif words.phase == "kv_transfer" and support.transfer_cost is not None:
            fixed_ms, token_ms = support.transfer_cost
            yield (
                f"a transfer takes {format_ms(1e3 * token_ms)} for 1,000 prompt tokens, and "
                f"{format_ms(fixed_ms)} whatever its size"
            )
        return
    total = row["total_excess_ms"]
    facts = support.facts.get((words.phase, words.cause))
    if facts is not None:
        yield from _tested(words.cause, facts)
    if words.cause == "prefill_interference":
        usual = support.usual_overlap.get(words.phase, 0.0)
        yield (
            f"{format_ms(row['cause_ms'])} of {format_ms(total)} lost in {words.phase} lie under "
            "other requests' prefills on the same worker, "
            f"beyond the {format_share(usual)} that ordinary requests overlap"
        )
        if not words.culprits:
            yield NOBODY_NAMED
        sampled = row["searched"] < row["n"]
        whom = f"the {row['searched']:,} looked into" if sampled else "them"
        for c in list(words.culprits)[:3]:
            size = f" ({tokens(c.input_tokens, 'prompt')})" if c.input_tokens else ""
            yield (
                f"{c.request_id}{size} stalled {c.victims:,} of {whom} for "
                f"{format_ms(c.stall_ms)} in all, a lower bound"
            )
    elif words.cause == "slow_worker" and words.worker is not None:
        slow = support.workers.get((words.phase, words.worker))
        if slow is not None:
            yield (
                f"{words.worker} takes {1 + slow['excess_share']:.2f} times the expected "
                f"{words.phase} at the median, its {plural(slow['peers'], 'peer')} "
                f"{1 + slow['peer_excess_share']:.2f} times (n = {slow['n']:,})"
            )
    elif words.cause == "kv_transfer_wait":
        of = f"{format_ms(row['cause_ms'])} of {format_ms(total)} lost in KV transfer are"
        if facts is not None and facts["wire_ms"] is not None:
            wire = format_ms(facts["wire_ms"])
            yield f"{of} waiting: bytes moved for {wire} at the median, the rest of the time not"
        else:
            yield (
                f"{of} waiting on the decode server, an upper bound: nothing tells when bytes moved"
            )
    elif words.cause == "double_prefill":
        yield (
            f"{format_ms(row['cause_ms'])} of {format_ms(total)} lost in prefill are a second "
            "prefill on the decode server, which waited for no KV cache or took none"
        )
    elif words.phase == "queue" and words.cause == "unknown" and support.pressure:
        p = support.pressure[0]
        service = p["service_ratio"]
        at = "" if service is None else f"; service takes {service:.2f} times the expected"
        of = "" if len(support.pressure) == 1 else f" of {p['model']}, the busiest model,"
        yield (
            f"most arrivals{of} wait in {format_share(p['waiting_share'])} of {p['bins']:,} "
            f"slices of time, {plural(round(p['usual_arrivals']), 'arrival')} in a usual one{at}"
        )
    elif words.cause == "client_concurrency":
        yield (
            "the time passed between the intended and the actual sending, before any server saw "
            "the request"
        )


def _slow_everywhere(f: Row) -> bool:
    """Whether workers were slow for a time, none of them more than its peers."""
    own, apart = f["own_share"], f["slow_share"]
    return own is not None and apart is not None and own > _SLOWER and apart < 0.5 * own


def _is_idle(f: Row) -> bool:
    """Whether most of these requests came after an idle time of their worker."""
    return bool(2 * f["idle"] > f["looked_into"])


def _tested(cause: str, f: Row) -> Iterator[str]:
    """What the test for one cause saw, at the median over its requests."""
    if cause in ("unknown", "gpu_asleep") and _is_idle(f):
        yield (
            f"{f['idle']:,} of the {f['looked_into']:,} looked into came after their worker had "
            f"been idle, for {format_ms(f['idle_ms'])} at the median; "
            f"{format_share(f['idle_usual'])} of the ordinary requests came after so long"
        )
    if cause in ("arrival_burst", "capacity") and f["recent"] is not None:
        usual = round(f["usual"])
        yield (
            f"{plural(round(f['recent']), 'request')} came in within "
            f"{format_ms(f['stretch_ns'] / 1e6)} before that; "
            f"{usual:,} {verb(usual, 'is', 'are')} usual"
        )
    elif cause == "unknown" and _slow_everywhere(f):
        yield (
            f"workers took {1 + f['own_share']:.1f} times as long as at other times, all alike: "
            "look at what they share (a deploy, power, the model's storage)"
        )
    elif cause == "router_imbalance" and f["arrivals"] is not None:
        yield (
            f"the worker got {plural(round(f['arrivals']), 'request')} where a peer got "
            f"{f['peer_arrivals']:.0f}; {f['busy']:.1f} were in service on it, "
            f"{f['peer_busy']:.1f} on the least loaded peer"
        )
    elif cause == "kv_capacity" and f["alloc_ms"] is not None and f["full_share"] is None:
        yield (
            f"{format_ms(f['alloc_ms'])} of their queue, at the median, is the wait for KV space "
            "on the decode server"
        )
    elif cause == "kv_capacity" and f["full_share"] is not None:
        known = f["worker_preemptions"] is not None
        many = round(f["worker_preemptions"]) if known else 0
        preempted = f"; up to {plural(many, 'preemption')}" if known else ""
        yield (
            f"the KV cache was {format_share(f['kv_usage'] or 0.0)} full on average and at its "
            f"limit in {format_share(f['full_share'])} of the samples{preempted}"
        )
    elif cause == "cache_miss" and f["missed_tokens"] is not None:
        yield (
            f"{tokens(f['missed_tokens'], 'prompt')} of each were due from the cache "
            "(computed there before, or what requests of its route usually get), and were computed"
        )
    elif cause in ("gpu_throttled", "gpu_asleep") and f["clock_share"] is not None:
        yield f"its clock ran at {format_share(f['clock_share'])} of what such GPUs reach"
    elif cause == "kv_transfer_bandwidth":
        if f["wire_ms"] is not None:
            yield f"bytes moved for {format_ms(f['wire_ms'])} at the median: the time is the wire's"
        if f["transfer_share"] is not None:
            yield f"transfers ran at {format_share(f['transfer_share'])} of their usual bandwidth"
    elif cause == "preemption":
        if f["preempted"]:
            yield (
                f"{f['preempted']:,} of these requests were preempted, "
                f"{f['preemptions']:,.0f} preemptions in all"
            )
        elif f["worker_preemptions"]:
            yield f"their worker preempted {f['worker_preemptions']:.0f} requests meanwhile"
    elif cause == "slow_worker" and f["slow_share"] is not None:
        yield (
            f"at equal shape and load the worker took {format_share(f['slow_share'])} longer than "
            "its peers in the same stretch of time"
        )


def _expectation_line(words: FindingWords, support: Support) -> str:
    n, error = support.errors.get(words.phase, (0.0, 0.0))
    if words.phase in WAITS and not support.from_baseline:
        return (
            f"expected = the wait when nothing waits (the shortest of {n:,.0f} requests of this "
            "traffic)"
        )
    where = "the baseline window" if support.from_baseline else "this traffic"
    what = "median" if support.from_baseline else f"{support.tau * 100:.0f}th percentile"
    if words.phase in support.calm:
        where, what = "this traffic's quickest stretch of time", "median"
    return (
        f"expected = the {what} for the shape, fitted on {n:,.0f} requests of {where}; "
        f"half of them lie within {format_share(error)} of it"
    )
