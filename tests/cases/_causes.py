"""One case for each second-level cause that a log and spans can show."""

from __future__ import annotations

from tests.cases._case import (
    LOST_IN,
    MORE_HARDWARE,
    PREFILL_STALL,
    SLOW_WORKER,
    Case,
    at_least,
    ids,
)
from tests.cases._world import World, json_lines, log_row, otlp_lines, run_slots, traced


def idle_gap() -> Case:
    w = World(532)
    calls = w.traffic(70, every=400, inputs=(60, 800), workers=["engine-0"])
    at = calls[-1].last
    woken = []
    for i in range(10):
        at += 12_000
        c = w.call(f"woken-{i}", at, input=round(300 * w.rng.uniform(0.8, 1.2)), output=40)
        c.prefill += 170 * w.rng.lognormvariate(0, 0.1)
        woken.append(c)
        at = c.last
    return Case(
        "32-after-an-idle-gap",
        "vllm-project/vllm #31602, NVIDIA/Isaac-GR00T #379 (without the GPU's clocks)",
        "A request that comes 10 s after the one before prefills 170 ms longer: the GPU had gone "
        "to a low power state. Its clocks are not in these data, the idle gap is.",
        {"spans.otlp.jsonl": otlp_lines(s for c in calls + woken for s in traced(c))},
        {
            "args": {"slo": "ttft=150ms"},
            "victims": ids(woken),
            "metric": "ttft",
            "any_of": [
                {"class": "attributed", "phase": "prefill", "cause": c}
                for c in ("gpu_asleep", "unknown")
            ],
            "confidence_floor": 0.7,
            "must_contain": ["idle"],
            "must_not_contain": [MORE_HARDWARE, SLOW_WORKER, PREFILL_STALL, "because.*cache"],
        },
    )


def burst() -> Case:
    w = World(560)
    calls = w.traffic(90, every=700, inputs=(60, 600), workers=["engine-0"])
    many = w.traffic(
        30, name="burst", start=40_000, every=12, inputs=(60, 600), workers=["engine-0"]
    )
    run_slots(calls + many, 4)
    late = [c for c in calls + many if c.ttft > 800]
    assert len(late) >= 15
    return Case(
        "60-arrival-burst",
        "facts on causes: burst",
        "Thirty requests within half a second on an engine of four slots that is nearly idle "
        "before and after.",
        {"requests.jsonl": json_lines(log_row(c, phases=True) for c in calls + many)},
        {
            "args": {"slo": "ttft=800ms"},
            "victims": ids(late),
            "metric": "ttft",
            "class": "attributed",
            "phase": "queue",
            "cause": "arrival_burst",
            "confidence_floor": 0.9,
            "values": {"misses.by_metric.ttft": len(late)},
            "must_contain": ["burst"],
            "must_not_contain": [MORE_HARDWARE, SLOW_WORKER, LOST_IN.format("(prefill|decode)")],
        },
    )


def capacity() -> Case:
    w = World(561)
    calls = w.traffic(200, every=170, inputs=(60, 600), outputs=(40, 90), workers=["engine-0"])
    run_slots(calls, 3)
    late = [c for c in calls if c.ttft > 1_000]
    assert len(late) > 80
    return Case(
        "61-capacity",
        "facts on causes: capacity",
        "Requests come faster than three slots can serve, all the time: the queue grows for half a "
        "minute. Whether it is slots or KV memory only the engine's metrics say.",
        {"requests.jsonl": json_lines(log_row(c, phases=True) for c in calls)},
        {
            "args": {"slo": "ttft=1s"},
            "victims": ids(late),
            "metric": "ttft",
            "any_of": [
                {"class": "attributed", "phase": "queue", "cause": c}
                for c in ("capacity", "unknown")
            ],
            "confidence_floor": 0.9,
            "values": {"misses.by_metric.ttft": len(late)},
            "must_contain": [r"kv_cache_usage_perc|num_requests_waiting"],
            "must_not_contain": [
                SLOW_WORKER,
                "bursts",
                LOST_IN.format("(prefill|decode|waiting in the client)"),
            ],
        },
    )


