"""What really happened to each request, and what the fault did to it: the paired replay.

Owns the true phases (stamped inside the simulator, in tracekit's vocabulary, exclusive, adding up
to the wall time) and the definitions that the score rests on:

* population: (request, metric) that misses the limit under the fault and meets it without, both
  times answered in full;
* phase truth: the phase within the metric's scope that grew most from one replay to the other
  (TTFT: everything before the first token; TPOT: decode; e2e: all);
* cause truth: the injected cause, where that growth is at least 20 ms.

A fault reaches most victims through a mechanism, and for some of them the mechanism is what a
reader of the data can know and act on. `ACCEPTED` says which causes are true of a victim of each
fault in each phase; the injected one always is. The mechanisms:

* more prefill work on an engine (burst, capacity, long prompts, recomputed or missed prefixes,
  second prefills, everyone sent to one worker) stalls decodes, stretches other prefills, and
  keeps arrivals waiting for a step's end or for the step's token budget: `prefill_interference`,
  true beside the injected cause in decode, prefill, frontend and, for long prompts, queue;
* a decode engine without room lets transfers wait: `kv_transfer_wait` in kv_transfer;
* memory pressure shows as waiting (`kv_capacity`) or as preemption (`preemption`), and both
  names are true of it.

A knock-on keeps its injected cause: the queue behind a slow worker is that worker's, not
`capacity`; a queue behind missed prefixes is not `arrival_burst`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from attribution.cluster import Call, Replay
from attribution.engine import Engine, Leg

Floats = npt.NDArray[np.float64]

PHASES: Final = (
    "client_wait",
    "network",
    "route",
    "frontend",
    "queue",
    "prefill",
    "kv_transfer",
    "decode",
)
METRICS: Final = ("ttft", "tpot", "e2e")
#: Phases that a metric is made of.
SCOPE: Final = {
    "ttft": tuple(range(7)),
    "tpot": (7,),
    "e2e": tuple(range(8)),
}
MIN_EXCESS_S: Final = 0.020

INJECTED: Final = {
    "burst": "arrival_burst",
    "capacity": "capacity",
    "long_prompts": "prefill_interference",
    "cache_flush": "cache_miss",
    "kv_pressure": "kv_capacity",
    "slow_link": "kv_transfer_bandwidth",
    "kv_wait": "kv_transfer_wait",
    "slow_worker": "slow_worker",
    "throttled_gpu": "gpu_throttled",
    "router_imbalance": "router_imbalance",
    "client_wait": "client_concurrency",
    "double_prefill": "double_prefill",
    "frontend_stall": "frontend_stall",
}
_WORK: Final = dict.fromkeys(("frontend", "prefill", "decode"), ("prefill_interference",))
#: fault -> phase -> causes that are true beside the injected one.
ACCEPTED: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "burst": {**_WORK, "kv_transfer": ("kv_transfer_wait",)},
    "capacity": {**_WORK, "kv_transfer": ("kv_transfer_wait",)},
    "long_prompts": {"kv_transfer": ("kv_transfer_wait",)},
    "cache_flush": {**_WORK, "queue": ("prefill_interference",)},
    "kv_pressure": {
        "frontend": ("preemption", "prefill_interference"),
        "prefill": ("preemption", "prefill_interference"),
        "decode": ("preemption", "prefill_interference"),
    },
    "slow_link": {},
    "kv_wait": {
        "kv_transfer": ("kv_capacity",),
        "decode": ("preemption", "prefill_interference", "kv_capacity"),
    },
    "slow_worker": {},
    "throttled_gpu": {},
    "router_imbalance": {**_WORK, "kv_transfer": ("kv_transfer_wait",)},
    "client_wait": {},
    "double_prefill": {**_WORK, "queue": ("prefill_interference",)},
    "frontend_stall": {},
}


@dataclass(frozen=True)
class Outcome:
    """Per request of one replay, by request index; NaN where it was not answered in full.

    ``phases`` is requests x PHASES [s]; ``unread`` marks requests whose engine spans were lost.
    """

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    phases: Floats
    answered: npt.NDArray[np.bool_]
    cached: npt.NDArray[np.int64]
    preemptions: npt.NDArray[np.int64]

    def metric_s(self, metric: str) -> Floats:
        values: Floats = getattr(self, f"{metric}_s")
        return values


def outcome(replay: Replay, count: int) -> Outcome:
    """True metrics and phases of the requests with index below ``count``."""
    nan = np.full(count, np.nan)
    ttft, tpot, e2e = nan.copy(), nan.copy(), nan.copy()
    phases = np.full((count, len(PHASES)), np.nan)
    answered = np.zeros(count, dtype=np.bool_)
    cached = np.zeros(count, dtype=np.int64)
    preemptions = np.zeros(count, dtype=np.int64)
    for call in replay.calls:
        i = call.request.index
        if i >= count or call.state != "done":
            continue
        row = phases_of(call, replay)
        phases[i] = row
        answered[i] = True
        ttft[i] = row[:7].sum()
        e2e[i] = row.sum()
        if len(call.tokens) > 1:
            tpot[i] = row[7] / (len(call.tokens) - 1)
        first = call.leg
        last = call.decode or first
        assert first is not None and last is not None
        cached[i] = max(first.cached, 0)
        preemptions[i] = first.preemptions + (last.preemptions if last is not first else 0)
    return Outcome(ttft, tpot, e2e, phases, answered, cached, preemptions)


def phases_of(call: Call, replay: Replay) -> Floats:
    """[s] the phases of one answered call, in the order of PHASES; they add up to its wall time."""
    leg = call.leg
    assert leg is not None
    first_s = float(call.tokens[0])
    down = call.done_s - float(call.tokens[-1])
    at = dict.fromkeys(PHASES, 0.0)
    at["client_wait"] = call.send_s - call.request.intended_s
    at["network"] = call.arrive_s - call.send_s + down
    at["decode"] = float(call.tokens[-1]) - first_s
    engine = replay.engines[call.engine]
    made = first_token_s(engine, leg)
    at["frontend"] = leg.queued_s - leg.recv_s
    at["queue"] = leg.scheduled_s - leg.queued_s
    at["prefill"] = made - leg.scheduled_s
    if call.decode is None:
        at["frontend"] += first_s - made
        return np.array([at[p] for p in PHASES])
    d = call.decode
    at["route"] = leg.recv_s - call.arrive_s + d.recv_s - call.proxy_back_s
    at["frontend"] += call.proxy_back_s - made + d.queued_s - d.recv_s
    made_d = first_token_s(replay.engines[call.decode_engine], d)
    if d.source is None:
        # nothing was transferred: the decode engine's wait and prefill are what they are
        at["queue"] += d.scheduled_s - d.queued_s
        at["prefill"] += made_d - d.scheduled_s
    else:
        at["kv_transfer"] = made_d - d.queued_s
    at["frontend"] += first_s - made_d
    return np.array([at[p] for p in PHASES])


def first_token_s(engine: Engine, leg: Leg) -> float:
    """[s] when the engine had the leg's first token."""
    return float(engine.step_ends[leg.first_step])


