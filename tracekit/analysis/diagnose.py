"""Composes the diagnosis: runs the relations of ``sql/attribution`` and gathers what they say.

Owns the composition. The method is in the SQL and in `tracekit.analysis.fit`, the words in
`tracekit.analysis.sentence`, the shape in `tracekit.analysis.diagnosis`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import duckdb

from tracekit.analysis import evidence
from tracekit.analysis._duck import defined
from tracekit.analysis.attribution import Attribution, define_attribution
from tracekit.analysis.diagnosis import (
    Culprit,
    Diagnosis,
    Finding,
    Goodput,
    Misses,
    Percentiles,
    PhaseTotal,
    RequestCounts,
    SloInfo,
    VersionPace,
    WindowInfo,
)
from tracekit.analysis.evidence_support import Support, read_support
from tracekit.analysis.finding_words import FindingWords, action_for
from tracekit.analysis.fleet import Fleet, measure_fleet
from tracekit.analysis.given_up import given_up
from tracekit.analysis.judged import JUDGED_MAX
from tracekit.analysis.missing import Beyond, healthy_window, missing_evidence
from tracekit.analysis.over_limit import over_limits, requests_with_metric
from tracekit.analysis.prefixes import prefix_reuse
from tracekit.analysis.ranking import Row, order_findings
from tracekit.analysis.rules import Rules, enough
from tracekit.analysis.savings import cache_work
from tracekit.analysis.sentence import SHAPE_CAUSES, diagnosis_sentence, finding_sentence
from tracekit.analysis.slo import GIVEN, Slo
from tracekit.analysis.speculation import chunk_pace
from tracekit.analysis.swapped import set_aside
from tracekit.analysis.timeless import with_times
from tracekit.analysis.versions import of_findings, version_paces
from tracekit.analysis.window import ALL, Window, format_time
from tracekit.lake.duck import stand_back
from tracekit.names import SLO_METRICS
from tracekit.words import plural

if TYPE_CHECKING:
    from tracekit.analysis.session import Session

#: Culprits and workers named in one finding.
_NAMED: Final = 5

#: Where so much of the misses is without a finding, a healthy window would say more.
_MOSTLY: Final = 0.5

#: A limit that was given, or that there were requests enough to set.
_ANY_LIMIT: Final = """
    select 1 from slow_thresholds
    where coalesce(ttft_ms, tpot_ms, e2e_ms) is not null limit 1
"""

#: What is lost, or long, before the first token of requests that are prefilled apart.
_APART: Final = """
    select distinct j.phase, j.cause, j.metric
    from judgements as j join request_facts as f on j.request_key = f.request_key
    where j.phase in ('prefill', 'queue_or_prefill') and f.topology = 'disaggregated'
