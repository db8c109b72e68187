"""The words of "what would vanish", the same in the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tracekit.analysis.slo import GIVEN
from tracekit.report import formats, texts
from tracekit.words import verb

if TYPE_CHECKING:
    from tracekit.analysis.diagnosis import Diagnosis, Finding, FleetShare, FleetTotal

HEADING: Final = "What would vanish"
COLUMNS: Final = ("metric", "phase", "would vanish", "alone", "slow", "mostly")
RIGHT: Final = ("alone", "slow")

_ROWS: Final = 5
#: A share that is not worth a row.
_SMALL: Final = 0.01
_COLUMNS: Final = (
    "alone: the share that would not be slow had this phase alone taken what is expected; would "
    "vanish: the phase's part of what all of them spare, which add up; what several phases spare "
    "only together, or each of them would, is divided among them, so a part may be larger or "
    "smaller than alone; slow: those that miss the SLO, or the slowest without one"
)
_LOWER_BOUND: Final = (
    "a lower bound: less time in one phase also shortens others' queues, which is not counted"
)
_REFERENCES: Final = {
    "baseline": "ordinary variation is what the baseline's {requests} {show} under the same limits",
    "window": "ordinary variation is at most what {requests} within the limits {show}; "
    "a --baseline window says it better",
}


def rows(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """The few phases that would spare most, beyond ordinary variation, as cells of COLUMNS."""
    shown = _shown(diagnosis)
    upper = {t.metric: t.reference == "window" for t in diagnosis.fleet_totals}
    return [
        (
            texts.slo_label(r.metric),
            texts.phase_label(r.phase),
            _vanish(r, upper=upper.get(r.metric, False)),
            formats.percent(r.alone_share),
            formats.count(r.n),
            _mostly(r),
        )
        for r in shown
    ]


def notes(diagnosis: Diagnosis) -> Iterator[str]:
    """What the rows leave out: what no phase repairs, samples, where ordinary comes from."""
    shown = {r.metric for r in _shown(diagnosis)}
    totals = [t for t in diagnosis.fleet_totals if t.metric in shown]
    for total in totals:
        yield _total(total)
    for total in totals:
        if total.reference is not None:
            yield _REFERENCES[total.reference].format(
                requests=formats.plural(total.reference_n, "request"),
                show=verb(total.reference_n, "shows", "show"),
            )
            break
    left = _left_out(diagnosis)
    if totals and left:
        yield f"not listed, since ordinary variation may be all of it: {', '.join(left)}"
    if totals:
        yield _COLUMNS
        yield _LOWER_BOUND


def ordinary(diagnosis: Diagnosis, finding: Finding) -> str | None:
    """How much of a finding ordinary variation of its phase may be; None if nothing, or unknown."""
    if not finding.placebo_share:
        return None
    share, phase = formats.percent(finding.placebo_share), texts.phase_label(finding.phase)
    slow = texts.slow(diagnosis.slo.source == GIVEN)
    known = next((t.reference for t in diagnosis.fleet_totals if t.metric == finding.metric), None)
    if known == "baseline":
        return f"{share} of the {slow} are what the baseline shows too: ordinary {phase}"
    return (
        f"that it is a fault is less sure than the phase: {_at_most(finding.placebo_share)} of the "
        f"{slow} may be ordinary variation of {phase}; a --baseline window tells"
    )


def _shown(diagnosis: Diagnosis) -> list[FleetShare]:
    def weight(share: FleetShare) -> float:
        return share.vanish_share if share.net_share is None else share.net_share

    worth = [r for r in diagnosis.fleet if weight(r) >= _SMALL]
    return sorted(worth, key=lambda r: -weight(r))[:_ROWS]


def _left_out(diagnosis: Diagnosis) -> list[str]:
    """Phases that would spare much, of which nothing is left beyond ordinary variation."""
    return [
        f"{texts.slo_label(r.metric)} {texts.phase_label(r.phase)} "
        f"{formats.percent(r.vanish_share)}"
        for r in diagnosis.fleet
        if r.net_share is not None and r.net_share < _SMALL <= r.vanish_share
    ]


def _vanish(share: FleetShare, *, upper: bool) -> str:
    said = formats.percent(share.vanish_share)
    if share.placebo_share is None:
        return f"{said} (how much of it is ordinary variation is not known)"
    if not share.placebo_share:
        return said
    ordinary = _at_most(share.placebo_share) if upper else formats.percent(share.placebo_share)
    return f"{said} (of which {ordinary} is ordinary variation)"


def _at_most(share: float) -> str:
    """An upper bound: ``up to 8.0 %``, ``under 0.1 %``."""
    said = formats.percent(share)
    return f"under {said[1:]}" if said.startswith("<") else f"up to {said}"


def _mostly(share: FleetShare) -> str:
    top = share.top_stratum
    if top is None:
        return ""
    name = " ".join(part for part in (top.model, top.route) if part) or "no model or route"
    return f"{name} ({formats.percent(top.share)})"


def _total(total: FleetTotal) -> str:
    said = (
        f"{texts.slo_label(total.metric)}: with every phase at its expectation "
        f"{formats.percent(total.vanish_share)} of {formats.plural(total.n, 'slow request')} "
        "would not be slow"
    )
    if total.sampled < total.n:
        said += f" (counted over {total.sampled:,} of them)"
    left = [
        f"{formats.percent(share)} {why}"
        for share, why in (
            (total.shape_share, "as slow as their size makes them"),
            (total.unexplained_share, "in time that nothing explains"),
        )
        if share >= 0.0005
    ]
    return said + (f"; no phase repairs the others: {', '.join(left)}" if left else "")