@dataclass(frozen=True)
class Limits:
    """The SLO in seconds."""

    ttft_s: float
    tpot_s: float
    e2e_s: float

    def of(self, metric: str) -> float:
        limit: float = getattr(self, f"{metric}_s")
        return limit

    def text(self) -> str:
        """As `tracekit --slo` takes it."""
        return ",".join(f"{m}={self.of(m) * 1e3:.6g}ms" for m in METRICS)


def limits(clean: Outcome, percentile: float, factor: float) -> Limits:
    """An SLO as people set them: a percentile of healthy traffic, some headroom, two digits."""

    def rounded(value: float) -> float:
        digits = 10.0 ** (np.floor(np.log10(value)) - 1)
        return float(np.ceil(value / digits) * digits)

    return Limits(
        *(rounded(factor * np.nanpercentile(clean.metric_s(m), percentile)) for m in METRICS)
    )


@dataclass(frozen=True)
class Truth:
    """One row of the population. ``excess_s`` is the growth of ``phase``; ``causes`` is empty
    where it is below 20 ms. ``runner_up_s`` is the second largest growth."""

    index: int
    metric: str
    phase: str
    excess_s: float
    runner_up_s: float
    causes: frozenset[str]
    injected: frozenset[str]


def population(
    clean: Outcome, faulty: Outcome, slo: Limits, faults: tuple[str, ...]
) -> list[Truth]:
    """The rows that miss ``slo`` only with the faults, with what is true of each."""
    rows = []
    growth = faulty.phases - clean.phases
    both = clean.answered & faulty.answered
    for metric in METRICS:
        before, after = clean.metric_s(metric), faulty.metric_s(metric)
        with np.errstate(invalid="ignore"):
            chosen = np.flatnonzero(both & (after > slo.of(metric)) & ~(before > slo.of(metric)))
        scope = SCOPE[metric]
        for i in chosen:
            grown = growth[i, scope]
            order = np.argsort(-grown, kind="stable")
            phase = PHASES[scope[order[0]]]
            excess = float(grown[order[0]])
            injected = frozenset(INJECTED[f] for f in faults)
            causes = injected.union(*(ACCEPTED[f].get(phase, ()) for f in faults))
            rows.append(
                Truth(
                    index=int(i),
                    metric=metric,
                    phase=phase,
                    excess_s=excess,
                    runner_up_s=float(grown[order[1]]) if len(order) > 1 else 0.0,
                    causes=causes if excess >= MIN_EXCESS_S else frozenset(),
                    injected=injected,
                )
            )
    return rows