"""


def diagnose(
    session: Session,
    slo: Slo | None = None,
    *,
    baseline: Window | None = None,
    rules: Rules | None = None,
    for_readers: bool = True,
) -> Diagnosis:
    """Why the requests of the session's window are slow.

    ``slo`` gives the limits; without one, slow is the slowest 5 % of each (model, route).
    ``baseline`` is a window that was healthy: expectations come from it. Leaves the relations of
    ``sql/attribution`` defined on ``session.con``, all of them if ``for_readers``.
    """
    stand_back(session.con)
    return diagnose_connection(
        session.con,
        slo or Slo(),
        window=session.window,
        baseline=baseline,
        rules=rules,
        for_readers=for_readers,
    )


def diagnose_connection(
    con: duckdb.DuckDBPyConnection,
    slo: Slo,
    *,
    window: Window = ALL,
    baseline: Window | None = None,
    rules: Rules | None = None,
    for_readers: bool = True,
) -> Diagnosis:
    """`diagnose` on a connection with window_requests, requests, phases and token_gaps."""
    attribution = define_attribution(
        con,
        slo,
        baseline=baseline,
        rules=rules,
        judged_max=JUDGED_MAX,
        for_readers=for_readers,
    )
    outcomes = _rows(con, "select * from outcomes")
    counts = _counts(outcomes)
    misses = _misses(con)
    slo_info = SloInfo(**slo.to_json())
    fleet = measure_fleet(con, attribution.rules, baseline=baseline is not None)
    fields = _rows(con, "select * from field_coverage")[0]
    # without limits every metric has its slowest 5 %, and nobody asks of how many
    with_metric = requests_with_metric(con) if slo.source == GIVEN else {}
    cache = cache_work(con, completed=counts.completed)
    reuse = prefix_reuse(con, attribution.prefixes)
    impossible = reuse is not None and reuse.is_impossible
    paces = version_paces(con, attribution.cost_model.cells)
    support = read_support(
        con,
        attribution,
        fields,
        lost_loads=cache.lost_of(fields),
        hits_believed=not impossible,
    )
    findings = fleet.with_placebo(
        _findings(
            con,
            attribution,
            misses,
            fields,
            fleet=fleet,
            slower=of_findings(con, paces),
            support=support,
            requests=with_metric,
        )
    )
    waits = support.waits("queue", "unknown")
    is_open = any(f.phase == "queue" and f.cause == "unknown" for f in findings) and not (
        waits is not None and waits.has_memory(attribution.rules)
    )
    reasons = {r["reason"]: int(r["n"]) for r in _abstentions(con)}
    unexplained = _unexplained_share(con, misses)
    swapped = (*attribution.cost_model.swapped, *set_aside(con, counts.quarantined))
    missing = missing_evidence(
        fields,
        completed=counts.completed,
        reasons=reasons,
        queue_cause_open=is_open,
        waits=waits,
        metrics_stored=is_open and _metrics_lie_elsewhere(con),
        cells=attribution.cost_model.cells,
        reuse=reuse,
        clocks_wanted=_clocks_wanted(con),
        beyond=_beyond(con) if reasons.get("reach") else None,
        swapped=swapped,
        rules=attribution.rules,
    )
    missing = with_times(missing, counts, min_rows=attribution.rules.min_rows)
    if (
        baseline is None
        and misses.total
        and counts.completed >= attribution.rules.min_rows
        and (
            not findings
            or (unexplained or 0.0) >= _MOSTLY
            or findings[0].cause in SHAPE_CAUSES
            or (slo.source != GIVEN and findings[0].n < attribution.rules.min_told_rows)
        )
    ):
        missing = (*missing, healthy_window(limits_given=slo.source == GIVEN))
    early = given_up(
        con,
        misses,
        unexplained_share=unexplained,
        slow="requests that miss the SLO" if slo.source == GIVEN else "slow requests",
    )
    if early is not None:
        missing = (early, *missing)
    over = (
        over_limits(
            con,
            misses,
            requests=with_metric,
            completed=counts.completed,
            engine=fields["engine"],
            from_baseline=baseline is not None,
            rules=attribution.rules,
        )
        # phases in each other's place hold nobody's time
        if slo.source == GIVEN and not swapped
        else ()
    )
    starts = [r["first_unix_ns"] for r in outcomes if r["first_unix_ns"] is not None]
    ends = [r["last_unix_ns"] for r in outcomes if r["last_unix_ns"] is not None]
    return Diagnosis(
        window=WindowInfo(
            text=window.text,
            since_unix_ns=window.since_unix_ns,
            until_unix_ns=window.until_unix_ns,
            first_unix_ns=min(starts, default=None),
            last_unix_ns=max(ends, default=None),
        ),
        slo=slo_info,
        requests=counts,
        percentiles=_percentiles(con, attribution.rules),
        chunks=chunk_pace(con, min_rows=attribution.rules.min_rows),
        goodput=_goodput(con) if slo.source == GIVEN else None,
        coverage=_coverage(outcomes),
        phases=_phases(con),
        prefix_cache=None if impossible else cache.saved,
        kv_loads=cache.loads,
        prefix_reuse=reuse,
        engine_versions=paces,
        misses=misses,
        findings=findings,
        over_limit=over,
        fleet=fleet.shares,
        fleet_totals=fleet.totals,
        unexplained_share=unexplained,
        unexplained_reasons=reasons,
        missing_evidence=missing,
        sentence=diagnosis_sentence(
            findings=findings,
            requests=counts,
            slo=slo_info,
            misses=misses.total,
            unexplained_share=unexplained,
            reasons=reasons,
            missing=missing,
            min_rows=attribution.rules.min_rows,
            window_text=window.text,
            elsewhere=_elsewhere(con) if counts.total == 0 else None,
            limits_known=bool(_rows(con, _ANY_LIMIT)),
            known_from_baseline=any(t.reference == "baseline" for t in fleet.totals),
            over_limit=over,
            min_told_rows=attribution.rules.min_told_rows,
        ),
    )


def _elsewhere(con: duckdb.DuckDBPyConnection) -> str | None:
    """Where the requests are that an empty window missed; None if the store holds none."""
    ((n, first, last, models),) = con.execute(
        "select count(*), min(start_unix_ns), max(start_unix_ns), "
        "list(distinct model order by model) from requests"
    ).fetchall()
    if not n:
        return None
    when = ""
    if first is not None:
        when = f", from {format_time(first)} to {format_time(last)}"
    named = ", ".join(m for m in models[:5] if m)
    return f"the store holds {plural(n, 'request')}{when}" + (
        f" (models: {named})" if named else ""
    )


def _clocks_wanted(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether slow requests came after an idle time, and no sample says what slept."""
    wanted = (
        "select 1 from cause_evidence where idle_ms is not null and clock_share is null limit 1"
    )
    return bool(con.execute(wanted).fetchall())


