"""Numbers into words: the sentence of a finding, the sentence of a diagnosis, and what to try.

Owns every phrase that a diagnosis prints. Makes no number and reads no table. An action must fit
its cause: never more hardware for a wait that the server never saw, never a faster link for a
hand-off that was waiting.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Final

from tracekit.analysis.diagnosis import (
    Culprit,
    Finding,
    MissingEvidence,
    RequestCounts,
    SloInfo,
    VersionPace,
)
from tracekit.analysis.missing import CLOCKS_FIELD, KIND, REACH_FIELD, SWAPPED_FIELDS
from tracekit.analysis.slo import GIVEN
from tracekit.analysis.timeless import TIMES_FIELD
from tracekit.words import plural, verb

#: Phases as they read in a sentence.
PHASE_WORDS: Final[dict[str, str]] = {
    "client_wait": "waiting in the client",
    "network": "the network",
    "route": "the gateway or router",
    "frontend": "the engine's front end",
    "queue": "the queue",
    "prefill": "prefill",
    "queue_or_prefill": "the time before the first token (queue or prefill)",
    "kv_transfer": "KV transfer",
    "decode": "decode",
    "unexplained": "time that no boundary covers",
}

METRIC_WORDS: Final[dict[str, str]] = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "total time"}

#: A finding that holds less than this of its metric's misses is no headline where most of the
#: misses are without an explanation.
HEADLINE_SHARE: Final = 0.2

#: And with this part of its share that may be ordinary it says so.
_NEARLY_ALL: Final = 0.8

#: The field of a note on requests that were killed before their first token.
GIVEN_UP_FIELD: Final = "requests that ended early"

#: Interference without culprits.
NOBODY_NAMED: Final = (
    "no single request is named: where so many wait on a worker, each holds up all behind it"
)

#: A culprit with less than this share of the first one's stall is no example for others.
_HEAVY_SHARE: Final = 0.3


def format_ms(value: float) -> str:
    """Milliseconds with the unit that reads best: ``0.4 ms``, ``812 ms``, ``1.9 s``."""
    size = abs(value)
    if size >= 120_000:
        return f"{value / 60_000:.1f} min"
    if size >= 1_000:
        return f"{value / 1_000:.1f} s" if size < 99_950 else f"{value / 1_000:.0f} s"
    if size >= 10:
        return f"{value:.0f} ms"
    return f"{value:.1f} ms"


def format_share(value: float) -> str:
    """A share of 1 in per cent; never rounded to 0 or 100 unless it is."""
    if 0 < value < 0.01:
        return "under 1 %"
    if 0.99 < value < 1:
        return "over 99 %"
    return f"{value * 100:.0f} %"


def format_confidence(value: float) -> str:
    """A confidence with two digits, rounded down: 0.897 is not yet the 0.90 of "high"."""
    return str(Decimal(repr(float(value))).quantize(Decimal("0.01"), ROUND_FLOOR))


def format_tokens(value: float) -> str:
    """Tokens: exact below ten thousand, else in thousands (``31k``)."""
    return f"{value:,.0f}" if value < 10_000 else f"{value / 1_000:.0f}k"


def tokens(value: float, kind: str = "") -> str:
    """``31k prompt tokens``, ``1 token``."""
    noun = "token" if format_tokens(value) == "1" else "tokens"
    return " ".join(filter(None, (format_tokens(value), kind, noun)))


def format_about(value: float) -> str:
    """A number that is not known better than to two digits: ``3,500``."""
    return f"{float(f'{value:.2g}'):,.0f}"


@dataclass(frozen=True)
class FindingWords:
    """What a finding's words need beside its numbers. Tokens are medians, None if unknown.

    ``disaggregated``: whether prefill and decode of some of its requests are apart already.
    """

    phase: str
    cause: str
    metric: str
    is_shape: bool
    excess_ms: float
    expected_ms: float
    uncached_tokens: float | None
    output_tokens: float | None
    worker: str | None
    culprits: Sequence[Culprit]
    waits_last: bool = False
    gaps_known: bool = False
    disaggregated: bool = False
    #: what was loaded from a cache elsewhere would take so long to compute, less than the load
    recompute_ms: float | None = None
    #: nothing had run on their worker for so long before most of them came, which is not usual
    idle_ms: float | None = None
    #: what is as slow as its size was served by a version that takes longer for all
    slower_version: VersionPace | None = None


def action_for(words: FindingWords) -> str:
    """One thing to try, in the imperative, for this phase and cause."""
    if words.cause == "prefill_interference":
        # the smallest prompt among those that matter, not one that happened to be there
        top = max((c.stall_ms for c in words.culprits), default=0.0)
        heavy = [c for c in words.culprits if c.stall_ms >= _HEAVY_SHARE * top]
        size = min((c.input_tokens for c in heavy if c.input_tokens), default=None)
        long = f"prompts of {tokens(size)} and more" if size else "long prompts"
        return (
            "lower the chunked-prefill budget (vLLM --max-num-batched-tokens), "
            f"or send {long} to workers of their own"
        )
    if words.cause == "slow_worker":
        return (
            f"take {words.worker or 'that worker'} out of rotation and compare its clocks, "
            "neighbours and version with its peers"
        )
    if words.cause == "gpu_throttled":
        return (
            f"look at power cap, temperature and clock reasons of the GPU of "
            f"{words.worker or 'that worker'}"
        )
    if words.cause == "router_imbalance":
        return (
            f"look at why the router prefers {words.worker or 'one worker'} (session affinity, a "
            "sticky hash, stale load figures): other workers had room"
        )
    if words.idle_ms is not None and words.cause == "unknown":
        return (
            "look at the GPU's clocks and power state at the start of such a request (nvidia-smi), "
            "and keep the worker warm with a small request now and then to see whether it goes away"
        )
    if words.recompute_ms is not None and words.cause in _LOAD_CAUSES:
        return (
            "load from the slower tier only what takes longer to compute than to load, or turn "
            "that tier off for such prompts"
        )
    if words.slower_version is not None:
        return (
            f"compare the two versions ({compare_command(words.slower_version)}), and go back to "
            f"{words.slower_version.quicker} if it is not the traffic"
        )
    if words.cause == "fixed_overhead" and words.metric == "tpot":
        return (
            "compare a smaller model, speculative decoding or another provider's token rate: "
            "a token costs this much here without any fault"
        )
    if words.cause == "fixed_overhead" and words.phase == "decode":
        return "limit output length, or compare a model or provider with a higher token rate"
    if words.cause == "long_prompt" and words.metric == "tpot":
        return "shorten the context that every new token attends to"
    if words.cause == "long_prompt" and words.phase == "decode":
        return "limit output length and shorten the context that every new token attends to"
    if words.cause == "unknown" and words.phase == "decode" and words.gaps_known:
        return (
            "look at batch size, KV use and clocks of the worker while these requests decoded: "
            "their token gaps are known, what slowed the step is not"
        )
    if words.cause == "long_prompt" and words.disaggregated:
        return "try prefix caching, fewer document chunks, or reranking"
    by_cause = _ACTIONS.get(words.cause)
    return by_cause or _ACTIONS_UNKNOWN[words.phase]


#: Causes of a KV load that its own cost answers: nothing says that the link or a wait is at fault.
_LOAD_CAUSES: Final = ("fixed_overhead", "kv_transfer_size", "unknown")

_ACTIONS: Final[dict[str, str]] = {
    "client_concurrency": (
        "raise or remove the client's own limit on concurrent requests; "
        "the server had not seen these requests yet"
    ),
    "network": (
        "measure the path between client and server (proxy buffering, region, connection reuse) "
        "before touching the engine"
    ),
    "frontend_stall": (
        "look whether the engine itself paused then (garbage collection, other work on its CPUs); "
        "if not, give its API server cores of its own, or more front-end processes"
    ),
    "arrival_burst": (
        "smooth the bursts (a rate limit or a queue in the gateway) or keep free slots for them"
    ),
    "capacity": (
        "lower the load per worker (more workers, or a limit in the gateway), or raise the limit "
        "of running requests (vLLM --max-num-seqs) if the KV cache has room"
    ),
    "kv_capacity": (
        "give the KV cache more room (vLLM --gpu-memory-utilization, a smaller --max-model-len, KV "
        "in 8 bits) or cap what a request may hold; more slots would not help"
    ),
    "cache_miss": (
        "find out what emptied or bypassed the prefix cache (a restart, evictions, another worker, "
        "a changed system prompt): such prompts usually hit"
    ),
    "gpu_asleep": (
        "keep the GPU awake (persistence mode, a lower bound for its clocks with nvidia-smi -lgc, "
        "or a small request now and then)"
    ),
    "kv_transfer_bandwidth": (
        "compare the link's measured bandwidth with its rating (transport fallback to TCP, a "
        "shared or wrong NIC, block size), and move fewer bytes until it is mended"
    ),
    "double_prefill": (
        "check that the proxy hands the KV parameters on (kv_transfer_params) and that the decode "
        "server can reach the prefill server: as it is, nothing is disaggregated"
    ),
    "preemption": (
        "give the KV cache more room or lower --max-num-seqs, so that nothing is preempted"
    ),
    "kv_transfer_wait": (
        "look at the hand-off (admission on the decode side, block size, step alignment) "
        "before the link: most of it is waiting, not moving bytes"
    ),
    "kv_transfer_size": "shorten prompts, or store the KV cache in fewer bits",
    "long_prompt": (
        "try prefix caching, fewer document chunks, or reranking "
        "before prefill/decode disaggregation"
    ),
    "fixed_overhead": (
        "loosen the limit or shorten the path before the first token: this is what every request "
        "costs here"
    ),
}

_ACTIONS_UNKNOWN: Final[dict[str, str]] = {
    "client_wait": "look at what the client does between deciding to send and sending",
    "network": "measure the path between client and server",
    "route": "look at the gateway's or router's own queue, retries and health checks",
    "frontend": (
        "record the prefills of all requests on the same server, to tell a step that was busy "
        "prefilling from a stalled API server"
    ),
    "queue": (
        "look at the engine's vllm:num_requests_waiting_by_reason and vllm:kv_cache_usage_perc "
        "for this window, to tell full slots from a full KV cache"
    ),
    "prefill": (
        "compare the cached tokens of these requests with others of the same prefix, "
        "then the worker's clocks"
    ),
    "queue_or_prefill": (
        "turn on the engine's spans (vLLM --otlp-traces-endpoint), to tell queue from prefill"
    ),
    "kv_transfer": (
        "record bytes and wire time of the transfer (vLLM: vllm:nixl_xfer_time_seconds on the "
        "decode server), to tell waiting from a slow link"
    ),
    "decode": (
        "record the client's chunk times and the engine's batch size, to tell stalls from a "
        "slow step"
    ),
}


def cause_phrase(words: FindingWords) -> str:
    """The cause as the words after the comma: ``because other requests prefilled ...``."""
    if words.cause == "prefill_interference":
        if not words.culprits:
            return "because other requests were prefilling on the same worker"
        top = words.culprits[0]
        size = f" ({tokens(top.input_tokens, 'prompt')})" if top.input_tokens else ""
        return (
            "because other requests were prefilling on the same worker, first of all "
            f"{top.request_id}{size}"
        )
    if words.cause == "slow_worker":
        return f"because worker {words.worker or '(unnamed)'} is slower than its peers"
    if words.cause == "gpu_throttled":
        return f"because the GPU of worker {words.worker or '(unnamed)'} held its clock back"
    if words.cause == "router_imbalance":
        return (
            f"because the router sent far more to worker {words.worker or '(unnamed)'} than to "
            "others that had room"
        )
    if words.phase == "queue" and words.cause == "unknown" and words.waits_last:
        return (
            "because requests wait most of the time (too few slots or too little KV memory: the "
            "data do not show which)"
        )
    if words.phase == "decode" and words.cause == "frontend_stall":
        return (
            "because streams of the worker stood still at the same moments, under no prefill: its "
            "front end paused, or the engine itself"
        )
    if words.idle_ms is not None and words.cause == "unknown":
        return (
            f"after their worker had been idle ({format_ms(words.idle_ms)} at the median): what "
            "slept, the data do not show"
        )
    return _CAUSES.get(words.cause, "for a reason that the data do not show")


_CAUSES: Final[dict[str, str]] = {
    "client_concurrency": "because the client held the requests back before sending them",
    "network": "because of the way between client and server",
    "frontend_stall": (
        "because the front end was slow, or stood still with the engine behind it: no other prompt "
        "was prefilling meanwhile"
    ),
    "arrival_burst": "because they came in bursts",
    "capacity": "because more requests came in than usual, for longer than a burst lasts",
    "kv_capacity": "because the KV cache was full: they waited for memory, not for a slot",
    "cache_miss": "because prefixes that were due from the cache were not found there",
    "gpu_asleep": "because the GPU had gone to sleep: its clock was still low when they came",
    "kv_transfer_bandwidth": "because bytes moved slowly: it is the bandwidth, not a wait",
    "double_prefill": (
        "because the decode server computed the prompt once more: the KV cache did not come over"
    ),
    "preemption": "because they were preempted and computed again",
    "kv_transfer_wait": "because the hand-off was waiting, not because bytes were slow",
}


#: An expectation below this is no number worth printing.
_NEXT_TO_NOTHING_MS: Final = 1.0


def finding_sentence(
    words: FindingWords,
    *,
    share: float,
    n: int,
    looked_into: int,
    confidence: float,
    label: str,
    source: str,
) -> str:
    """One finding in one sentence, without its action.

    ``n`` is about so many where fewer were ``looked_into``.
    """
    subject = misses_of(words.metric, source)
    # the confidence is about the phase: whether it is the one, not why
    sure = f"confidence in the phase {label} ({format_confidence(confidence)}), n = "
    sure += f"{n:,}" if looked_into >= n else f"about {n:,} ({looked_into:,} looked into)"
    if words.is_shape and (pace := words.slower_version) is not None:
        return (
            f"{format_share(share)} of {subject}: as slow as their size makes them with engine "
            f"version {pace.slower}, which takes {pace.factor:.1f} times as long as "
            f"{pace.quicker} ({_shape_cost(words)}); {sure}"
        )
    if words.is_shape:
        return (
            f"{format_share(share)} of {subject}: as slow as their size makes them, no fault "
            f"({_shape_cost(words)}); {sure}"
        )
    why = cause_phrase(words)
    # what the evidence suggests is not as sure as the phase, which is measured
    why = f"; most likely {why}" if why.startswith("because") else f" {why}"
    return (
        f"{format_share(share)} of {subject} lost their time in {PHASE_WORDS[words.phase]} "
        f"(+{format_ms(words.excess_ms)}, {_ordinary(words)}; {sure}){why}"
    )


def compare_command(pace: VersionPace) -> str:
    """The command that says what changed between the versions."""
    sides = (shlex.quote(f"engine_version={v}") for v in (pace.quicker, pace.slower))
    return " ".join(("tracekit compare", *sides))


def _ordinary(words: FindingWords) -> str:
    if words.expected_ms < _NEXT_TO_NOTHING_MS:
        return "where next to nothing is ordinary"
    return f"over the {format_ms(words.expected_ms)} expected for this shape"


def _shape_cost(words: FindingWords) -> str:
    phase = PHASE_WORDS[words.phase]
    cost = format_ms(words.expected_ms)
    if words.phase == "decode" and words.output_tokens is not None:
        size, take = tokens(words.output_tokens, "output"), _take(words.output_tokens)
        return f"{size} {take} {cost} of decode here"
    if words.uncached_tokens is not None and words.phase in ("prefill", "queue_or_prefill"):
        size, take = tokens(words.uncached_tokens, "prompt"), _take(words.uncached_tokens)
        return f"{size} {take} {cost} of {phase} here"
    if words.recompute_ms is not None:
        again = format_ms(words.recompute_ms)
        return f"loading KV takes {cost}, computing the same tokens again about {again}"
    return f"{phase} takes {cost} for this shape"


def _take(value: float) -> str:
    return "takes" if format_tokens(value) == "1" else "take"


def misses_of(metric: str, source: str) -> str:
    """What the share is a share of: the requests that miss the SLO, or the slowest ones."""
    word = METRIC_WORDS[metric]
    if source == GIVEN:
        return f"the requests that miss the {word} SLO"
    return f"the requests with the slowest {word}"


def diagnosis_sentence(
    *,
    findings: Sequence[Finding],
    requests: RequestCounts,
    slo: SloInfo,
    misses: int,
    unexplained_share: float | None,
    reasons: Mapping[str, int],
    missing: Sequence[MissingEvidence],
    min_rows: int,
    window_text: str,
    elsewhere: str | None = None,
    limits_known: bool = True,
    known_from_baseline: bool = False,
) -> str:
    """The one line: the headline finding with its action, or what is missing to have one.

    ``reasons`` counts what no finding accounts for by what decided, most first.
    ``limits_known``: whether there is any limit, given or from enough requests.
    ``known_from_baseline``: whether a baseline says what is ordinary.
    """
    if requests.total == 0 and elsewhere is not None:
        return (
            f"Not enough evidence: no request lies in {window_text} with these filters; "
            f"{elsewhere}; widen --since or change the filters."
        )
    mended = next((m for m in missing if m.field in (SWAPPED_FIELDS, TIMES_FIELD)), None)
    if requests.completed < min_rows and not findings and mended is not None:
        return f"Not enough evidence: {mended.why}; {mended.how}."
    early = _ended_early(missing, window_text)
    if requests.completed < min_rows and not findings and early is not None:
        return early
    if requests.completed < min_rows and not findings:
        return (
            f"Not enough evidence: {plural(requests.completed, 'completed request')} in "
            f"{window_text}, "
            f"{min_rows} are needed to say what is ordinary; collect more or widen the window, "
            "and read `tracekit table` meanwhile."
        )
    if not misses and slo.source == GIVEN:
        return (
            f"No request missed the SLO in {window_text} "
            f"({requests.completed:,} completed, {_limits(slo)})."
        )
    if not misses:
        return _none_slow(requests, window_text, min_rows, limits_known)
    if not findings or (
        findings[0].share_of_misses < HEADLINE_SHARE and (unexplained_share or 0.0) >= 0.5
    ):
        return _not_enough(reasons, missing, window_text, slo)
    top = findings[0]
    rest = _may_be_ordinary(top, known_from_baseline)
    if unexplained_share:
        share = format_share(unexplained_share)
        slow = "requests that miss the SLO" if slo.source == GIVEN else "slow requests"
        rest += f"; for {share} of the {slow} no single phase can be named"
    aside = sum(requests.quarantined.values())
    if aside >= _ASIDE * requests.total:
        of = plural(requests.total, "request")
        rest += f"; {aside:,} of {of} {verb(aside, 'is', 'are')} set aside and not judged"
    return f"In {window_text}, {top.sentence}{rest}. Next: {top.action}."


def _ended_early(missing: Sequence[MissingEvidence], window_text: str) -> str | None:
    """Where most of the slow ones were killed before their first token: that, and what to do."""
    early = next((m for m in missing if m.field == GIVEN_UP_FIELD), None)
    if early is None:
        return None
    return f"Not enough evidence: in {window_text} {early.why}; {early.how}."


def _none_slow(requests: RequestCounts, window_text: str, min_rows: int, limits_known: bool) -> str:
    """Why no request counts as slow, where no SLO was given."""
    of = f"none of the {plural(requests.completed, 'completed request')} in {window_text}"
    if not limits_known:
        return (
            f"Not enough evidence: {of} can be called slow: without an SLO that takes {min_rows} "
            "requests with a TTFT, TPOT or total time; record one of them, or give --slo."
        )
    return (
        f"Not enough evidence: {of} is slow: without an SLO that is one above the 95th percentile "
        "of its model and route, and here so many take equally long that none is above it; give "
        "--slo."
    )


def _may_be_ordinary(top: Finding, known_from_baseline: bool) -> str:
    """What the headline says where nearly all of its share may be no fault."""
    if not top.placebo_share or top.placebo_share < _NEARLY_ALL * top.share_of_misses:
        return ""
    share = format_share(top.placebo_share)
    if known_from_baseline:
        return f"; {share} are what the baseline shows too"
    return f"; up to {share} may be ordinary variation, a --baseline window tells"


def _not_enough(
    reasons: Mapping[str, int],
    missing: Sequence[MissingEvidence],
    window_text: str,
    slo: SloInfo,
) -> str:
    if (early := _ended_early(missing, window_text)) is not None:
        return early
    reason = next(iter(reasons), None)
    # two kinds of requests under one name may be behind any reason
    fields = (*_REASON_FIELDS.get(reason or "", ()), KIND)
    entry = next((m for m in missing if m.field in fields), None)
    if entry is not None:
        return f"Not enough evidence: {entry.field}: {entry.why}; {entry.how}."
    if reason in ("spread", "excess"):
        return (
            f"Not enough evidence: in {window_text} the excess of the slow requests is spread over "
            "several phases; look at single ones with `tracekit show`, or narrow the window."
        )
    if reason == "usual":
        n = reasons[reason]
        many = plural(n, "slow request")
        if slo.source == GIVEN:
            many = f"{plural(n, 'request')} that {verb(n, 'misses', 'miss')} the SLO"
        return (
            f"Not enough evidence: in {window_text} {many} {abstained(reason, n)}; look at "
            f"{verb(n, 'it', 'single ones')} with `tracekit show`, or name a healthy window with "
            "--baseline."
        )
    return (
        f"Not enough evidence: in {window_text} no phase of the slow requests takes clearly longer "
        "than is ordinary here; if all of it is slow, name a healthy window with --baseline."
    )


#: Why no finding accounts for some requests, by what decided, as the words after their number.
_ABSTAINED: Final[dict[str, str]] = {
    "excess": "took longer than {its} size explains, but which phase is to blame may be chance",
    "shape": "may owe {its} time to {its} size alone, which is not sure",
    "spread": "lost time in several phases, in none of them most of it",
    "usual": (
        "took longer than {its} size explains, but such losses are too few, too scattered over "
        "time and workers, or too much what the load of their time explains, to tell a fault from "
        "chance"
    ),
    "ordinary": "took no longer in any phase than ordinary variation allows",
    "loose": (
        "may owe {its} time to {its} size, but what such requests should take is known too loosely"
    ),
    "coverage": "spent too much time where no boundary tells the phase",
    "clock": (
        "lost {its} time in a KV transfer shorter than the difference of the hosts' clocks is known"
    ),
    "size": "came without token counts: what {its} size should take is not known",
    "reach": (
        "had a size far beyond the requests that the expectation was fitted on: what {its} size "
        "should take is not known"
    ),
    "phases": "had no phase that could be compared with an expectation",
    "rows": "came in a kind of traffic with too few requests to say what is ordinary",
}


def abstained(reason: str, n: int) -> str:
    """Why ``n`` requests have no finding: ``took longer than its size explains, but ...``."""
    its = verb(n, "its", "their")
    if reason == "usual" and n == 1:
        return f"took longer than {its} size explains: one alone does not tell a fault from chance"
    return _ABSTAINED.get(reason, "could not be judged").format(its=its)


#: Requests that are set aside are part of the answer from this share on.
_ASIDE: Final = 0.1

#: Why verdicts abstain, and the fields that would have changed that.
_REASON_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "coverage": ("coverage", "queue_ms, prefill_ms", "client span"),
    "clock": (CLOCKS_FIELD,),
    "size": (SWAPPED_FIELDS, "input_tokens", "output_tokens"),
    "reach": (REACH_FIELD,),
    "phases": ("queue_ms, prefill_ms", "ttft_ms"),
    "rows": ("requests",),
}


def _limits(slo: SloInfo) -> str:
    given = {"ttft": slo.ttft_ms, "tpot": slo.tpot_ms, "e2e": slo.e2e_ms}
    return ", ".join(
        f"{METRIC_WORDS[m]} at most {format_ms(limit)}" for m, limit in given.items() if limit
    )