def router_imbalance() -> Case:
    w = World(562)
    calls = w.traffic(80, every=350, inputs=(60, 600), outputs=(40, 90))
    # for a while the router sends everything to engine-0, while engine-1 stands idle
    skewed = w.traffic(
        50,
        name="skewed",
        start=30_000,
        every=120,
        inputs=(60, 600),
        outputs=(40, 90),
        workers=["engine-0"] * 9 + ["engine-1"],
    )
    run_slots(calls + skewed, 3)
    late = [c for c in calls + skewed if c.ttft > 700]
    assert len(late) >= 15 and {c.worker for c in late} == {"engine-0"}
    return Case(
        "62-router-imbalance",
        "facts on causes: router imbalance",
        "Nine of ten requests go to engine-0 and wait there, while engine-1 has free slots all the "
        "time. Each engine is as fast as ever.",
        {"requests.jsonl": json_lines(log_row(c, phases=True) for c in calls + skewed)},
        {
            "args": {"slo": "ttft=700ms"},
            "victims": ids(late),
            "metric": "ttft",
            "class": "attributed",
            "phase": "queue",
            "cause": "router_imbalance",
            "values": {"findings.0.workers": ["engine-0"]},
            "must_contain": ["engine-0", "router|routing|balance"],
            "must_not_contain": [MORE_HARDWARE, SLOW_WORKER, "--max-num-seqs"],
        },
    )


def slow_worker() -> Case:
    w = World(564)
    calls = w.traffic(120, every=260, workers=["engine-0", "engine-1", "engine-2"])
    slow = [c for c in calls if c.worker == "engine-2"]
    for c in slow:
        c.gaps = [g * 1.7 for g in c.gaps]
    late = [c for c in slow if c.tpot > 13]
    assert len(late) == len(slow) == 40
    return Case(
        "64-slow-worker",
        "facts on causes: straggler",
        "engine-2 decodes 1.7 times slower than its two peers, whatever it is asked.",
        {"spans.otlp.jsonl": otlp_lines(s for c in calls for s in traced(c))},
        {
            "args": {"slo": "tpot=13ms"},
            "victims": ids(late),
            "metric": "tpot",
            "class": "attributed",
            "phase": "decode",
            "cause": "slow_worker",
            "confidence_floor": 0.9,
            "must_contain": ["engine-2"],
            "must_not_contain": [PREFILL_STALL, "preempt", "engine-[01] is slower", MORE_HARDWARE],
        },
    )


def slow_network() -> Case:
    w = World(565)
    calls = w.traffic(70, every=450, inputs=(60, 900))
    far = calls[40:50]
    for c in far:
        c.network += 900
    return Case(
        "65-slow-network",
        "facts on causes: network",
        "Ten requests arrive at the server 0.9 s after they were sent.",
        {"spans.otlp.jsonl": otlp_lines(s for c in calls for s in traced(c))},
        {
            "args": {"slo": "ttft=500ms"},
            "victims": ids(far),
            "metric": "ttft",
            "class": "attributed",
            "phase": "network",
            "cause": "network",
            "confidence_floor": 0.9,
            "must_contain": ["network|between client and server"],
            "must_not_contain": [MORE_HARDWARE, SLOW_WORKER, LOST_IN.format("(the queue|prefill)")],
        },
    )


def long_prompt() -> Case:
    w = World(566)
    calls = w.traffic(80, every=450, inputs=(60, 9_000))
    rag = w.traffic(12, name="rag", start=5_000, every=3_000, inputs=(30_500, 31_500))
    return Case(
        "66-long-prompt-is-its-size",
        "the honest answer to most slow RAG requests",
        "Twelve prompts of 31,000 uncached tokens take two seconds to compute, as they must here.",
        {"spans.otlp.jsonl": otlp_lines(s for c in calls + rag for s in traced(c))},
        {
            "args": {"slo": "ttft=1s"},
            "victims": ids(rag),
            "metric": "ttft",
            "class": "request_shape",
            "phase": "prefill",
            "cause": "long_prompt",
            "no_fault": True,
            "values": {"misses.by_metric.ttft": 12, "findings.0.expected_ms": at_least(1_700)},
            "must_contain": [r"3[01]k|3[01],\d00", "no fault|size"],
            "must_not_contain": ["lost their time", SLOW_WORKER, PREFILL_STALL, MORE_HARDWARE],
        },
    )


CASES = (
    idle_gap,
    burst,
    capacity,
    router_imbalance,
    slow_worker,
    slow_network,
    long_prompt,
)
