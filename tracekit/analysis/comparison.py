"""The comparison of two sides as data: what `compare --json` prints, and what every view renders.

Owns the shape of the contract (version it in SCHEMA) and nothing else: numbers are made in
`tracekit.analysis.compare`, sentences in `tracekit.analysis.compare_words`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tracekit.analysis.diagnosis import MissingEvidence, RequestCounts, SloInfo

SCHEMA: Final = "tracekit.comparison/1"

#: What a comparison can say.
SLOWER: Final = "slower"
FASTER: Final = "faster"
MIXED: Final = "mixed"
NO_CHANGE: Final = "no_change"
OFFSET: Final = "offset"
FEWER_COMPLETED: Final = "fewer_completed"
MORE_COMPLETED: Final = "more_completed"
NOT_ENOUGH: Final = "not_enough_evidence"
VERDICTS: Final = (
    SLOWER,
    FASTER,
    MIXED,
    OFFSET,
    NO_CHANGE,
    FEWER_COMPLETED,
    MORE_COMPLETED,
    NOT_ENOUGH,
)


@dataclass(frozen=True)
class SideInfo:
    """One side: what was asked for and what it holds.

    ``first``/``last`` are the earliest and latest arrival; the rates [1/s] count every usable
    request between them. ``drawn`` is the number of completed and killed rows looked at where not
    all were (None = all). ``left_out_without_clock`` rows have no start time and so lie in no
    window. Medians are tokens of the completed requests.
    """

    name: str
    text: str
    store: str
    requests: RequestCounts
    first_unix_ns: int | None
    last_unix_ns: int | None
    requests_per_s: float | None
    input_tokens_p50: float | None
    output_tokens_p50: float | None
    cached_share: float | None
    left_out_without_clock: int
    drawn: int | None
    slices: int


@dataclass(frozen=True)
class Effect:
    """A difference B - A with its 95 % interval.

    ``p_value`` is adjusted for everything the comparison tests; None where it was not tested (too
    small on both sides to matter, not separable, a tail of too few). ``is_change``: certain and
    large enough. ``confidence_label``: ``high`` or ``likely`` where it is certain, ``unsure`` where
    it is large but not quite certain, else None.
    """

    change: float
    low: float
    high: float
    p_value: float | None
    is_change: bool
    confidence_label: str | None

    @property
    def unseen(self) -> float:
        """The largest change, either way, that the interval does not rule out."""
        return max(-self.low, self.high)


@dataclass(frozen=True)
class Statistic:
    """``mean``, ``p50``, ``p95`` or ``p99`` of one metric on both sides [ms]; None if too few rows.

    ``*_at_least`` count killed requests too, each at the time it had lasted: lower bounds.
    """

    statistic: str
    a_ms: float | None
    b_ms: float | None
    a_at_least_ms: float | None
    b_at_least_ms: float | None
    effect: Effect | None


@dataclass(frozen=True)
class Split:
    """A change of a mean, taken apart exactly: total = mix + cache + cost.

    ``mix`` = ``models_routes`` + ``shapes`` + ``one_sided``: other shares of models and routes,
    other sizes within them, and requests of a kind that the other side lacks. ``cache``: other
    prefix-cache hits at equal prompts. ``cost``: the same request takes more or less.
    ``apart`` names recorded numbers that one side lacks or that hardly overlap: the sum is then
    exact, but mix and cost mean nothing by themselves, and only the total is tested.
    """

    total: Effect
    mix: Effect
    models_routes_ms: float
    shapes_ms: float
    one_sided_ms: float
    cache: Effect
    cost: Effect
    apart: tuple[str, ...]


@dataclass(frozen=True)
class PhaseSplit:
    """One phase: means over the requests of the metric [ms], and its change taken apart.

    ``phase`` is ``rest`` for the part of the metric that lies in no phase known on both sides.
    ``cost_share`` is the cost effect over A's mean; None where A has none.
    """

    phase: str
    a_ms: float
    b_ms: float
    cost_share: float | None
    split: Split


@dataclass(frozen=True)
class Metric:
    """One metric: its statistics, and the change of its mean taken apart and by phase.

    Phases sum to the split, the split to the change of the mean. ``not_compared`` says why there
    is no effect and no split.
    """

    metric: str
    a_n: int
    b_n: int
    statistics: tuple[Statistic, ...]
    split: Split | None
    phases: tuple[PhaseSplit, ...]
    not_compared: str | None


@dataclass(frozen=True)
class Stratum:
    """One kind of traffic that both sides have: shares of each side's completed requests.

    ``means`` per metric [ms]: A, B, and B - A at equal mix (``cost``) within the stratum.
    """

    model: str | None
    route: str | None
    a_n: int
    b_n: int
    a_share: float
    b_share: float
    means: Mapping[str, StratumMeans]


@dataclass(frozen=True)
class StratumMeans:
    """Means of one metric within a stratum [ms]."""

    a_ms: float
    b_ms: float
    cost_ms: float


@dataclass(frozen=True)
class WorkerShift:
    """How much more the same requests cost on one worker of B in one phase of a metric [ms].

    ``named``: it is among the few workers that hold most of the phase's cost change.
    """

    metric: str
    phase: str
    worker: str
    b_n: int
    change_ms: float
    named: bool


@dataclass(frozen=True)
class ShareChange:
    """A share of requests on both sides [1]; ``n`` of them count."""

    a_share: float | None
    b_share: float | None
    a_n: int
    b_n: int
    effect: Effect | None


@dataclass(frozen=True)
class Comparison:
    """The answer to "what changed from A to B". ``sentence`` is the one line.

    ``completed`` is the share of usable requests that ended well, ``goodput`` the share that met
    every limit of the SLO (None without one). ``stratified_by`` names the columns within which
    sizes were compared; ``notes`` what a reader must know before trusting a number.
    """

    verdict: str
    sentence: str
    a: SideInfo
    b: SideInfo
    slo: SloInfo
    completed: ShareChange
    goodput: ShareChange | None
    metrics: tuple[Metric, ...]
    stratified_by: tuple[str, ...]
    strata: tuple[Stratum, ...]
    workers: tuple[WorkerShift, ...]
    simpson: str | None
    missing_evidence: tuple[MissingEvidence, ...]
    notes: tuple[str, ...]
    method: Mapping[str, Any]

    def metric(self, name: str) -> Metric | None:
        """``ttft_ms``, ``tpot_ms`` or ``e2e_ms``; None if it was not looked at."""
        return next((m for m in self.metrics if m.metric == name), None)

    def to_json(self) -> dict[str, Any]:
        """The contract as plain values, ``schema`` first."""
        return {"schema": SCHEMA, **_plain(asdict(self))}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
