"""Whose requests a finding is about: the model or the route that most of them share.

Owns when one is worth naming: most of the finding's requests, clearly more than its part of all
traffic, and more than chance gives. Traffic that shifts to a dearer model is no fault of a phase.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import duckdb

from tracekit.analysis.chance import chance_of
from tracekit.analysis.rules import Rules

#: class, phase, cause and metric of a finding.
Key = tuple[str, str, str, str]

_KINDS: Final = ("model", "route")


@dataclass(frozen=True)
class Mostly:
    """``share`` [1] of a finding's requests are of this model (or route): ``usual`` of all are."""

    kind: str
    name: str
    share: float
    usual: float


def finding_strata(
    con: duckdb.DuckDBPyConnection, rules: Rules
) -> Mapping[Key, tuple[Mostly, ...]]:
    """For each finding the model and the route that stand out among its requests, if any does."""
    named: dict[Key, list[Mostly]] = defaultdict(list)
    for kind in _KINDS:
        traffic = dict(
            con.execute(
                f"select {kind}, count(*) from drawn_facts where completed + censored > 0 "
                f"group by {kind}"
            ).fetchall()
        )
        if len(traffic) < 2:
            continue
        everything = sum(traffic.values())
        rows = con.execute(
            f"select class, phase, cause, metric, {kind}, sum(n) from finding_strata "
            f"group by class, phase, cause, metric, {kind} order by sum(n) desc, {kind}"
        ).fetchall()
        counts: dict[Key, list[tuple[str, int]]] = defaultdict(list)
        for *key, name, n in rows:
            counts[key[0], key[1], key[2], key[3]].append((str(name), int(n)))
        for finding, (top, *others) in counts.items():
            name, k = top
            n = k + sum(other for _, other in others)
            # one that the draw missed is rare
            usual = max(traffic.get(name, 0), 1) / everything
            if name and _stands_out(k, n, usual, rules):
                named[finding].append(Mostly(kind, name, k / n, usual))
    return {finding: tuple(found) for finding, found in named.items()}


def _stands_out(k: int, n: int, usual: float, rules: Rules) -> bool:
    share = k / n
    if share <= rules.stratum_share or share < rules.stratum_factor * usual:
        return False
    return chance_of(share, usual, n) <= rules.chance
