"""The words that reports use: labels, headings, explanations. Numbers are not made here."""

from __future__ import annotations

from typing import Final

from tracekit.words import plural

#: One letter a phase, so that a timeline reads without colour.
PHASE_LETTERS: Final[dict[str, str]] = {
    "client_wait": "W",
    "network": "N",
    "route": "R",
    "frontend": "F",
    "queue": "Q",
    "prefill": "P",
    "queue_or_prefill": "B",
    "kv_transfer": "K",
    "decode": "D",
    "unexplained": "?",
}

#: What each metric of the percentiles is, next to its number.
METRICS: Final[dict[str, tuple[str, str]]] = {
    "ttft_ms": ("TTFT", "start to first token of any channel"),
    "ttfa_ms": ("TTFA", "start to first visible answer token"),
    "tpot_ms": ("TPOT", "(last token - first token) / (output tokens - 1)"),
    "itl_ms": ("ITL", "gap between tokens; a chunk's gap over its tokens"),
    "e2e_ms": ("E2E", "intended start to last token"),
}

CLASSES: Final[dict[str, str]] = {
    "attributed": "one phase exceeds what the request's shape explains",
    "request_shape": "as slow as its size makes it",
    "mixed": "several phases share the excess",
    "unexplained": "no phase can be blamed",
    "insufficient_evidence": "not enough evidence for a verdict",
}

NOTHING_SLOW: Final = "no finding: no request misses the SLO, or is slow"
SLOWEST: Final = (
    "the slowest 5 % of each model and route (a route with few requests: of its model), since no "
    "limit is given"
)
JUDGED: Final = (
    "{judged:,} of {violations:,} {slow} (each counted once a metric), drawn at random: they stand "
    "for all"
)
UNEXPLAINED: Final = "no finding accounts for {share} of the {slow} (each counted once a metric)"
NO_FINDINGS: Final = "no finding; of the {slow} (each counted once a metric) {reasons}"


def nothing_judged(n: int, needed: int) -> str:
    """Why there is no verdict on any of so few completed requests."""
    return f"nothing was judged: {plural(n, 'completed request')}, {needed} are needed"


def slow(given: bool) -> str:
    """The one name of what is looked into: with an SLO (``given``) and without."""
    return "requests that miss the SLO" if given else "slow requests"


def phase_label(phase: str) -> str:
    """``kv_transfer`` as people read it."""
    return {"kv_transfer": "KV transfer", "queue_or_prefill": "queue or prefill"}.get(
        phase, phase.replace("_", " ")
    )


def cause_label(cause: str) -> str:
    """``prefill_interference`` as people read it."""
    return cause.replace("_", " ").replace("kv ", "KV ").replace("gpu ", "GPU ")


def slo_label(metric: str) -> str:
    """``ttft`` or ``ttft_ms`` as people read it."""
    name = metric if metric.endswith("_ms") else f"{metric}_ms"
    return METRICS[name][0] if name in METRICS else metric
