"""What would vanish: the share of the misses that each phase at its expectation would have spared.

Owns the estimate over all misses; ``sql/attribution/fleet_misses.sql`` says what one miss needs and
what each phase of it would save. A coalition of phases repairs a miss if together they save what it
needs; a phase's share is its exact Shapley value, so the shares of a metric add up to what vanishes
with all its phases at their expectation. Strata are (model, route): each is counted by itself, and
the totals are sums over them. The misses that are judged are counted (of very many a sample).

A killed request still had something to do when it died. It is repaired only if the phases also
save, on top, the median that requests of its stratum within the limits take.

How much of that would ordinary variation give, the *placebo*?

* With a declared baseline: the same estimator on its requests, under the same limits. Per stratum
  ``requests x repaired in the baseline / requests of the baseline`` misses are ordinary. A stratum
  with fewer than 30 requests there takes the rate of all.
* Without: what vanishes in full, but not if each phase is put back only to the top of its ordinary
  range (``fleet_ranges``, from requests within the limits: twice as far above the expectation as
  95 % of them are). That is an upper bound, since a phase need not have been at the top of its
  range, and a fault that lasts has made the range wide. A baseline sharpens it.

So ``net_share`` is a lower bound, and all shares are in another way: less time in one phase also
shortens others' queues, which only a replay can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt

from tracekit.analysis import _fleet_rows as data
from tracekit.analysis._arrow import Columns
from tracekit.analysis._fleet_rows import Baseline, Stratum
from tracekit.analysis.diagnosis import Finding, FleetShare, FleetTotal, TopStratum
from tracekit.analysis.rules import Rules
from tracekit.analysis.sentence import SHAPE_CAUSES
from tracekit.analysis.shapley import Counts, Floats, coalition_counts, shapley_weights
from tracekit.names import SLO_METRICS, TTFT_PHASES

#: A stratum is named if it holds more than this share of a phase's repaired misses.
_MOST: Final = 0.5
#: A share this small is rounding.
_NOTHING: Final = 1e-12

_PHASES: Final = (*TTFT_PHASES, "decode")

#: Stands for all strata together.
_ANYWHERE: Final[Stratum] = ("*", "*")


@dataclass(frozen=True)
class Fleet:
    """The estimate: a row per metric and phase that repairs anything, a total per metric."""

    shares: tuple[FleetShare, ...]
    totals: tuple[FleetTotal, ...]

    def with_placebo(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """The findings with the placebo of their phase, at most their own share."""
        known = {(r.metric, r.phase): r.placebo_share for r in self.shares}
        return tuple(
            f
            if (placebo := known.get((f.metric, f.phase))) is None or f.cause in SHAPE_CAUSES
            # no excess, so nothing that variation could have made
            else replace(f, placebo_share=min(placebo, f.share_of_misses))
            for f in findings
        )


def measure_fleet(
    con: duckdb.DuckDBPyConnection,
    rules: Rules,
    *,
    baseline: bool,
) -> Fleet:
    """The estimate over the relations that `define_attribution` left on ``con``.

    ``baseline``: whether it was given one.
    """
    misses = data.count_misses(con)
    if not misses:
        return Fleet((), ())
    ordinary = data.draw_ordinary(con)
    drawn = data.draw_misses(con)
    compared = data.draw_baseline(con) if baseline else None
    usual = _usual(ordinary)
    shares: list[FleetShare] = []
    totals: list[FleetTotal] = []
    for metric in SLO_METRICS:
        if metric not in misses:
            continue
        found = _only(drawn, drawn["metric"] == metric)
        if compared is not None:
            before = _only(compared.misses, compared.misses["metric"] == metric)
            players = _active(found, before)
            game = _Game.of(found, players, usual[metric])
            rate = _Game.of(before, players, usual[metric])
            placebo = _from_baseline(compared, metric, rate, misses[metric], rules.min_rows)
            known, n = "baseline", sum(compared.per[metric].values())
        else:
            players = _active(found)
            game = _Game.of(found, players, usual[metric])
            placebo = _from_ranges(found, misses[metric], game)
            known, n = "window", int((~np.isnan(ordinary[metric])).sum())
        rows, total = _compare(metric, players, misses[metric], game, placebo)
        shares += rows
        totals.append(
            replace(
                total,
                reference=None if placebo is None else known,
                reference_n=0 if placebo is None else n,
            )
        )
    return Fleet(tuple(shares), tuple(totals))


@dataclass(frozen=True)
class _Game:
    """Per stratum: misses drawn, how many of them each coalition repairs, and how many none does
    because of their own size. ``beyond``: repaired by what lies beyond the ordinary ranges.
    """

    players: int
    rows: Mapping[Stratum, int]
    repaired: Mapping[Stratum, Counts]
    beyond: Mapping[Stratum, Counts]
    shapes: Mapping[Stratum, int]

    @classmethod
    def of(cls, found: Columns, players: tuple[str, ...], usual: Mapping[Stratum, float]) -> _Game:
        """``usual``: what is left to do of a killed request, by stratum."""
        rows: dict[Stratum, int] = {}
        repaired: dict[Stratum, Counts] = {}
        beyond: dict[Stratum, Counts] = {}
        shapes: dict[Stratum, int] = {}
        for stratum, part in _strata(found):
            saved = _columns(part, players, "saved")
            rest = usual.get(stratum, usual.get(_ANYWHERE, np.inf))
            needed = np.where(np.isnan(part["over_ms"]), np.inf, part["over_ms"])
            needed = np.where(part["is_open"] == 1, needed + rest, needed)
            rows[stratum] = len(needed)
            repaired[stratum] = coalition_counts(saved, needed)
            beyond[stratum] = coalition_counts(_columns(part, players, "beyond"), needed)
            left = np.add.reduce(saved, axis=1, initial=0.0) < needed
            big = part["kept_ms"] > part["limit_ms"]  # false of what is not known
            shapes[stratum] = int((left & big).sum())
        return cls(len(players), rows, repaired, beyond, shapes)

    def share(
        self, misses: Mapping[Stratum, int], counts: Mapping[Stratum, Counts | int]
    ) -> dict[Stratum, Floats]:
        """Counts of drawn rows as shares of all misses.

        The rows drawn from a stratum stand for it; one that none was drawn from, for as much as
        all the others.
        """
        covered = sum(misses[s] for s in self.rows)
        return {
            s: np.asarray(counts[s]) * (misses[s] / rows) / covered for s, rows in self.rows.items()
        }


def _from_baseline(
    baseline: Baseline,
    metric: str,
    game: _Game,
    misses: Mapping[Stratum, int],
    min_rows: int,
) -> Floats | None:
    """The share of the misses that each coalition would repair were all traffic like the baseline.

    None if the baseline has too few requests with the metric.
    """
    per, times = baseline.per[metric], baseline.times[metric]
    if sum(per.values()) < min_rows:
        return None
    none = np.zeros(1 << game.players)
    pooled = sum(game.repaired.values(), none) / sum(per.values())
    out = none.copy()
    for stratum, requests in times.items():
        base = per.get(stratum, 0)
        rate = game.repaired.get(stratum, none) / base if base >= min_rows else pooled
        out += requests * rate
    return np.asarray(out / sum(misses.values()))


def _from_ranges(found: Columns, misses: Mapping[Stratum, int], game: _Game) -> Floats | None:
    """The share of the misses that each coalition repairs, but not by what no variation reaches.

    None if no range is known.
    """
    if not (found["ranges"] > 0).any():
        return None
    ordinary = {s: game.repaired[s] - game.beyond[s] for s in game.rows}
    return _sum(game.share(misses, ordinary))


def _compare(
    metric: str,
    players: tuple[str, ...],
    misses: Mapping[Stratum, int],
    game: _Game,
    ordinarily: Floats | None,
) -> tuple[list[FleetShare], FleetTotal]:
    n, drawn = sum(misses.values()), sum(game.rows.values())
    by_stratum = game.share(misses, game.repaired)
    repaired = _sum(by_stratum)
    weights = shapley_weights(len(players))
    values = np.maximum(repaired @ weights, 0.0)
    placebo = None if ordinarily is None else np.maximum(ordinarily @ weights, 0.0)
    shares = []
    for i in sorted(range(len(players)), key=lambda i: (-values[i], i)):
        vanish = float(values[i])
        if vanish <= _NOTHING:
            continue
        ordinary = None if placebo is None else _part(float(placebo[i]), vanish)
        shares.append(
            FleetShare(
                metric=metric,
                phase=players[i],
                vanish_share=vanish,
                alone_share=float(repaired[1 << i]),
                placebo_share=ordinary,
                net_share=None if ordinary is None else vanish - ordinary,
                n=n,
                sampled=drawn,
                top_stratum=_top({s: float(v @ weights[:, i]) for s, v in by_stratum.items()}),
            )
        )
    joint = float(repaired[-1])
    ordinary = None if ordinarily is None else _part(float(ordinarily[-1]), joint)
    shape = float(_sum(game.share(misses, game.shapes)))
    total = FleetTotal(
        metric=metric,
        n=n,
        sampled=drawn,
        vanish_share=joint,
        placebo_share=ordinary,
        net_share=None if ordinary is None else joint - ordinary,
        shape_share=shape,
        unexplained_share=max(1.0 - joint - shape, 0.0),
        reference=None,
        reference_n=0,
    )
    return shares, total


def _sum(by_stratum: Mapping[Stratum, Floats]) -> Floats:
    return np.asarray(np.sum(list(by_stratum.values()), axis=0))


def _part(ordinary: float, whole: float) -> float:
    """``ordinary`` as a part of ``whole``; all of it if only rounding keeps them apart."""
    return whole if ordinary > whole - _NOTHING else ordinary


def _top(credit: Mapping[Stratum, float]) -> TopStratum | None:
    """The stratum that holds most of a phase's repaired misses, if it is one of several."""
    total = sum(credit.values())
    model, route = min(credit, key=lambda s: (-credit[s], s))
    share = credit[model, route] / total if total > 0 else 0.0
    return TopStratum(model, route, share) if len(credit) > 1 and share > _MOST else None


