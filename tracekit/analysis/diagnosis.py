"""The diagnosis as data: what `diagnose --json` prints, and what every view renders.

Owns the shape of the contract (version it in SCHEMA) and nothing else: numbers are made in
`tracekit.analysis.diagnose`, sentences in `tracekit.analysis.sentence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

SCHEMA: Final = "tracekit.diagnosis/1"

#: Share of all prompt tokens from which on it matters that they repeat.
_MUCH: Final = 0.1


@dataclass(frozen=True)
class WindowInfo:
    """Which requests were looked at. ``first``/``last`` are their earliest and latest start."""

    text: str
    since_unix_ns: int | None
    until_unix_ns: int | None
    first_unix_ns: int | None
    last_unix_ns: int | None


@dataclass(frozen=True)
class SloInfo:
    """The limits in ms, and ``given`` or ``slowest_5_percent``."""

    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None
    source: str


@dataclass(frozen=True)
class RequestCounts:
    """How the requests ended. ``total`` is the sum of all but ``without_clock``.

    Quarantined rows (by reason) and superseded attempts are in no other count and in no
    statistic; ``without_clock`` says how many of the total have no start time.
    """

    total: int
    completed: int
    aborted: int
    errored: int
    timeout: int
    open: int
    superseded: int
    quarantined: Mapping[str, int]
    without_clock: int

    @property
    def ended(self) -> int:
        """Usable requests whose end is known: completed, cut, failed or timed out."""
        return self.completed + self.aborted + self.errored + self.timeout

    @property
    def completed_share(self) -> float | None:
        """[1] of those that ended; None if none did. Percentiles are of the completed alone."""
        return self.completed / self.ended if self.ended else None


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds over the ``n`` completed requests that have the metric; None if too few.

    ``kind`` says what was measured: the kinds of TTFT seen, or how ITL was come by (``n`` is 0
    where no request has the times of its chunks: then it is not known).
    """

    p50: float | None
    p95: float | None
    p99: float | None
    n: int
    kind: str | None = None


@dataclass(frozen=True)
class ChunkPace:
    """Streams whose chunks bring several tokens: medians over the ``n`` completed requests.

    TPOT and ITL are per token (``token_gap_ms``); a client that counts chunks sees
    ``chunk_gap_ms``. ``tokens_per_chunk`` are accepted tokens per decode step where a step sends a
    chunk (speculative decoding).
    """

    chunk_gap_ms: float
    token_gap_ms: float
    tokens_per_chunk: float
    n: int


@dataclass(frozen=True)
class Goodput:
    """Requests that met every limit: their share [1] of ``n`` and their rate [1/s]."""

    share: float | None
    requests_per_s: float | None
    n: int


@dataclass(frozen=True)
class PhaseTotal:
    """One phase over all completed requests: total time, its share of all time, per request."""

    phase: str
    seconds: float
    share: float
    p50_ms: float | None
    p95_ms: float | None


@dataclass(frozen=True)
class CacheSavings:
    """Prefill that hits in the prefix cache spared, by the fitted cost of prompts [s].

    ``saved_share`` [1] is that of the time which the ``n`` requests would have taken without the
    ``hits`` among them (of 5 % of the prompt and more): completed requests whose cached tokens are
    known and whose cell's fit can tell. Counted over ``sampled`` of them. ``unjudged`` counts other
    completed requests with hits, by why nothing tells what those spared (`savings.UNJUDGED`). Half
    of the requests lie within ``fit_error`` [1] of the fit, a low quantile: what a busy engine
    takes longer is not in it.
    """

    saved_s: float
    saved_share: float
    hits: int
    n: int
    sampled: int
    fit_error: float
    unjudged: Mapping[str, int]


@dataclass(frozen=True)
class BlockShare:
    """``share`` [1] of the prompt tokens repeats an earlier prompt in whole blocks of this size."""

    block_tokens: int
    share: float


