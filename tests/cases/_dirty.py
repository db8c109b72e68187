"""Cases of dirty reality: killed requests, mixed cells, deploys, two faults, consequences."""

from __future__ import annotations

import heapq

from tests.cases._case import (
    LOST_IN,
    MORE_HARDWARE,
    PREFILL_STALL,
    SLOW_WORKER,
    Case,
    approx,
    at_least,
    ids,
)
from tests.cases._world import (
    World,
    json_lines,
    log_row,
    otlp_lines,
    run_slots,
    traced,
    unix_ns,
)


def killed_in_queue() -> Case:
    w = World(780)
    calls = w.traffic(120, every=150, inputs=(60, 600), outputs=(40, 90), workers=["engine-0"])
    patience = 5_000.0
    free = [0.0] * 2
    for c in sorted(calls, key=lambda c: c.queued):
        wait = max(0.0, free[0] - c.queued)
        if wait > patience:
            c.status = "timeout"
            continue
        c.queue += wait
        heapq.heappop(free)
        heapq.heappush(free, c.last)
    killed = [c for c in calls if c.status == "timeout"]
    late = [c for c in calls if c.status == "ok" and c.ttft > 1_000]
    rows = []
    for c in calls:
        row = log_row(c, phases=c.status == "ok")
        if c.status == "timeout":
            # an engine says nothing of a request that is aborted in its queue
            del row["output_tokens"]
            row["e2e_ms"] = patience
        rows.append(row)
    assert len(killed) > 20 and len(late) > 30
    good = sum(c.status == "ok" and c.ttft <= 1_000 for c in calls)
    return Case(
        "80-killed-in-the-queue",
        "dirty reality: censored requests",
        "An overloaded engine; clients give up after 5 s in its queue. Those that gave up are the "
        "worst of all, and there is no server span of them.",
        {"requests.jsonl": json_lines(rows)},
        {
            "args": {"slo": "ttft=1s"},
            "victims": ids(late),
            "metric": "ttft",
            "any_of": [
                {"class": "attributed", "phase": "queue", "cause": c}
                for c in ("capacity", "unknown")
            ],
            "also": [
                {
                    "name": "killed",
                    "victims": ids(killed),
                    "metric": "ttft",
                    # waiting is all that is known of them
                    "any_of": [
                        {"class": "attributed", "phase": "queue_or_prefill"},
                        {"class": "attributed", "phase": "queue"},
                        {"class": "insufficient_evidence"},
                        {"class": "mixed"},
                    ],
                }
            ],
            "values": {
                "requests.timeout": len(killed),
                "requests.completed": len(calls) - len(killed),
                "misses.by_metric.ttft": len(killed) + len(late),
                "goodput.share": approx(good / len(calls), 0.001),
            },
            "must_contain": [rf"{len(killed)} (of them )?(were |are )?(killed|timed out|timeout)"],
            "must_not_contain": [SLOW_WORKER, PREFILL_STALL, LOST_IN.format("(prefill|decode)")],
        },
    )


def survivorship() -> Case:
    w = World(781)
    calls = w.traffic(120, every=300, inputs=(60, 900), outputs=(20, 60))
    rows = []
    for i, c in enumerate(calls):
        # the slow ones of the second half do not live to be counted
        if i % 4 == 1:
            c.queue += 3_000
        if i >= 60 and i % 4 == 1:
            c.status = "timeout"
        row = log_row(c, phases=c.status == "ok")
        if c.status == "timeout":
            del row["output_tokens"]
            row["e2e_ms"] = 2_000.0
        rows.append(row)
    died = sum(c.status == "timeout" for c in calls)
    share = 100 * (60 - died) / 60
    return Case(
        "81-survivors-look-better",
        "dirty reality: survivorship",
        "In the second half clients give up after 2 s: the percentiles of what is left fall, and a "
        "quarter of the requests are gone.",
        {"requests.jsonl": json_lines(rows)},
        {
            "args": {"slo": "ttft=1s", "since": str(unix_ns(calls[60].at - 50))},
            "values": {
                "requests.total": 60,
                "requests.completed": 60 - died,
                "requests.timeout": died,
                "misses.by_metric.ttft": died,
                "percentiles.ttft_ms.n": 60 - died,
                "goodput.share": approx((60 - died) / 60, 0.001),
            },
            "must_contain": [
                rf"{share:.0f} % (of \D*)?(completed|finished)|complet\w+[^.\n]*{share:.0f} %"
            ],
            "must_not_contain": ["No request missed"],
        },
    )


