"""Which finding is the headline, in which order the others follow, and which matter little.

Owns the weights of that order and nothing of what a finding says. Works on rows of the relation
``findings``, before they become sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tracekit.analysis.fleet import Fleet
from tracekit.analysis.sentence import HEADLINE_SHARE

#: A finding of so few requests, or of less than this share [1] of the time that all findings of its
#: metric lost, is minor.
_MINOR_N: Final = 2
_MINOR_SHARE: Final = 0.02

#: A finding that the requests' own size explains yields the headline to a fault of similar share.
_SHAPE_WEIGHT: Final = 0.8
#: Without a limit every metric has its slowest 5 %, and ordinary large requests are among them: a
#: fault of much smaller share is still the headline.
_SHAPE_WEIGHT_NO_LIMIT: Final = 0.25
#: And what the data show no cause of may be ordinary, too: it yields to a known cause of more than
#: half its share, which can be acted on.
_UNKNOWN_WEIGHT_NO_LIMIT: Final = 0.5

#: What may be ordinary is taken off a fault that competes for the headline, but where it comes from
#: the window itself it is an upper bound: then at most this part [1] of it.
_ORDINARY_AT_MOST: Final = 0.75
#: And a fault yields to one of another metric that cost so many times as many seconds.
_MUCH_MORE: Final = 10.0
_LESS_SECONDS_WEIGHT: Final = 0.5


Row = dict[str, Any]
_Rank = Callable[[Row], tuple[float, float, str, str, str]]


def order_findings(rows: list[Row], fleet: Fleet, *, limits_given: bool) -> None:
    """Sort ``rows`` of ``findings`` (at least one), the headline first, and set ``minor``.

    Rows also carry ``slower_version`` (or None). ``limits_given``: by the user.
    """
    shape_weight = _SHAPE_WEIGHT if limits_given else _SHAPE_WEIGHT_NO_LIMIT

    def rank(row: Row) -> tuple[float, float, str, str, str]:
        weight = shape_weight if row["class"] == "request_shape" else 1.0
        if row["slower_version"] is not None:
            weight = 1.0  # no fault of any one request, and one to act on
        if row["cause"] == "unknown" and not limits_given:
            weight *= _UNKNOWN_WEIGHT_NO_LIMIT
        score = row["share_of_misses"] * row["confidence"] * weight
        return (-score, -row["total_excess_ms"], row["metric"], row["phase"], row["cause"])

    rows.sort(key=rank)
    _lead_with_what_matters(rows, rank, fleet)
    lost: dict[str, float] = {}
    for row in rows:
        if row["class"] != "request_shape":
            lost[row["metric"]] = lost.get(row["metric"], 0.0) + row["total_excess_ms"]
    for row in rows:
        few = row["n"] <= _MINOR_N
        if row["class"] == "request_shape":
            # it lost nothing: what counts is how many of the requests it explains
            row["minor"] = few or row["share_of_misses"] < _MINOR_SHARE
        else:
            row["minor"] = few or row["total_excess_ms"] < _MINOR_SHARE * lost[row["metric"]]
    rows[0]["minor"] = False
    rows[1:] = sorted(
        rows[1:],
        key=lambda r: (r["minor"], r["class"] == "request_shape", -r["total_excess_ms"], rank(r)),
    )


def _lead_with_what_matters(rows: list[Row], rank: _Rank, fleet: Fleet) -> None:
    """Move the fault with most beyond ordinary variation, and in seconds, before the others.

    Only where a fault leads already: what the requests' size explains yields to it or does not,
    whatever part of it is ordinary.
    """
    if rows[0]["class"] == "request_shape":
        return
    faults = [r for r in rows if r["class"] != "request_shape"]
    ordinary = _ordinary_parts(faults, fleet)
    large = [r for r in faults if r["share_of_misses"] >= HEADLINE_SHARE]

    def score(row: Row) -> float:
        elsewhere = max(
            (r["total_excess_ms"] for r in large if r["metric"] != row["metric"]), default=0.0
        )
        much_more = elsewhere >= _MUCH_MORE * row["total_excess_ms"]
        beyond = 1 - ordinary[row["metric"], row["phase"]]
        return rank(row)[0] * beyond * (_LESS_SECONDS_WEIGHT if much_more else 1.0)

    first = min(faults, key=lambda r: (score(r), *rank(r)[1:]))
    rows.remove(first)
    rows.insert(0, first)


def _ordinary_parts(faults: Sequence[Row], fleet: Fleet) -> Mapping[tuple[str, str], float]:
    """The part [1] of the findings of a metric and phase that counts as ordinary variation.

    Of an upper bound (one that comes from the window itself) not all.
    """
    held: dict[tuple[str, str], float] = {}
    for row in faults:
        key = (row["metric"], row["phase"])
        held[key] = held.get(key, 0.0) + row["share_of_misses"]
    placebo = {(s.metric, s.phase): s.placebo_share or 0.0 for s in fleet.shares}
    most = {t.metric: 1.0 if t.reference == "baseline" else _ORDINARY_AT_MOST for t in fleet.totals}
    return {
        key: min(placebo.get(key, 0.0) / share, most.get(key[0], 1.0)) if share > 0 else 0.0
        for key, share in held.items()
    }