def _metrics_lie_elsewhere(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether metrics are stored that may tell KV usage, but not of these requests' workers.

    An engine whose metrics are there and have none (llama.cpp) needs no other ones.
    """
    if not defined(con, ("metric_samples", "worker_metrics")):
        return False
    if not _rows(con, "select 1 from metric_samples limit 1"):
        return False
    without = """
        select m.worker
        from worker_metrics as m
        where m.scope = 'engine'
            and m.worker in (select unnest([worker, prefill_worker]) from request_facts)
        group by m.worker
        having max(case when m.field = 'kv_usage' then 1 else 0 end) = 0
    """
    return not _rows(con, f"{without} limit 1")


def _beyond(con: duckdb.DuckDBPyConnection) -> Beyond | None:
    """The phase and cell in which the unjudged requests too large for the fit spent most."""
    found = con.execute(
        "select s.phase, s.cell_index, count(distinct s.request_key) "
        "from slow_phases as s join winners as w on s.slow_id = w.slow_id "
        "where s.is_beyond = 1 and w.reason = 'reach' group by s.phase, s.cell_index "
        "order by sum(s.actual_ms) desc, s.phase, s.cell_index limit 1"
    ).fetchall()
    return Beyond(*found[0]) if found else None


def _rows(con: duckdb.DuckDBPyConnection, query: str) -> list[Row]:
    rows: list[Row] = con.sql(query).to_arrow_table().to_pylist()
    return rows


def _counts(outcomes: Sequence[Row]) -> RequestCounts:
    by_status: dict[str, int] = {}
    quarantined: dict[str, int] = {}
    superseded = 0
    for row in outcomes:
        n = int(row["requests"])
        if row["quarantine_reason"] is not None:
            reason = str(row["quarantine_reason"])
            quarantined[reason] = quarantined.get(reason, 0) + n
        elif row["superseded_attempt"]:
            superseded += n
        else:
            by_status[row["status"]] = by_status.get(row["status"], 0) + n
    return RequestCounts(
        total=sum(int(r["requests"]) for r in outcomes),
        completed=by_status.get("ok", 0),
        aborted=by_status.get("aborted", 0),
        errored=by_status.get("error", 0),
        timeout=by_status.get("timeout", 0),
        open=by_status.get("open", 0),
        superseded=superseded,
        quarantined=dict(sorted(quarantined.items())),
        without_clock=sum(int(r["without_clock"]) for r in outcomes),
    )


def _coverage(outcomes: Sequence[Row]) -> float | None:
    used = [
        r
        for r in outcomes
        if r["status"] == "ok" and r["quarantine_reason"] is None and not r["superseded_attempt"]
    ]
    wall = sum(r["wall_ms"] or 0.0 for r in used)
    return 1 - sum(r["unexplained_ms"] or 0.0 for r in used) / wall if wall > 0 else None


def _percentiles(con: duckdb.DuckDBPyConnection, rules: Rules) -> dict[str, Percentiles]:
    min_rows = {"p50": rules.min_rows, "p95": rules.min_p95_rows, "p99": rules.min_p99_rows}
    rows = {r["metric"]: r for r in _rows(con, "select * from metric_percentiles")}
    kinds = _rows(
        con,
        "select ttft_kind as kind, count(*) as n from request_facts "
        "where completed = 1 and ttft_kind is not null group by ttft_kind order by n desc, kind",
    )
    made = {
        name: Percentiles(row["p50"], row["p95"], row["p99"], int(row["n"]), kind)
        for name, row, kind in (
            ("ttft_ms", rows["ttft_ms"], ", ".join(k["kind"] for k in kinds) or None),
            ("ttfa_ms", rows["ttfa_ms"], None),
            ("tpot_ms", rows["tpot_ms"], None),
            ("itl_ms", *_itl(con, rows["tpot_ms"], min_rows)),
            ("e2e_ms", rows["e2e_ms"], None),
        )
    }
    return made


def _itl(con: duckdb.DuckDBPyConnection, tpot: Row, min_rows: Mapping[str, int]) -> tuple[Row, str]:
    """Percentiles of ITL, and how it was come by.

    Single gaps are kept only where they stand out: what is known is each request's mean, and of
    requests that have the times of their chunks alone (elsewhere that figure is TPOT and no more).
    """
    ((n,),) = con.execute(
        "select count(tpot_ms) from request_facts where completed = 1 and max_gap_ms is not null"
    ).fetchall()
    if n == 0:
        return {"p50": None, "p95": None, "p99": None, "n": 0}, "unknown: no chunk times"
    kind = "mean of each request"
    if n == tpot["n"]:
        return tpot, kind
    (row,) = _rows(
        con,
        "select percentile_cont(0.5) within group (order by tpot_ms) as p50, "
        "percentile_cont(0.95) within group (order by tpot_ms) as p95, "
        "percentile_cont(0.99) within group (order by tpot_ms) as p99 "
        "from request_facts where completed = 1 and max_gap_ms is not null",
    )
    known = {p: value if n >= min_rows[p] else None for p, value in row.items()}
    return {**known, "n": n}, f"{kind} with chunk times"


def _goodput(con: duckdb.DuckDBPyConnection) -> Goodput:
    (row,) = _rows(con, "select * from goodput")
    n, good, span = int(row["n"]), row["good"] or 0, row["span_s"]
    return Goodput(
        share=good / n if n else None, requests_per_s=good / span if span and n else None, n=n
    )


def _phases(con: duckdb.DuckDBPyConnection) -> tuple[PhaseTotal, ...]:
    rows = _rows(con, "select * from phase_totals where n > 0 order by phase_order")
    return tuple(
        PhaseTotal(r["phase"], r["seconds"], r["share"] or 0.0, r["p50_ms"], r["p95_ms"])
        for r in rows
        if r["seconds"] > 0 or r["phase"] != "unexplained"
    )


def _misses(con: duckdb.DuckDBPyConnection) -> Misses:
    by_metric = {
        r["metric"]: int(r["n"])
        for r in _rows(con, "select metric, count(*) as n from slow_requests group by metric")
    }
    ((total,),) = con.execute("select count(distinct request_key) from slow_requests").fetchall()
    ((judged,),) = con.execute("select count(*) from judged").fetchall()
    ordered = {m: by_metric[m] for m in SLO_METRICS if m in by_metric}
    return Misses(total, ordered, violations=sum(ordered.values()), judged=judged)


def _abstentions(con: duckdb.DuckDBPyConnection) -> list[Row]:
    return _rows(
        con,
        "select reason, count(*) as n from judgements "
        "where class not in ('attributed', 'request_shape') "
        "group by reason order by n desc, reason",
    )


def _unexplained_share(con: duckdb.DuckDBPyConnection, misses: Misses) -> float | None:
    abstained = sum(r["n"] for r in _abstentions(con))
    return abstained / misses.judged if misses.judged else None


def _findings(
    con: duckdb.DuckDBPyConnection,
    attribution: Attribution,
    misses: Misses,
    fields: Row,
    *,
    fleet: Fleet,
    slower: Mapping[tuple[str, str, str], VersionPace],
    support: Support,
    requests: Mapping[str, int],
) -> tuple[Finding, ...]:
    rows = _rows(con, "select * from findings")
    if not rows:
        return ()
    culprits = _culprits(con)
    workers = _workers(con)
    most_miss = {m for m, n in requests.items() if 2 * misses.by_metric.get(m, 0) > n}
    apart = {(r["phase"], r["cause"], r["metric"]) for r in _rows(con, _APART)}

    for row in rows:
        key = (row["phase"], row["cause"], row["metric"])
        row["slower_version"] = slower.get(key) if row["class"] == "request_shape" else None

    order_findings(rows, fleet, limits_given=attribution.slo.source == GIVEN)
    return tuple(
        _finding(
            row,
            attribution,
            misses.by_metric[row["metric"]],
            culprits.get((row["phase"], row["metric"]), ())
            if row["cause"] == "prefill_interference"
            else (),
            workers.get(tuple(row[k] for k in ("class", "phase", "cause", "metric")), ()),
            support,
            disaggregated=(row["phase"], row["cause"], row["metric"]) in apart,
            engine=fields["engine"],
            most_miss=row["metric"] in most_miss,
        )
        for row in rows
    )


def _finding(
    row: Row,
    attribution: Attribution,
    metric_misses: int,
    culprits: Sequence[Culprit],
    workers: Sequence[tuple[str, int]],
    support: Support,
    *,
    disaggregated: bool,
    engine: str | None,
    most_miss: bool,
) -> Finding:
    rules = attribution.rules
    confidence = float(row["confidence"])
    if attribution.slo.source != GIVEN:
        # somebody is always the slowest: of a few less can be said than of each
        confidence = min(confidence, enough(row["n"], row["n"]))
    if _is_stray(row, rules):
        confidence = min(confidence, rules.limited)
    label = (
        "high" if confidence >= rules.high else "likely" if confidence >= rules.likely else "mixed"
    )
    waits = support.waits(row["phase"], row["cause"])
    words = FindingWords(
        phase=row["phase"],
        cause=row["cause"],
        metric=row["metric"],
        is_shape=row["class"] == "request_shape",
        excess_ms=row["excess_ms"],
        expected_ms=row["expected_ms"],
        uncached_tokens=row["uncached_tokens"] if support.hits_believed else None,
        output_tokens=row["output_tokens"],
        worker=workers[0][0] if workers else None,
        culprits=culprits,
        waits_last=support.waits_last(rules),
        gaps_known=support.gaps_known,
        disaggregated=disaggregated,
        recompute_ms=support.recompute_ms if row["phase"] == "kv_transfer" else None,
        slower_version=row["slower_version"],
        idle_ms=support.idle_ms(row["phase"], row["cause"]),
        engine=engine,
        room_at_kv_usage=waits.kv_usage if waits and waits.has_memory(rules) else None,
        is_not_for_decode_kv=waits is not None and waits.alloc_ms is not None,
        from_baseline=support.from_baseline,
        most_miss=most_miss,
        prefill_at_most_ms=support.prefill_at_most_ms(row),
    )
    share = float(row["share_of_misses"])
    return Finding(
        phase=row["phase"],
        cause=row["cause"],
        metric=row["metric"],
        share_of_misses=share,
        placebo_share=None,
        excess_ms=row["excess_ms"],
        expected_ms=row["expected_ms"],
        # what is as slow as its size lost nothing
        lost_s=0.0 if row["class"] == "request_shape" else row["total_excess_ms"] / 1_000.0,
        minor=row["minor"],
        confidence=confidence,
        confidence_label=label,
        n=int(row["n"]),
        workers=tuple(w for w, _ in workers[:_NAMED]),
        culprits=tuple(culprits[:_NAMED]),
        evidence=(
            *evidence.lines(
                row, words, metric_misses=metric_misses, workers=workers, support=support
            ),
            *((_STRAY,) if _is_stray(row, rules) else ()),
        ),
        action=action_for(words),
        sentence=finding_sentence(
            words,
            share=share,
            n=int(row["n"]),
            looked_into=int(row["searched"]),
            confidence=confidence,
            label=label,
            source=attribution.slo.source,
        ),
    )


#: What a finding of so few says, too.
_STRAY: Final = "so few of the slow requests may have been slow by chance"


def _is_stray(row: Row, rules: Rules) -> bool:
    """True for a few of many slow requests: their phase is sure, not that it is a fault."""
    return (
        row["class"] == "attributed"
        and int(row["n"]) < rules.stray_rows
        and float(row["share_of_misses"]) < rules.stray_share
    )


def _culprits(con: duckdb.DuckDBPyConnection) -> Mapping[tuple[str, str], tuple[Culprit, ...]]:
    rows = _rows(
        con,
        f"""
        select phase, metric, coalesce(request_id, culprit_key) as request_id, input_tokens,
            victims, stall_ms
        from finding_culprits cross join attribution_rules as p
        qualify row_number() over (
            partition by phase, metric order by stall_ms desc, culprit_key) <= {_NAMED}
            and stall_ms >= p.min_stall_ms and stall_ms >= p.min_stall_share
                * max(stall_ms) over (partition by phase, metric)
        order by phase, metric, stall_ms desc, culprit_key
        """,
    )
    out: dict[tuple[str, str], tuple[Culprit, ...]] = {}
    for r in rows:
        culprit = Culprit(r["request_id"], r["input_tokens"], int(r["victims"]), r["stall_ms"])
        key = (r["phase"], r["metric"])
        out[key] = (*out.get(key, ()), culprit)
    return out


def _workers(
    con: duckdb.DuckDBPyConnection,
) -> Mapping[tuple[Any, ...], tuple[tuple[str, int], ...]]:
    rows = _rows(con, "select * from finding_workers order by n desc, worker")
    out: dict[tuple[Any, ...], tuple[tuple[str, int], ...]] = {}
    for r in rows:
        key = (r["class"], r["phase"], r["cause"], r["metric"])
        out[key] = (*out.get(key, ()), (r["worker"], int(r["n"])))
    return out
