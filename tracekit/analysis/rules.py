"""The numbers that decide when a phase or a cause may be blamed, all in one place.

They reach SQL as the one-row relation ``attribution_rules``; nothing else may hold such a number.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa

from tracekit.analysis._arrow import arrow_table


@dataclass(frozen=True)
class Rules:
    """Gates of the method. Shares are of 1, times in ms."""

    #: rows below which a stratum or a cell borrows from a wider one
    min_rows: int = 30
    #: rows below which a 95th and a 99th percentile are not printed: three lie above either
    min_p95_rows: int = 60
    min_p99_rows: int = 300
    #: an excess smaller than this matters to nobody
    min_excess_ms: float = 20.0
    #: nor does one within this many times the phase's ordinary variation (which is itself three
    #: deviations above the median); a shape is quiet within this many
    scale_factor: float = 1.0
    #: nor one within this share of the expectation, which is not known better
    min_relative: float = 0.12
    quiet_factor: float = 3.0
    #: a loss of this many times what the phases should take, and of this share of the rest of the
    #: request, stands out by itself; others must gather somewhere: less likely by chance than this,
    #: and this many times denser than elsewhere
    strong_factor: float = 3.0
    strong_share: float = 0.5
    #: a stream that stood still for so long beyond its usual gap stands out by itself
    freeze_ms: float = 1_000.0
    chance: float = 0.01
    denser: float = 2.0
    #: ... on a worker, whose requests may be of another kind, less likely than this
    worker_chance: float = 0.001
    #: a request is slow by its size if that should take this share of what is allowed
    shape_share: float = 0.8
    #: ... and half of those fitted are within this share of what they should take
    max_shape_error: float = 0.5
    #: the winner must hold this share of all that was lost
    min_share: float = 0.35
    #: without a baseline, this many times what 95 % of the requests within the limits show is still
    #: ordinary variation: a long tail goes on beyond the limit
    ordinary_reach: float = 2.0
    #: below this the winner must be larger than what no boundary explains
    min_coverage: float = 0.9
    #: a cause must explain this share of the excess
    cause_share: float = 0.5
    #: confidence labels, and the ceiling where a field is missing or an expectation is borrowed
    high: float = 0.9
    likely: float = 0.7
    limited: float = 0.89
    #: fewer requests than this, of so small a share of the slow ones, are no finding of high
    #: confidence
    stray_rows: int = 5
    stray_share: float = 0.1
    #: fewer losses than this with one cause, or of one kind, may be chance
    min_told_rows: int = 3
    #: a finding is named after a model or route with more than this share of its requests, if that
    #: is this many times its part of the traffic, and more than chance gives
    stratum_share: float = 0.5
    stratum_factor: float = 1.2
    #: a prefill shorter than this stalls nobody
    min_prefill_ms: float = 20.0
    #: a prefill costs others at most this many times what it should take: an engine that is slow
    #: for another reason also prefills slowly
    culprit_factor: float = 6.0
    #: who stalled others for less than this, or than this share of what the first one did, is not
    #: named
    min_stall_ms: float = 1.0
    min_stall_share: float = 0.01
    #: where so many wait on a worker, each holds up all behind it: no culprit is named
    backlog: float = 4.0
    #: whom a decode met only because others had held it up counts this much
    late_share: float = 0.25
    #: moments at which front ends let go meet by chance if more of the time than this is near one
    rare_share: float = 0.25
    #: a worker stands out only with this many requests and by this share of the expected time
    min_worker_rows: int = 20
    min_worker_share: float = 0.15
    #: a fit speaks of requests that it did not see (these without their cache hits) only if half of
    #: those it saw lie within this share of it, and so many were at least this share as large
    max_fit_error: float = 0.3
    min_reach_rows: int = 5
    fit_reach: float = 0.8
    #: an expectation holds up to this many times the largest size that it was fitted on
    size_reach: float = 4.0
    #: a prompt had a hit in the prefix cache if it had at least this share from there
    hit_share: float = 0.05
    #: sizes that lie within this factor (between the 10th and the 90th percentile) are one size
    same_size: float = 1.1
    #: a worker on which nothing ran for so long may have gone to sleep
    min_idle_ms: float = 2_000.0
    #: load: arrivals of this many times the usual, and by so many deviations of counting, are more
    #: than usual; this many times the usual and what came before, within so many slices (or a 50th
    #: of the window), are a spike
    demand_factor: float = 1.3
    demand_deviations: float = 4.0
    spike_factor: float = 2.0
    spike_slices: int = 16
    spike_part: float = 0.4
    #: ... and is over: its last eighth is within so many deviations of counting of the usual
    over_deviations: float = 1.5
    #: a worker has a role if it plays it for this share of the requests that it serves otherwise:
    #: where a span was lost, the other server stands for the one that is not known
    role_share: float = 0.1
    #: a peer has room with this share of the worker's requests in service
    room_share: float = 0.6
    #: and the worker got this many times what a peer got
    crowd_factor: float = 1.5
    #: a queue is blamed on prefills only of prompts that cost this many times the usual
    long_factor: float = 4.0
    #: prompts are of two kinds where none costs between the shorter and this many times as much
    kind_gap: float = 2.0
    #: samples: KV cache full from this usage on, in this share of them; transfers slower than this
    #: share of the usual; clocks lower than this share of what such GPUs reach
    full_kv: float = 0.95
    full_share: float = 0.3
    filled_kv: float = 0.5
    free_slots: float = 0.7
    slow_transfer: float = 0.6
    low_clock: float = 0.85
    #: queue: slices of time needed, and the share of them in which waiting is the rule
    min_bins: int = 20
    lasting_share: float = 0.5
    #: service slower than this times the expected: the queue is a consequence
    max_service_ratio: float = 1.5

    def to_arrow(self) -> pa.Table:
        """The one-row relation ``attribution_rules``."""
        return arrow_table({name: [value] for name, value in asdict(self).items()})


#: Standard normal quantile of 90 %: what is said to be so holds in nine of ten such samples.
_ONE_IN_TEN: Final = 1.2816


def enough(k: int, n: int) -> float:
    """How sure ``k`` of ``n`` make one that the most are so: the lower end of Wilson's interval.

    1 of 1 gives 0.38, 3 of 3 0.65, 15 of 15 0.90.
    """
    if n <= 0:
        return 0.0
    z2, share = _ONE_IN_TEN**2, k / n
    spread = math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max((share + z2 / (2 * n) - _ONE_IN_TEN * spread) / (1 + z2 / n), 0.0)