@dataclass(frozen=True)
class PrefixReuse:
    """How the prompts of ``n`` requests repeat, from the hashes of their blocks, against the hits.

    Shares of their prompt tokens [1]: ``repeated_share`` begins as an earlier prompt did,
    ``same_worker_share`` had been computed by the same worker before (None where no first token is
    known), ``cached_share`` is reported as cached, ``over_share`` beyond what repeats. What repeats
    is at most ``longest_tokens`` long (90th percentile). ``engine_blocks`` is as ``blocks``, for
    the sizes that engines report; looked up only where less is cached than repeats.
    ``spares_nothing``: prefill takes as long as if nothing were cached. ``preempted`` requests and
    their ``preemptions``, None where none says.
    """

    n: int
    repeated_share: float
    same_worker_share: float | None
    cached_share: float
    over_share: float
    longest_tokens: int
    blocks: tuple[BlockShare, ...]
    engine_blocks: tuple[BlockShare, ...]
    spares_nothing: bool
    preempted: int | None
    preemptions: int | None

    @property
    def is_missed(self) -> bool:
        """Whether a cache could give much more than it does."""
        return self.repeated_share >= _MUCH and self.cached_share < 0.5 * self.repeated_share

    @property
    def is_impossible(self) -> bool:
        """Whether hits are reported that no cache can have had: they also spare nothing."""
        return self.spares_nothing and self.cached_share > 2 * (self.cached_share - self.over_share)


@dataclass(frozen=True)
class KvLoads:
    """Loads of KV from another place than the GPU's own cache, against computing again [s].

    ``load_s`` is what the ``n`` loads took, ``recompute_s`` about what the same tokens would take
    to compute (at most: some may have come from the GPU's own cache). ``slower`` of them took
    longer than that. A load of ``tokens`` takes ``load_ms``, which computes ``same_time_tokens`` of
    prompt: below about so many a load that takes this long cannot pay. Counted over ``sampled``.
    """

    load_s: float
    recompute_s: float
    load_ms: float
    tokens: float
    same_time_tokens: float
    slower: int
    n: int
    sampled: int
    fit_error: float

    @property
    def is_loss(self) -> bool:
        """Whether loading costs more than computing again, beyond what the fit may be off."""
        return 2 * self.slower > self.n and self.load_s > 2 * self.recompute_s


@dataclass(frozen=True)
class VersionPace:
    """An engine version that takes ``factor`` times as long in ``phase`` as another one.

    Of one model, engine and topology, for a request of the median size of both: expected
    ``slower_ms`` and ``quicker_ms``, from the fits on so many requests of each.
    """

    model: str
    engine: str
    topology: str
    phase: str
    slower: str
    quicker: str
    factor: float
    slower_ms: float
    quicker_ms: float
    slower_n: int
    quicker_n: int


@dataclass(frozen=True)
class Misses:
    """Requests over a limit: distinct in ``total``, per metric in ``by_metric``.

    A request that misses two limits is two ``violations``, so these are the sum of ``by_metric``.
    ``judged`` of them have a verdict: all, or of very many a sample that stands for them.
    """

    total: int
    by_metric: Mapping[str, int]
    violations: int
    judged: int


@dataclass(frozen=True)
class Culprit:
    """A request whose prefill stalled others: how many, and for how long (a lower bound).

    Of very many losses a sample is looked into: both count that sample alone.
    """

    request_id: str
    input_tokens: int | None
    victims: int
    stall_ms: float


@dataclass(frozen=True)
class Finding:
    """One answer: this phase, for this cause, in this share of the misses of this metric.

    ``excess_ms`` and ``expected_ms`` are medians over its ``n`` requests; ``lost_s`` [s] is the
    excess of all of them together. ``minor``: of one or two requests, or under 2 % of the time lost
    for this metric; never the headline. ``placebo_share`` is what
    ordinary variation of the phase gives (`FleetShare`), at most ``share_of_misses``; None = not
    measured, or nothing to measure. A request's own size is a finding
    too: cause ``long_prompt``, ``kv_transfer_size`` or ``fixed_overhead``.
    """

    phase: str
    cause: str
    metric: str
    share_of_misses: float
    placebo_share: float | None
    excess_ms: float
    expected_ms: float
    lost_s: float
    minor: bool
    confidence: float
    confidence_label: str
    n: int
    workers: tuple[str, ...]
    culprits: tuple[Culprit, ...]
    evidence: tuple[str, ...]
    action: str
    sentence: str


