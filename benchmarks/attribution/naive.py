"""Three rules that need no expectation, on the very phases that tracekit observed.

Owns the rules to beat: the largest share of the time, the largest z-score, the largest excess over
the median of all requests. Each is scored twice: over all phases, as a dashboard would show it,
and within the violated metric's own phases, which is a part of our method.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from attribution.truth import PHASES, SCOPE

RULES: Final = ("share", "z", "median")
#: The same within the violated metric's phases.
SCOPED_RULES: Final = tuple(f"{rule}_scoped" for rule in RULES)


class NaiveRules:
    """What each rule blames, for the requests of one observed run."""

    def __init__(self, observed: pl.DataFrame) -> None:
        self._row_of = {rid: i for i, rid in enumerate(observed["request_id"].to_list())}
        columns = [observed[f"{p}_ms"].cast(pl.Float64).to_numpy() for p in PHASES]
        ms = np.column_stack(columns)
        ok = ms[observed["status"].to_numpy() == "ok"]
        told = np.isfinite(ok)
        n = told.sum(axis=0)
        filled = np.where(told, ok, 0.0)
        mean = np.divide(filled.sum(axis=0), n, out=np.zeros(len(PHASES)), where=n > 0)
        square = np.divide((filled**2).sum(axis=0), n, out=np.zeros(len(PHASES)), where=n > 0)
        deviation = np.sqrt(np.maximum(square - mean**2, 0.0))
        median = np.array(
            [np.median(ok[told[:, k], k]) if n[k] else 0.0 for k in range(len(PHASES))]
        )
        self._scores = {
            "share": ms,
            "z": (ms - mean) / np.where(deviation > 0, deviation, np.inf),
            "median": ms - median,
        }

    def blame(self, request_id: str, metric: str) -> dict[str, str | None]:
        """Rule -> phase; None where the request was not observed."""
        row = self._row_of.get(request_id)
        out: dict[str, str | None] = {}
        for rule in RULES:
            for name, scope in (
                (rule, tuple(range(len(PHASES)))),
                (f"{rule}_scoped", SCOPE[metric]),
            ):
                out[name] = None
                if row is None:
                    continue
                scores = self._scores[rule][row][list(scope)]
                if np.isfinite(scores).any():
                    out[name] = PHASES[scope[int(np.nanargmax(scores))]]
        return out