def two_pools() -> Case:
    w = World(782)
    calls = w.traffic(140, every=300, inputs=(60, 900), workers=["engine-0"])
    slow = w.rng.sample(calls, 70)
    for c in slow:
        c.gaps = [g * 3 for g in c.gaps]
    late = [c for c in calls if c.tpot > 20]
    assert len(late) == 70
    return Case(
        "82-two-pools-under-one-name",
        "dirty reality: a bimodal cell",
        "Behind one name half of the requests decode with speculation at 9 ms a token and half "
        "without at 28, and no field tells which. The fast half is not what the slow half should "
        "cost.",
        {"requests.jsonl": json_lines(log_row(c, phases=True) for c in calls)},
        {
            "args": {"slo": "tpot=20ms"},
            "victims": ids(late),
            "metric": "tpot",
            "any_of": [
                {"class": "unexplained"},
                {"class": "mixed"},
                {"class": "insufficient_evidence"},
            ],
            "no_fault": True,
            "must_contain": [r"two (groups|modes|kinds|pools|speeds)|bimodal|multimodal"],
            "must_not_contain": [LOST_IN.format("decode"), SLOW_WORKER, PREFILL_STALL],
        },
    )


def deploy() -> Case:
    w = World(783)
    old = w.traffic(70, name="old", every=400, inputs=(60, 900), version="0.13.0")
    new = w.traffic(70, name="new", start=30_000, every=400, inputs=(60, 900), version="0.14.0")
    for c in new:
        c.gaps = [g * 1.45 for g in c.gaps]
    late = [c for c in old + new if c.tpot > 13]
    return Case(
        "83-deploy-is-a-new-cell",
        "dirty reality: a regime change",
        "A deploy makes every token 1.45 times dearer on both engines. What is ordinary for the "
        "old version is not the measure of the new one.",
        {"spans.otlp.jsonl": otlp_lines(s for c in old + new for s in traced(c))},
        {
            "args": {"slo": "tpot=13ms"},
            "victims": ids(late),
            "metric": "tpot",
            "any_of": [
                {"class": "request_shape", "phase": "decode", "cause": "fixed_overhead"},
                {"class": "request_shape", "phase": "decode", "cause": "long_prompt"},
                {"class": "unexplained"},
            ],
            "no_fault": True,
            "values": {"cells": {"0.13.0": 70, "0.14.0": 70}},
            "must_not_contain": [LOST_IN.format("decode"), SLOW_WORKER, PREFILL_STALL],
        },
    )


def simpson() -> Case:
    w = World(784)
    calls = w.traffic(160, every=250, inputs=(60, 900))
    for i, c in enumerate(calls):
        if w.rng.random() < (0.2 if i < 80 else 0.7):
            c.model = "m70b"
            c.worker = c.worker.replace("engine", "large")
            c.prefill *= 4
            c.gaps = [g * 3 for g in c.gaps]
    large = [c for c in calls if c.model == "m70b"]
    late = [c for c in calls if c.tpot > 20]
    assert ids(late) == ids(large)
    return Case(
        "84-simpson-across-models",
        "dirty reality: Simpson's paradox",
        "TPOT over all traffic doubles, and neither model has become slower: more of it goes to "
        "the large model, which takes 28 ms a token by its nature.",
        {"spans.otlp.jsonl": otlp_lines(s for c in calls for s in traced(c))},
        {
            "args": {"slo": "tpot=20ms"},
            "victims": ids(late),
            "metric": "tpot",
            "class": "request_shape",
            "phase": "decode",
            "cause": "fixed_overhead",
            "no_fault": True,
            "values": {"misses.by_metric.tpot": len(large)},
            "must_contain": ["m70b"],
            "must_not_contain": [LOST_IN.format("decode"), SLOW_WORKER, PREFILL_STALL],
        },
    )


