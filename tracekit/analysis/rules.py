"""The numbers that decide when a phase or a cause may be blamed, all in one place.

They reach SQL as the one-row relation ``attribution_rules``; nothing else may hold such a number.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Rules:
    """Gates of the method. Shares are of 1, times in ms."""

    #: rows below which a stratum or a cell borrows from a wider one
    min_rows: int = 30
    #: rows below which a 99th percentile is not printed
    min_p99_rows: int = 300
    #: an excess smaller than this matters to nobody
    min_excess_ms: float = 20.0
    #: nor does one within this many times the phase's ordinary variation
    scale_factor: float = 3.0
    #: the winner must hold this share of all that was lost
    min_share: float = 0.35
    #: below this the winner must be larger than what no boundary explains
    min_coverage: float = 0.9
    #: a cause must explain this share of the excess
    cause_share: float = 0.5
    #: confidence labels, and the ceiling where a field is missing or an expectation is borrowed
    high: float = 0.9
    likely: float = 0.7
    limited: float = 0.89
    #: a prefill shorter than this stalls nobody
    min_prefill_ms: float = 20.0
    #: a prefill costs others at most this many times what it should take: an engine that is slow
    #: for another reason also prefills slowly
    culprit_factor: float = 6.0
    #: a worker stands out only with this many requests and by this share of the expected time
    min_worker_rows: int = 20
    min_worker_share: float = 0.15
    #: queue: slices of time needed, shares of slices with waiting, and what a burst is
    min_bins: int = 20
    lasting_share: float = 0.5
    rare_share: float = 0.25
    burst_factor: float = 3.0
    min_burst_arrivals: int = 10
    #: service slower than this times the expected: the queue is a consequence
    max_service_ratio: float = 1.5

    def to_arrow(self) -> pa.Table:
        """The one-row relation ``attribution_rules``."""
        return pa.table({name: [value] for name, value in asdict(self).items()})
