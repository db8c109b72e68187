"""The numbers that decide when a difference between two sides may be called a change.

All in one place; nothing else of the comparison may hold such a number.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class CompareRules:
    """Gates of `tracekit.analysis.compare`. Shares are of 1, times in ms.

    A change must pass two gates. It must be *certain*: its p-value after Holm's correction is below
    ``alpha``, and its own interval excludes zero. And it must *matter*: at least ``min_change_ms``
    and ``min_change_share`` of A's value, or, where A's value is small, at least
    ``small_change_ms`` and ``large_change_share`` of it.

    Half of ``alpha`` goes to whether anything changed (the means, the share completed, goodput),
    half to everything else (quantiles, phases, mix and cost); once something has changed, all of it
    goes to the latter. So if nothing changed, anything at all is reported with at most ``alpha``.
    """

    #: slices (as if each held as many) that the requests at or above a quantile must come from on
    #: each side: one burst makes no tail
    min_tail_slices: float = 5.0
    #: completed requests that a side, a metric or a stratum needs
    min_rows: int = 30
    #: rows below which a 95th and a 99th percentile are not printed: three lie above either
    min_p95_rows: int = 60
    min_p99_rows: int = 300
    #: error probability of the whole comparison, and the level of each printed interval
    alpha: float = 0.05
    interval: float = 0.95
    #: a change smaller than this matters to nobody
    min_change_ms: float = 20.0
    min_change_share: float = 0.02
    #: ... unless it is a large part of a small value
    small_change_ms: float = 5.0
    large_change_share: float = 0.2
    #: the same for the time per token
    min_tpot_change_ms: float = 0.5
    #: share of the requests that completed (or met the SLO)
    min_share_change: float = 0.01
    #: a phase, token count or first-token kind is known on a side if this share of its rows has it
    known_share: float = 0.95
    #: bootstrap: draws, and slices of time that are drawn together
    draws: int = 1_000
    seed: int = 20_261_130
    min_slices: int = 12
    max_slices: int = 60
    #: a slice lasts at least this many times the 95th percentile of the wall time
    slice_walls: float = 2.0
    #: rows looked at per side; more are drawn by a hash of their key, and that is said
    max_rows: int = 200_000
    #: traffic of kinds that the other side lacks is worth a notice from this share on
    unmatched_share: float = 0.05
    #: share of the requests whose size must lie within what the other side shows
    support_share: float = 0.5
    #: the request rate differs if one side has this many times the other's
    rate_factor: float = 1.2
    #: workers: requests needed on B; share of the cost change that those named must hold; and how
    #: much of the named one's change the median of the others may show
    min_worker_rows: int = 20
    worker_share: float = 0.7
    worker_others: float = 0.25
    #: "no change" is not said of a metric that could have moved by this share of A's mean unseen
    blind_share: float = 0.25
    #: labels of confidence by adjusted p-value; up to ``unsure_p`` it is not certain, yet "no
    #: change" is not said either
    high_p: float = 0.01
    unsure_p: float = 0.2

    def needed(self, statistic: str) -> int:
        """Rows that a side needs for ``mean``, ``p50``, ``p95`` or ``p99``."""
        return {"p95": self.min_p95_rows, "p99": self.min_p99_rows}.get(statistic, self.min_rows)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