@dataclass(frozen=True)
class OverLimit:
    """What holds the time of the ``misses`` of a given limit where most have no finding.

    Of ``requests`` that have the metric. No expectation is asked: in ``alone`` of the misses
    ``phase`` by itself takes longer than ``limit_ms`` (``phase_ms`` at the median); None and 0
    where no phase does in most of them. ``waited_ms`` (at least) and ``prefill_ms`` (at most) are
    *inferred* medians of a merged phase, None where nothing tells. ``confidence`` [1] is in the
    phase, from how many misses agree; ``confidence_label`` is high, likely or low.
    """

    metric: str
    limit_ms: float
    requests: int
    misses: int
    phase: str | None
    alone: int
    phase_ms: float | None
    waited_ms: float | None
    prefill_ms: float | None
    confidence: float | None
    confidence_label: str | None
    sentence: str
    action: str


@dataclass(frozen=True)
class TopStratum:
    """The model and route with most of what would vanish, and its share [1] of that."""

    model: str
    route: str
    share: float


@dataclass(frozen=True)
class FleetShare:
    """How many of the misses of ``metric`` would vanish with ``phase`` at its expectation.

    Shares of all ``n`` misses [1], counted over ``sampled`` of them. ``vanish_share`` is the exact
    Shapley value: the phases of a metric add up to its total. ``alone_share`` puts back this phase
    and no other. ``placebo_share`` is the part of ``vanish_share`` that ordinary variation gives,
    ``net_share`` the rest; both None where no reference tells. ``top_stratum`` is there if, of
    several (model, route), one holds more than half. All are lower bounds: that others wait less
    as well is not counted.
    """

    metric: str
    phase: str
    vanish_share: float
    alone_share: float
    placebo_share: float | None
    net_share: float | None
    n: int
    sampled: int
    top_stratum: TopStratum | None


@dataclass(frozen=True)
class FleetTotal:
    """How many misses of ``metric`` vanish with all phases at their expectation, and the others.

    ``vanish_share + shape_share + unexplained_share`` is 1. No phase repairs the last two: what the
    requests' sizes take is over the limit already, or the time lies where nothing can be expected.
    ``reference``: what the placebo comes from: ``baseline``, or ``window`` (its requests within the
    limits; then the placebo is an upper bound), with how many requests; None if there is none.
    """

    metric: str
    n: int
    sampled: int
    vanish_share: float
    placebo_share: float | None
    net_share: float | None
    shape_share: float
    unexplained_share: float
    reference: str | None
    reference_n: int


@dataclass(frozen=True)
class MissingEvidence:
    """A field that would have said more, why it matters here, and how to record it."""

    field: str
    why: str
    how: str


@dataclass(frozen=True)
class Diagnosis:
    """The answer. ``sentence`` is the one line; everything else is what it rests on.

    ``findings`` are ordered: the headline, the others by the time they lost (what the requests'
    size explains after the faults), the ``minor`` ones. ``over_limit``: of given limits with mostly
    unexplained misses, which phase holds their time. ``unexplained_share`` [1] is the part of the
    violations that no finding accounts for; None where there are none. ``unexplained_reasons``
    counts the judged ones of them by what decided, most first. ``fleet`` says what would vanish, by
    metric and within it the largest share first.
    """

    window: WindowInfo
    slo: SloInfo
    requests: RequestCounts
    percentiles: Mapping[str, Percentiles]
    chunks: ChunkPace | None
    goodput: Goodput | None
    coverage: float | None
    phases: tuple[PhaseTotal, ...]
    prefix_cache: CacheSavings | None
    kv_loads: KvLoads | None
    prefix_reuse: PrefixReuse | None
    engine_versions: tuple[VersionPace, ...]
    misses: Misses
    findings: tuple[Finding, ...]
    over_limit: tuple[OverLimit, ...]
    fleet: tuple[FleetShare, ...]
    fleet_totals: tuple[FleetTotal, ...]
    unexplained_share: float | None
    unexplained_reasons: Mapping[str, int]
    missing_evidence: tuple[MissingEvidence, ...]
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """The contract of design §6, as plain values."""
        document: dict[str, Any] = {"schema": SCHEMA, **_plain(asdict(self))}
        document["requests"]["completed_share"] = self.requests.completed_share
        if self.kv_loads is not None:
            document["kv_loads"]["is_loss"] = self.kv_loads.is_loss
        if self.prefix_reuse is not None:
            document["prefix_reuse"]["is_missed"] = self.prefix_reuse.is_missed
            document["prefix_reuse"]["is_impossible"] = self.prefix_reuse.is_impossible
        return document


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
