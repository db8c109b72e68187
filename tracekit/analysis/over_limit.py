"""Misses of a given limit that no finding accounts for: which phase holds their time.

A limit is an absolute bar. Where most of a window is over it, the window does not tell what is
ordinary, and no excess can be judged; that a phase alone takes longer than the whole limit can.
Owns that reading (``sql/attribution/over_limit.sql``), how sure it is, and its words. Says nothing
of a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import duckdb

from tracekit.analysis.diagnosis import Misses, OverLimit
from tracekit.analysis.finding_words import unknown_action
from tracekit.analysis.rules import Rules, enough
from tracekit.analysis.wording import METRIC_WORDS, PHASE_WORDS, format_confidence, format_ms
from tracekit.names import SLO_METRICS
from tracekit.words import plural, verb

#: Said of a metric if no finding accounts for this share [1] of its misses.
_UNFOUND: Final = 0.5
#: A phase is named if it alone is over the limit in this share [1] of the misses.
_MOST: Final = 0.5


def over_limits(
    con: duckdb.DuckDBPyConnection,
    misses: Misses,
    *,
    requests: Mapping[str, int],
    completed: int,
    engine: str | None,
    from_baseline: bool,
    rules: Rules,
) -> tuple[OverLimit, ...]:
    """One for each given limit whose misses are mostly without a finding.

    ``requests``: `requests_with_metric`; ``engine``: the serving engine if all have the same. Reads
    the relations that `define_attribution` left on ``con``.
    """
    if not misses.total:
        return ()
    rows = con.sql("select * from over_limit").to_arrow_table().to_pylist()
    found = dict(
        con.execute(
            "select metric, count(*) filter (class in ('attributed', 'request_shape')) / count(*)"
            " from judgements group by metric"
        ).fetchall()
    )
    out = []
    for metric, n in misses.by_metric.items():
        if 1 - found.get(metric, 0.0) < _UNFOUND:
            continue
        held = [r for r in rows if r["metric"] == metric]
        top = max(held, key=lambda r: (r["alone"], r["n"]), default=None)
        if top is not None and top["alone"] < _MOST * top["misses"]:
            top = None
        out.append(
            _said(
                metric,
                limit_ms=_limit_ms(con, metric),
                misses=n,
                requests=requests[metric],
                top=top,
                completed=completed,
                engine=engine,
                from_baseline=from_baseline,
                rules=rules,
            )
        )
    return tuple(out)


def _limit_ms(con: duckdb.DuckDBPyConnection, metric: str) -> float:
    ((limit,),) = con.execute(f"select {metric}_ms from slo").fetchall()
    return float(limit)


def requests_with_metric(con: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Per metric the requests that have it, or were killed with so much of it."""
    (row,) = con.execute(
        "select count(ttft_ms), count(tpot_ms), count(e2e_ms) from request_facts "
        "where completed + censored > 0"
    ).fetchall()
    return dict(zip(SLO_METRICS, row, strict=True))


def _said(
    metric: str,
    *,
    limit_ms: float,
    misses: int,
    requests: int,
    top: Mapping[str, Any] | None,
    completed: int,
    engine: str | None,
    from_baseline: bool,
    rules: Rules,
) -> OverLimit:
    word = METRIC_WORDS[metric]
    sentence = (
        f"{misses:,} of {plural(requests, 'request')} {verb(misses, 'misses', 'miss')} the {word} "
        f"SLO ({format_ms(limit_ms)})"
    )
    few = completed < rules.min_rows
    phase = confidence = label = waited = prefill = None
    if top is not None:
        phase = str(top["phase"])
        confidence = enough(top["alone"], top["misses"])
        if phase == "queue_or_prefill":
            confidence = min(confidence, rules.limited)
        if few:
            # half of `min_rows` and all of them alike are not yet a rule
            confidence = min(confidence, rules.likely - 0.01)
        label = (
            "high"
            if confidence >= rules.high
            else "likely"
            if confidence >= rules.likely
            else "low"
        )
        share = (
            f"in {top['alone']:,} of them"
            if top["misses"] == misses
            else f"in {top['alone']:,} of the {top['misses']:,} looked into"
        )
        sentence += (
            f": {PHASE_WORDS[phase]} alone takes longer than that {share} "
            f"({format_ms(top['phase_ms'])} at the median; confidence in the phase {label} "
            f"({format_confidence(confidence)}))"
        )
        if top["waited_ms"] is not None and top["waited_ms"] > 0:
            waited, prefill = float(top["waited_ms"]), float(top["prefill_ms"])
            sentence += (
                f"; inferred from the quickest of their size: at least {format_ms(waited)} of that "
                f"is waiting, at most {format_ms(prefill)} prefill"
            )
        elif phase == "queue_or_prefill" and top["apart"]:
            sentence += (
                "; prefill and decode are apart, so a KV transfer may be in it where nothing tells "
                "when the prefill was done"
            )
    return OverLimit(
        metric=metric,
        limit_ms=limit_ms,
        requests=requests,
        misses=misses,
        phase=phase,
        alone=0 if top is None else int(top["alone"]),
        phase_ms=None if top is None else float(top["phase_ms"]),
        waited_ms=waited,
        prefill_ms=prefill,
        confidence=confidence,
        confidence_label=label,
        sentence=f"{sentence}; {_why_not(completed, few, from_baseline, rules)}",
        action=_action(phase, waited, top, engine, from_baseline),
    )


def _why_not(completed: int, few: bool, from_baseline: bool, rules: Rules) -> str:
    """Why this is no finding."""
    if few:
        return (
            f"what is ordinary is not known from {plural(completed, 'completed request')} "
            f"({rules.min_rows} are needed)"
        )
    if from_baseline:
        return "what the baseline shows is no shorter, or does not tell why"
    return "whether that is more than ordinary here, this window alone does not tell"


def _action(
    phase: str | None,
    waited_ms: float | None,
    top: Mapping[str, Any] | None,
    engine: str | None,
    from_baseline: bool,
) -> str:
    """What tells most next: what they wait for, or what is ordinary."""
    healthy = "name a healthy window with --baseline"
    waits = phase == "queue" or (
        top is not None and waited_ms is not None and 2 * waited_ms >= top["phase_ms"]
    )
    if waits:
        look = unknown_action("queue", engine)
        return look if from_baseline else f"{look}; or {healthy}"
    if phase is None or phase in ("prefill", "decode"):
        seen = "look at single ones with `tracekit show`"
        return seen if from_baseline else f"{healthy}, to tell their size from a fault; or {seen}"
    return unknown_action(phase, engine)
