"""A finding's cause in words, and what to try against it.

An action must fit its cause: never more hardware for a wait that the server never saw, never a
faster link for a hand-off that was waiting. Settings and metrics are those of the engine at hand.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tracekit.analysis.diagnosis import Culprit, VersionPace
from tracekit.analysis.systems import EXAMPLE, knob, turn_on
from tracekit.analysis.wording import format_ms, format_share, tokens

#: A culprit with less than this share of the first one's stall is no example for others.
_HEAVY_SHARE: Final = 0.3


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
    #: what is ordinary comes from a window that was declared healthy
    from_baseline: bool = False
    #: most requests with this metric are over its limit
    most_miss: bool = False
    #: of a queue without a known cause: the KV cache had room [1 in use], so it is for a slot
    room_at_kv_usage: float | None = None
    #: ... or the wait for the decode server's KV space is told, and is not most of it
    is_not_for_decode_kv: bool = False
    #: the serving engine, if all requests have the same
    engine: str | None = None
    #: inferred from others: at most so much of a merged phase is prefill
    prefill_at_most_ms: float | None = None

    @property
    def is_own_measure(self) -> bool:
        """Whether what its size should take is known from the window itself and nothing else."""
        return self.is_shape and not self.from_baseline and self.slower_version is None

    @property
    def waited_at_least_ms(self) -> float | None:
        """What is left of a merged phase without its prefill, if that is most of it (inferred)."""
        took_ms = self.expected_ms + self.excess_ms
        if self.prefill_at_most_ms is None or 2 * self.prefill_at_most_ms > took_ms:
            return None
        return took_ms - self.prefill_at_most_ms


def action_for(words: FindingWords) -> str:
    """One thing to try, in the imperative, for this phase and cause."""
    if words.cause == "prefill_interference":
        # the smallest prompt among those that matter, not one that happened to be there
        top = max((c.stall_ms for c in words.culprits), default=0.0)
        heavy = [c for c in words.culprits if c.stall_ms >= _HEAVY_SHARE * top]
        size = min((c.input_tokens for c in heavy if c.input_tokens), default=None)
        long = f"prompts of {tokens(size)} and more" if size else "long prompts"
        return (
            f"lower the chunked-prefill budget{knob(words.engine, 'chunk')}, "
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
    if words.is_own_measure and words.most_miss:
        return "name a healthy window with --baseline: this one is over the limit as a whole"
    if words.is_own_measure and words.cause == "kv_transfer_size":
        return (
            "compare what a transfer costs by its size with the link's rating, or with a healthy "
            "window (--baseline), before shortening prompts or storing KV in fewer bits"
        )
    if words.cause == "fixed_overhead" and words.metric == "tpot":
        costs = "without any fault" if words.from_baseline else "for all requests of this window"
        return (
            "compare a smaller model, speculative decoding or another provider's token rate: "
            f"a token costs this much here {costs}"
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
    if words.room_at_kv_usage is not None:
        return (
            "raise the limit of running requests"
            f"{knob(words.engine, 'running')}, since the KV cache has room, or lower the load per "
            "worker"
        )
    running = f"the limit of running requests{knob(words.engine, 'running')}"
    if words.cause == "capacity":
        return (
            f"lower the load per worker (more workers, or a limit in the gateway), or raise "
            f"{running} if the KV cache has room"
        )
    if words.cause == "kv_capacity":
        return (
            f"give the KV cache more room{knob(words.engine, 'kv_room')} or cap what a request may "
            "hold; more slots would not help"
        )
    if words.cause == "preemption":
        return f"give the KV cache more room or lower {running}, so that nothing is preempted"
    return _ACTIONS.get(words.cause) or unknown_action(words.phase, words.engine)


def unknown_action(phase: str, engine: str | None) -> str:
    """What tells more of a phase whose loss has no known cause; ``engine`` None: not known."""
    of = engine or EXAMPLE
    if phase == "queue":
        look = turn_on(of, "load") or (
            "look at the engine's metrics for waiting requests and KV usage in this window"
        )
        return f"{look}, to tell full slots from a full KV cache"
    if phase == "queue_or_prefill":
        spans = "turn on the engine's spans"
        if of == EXAMPLE:
            return f"{spans} (vLLM --otlp-traces-endpoint), to tell queue from prefill"
        return f"{turn_on(of, 'split') or spans}, to tell queue from prefill"
    if phase == "kv_transfer":
        wire = (
            turn_on(of, "wire")
            or turn_on(of, "bytes")
            or "record bytes and wire time of the transfer"
        )
        return f"{wire}, to tell waiting from a slow link"
    return _ACTIONS_UNKNOWN[phase]


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
    "prefill": (
        "compare the cached tokens of these requests with others of the same prefix, "
        "then the worker's clocks"
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
    if words.room_at_kv_usage is not None:
        often = "most of the time " if words.waits_last else ""
        return (
            f"because requests wait {often}for a slot (or their turn in a step): the KV cache was "
            f"{format_share(words.room_at_kv_usage)} full on average, so it is not for memory"
        )
    if words.is_not_for_decode_kv:
        return "for a reason that the data do not show, but not for KV space of the decode server"
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
    if words.cause == "unknown" and (waited := words.waited_at_least_ms) is not None:
        if words.disaggregated:
            return (
                f"; inferred: {format_ms(waited)} of it is no prefill, but waiting, or a KV "
                "transfer that came before the prefill worker's token"
            )
        return (
            f"; inferred: at least {format_ms(waited)} of it is waiting, for what the data do not "
            "show"
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


def compare_command(pace: VersionPace) -> str:
    """The command that says what changed between the versions."""
    sides = (shlex.quote(f"engine_version={v}") for v in (pace.quicker, pace.slower))
    return " ".join(("tracekit compare", *sides))