def two_faults() -> Case:
    w = World(785)
    calls = w.traffic(90, every=400, inputs=(60, 900))
    waits, far = calls[40:60:2], calls[41:60:2]
    for c in waits:
        c.queue += 700 * w.rng.uniform(0.8, 1.2)
    for c in far:
        c.network += 800 * w.rng.uniform(0.8, 1.2)
    both = calls[70:73]
    for c in both:
        c.queue += 400
        c.network += 380
    return Case(
        "85-two-faults-at-once",
        "dirty reality: two faults",
        "In the same minutes ten requests queue and ten others are slow on the way; three have "
        "half of each.",
        {"spans.otlp.jsonl": otlp_lines(s for c in calls for s in traced(c))},
        {
            "args": {"slo": "ttft=400ms"},
            "victims": ids(waits),
            "metric": "ttft",
            "class": "attributed",
            "phase": "queue",
            "cause": "unknown",
            "confidence_floor": 0.9,
            "also": [
                {
                    "name": "far",
                    "victims": ids(far),
                    "metric": "ttft",
                    "class": "attributed",
                    "phase": "network",
                    "cause": "network",
                    "confidence_floor": 0.9,
                },
                {
                    "name": "both",
                    "victims": ids(both),
                    "metric": "ttft",
                    # 20 ms between them: ordinary variation is far less, so either phase may win,
                    # but each of the two must be named
                    "any_of": [
                        {"class": "mixed"},
                        {"class": "attributed", "phase": "queue"},
                        {"class": "attributed", "phase": "network"},
                    ],
                },
            ],
            "values": {"misses.by_metric.ttft": 23, "findings.0.share_of_misses": at_least(0.4)},
            "finding": {"phase": "network", "cause": "network", "n": [10, 13]},
            "must_not_contain": [LOST_IN.format("(prefill|decode)"), SLOW_WORKER, PREFILL_STALL],
        },
    )


def knock_on() -> Case:
    w = World(786)
    calls = w.traffic(150, every=260, inputs=(60, 600), outputs=(40, 90))
    for c in calls:
        if c.worker == "engine-1" and c.at > 19_000:
            c.gaps = [g * 3 for g in c.gaps]
    run_slots(calls, 2)
    late = [c for c in calls if c.ttft > 1_000]
    assert len(late) >= 20 and {c.worker for c in late} == {"engine-1"}
    return Case(
        "86-slow-engine-fills-its-slots",
        "dirty reality: knock-on",
        "engine-1 begins to decode three times slower; its two slots stay full, so that what comes "
        "later waits. The wait is in the queue, its reason is the engine.",
        {"requests.jsonl": json_lines(log_row(c, phases=True) for c in calls)},
        {
            "args": {"slo": "ttft=1s"},
            "victims": ids(late),
            "metric": "ttft",
            "class": "attributed",
            "phase": "queue",
            "cause": "slow_worker",
            "confidence_floor": 0.9,
            "values": {
                "misses.by_metric.ttft": len(late),
                "findings.0.workers": ["engine-1"],
            },
            "must_contain": ["engine-1", "queue"],
            "must_not_contain": [
                MORE_HARDWARE,
                "bursts",
                "service is normal",
                "--max-num-seqs",
                LOST_IN.format("prefill"),
            ],
        },
    )


CASES = (
    killed_in_queue,
    survivorship,
    two_pools,
    deploy,
    simpson,
    two_faults,
    knock_on,
)
