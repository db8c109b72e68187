"""Cases in which the only right answer is that the data do not carry one, and what is missing."""

from __future__ import annotations

from tests.cases._case import (
    LOST_IN,
    MORE_HARDWARE,
    PREFILL_STALL,
    SLOW_WORKER,
    Case,
    ids,
)
from tests.cases._world import World, engine_span, json_lines, log_row, otlp_lines, traced

NOT_ENOUGH = "^Not enough evidence"


def small_n() -> Case:
    w = World(670)
    calls = w.traffic(14, every=900, inputs=(60, 900), workers=["engine-0"])
    for c in calls[9:11]:
        c.queue += 4_000
    return Case(
        "70-too-few-requests",
        "abstention: small n",
        "Fourteen requests, two of them slow in the queue.",
        {"spans.otlp.jsonl": otlp_lines(s for c in calls for s in traced(c))},
        {
            "args": {"slo": "ttft=1s"},
            "no_fault": True,
            "values": {
                "misses.by_metric.ttft": 2,
                "findings": [],
                "percentiles.ttft_ms.p99": None,
                "percentiles.ttft_ms.n": 14,
            },
            "missing": ["requests"],
            "sentence_must_contain": [NOT_ENOUGH, r"\b14\b", r"\b30\b", "tracekit table"],
            "table_must_contain": [r"\w"],
            "must_not_contain": ["lost their time", MORE_HARDWARE, SLOW_WORKER],
        },
    )


def client_only() -> Case:
    w = World(671)
    calls = w.traffic(72, every=450, inputs=(60, 900))
    for c in calls[50:58]:
        c.queue += 1_500
    return Case(
        "71-only-the-client-is-traced",
        "abstention: missing spans",
        "The server queues eight requests for 1.5 s, but nothing of the server is recorded.",
        {"client.jsonl": json_lines(log_row(c) for c in calls)},
        {
            "args": {"slo": "ttft=500ms"},
            "victims": ids(calls[50:58]),
            "metric": "ttft",
            "any_of": [
                {
                    "class": "attributed",
                    "phase": "queue_or_prefill",
                    "cause": "unknown",
                    "confidence_ceiling": 0.9,
                },
                {"class": "insufficient_evidence"},
            ],
            "missing": ["queue_ms, prefill_ms", "worker"],
            "must_contain": ["--otlp-traces-endpoint"],
            "must_not_contain": [
                LOST_IN.format("(the queue|prefill|decode|the network)"),
                MORE_HARDWARE,
                SLOW_WORKER,
                PREFILL_STALL,
            ],
        },
    )


def clean_without_slo() -> Case:
    w = World(672)
    calls = w.traffic(120, every=400, inputs=(60, 4_000))
    return Case(
        "72-ordinary-traffic-without-a-limit",
        "abstention: no SLO, nothing wrong",
        "120 ordinary requests and no limit given: somebody is always the slowest.",
        {"spans.otlp.jsonl": otlp_lines(s for c in calls for s in traced(c))},
        {
            "args": {},
            "no_fault": True,
            "values": {"slo.source": "slowest_5_percent", "goodput": None},
            "sentence_must_contain": ["Not enough evidence|no fault"],
            "must_not_contain": ["lost their time", SLOW_WORKER, MORE_HARDWARE, PREFILL_STALL],
        },
    )


def cached_tokens_unknown() -> Case:
    w = World(673)
    calls = w.traffic(80, every=450, inputs=(2_900, 3_100), outputs=(20, 60))
    for c in calls:
        c.cached = 2_800
        c.prefill *= 0.15
    missed = calls[40:50]
    for c in missed:
        c.prefill /= 0.15
    return Case(
        "73-cached-tokens-not-recorded",
        "abstention: missing cached tokens",
        "Prompts of 3,000 tokens are cached but for ten; nothing records which. A cache miss, a "
        "slow prefill and a slow worker look alike.",
        {"requests.jsonl": json_lines(log_row(c, phases=True, cached=False) for c in calls)},
        {
            "args": {"slo": "ttft=100ms"},
            "victims": ids(missed),
            "metric": "ttft",
            "any_of": [
                {"class": "attributed", "phase": "prefill", "cause": "unknown"},
                {"class": "insufficient_evidence"},
                {"class": "mixed"},
            ],
            "missing": ["cached_tokens"],
            "must_contain": ["--enable-prompt-tokens-details"],
            "must_not_contain": [
                SLOW_WORKER,
                PREFILL_STALL,
                MORE_HARDWARE,
                "as slow as their size",
            ],
        },
    )


def no_chunk_times() -> Case:
    w = World(674)
    calls = w.traffic(80, every=450, inputs=(60, 900))
    slow = calls[44:53]
    for c in slow:
        c.gaps = [g * 2.5 for g in c.gaps]
    spans = [engine_span(c, parent=None) for c in calls]
    return Case(
        "74-no-chunk-times",
        "abstention: missing chunk times",
        "Nine requests decode 2.5 times slower than others on both engines, and nothing but the "
        "engine's totals is recorded: one long stop and a slow step look alike.",
        {"spans.otlp.jsonl": otlp_lines(spans)},
        {
            "args": {"slo": "tpot=16ms"},
            "victims": ids(slow),
            "metric": "tpot",
            "any_of": [
                {"class": "attributed", "phase": "decode", "cause": "unknown"},
                {"class": "insufficient_evidence"},
            ],
            "missing": ["chunk times", "client span"],
            "must_contain": ["chunk_offsets_ms"],
            "must_not_contain": [SLOW_WORKER, PREFILL_STALL, "preempted", MORE_HARDWARE],
        },
    )


CASES = (small_n, client_only, clean_without_slo, cached_tokens_unknown, no_chunk_times)
