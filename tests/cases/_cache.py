"""Cases about the prefix cache: what could repeat, what cannot be, seconds instead of rates."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from tests.cases._case import LOST_IN, MORE_HARDWARE, SLOW_WORKER, Case, at_least, ids
from tests.cases._world import Call, World, json_lines, log_row, prefill_ms


def _hashes(w: World, c: Call, block: int, shared: Sequence[str] = ()) -> None:
    """Block hashes of a prompt that begins with the blocks ``shared``."""
    own = c.input // block - len(shared)
    c.more["prefix_block_tokens"] = block
    c.more["prefix_hashes"] = [*shared, *(f"{w.rng.getrandbits(24):06x}" for _ in range(own))]


def block_too_large() -> Case:
    w = World(315)
    calls = w.traffic(80, every=450, inputs=(700, 860), outputs=(20, 60))
    shared = [f"{w.rng.getrandbits(24):06x}" for _ in range(15)]
    for c in calls:
        _hashes(w, c, 16, shared)
    total = sum(c.input for c in calls)
    repeat = 100 * 79 * 240 / total
    assert 30 < repeat < 32
    return Case(
        "15-prefix-shorter-than-a-block",
        "vllm-project/vllm #54607",
        "All prompts share their first 240 tokens, the engine's KV block is 784 tokens: a hit rate "
        "of 0 %, although 31 % of all prompt tokens repeat.",
        {"requests.jsonl": json_lines(log_row(c, phases=True) for c in calls)},
        {
            "args": {"slo": "ttft=40ms"},
            "no_fault": True,
            "must_contain": [
                rf"{repeat:.0f} % of (the |all )?(prompt )?tokens repeat|repeat\D*{repeat:.0f} %",
                r"block",
            ],
            "must_not_contain": ["cache miss", LOST_IN.format("prefill"), MORE_HARDWARE],
        },
    )


def impossible_hits() -> Case:
    w = World(316)
    calls = w.traffic(80, every=450, inputs=(400, 1600), outputs=(20, 60))
    for i, c in enumerate(calls):
        _hashes(w, c, 16)
        c.more["preemptions"] = 1 + i % 2
        # what was computed again after a preemption was counted as a hit; the work was done in full
        c.more["cached_tokens"] = round(c.input * w.rng.uniform(0.2, 0.4)) // 16 * 16
    told = sum(c.more["cached_tokens"] for c in calls) / sum(c.input for c in calls)
    return Case(
        "16-hits-that-cannot-be",
        "vllm-project/vllm #25780",
        f"Random prompts, no block repeats, and yet the engine reports {100 * told:.0f} % cached "
        "tokens: those of preempted requests were counted as hits.",
        {"requests.jsonl": json_lines(log_row(c, phases=True) for c in calls)},
        {
            "args": {"slo": "ttft=60ms"},
            "must_contain": [r"impossible|more than .*(possible|can repeat)|cannot be", "preempt"],
            "must_not_contain": [
                rf"{100 * told:.0f} % of a prompt came from the cache",
                r"caching (is worth|pays|saves)",
            ],
        },
    )


def benefit_in_seconds() -> Case:
    w = World(317)
    calls = []
    at = 0.0
    groups = [[f"{w.rng.getrandbits(24):06x}" for _ in range(11)] for _ in range(4)]
    seen: set[int] = set()
    for i in range(84):
        at += w.rng.uniform(300, 900)
        group = i % 4
        # each prefix once, and once more after it was evicted
        cold = group not in seen or i in (40, 41, 42, 43)
        seen.add(group)
        size = 2_816 + w.rng.randrange(60, 260)
        c = w.call(
            f"req-{i:03d}",
            at,
            input=size,
            output=w.rng.randrange(250, 350),
            cached=0 if cold else 2_816,
            worker=f"engine-{i % 2}",
        )
        _hashes(w, c, 256, groups[group])
        calls.append(c)
    saved = sum(prefill_ms(c.input) - prefill_ms(c.uncached, c.cached) for c in calls if c.cached)
    e2e = sum(c.e2e for c in calls)
    share = 100 * saved / (e2e + saved)
    rate = 100 * sum(c.cached for c in calls) / sum(c.input for c in calls)
    assert 3 < share < 7 and rate > 80
    low, high = round(saved / 1e3 * 0.8), round(saved / 1e3 * 1.2)
    seconds = "|".join(str(s) for s in range(low, high + 1))
    return Case(
        "17-cache-benefit-in-seconds",
        "vllm-project/vllm #53395",
        f"{rate:.0f} % of the prompt tokens come from the cache, and it saves {saved / 1e3:.0f} s "
        f"of prefill, which is {share:.0f} % of the whole time: decode is the rest.",
        {"requests.jsonl": json_lines(log_row(c, phases=True) for c in calls)},
        {
            "args": {},
            "must_contain": [rf"sav\w+[^.]*?\b({seconds})(\.\d)? s\b", r"decode"],
            "must_not_contain": [
                r"(8\d|9\d)(\.\d)? %[^.;]*(worth|pays|benefit|saves)",
                r"(worth|pays|benefit|saves)[^.;]*(8\d|9\d)(\.\d)? %",
                SLOW_WORKER,
            ],
        },
    )


def offload_slower_than_recompute() -> Case:
    w = World(319)
    calls = w.traffic(60, every=450, inputs=(100, 900))
    loads = w.traffic(40, name="load", start=27_000, every=450, inputs=(200, 900))
    rows = [log_row(c, phases=True) for c in calls]
    for c in loads:
        # 64 tokens come from outside the GPU; computing them would take about 3 ms
        load = 170 * w.rng.lognormvariate(0, 0.08)
        row = log_row(c, phases=True, cached_tokens=64, kv_bytes=64 * 131_072)
        row["kv_transfer_ms"] = round(load, 3)
        row["ttft_ms"] = round(row["ttft_ms"] + load, 3)
        row["e2e_ms"] = round(row["e2e_ms"] + load, 3)
        rows.append(row)
    return Case(
        "19-kv-load-slower-than-recompute",
        "LMCache/LMCache #1109, #2205, #1061, ambiguous by design",
        "An offloaded cache hands over 64 tokens in 170 ms that would be computed in 3 ms.",
        {"requests.jsonl": json_lines(rows)},
        {
            "args": {"slo": "ttft=150ms"},
            "victims": ids(loads),
            "metric": "ttft",
            "any_of": [
                *(
                    {
                        "class": "attributed",
                        "phase": "kv_transfer",
                        "cause": c,
                        "confidence_ceiling": 0.7,
                    }
                    for c in ("kv_transfer_wait", "kv_transfer_bandwidth")
                ),
                {"class": "attributed", "phase": "kv_transfer", "cause": "unknown"},
                {"class": "request_shape", "phase": "kv_transfer", "cause": "fixed_overhead"},
                {"class": "mixed", "phase": "kv_transfer"},
            ],
            "rows": {loads[3].id: {"kv_transfer_ms": at_least(100)}},
            "must_contain": ["recompute|compute(d|ing)? (it|them) again|break-even"],
            "must_not_contain": [LOST_IN.format("prefill"), MORE_HARDWARE, "shorten prompts"],
        },
    )


def cache_miss() -> Case:
    w = World(363)
    groups = [[f"{w.rng.getrandbits(24):06x}" for _ in range(11)] for _ in range(4)]
    calls, at = [], 0.0
    for i in range(84):
        at += w.rng.uniform(200, 700)
        # the cache is flushed before the 60th: each prefix is missed once more on each engine
        cold = i < 8 or 60 <= i < 68
        c = w.call(
            f"req-{i:03d}",
            at,
            input=2_816 + w.rng.randrange(60, 400),
            output=w.rng.randrange(20, 60),
            cached=0 if cold else 2_816,
            worker=f"engine-{i // 4 % 2}",
        )
        _hashes(w, c, 256, groups[i % 4])
        calls.append(c)
    first, missed = calls[:8], calls[60:68]
    usual = median(prefill_ms(c.uncached, c.cached) for c in calls if c.cached)
    lost = median(c.prefill for c in missed) - usual
    return Case(
        "63-cache-miss-after-a-flush",
        "facts on causes: cache miss",
        "Four prefixes of 2,816 tokens are nearly always cached. After a flush each engine "
        "computes them once more: the prompt is no longer than before, its cached part is gone.",
        {"requests.jsonl": json_lines(log_row(c, phases=True) for c in calls)},
        {
            "args": {"slo": "ttft=110ms"},
            "victims": ids(missed),
            "metric": "ttft",
            "class": "attributed",
            "phase": "prefill",
            "cause": "cache_miss",
            "values": {"misses.by_metric.ttft": len(first) + len(missed)},
            "finding": {
                "phase": "prefill",
                "cause": "cache_miss",
                "excess_ms": [0.7 * lost, 1.3 * lost],
            },
            "must_contain": ["cache"],
            # the first touch of each prefix is as slow as its size: a finding, but not the headline
            "sentence_must_not_contain": ["as slow as their size", "shorten"],
            "must_not_contain": [MORE_HARDWARE, SLOW_WORKER],
        },
    )


CASES = (
    block_too_large,
    impossible_hits,
    benefit_in_seconds,
    offload_slower_than_recompute,
    cache_miss,
)
