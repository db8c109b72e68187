"""Verdicts as rows: one a slow request and metric, with its culprits (``tracekit verdicts``).

Owns the row's shape and the lines of evidence that put its numbers into words. The verdicts
themselves are SQL (``sql/attribution/verdicts.sql``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tracekit.analysis.rules import Rules
from tracekit.analysis.sentence import NOBODY_NAMED
from tracekit.analysis.slo import GIVEN
from tracekit.analysis.wording import format_ms
from tracekit.words import plural

if TYPE_CHECKING:
    from tracekit.analysis.session import Session

#: Columns of one row, in order. ``request_key`` is the store's id of the request.
VERDICT_COLUMNS: Final = (
    "request_key",
    "request_id",
    "trace_id",
    "metric",
    "class",
    "phase",
    "cause",
    "excess_ms",
    "expected_ms",
    "confidence",
    "confidence_label",
    "culprit_request_ids",
    "worker",
)

#: Of very many losses a sample is looked into for the cause: `unsearched` are the others.
_NO_CAUSE: Final = ("unknown", "unsearched")

#: Why the data carry no blame, by the column `reason` of `verdicts`.
REASONS: Final[dict[str, str]] = {
    "excess": "one phase took clearly longer than the request's shape explains",
    "shape": "the request's size explains its time",
    "spread": "the excess is spread over several phases",
    "usual": (
        "it took longer than its size explains, but such losses are too few, too scattered over "
        "time and workers, or too much what the load of their time explains, to tell a fault from "
        "chance"
    ),
    "ordinary": "no phase took longer than its ordinary variation allows",
    "loose": (
        "its size may explain its time, but what such requests should take is known too loosely"
    ),
    "coverage": "too much of its time is covered by no boundary",
    "clock": (
        "its KV transfer is shorter than the difference of the hosts' clocks is known, so it may "
        "be nothing at all"
    ),
    "size": "its token counts are not known, so what it should take is not either",
    "reach": (
        "it is far larger than the requests that the expectation was fitted on, so what it should "
        "take is not known"
    ),
    "phases": "none of its phases could be compared with an expectation",
    "rows": "too few requests to say what is ordinary",
}


def list_verdicts(session: Session, *, last: int | None = None) -> Iterator[dict[str, Any]]:
    """Rows with VERDICT_COLUMNS and what led to them, the largest excess first.

    Wants `attribution.define_attribution` called before. Also in each row: ``reason``,
    ``value_ms``, ``threshold_ms``, ``threshold_level``, ``threshold_n`` (how many requests the
    limit is a percentile of), ``censored``, ``runner_up``, ``cause_ms``.
    """
    yield from _verdict_rows(session, "", {}, last)


def request_verdicts(session: Session, request_key: str) -> list[dict[str, Any]]:
    """The verdicts of one request, the one with the largest excess first; none if not slow."""
    rows = _verdict_rows(session, "where v.request_key = $key", {"key": request_key}, None)
    return list(rows)


#: Of those who stalled a request, the ones worth naming.
_NAMED: Final = """
    select i.* from interference as i cross join attribution_rules as p
    qualify stall_ms >= p.min_stall_ms and stall_ms >= p.min_stall_share
        * max(stall_ms) over (partition by request_key, phase)
