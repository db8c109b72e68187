"""The words of tracekit: phases, sub-phases, legs, causes, classes, statuses.

One place, so that SQL, reports, dashboard and docs cannot drift apart. Nothing here computes.
"""

from __future__ import annotations

from typing import Final

#: Phases in display order (the order of a request's life), each with its meaning.
PHASES: Final[dict[str, str]] = {
    "client_wait": "waiting in the client before the request was sent",
    "network": "between client and server, both ways",
    "route": "in gateways, routers and proxies",
    "frontend": "in the engine's front end: parsing, tokenising, waiting for the engine's step",
    "queue": "waiting for a scheduler slot",
    "prefill": "computing the prompt's KV cache, up to the first token",
    "queue_or_prefill": "before the first token, where the source cannot tell queue from prefill",
    "kv_transfer": "moving the KV cache from the prefill to the decode worker (exposed part)",
    "decode": "from the first token to the last",
    "unexplained": "covered by no boundary",
}

#: Sub-phases, each under the phase before the dot.
SUB_PHASES: Final[tuple[str, ...]] = (
    "frontend.engine_step_wait",
    "queue.kv_alloc",
    "prefill.wait",
    "prefill.double",
    "decode.stall",
    "decode.preempted",
    "kv_transfer.wait",
    "kv_transfer.wire",
    "kv_transfer.recompute",
)

#: Sub-phases in which the phase got nowhere.
IDLE_SUB_PHASES: Final[tuple[str, ...]] = ("prefill.wait", "decode.stall", "decode.preempted")

#: Which claim wins an instant where boundaries overlap: first wins (design §2).
PHASE_PRIORITY: Final[tuple[str, ...]] = (
    "decode",
    "prefill",
    "queue",
    "queue_or_prefill",
    "kv_transfer",
    "frontend",
    "route",
    "network",
    "client_wait",
)

#: Phases that lie before the first token and so compete for a TTFT miss.
TTFT_PHASES: Final[tuple[str, ...]] = (
    "client_wait",
    "network",
    "route",
    "frontend",
    "queue",
    "prefill",
    "queue_or_prefill",
    "kv_transfer",
)

#: One colour per phase everywhere: dashboard, terminal, reports (Okabe-Ito, colour-blind safe).
PHASE_COLOURS: Final[dict[str, str]] = {
    "client_wait": "#999999",
    "network": "#7F7F7F",
    "route": "#F0E442",
    "frontend": "#CC79A7",
    "queue": "#E69F00",
    "prefill": "#0072B2",
    "queue_or_prefill": "#8C6D1F",
    "kv_transfer": "#D55E00",
    "decode": "#009E73",
    "unexplained": "#C8C8C8",
}

LEG_ROLES: Final[tuple[str, ...]] = (
    "client",
    "gateway",
    "router",
    "engine",
    "prefill_engine",
    "decode_engine",
    "provider",
)

PROVENANCES: Final[tuple[str, ...]] = ("measured", "reported", "inferred")

STATUSES: Final[tuple[str, ...]] = ("ok", "error", "aborted", "timeout", "open")

TTFT_KINDS: Final[tuple[str, ...]] = (
    "first_chunk",
    "first_content",
    "server",
    "server_excl_queue",
    "after_headers",
)

#: Boundary names in the order a request meets them; columns are ``<name>_unix_ns``/``<name>_src``.
BOUNDARIES: Final[tuple[str, ...]] = (
    "intended_start",
    "send",
    "recv",
    "queued",
    "scheduled",
    "prefill_end",
    "kv_start",
    "kv_end",
    "first_token",
    "first_answer",
    "last_token",
    "leg_end",
)

CAUSES: Final[tuple[str, ...]] = (
    "arrival_burst",
    "capacity",
    "kv_capacity",
    "router_imbalance",
    "long_prompt",
    "cache_miss",
    "prefill_interference",
    "preemption",
    "kv_transfer_bandwidth",
    "kv_transfer_size",
    "kv_transfer_wait",
    "slow_worker",
    "gpu_throttled",
    "gpu_asleep",
    "double_prefill",
    "client_concurrency",
    "network",
    "frontend_stall",
    "slow_consumer",
    "fixed_overhead",
    "unknown",
)

CLASSES: Final[tuple[str, ...]] = (
    "attributed",
    "request_shape",
    "mixed",
    "unexplained",
    "insufficient_evidence",
)

#: Metrics an SLO may name and a verdict may be about.
SLO_METRICS: Final[tuple[str, ...]] = ("ttft", "tpot", "e2e")