def _active(*found: Columns) -> tuple[str, ...]:
    """Phases that save anything anywhere: the others' Shapley value is zero."""
    return tuple(p for p in _PHASES if any((f[f"{p}_saved_ms"] > 0).any() for f in found))


def _columns(found: Columns, players: tuple[str, ...], kind: str) -> Floats:
    columns = [found[f"{p}_{kind}_ms"] for p in players]
    return np.column_stack(columns) if columns else np.zeros((len(found["over_ms"]), 0))


def _only(rows: Columns, where: npt.NDArray[np.bool_]) -> Columns:
    return {name: values[where] for name, values in rows.items()}


def _strata(rows: Columns) -> Iterator[tuple[Stratum, Columns]]:
    """The rows of each model and route, in the order of the names."""
    names = list(zip(rows["model"].tolist(), rows["route"].tolist(), strict=True))
    number = {stratum: i for i, stratum in enumerate(sorted(set(names)))}
    of = np.fromiter((number[n] for n in names), np.int64, len(names))
    for stratum, i in number.items():
        yield stratum, _only(rows, of == i)


def _usual(ordinary: Columns) -> dict[str, dict[Stratum, float]]:
    """metric → stratum → its median in ms among requests within the limits."""
    out: dict[str, dict[Stratum, float]] = {m: {} for m in SLO_METRICS}
    for stratum, rows in [*_strata(ordinary), (_ANYWHERE, ordinary)]:
        for metric in SLO_METRICS:
            known = rows[metric][~np.isnan(rows[metric])]
            if len(known):
                out[metric][stratum] = float(np.median(known))
    return out