"""


def _verdict_rows(
    session: Session, where: str, params: dict[str, Any], last: int | None
) -> Iterator[dict[str, Any]]:
    query = f"""
        select v.* exclude (culprit_request_id, model, route), s.threshold_level,
            case v.metric when 'ttft' then t.ttft_n when 'tpot' then t.tpot_n else t.e2e_n end
                as threshold_n,
            coalesce(c.ids, []) as culprit_request_ids
        from verdicts as v
        left join slow_requests as s on s.request_key = v.request_key and s.metric = v.metric
        left join slow_thresholds as t on t.model = v.model and t.route = v.route
        left join (
            select request_key, phase,
                list(coalesce(culprit_request_id, culprit_key)
                    order by stall_ms desc, culprit_key) as ids
            from ({_NAMED}) group by request_key, phase
        ) as c on c.request_key = v.request_key and c.phase = v.phase
            and v.cause = 'prefill_interference'
        {where}
        order by v.excess_ms desc nulls last, v.value_ms / v.threshold_ms desc, v.request_key,
            v.metric
        {"" if last is None else f"limit {int(last)}"}
    """
    relation = session.con.sql(query, params=params) if params else session.con.sql(query)
    for batch in relation.to_arrow_reader(4_096):
        for row in batch.to_pylist():
            yield {name: row[name] for name in VERDICT_COLUMNS} | {
                name: value for name, value in row.items() if name not in VERDICT_COLUMNS
            }


def evidence(session: Session, verdict: Mapping[str, Any]) -> list[str]:
    """What one verdict rests on, a line each."""
    lines = [_against_limit(verdict)]
    excess, expected = verdict["excess_ms"], verdict["expected_ms"]
    if verdict["phase"] and excess is not None and expected is not None:
        lines.append(
            f"{verdict['phase']} took {format_ms(expected + excess)}; "
            f"{format_ms(expected)} is what this request's shape should take"
        )
    if verdict["cause_ms"] is not None and verdict["cause"] not in _NO_CAUSE:
        lines.append(f"{verdict['cause']} explains {format_ms(verdict['cause_ms'])} of the excess")
    if verdict["cause"] == "unsearched":
        lines.append("its cause was not looked for: of very many losses a sample is looked into")
    if verdict["culprit_request_ids"]:
        lines.extend(_culprit_lines(session, verdict))
    elif verdict["cause"] == "prefill_interference":
        lines.append(NOBODY_NAMED)
    if verdict["runner_up"]:
        lines.append(f"the second largest excess is in {verdict['runner_up']}")
    if verdict["reason"] == "shape" and verdict["class"] == "insufficient_evidence":
        lines.append("the request's size may explain its time, which is not sure")
    elif verdict["reason"] in REASONS:
        lines.append(REASONS[verdict["reason"]])
    return lines


#: Whose 95th percentile a request is slow against where no SLO is given, by level.
_OF: Final[dict[str, str]] = {
    "route": "of the same model and route",
    "model": "of the same model",
    "all": "of all models",
}
#: Below this many a 95th percentile is only a large value: it is not told.
_MIN_P95_ROWS: Final = Rules().min_p95_rows


def _against_limit(verdict: Mapping[str, Any]) -> str:
    whose, n = _OF.get(verdict["threshold_level"]), verdict["threshold_n"]
    at_least = "at least " if verdict["censored"] else ""
    value = f"{verdict['metric'].upper()} {at_least}{format_ms(verdict['value_ms'])}"
    if whose is not None and n is not None and n < _MIN_P95_ROWS:
        return (
            f"{value}, among the slowest few of {plural(n, 'request')} {whose} in the window (too "
            "few for a 95th percentile)"
        )
    limit = f"the 95th percentile of the requests {whose} in the window"
    if whose is None:
        limit = "the SLO" if verdict["threshold_level"] == GIVEN else "the limit"
    return (
        f"{value}, {format_ms(verdict['value_ms'] - verdict['threshold_ms'])} over "
        f"{format_ms(verdict['threshold_ms'])}, {limit}"
    )


def _culprit_lines(session: Session, verdict: Mapping[str, Any]) -> Iterator[str]:
    rows = session.frame(
        f"""
        select coalesce(culprit_request_id, culprit_key) as id, culprit_input_tokens as tokens,
            stall_ms
        from ({_NAMED}) where request_key = $key and phase = $phase
        order by stall_ms desc, culprit_key limit 3
        """,
        {"key": verdict["request_key"], "phase": verdict["phase"]},
    )
    for row in rows.iter_rows(named=True):
        size = "" if row["tokens"] is None else f" ({plural(row['tokens'], 'prompt token')})"
        yield f"stalled {format_ms(row['stall_ms'])} by the prefill of {row['id']}{size}"
