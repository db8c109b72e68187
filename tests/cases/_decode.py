"""Cases about token gaps: interference, freezes, speculative decoding, preemption, TTFA."""

from __future__ import annotations

from statistics import median

from tests.cases._case import (
    LOST_IN,
    MORE_HARDWARE,
    PREFILL_STALL,
    SLOW_WORKER,
    Case,
    approx,
    ids,
)
from tests.cases._world import (
    Call,
    Row,
    World,
    client_span,
    engine_span,
    json_lines,
    log_row,
    otlp_lines,
    prefill_ms,
    total_stall,
    traced,
)


def _both(calls: list[Call]) -> dict[str, str]:
    """Spans of client and engine, and the client's log with its chunk times."""
    return {
        "spans.otlp.jsonl": otlp_lines(s for c in calls for s in traced(c)),
        "client.jsonl": json_lines(log_row(c, chunks=True, traced=True) for c in calls),
    }


def interference_one_stream() -> Case:
    w = World(101)
    scale = 16_500 / prefill_ms(65_535)
    calls = w.traffic(70, every=500, inputs=(60, 600), speed=0.4)
    calls += w.traffic(
        20, name="other", start=45_000, every=900, inputs=(60, 600), speed=0.4, workers=["engine-1"]
    )
    stream = w.call("stream-A", 45_000, input=200, output=400, speed=0.4)
    stream.gaps = [3.7 * w.rng.lognormvariate(0, 0.05) for _ in range(399)]
    long_b = w.call("long-B", 45_000, input=65_535, output=30, speed=0.4)
    for c in (*calls, long_b):
        c.prefill *= scale
    long_b.prefill = 16_500.0
    long_b.at = stream.first + sum(stream.gaps[:120]) - (long_b.scheduled - long_b.at)
    # 6.6 tokens/s for as long as the prompt is computed
    slow = round(long_b.prefill / (1000 / 6.6))
    for i in range(120, 120 + slow):
        stream.gaps[i] = 1000 / 6.6 * w.rng.lognormvariate(0, 0.02)
    over = sum(stream.gaps[120 : 120 + slow]) - long_b.prefill
    stream.gaps[120 + slow - 1] -= over
    stall = total_stall(stream.gaps)
    return Case(
        "01-interference-one-stream",
        "local-inference-lab/vllm #541",
        "One stream at 270 tokens/s falls to 6.6 while a prompt of 65,535 tokens prefills for "
        "16.5 s on the same engine.",
        _both([*calls, stream, long_b]),
        {
            "args": {"slo": "tpot=15ms"},
            "victims": ["stream-A"],
            "metric": "tpot",
            "class": "attributed",
            "phase": "decode",
            "cause": "prefill_interference",
            "culprits": ["long-B"],
            "confidence_floor": 0.9,
            "must_contain": ["long-B", r"65,535|66k", "stall"],
            "must_not_contain": [
                MORE_HARDWARE,
                SLOW_WORKER,
                r"KV (pressure|cache (has no|is full)|memory)",
                "preempt",
            ],
            "values": {
                "misses.total": 1,
                "findings.0.culprits.0.input_tokens": 65_535,
                # a lower bound, and nearly all of it: 97 % of the excess lies under that prefill
                "findings.0.culprits.0.stall_ms": approx(stall * 0.95, stall * 0.06),
            },
            "rows": {"stream-A": {"stall_ms": approx(stall, 0.02 * stall)}},
        },
    )


def _streams(w: World, n: int, at: float) -> list[Call]:
    """Streams on engine-0 that all decode at ``at``."""
    return [
        w.call(f"stream-{i}", at - w.rng.uniform(150, 300), input=150, output=64) for i in range(n)
    ]


def prefill_freeze() -> Case:
    w = World(102)
    calls = w.traffic(72, every=450, inputs=(60, 3000))
    streams = _streams(w, 8, 40_000)
    long_l = w.call("long-L", 40_000, input=40_000, output=30)
    end = long_l.first
    for c in streams:
        c.stall(long_l.scheduled, long_l.prefill)
    late = [
        w.call(f"late-{i}", 40_000 + 300 + 400 * i, input=200, output=40, worker="engine-0")
        for i in range(4)
    ]
    for c in late:
        c.frontend += end - c.recv
    return Case(
        "02a-freeze-by-prefill",
        "vllm-project/vllm #1026",
        "A prompt of 40,000 tokens stops every running stream and every new arrival on its engine "
        "while it is computed.",
        _both([*calls, *streams, long_l, *late]),
        {
            "args": {"slo": "tpot=25ms,ttft=800ms"},
            "victims": ids(streams),
            "metric": "tpot",
            "class": "attributed",
            "phase": "decode",
            "cause": "prefill_interference",
            "culprits": ["long-L"],
            "confidence_floor": 0.9,
            "also": [
                {
                    "name": "late",
                    "victims": ids(late),
                    "metric": "ttft",
                    "class": "attributed",
                    "phase": "frontend",
                    "cause": "prefill_interference",
                    "culprits": ["long-L"],
                },
                {
                    "name": "long",
                    "victims": ["long-L"],
                    "metric": "ttft",
                    "class": "request_shape",
                    "phase": "prefill",
                    "cause": "long_prompt",
                },
            ],
            "must_contain": ["long-L", r"40,000|40k"],
            "must_not_contain": [
                MORE_HARDWARE,
                SLOW_WORKER,
                "preempt",
                "front end itself was slow",
            ],
        },
    )


def frontend_freeze() -> Case:
    w = World(103)
    calls = w.traffic(72, every=450, inputs=(60, 3000))
    streams = _streams(w, 8, 40_000)
    long_l = w.call("long-L", 40_000, input=6_000, output=30)
    start, freeze = long_l.recv + 1.0, 2_800.0
    long_l.frontend += freeze
    spans = []
    for c in streams:
        made = c.decode / 1e3
        # the engine goes on; what it makes meanwhile comes out in one burst
        times: list[float] = []
        now = c.first
        for gap in c.gaps:
            now += gap
            times.append(now if now < start else max(now, start + freeze + 0.05 * len(times)))
        before = [c.first, *times[:-1]]
        c.gaps = [b - a for a, b in zip(before, times, strict=True)]
        client = client_span(c)
        spans += [client, engine_span(c, parent=client.id, seconds={"time_in_model_decode": made})]
    late = [
        w.call(f"late-{i}", start + 200 + 500 * i, input=200, output=40, worker=f"engine-{i % 2}")
        for i in range(4)
    ]
    late = [c for c in late if c.worker == "engine-0"]
    late += [w.call(f"late-{i}", start + 400 + 300 * i, input=200, output=40) for i in (4, 5)]
    for c in late:
        c.frontend += start + freeze - c.recv
    spans += [s for c in (*calls, long_l, *late) for s in traced(c)]
    all_calls = [*calls, *streams, long_l, *late]
    any_cause = ["frontend_stall", "unknown"]
    return Case(
        "02b-freeze-by-front-end",
        "vllm-project/vllm #1026, the maintainers' first suspicion",
        "The API server tokenises one prompt for 2.8 s: streams stop and new arrivals wait, while "
        "no engine prefills anything and the engine's own decode times stay ordinary.",
        {
            "spans.otlp.jsonl": otlp_lines(spans),
            "client.jsonl": json_lines(log_row(c, chunks=True, traced=True) for c in all_calls),
        },
        {
            "args": {"slo": "tpot=25ms,ttft=800ms"},
            "victims": ids(late),
            "metric": "ttft",
            "any_of": [{"class": "attributed", "phase": "frontend", "cause": c} for c in any_cause],
            "also": [
                {
                    "name": "streams",
                    "victims": ids(streams),
                    "metric": "tpot",
                    "any_of": [
                        {"class": "attributed", "phase": p, "cause": c}
                        for p in ("decode", "frontend")
                        for c in any_cause
                    ],
                }
            ],
            "must_not_contain": [MORE_HARDWARE, SLOW_WORKER, PREFILL_STALL, "chunked-prefill"],
        },
    )


def freeze_client_only() -> Case:
    w = World(104)
    calls = w.traffic(72, every=450, inputs=(60, 3000))
    streams = _streams(w, 8, 40_000)
    long_l = w.call("long-L", 40_000, input=40_000, output=30)
    for c in streams:
        c.stall(long_l.scheduled, long_l.prefill)
    named = ["prefill_interference", "frontend_stall"]
    return Case(
        "02c-freeze-seen-by-clients",
        "vllm-project/vllm #1026, ambiguous by design",
        "The freeze of 02a, but only the clients' logs: tokeniser or engine cannot be told apart.",
        {"client.jsonl": json_lines(log_row(c, chunks=True) for c in (*calls, *streams, long_l))},
        {
            "args": {"slo": "tpot=25ms"},
            "victims": ids(streams),
            "metric": "tpot",
            "any_of": [
                *(
                    {
                        "class": "attributed",
                        "phase": "decode",
                        "cause": c,
                        "confidence_ceiling": 0.7,
                    }
                    for c in named
                ),
                {"class": "attributed", "phase": "decode", "cause": "unknown"},
                {"class": "mixed"},
                {"class": "insufficient_evidence"},
            ],
            "missing": ["queue_ms, prefill_ms", "worker"],
            "must_contain": ["--otlp-traces-endpoint"],
            "must_not_contain": [MORE_HARDWARE, SLOW_WORKER, "preempt"],
        },
    )


def spec_decode() -> Case:
    w = World(110)
    calls = w.traffic(80, every=300, inputs=(60, 900), outputs=(60, 60))
    for c in calls:
        c.per_chunk = [1]
        while sum(c.per_chunk) < 60:
            step = w.rng.choice([1, 2, 3, 4])
            c.per_chunk.append(min(step, 60 - sum(c.per_chunk)))
        c.gaps = [8.7 * w.rng.lognormvariate(0, 0.05) for _ in c.per_chunk[1:]]
    tpot = median(c.decode / 59 for c in calls)
    accepted = median(59 / len(c.gaps) for c in calls)
    probe = calls[5]
    return Case(
        "10-speculative-chunks",
        "sgl-project/sglang #12064, kubernetes-sigs/inference-perf #410, vllm #50600",
        "With speculative decoding a chunk brings 1 to 4 tokens every 8.7 ms: a token takes about "
        "3.5 ms, and only the chunk gap is 8.7.",
        {"client.jsonl": json_lines(log_row(c, chunks=True) for c in calls)},
        {
            # between the two readings: nobody misses 6 ms a token, everybody 6 ms a chunk
            "args": {"slo": "tpot=6ms"},
            "no_fault": True,
            "values": {
                "misses.total": 0,
                "goodput.share": 1.0,
                "percentiles.tpot_ms.p50": approx(tpot, 0.05),
                "percentiles.itl_ms.p50": approx(tpot, 0.3),
            },
            "rows": {
                probe.id: {
                    "tpot_ms": approx(probe.decode / 59, 0.01),
                    "accepted_tokens_per_step": approx(59 / len(probe.gaps), 0.05),
                }
            },
            "must_contain": [
                "No request missed",
                "chunk gap",
                rf"accepted[^.\n]*{accepted:.1f}|{accepted:.1f}\d* (accepted )?tokens",
            ],
            "must_not_contain": [LOST_IN.format("decode")],
        },
    )


def itl_without_ttft() -> Case:
    w = World(111)
    calls = w.traffic(70, every=400, inputs=(60, 900), outputs=(21, 21))
    for c in calls:
        c.prefill += 800
        c.gaps = [10.0 * w.rng.lognormvariate(0, 0.03) for _ in range(20)]
    tpot = median(c.tpot for c in calls)
    return Case(
        "11-itl-is-not-ttft",
        "vllm-project/vllm #7242, #6531",
        "TTFT 0.9 s, then 20 gaps of 10 ms. A list of gaps that held the TTFT would say 52 ms.",
        {"client.jsonl": json_lines(log_row(c, chunks=True) for c in calls)},
        {
            "args": {"slo": "tpot=20ms"},
            "no_fault": True,
            "values": {
                "misses.total": 0,
                "percentiles.tpot_ms.p50": approx(tpot, 0.02),
                # weighted by tokens, the mean gap is TPOT
                "percentiles.itl_ms.p50": approx(tpot, 0.3),
                "percentiles.itl_ms.p95": {"at_most": 20.0},
            },
            "rows": {
                c.id: {"max_gap_ms": approx(max(c.gaps), 0.05), "stall_ms": 0.0} for c in calls[:3]
            },
            "must_contain": [
                "gap between tokens",
                r"\(last token - first token\) / \(output tokens - 1\)",
            ],
        },
    )


def reasoning() -> Case:
    w = World(112)
    calls = w.traffic(70, every=900, inputs=(60, 900), outputs=(400, 900))
    rows, answers = [], []
    for i, c in enumerate(calls):
        thought = c.output if i % 14 == 3 else round(c.output * w.rng.uniform(0.6, 0.9))
        more: Row = {"reasoning_tokens": thought}
        if thought < c.output:
            answers.append(c.first - c.at + sum(c.gaps[:thought]) + c.back)
            more["ttfa_ms"] = round(answers[-1], 3)
        else:
            more["finish_reason"] = "length"
        rows.append(log_row(c, **more))
    only = [c for i, c in enumerate(calls) if i % 14 == 3]
    return Case(
        "12-reasoning",
        "vllm-project/guidellm #737, inference-perf #559, aiperf #365, aibrix #1573",
        "Reasoning models: the first token comes after 50 ms, the first visible one after seconds; "
        "five requests end within their reasoning and have no visible one.",
        {"client.jsonl": json_lines(rows)},
        {
            "args": {"slo": "ttft=1s"},
            "no_fault": True,
            "values": {
                "requests.completed": 70,
                "requests.errored": 0,
                "misses.total": 0,
                "percentiles.ttft_ms.p50": approx(median(c.ttft for c in calls), 3),
                "percentiles.ttft_ms.n": 70,
                "percentiles.ttfa_ms.p50": approx(median(answers), 200),
                "percentiles.ttfa_ms.n": 70 - len(only),
            },
            "rows": {only[0].id: {"ttfa_ms": None, "status": "ok"}},
            "must_contain": ["No request missed", "TTFA"],
        },
    )


def preemption() -> Case:
    w = World(133)
    calls = w.traffic(70, every=420, inputs=(100, 1500))
    hit = w.traffic(8, name="hit", start=31_000, every=900, inputs=(800, 1500), outputs=(70, 90))
    for c in hit:
        for at in (15, 40):
            c.gaps[at] += 700 + prefill_ms(c.input + at)
        c.more["preemptions"] = 2
    lost = sum(total_stall(c.gaps) for c in hit)
    for c in calls:
        c.more["preemptions"] = 0
    return Case(
        "33-preemption",
        "vllm-project/vllm #54644",
        "Eight requests are preempted twice each: their blocks are taken, they wait and compute "
        "their context again. 16 preemptions, a tenth of a minute in all.",
        {"requests.jsonl": json_lines(log_row(c, phases=True, chunks=True) for c in calls + hit)},
        {
            "args": {"slo": "tpot=20ms"},
            "victims": ids(hit),
            "metric": "tpot",
            "class": "attributed",
            "phase": "decode",
            "cause": "preemption",
            "confidence_floor": 0.9,
            "values": {"findings.0.n": 8, "findings.0.excess_ms": approx(lost / 8, 0.1 * lost / 8)},
            "rows": {c.id: {"preemptions": 2} for c in hit[:2]},
            "must_contain": ["preempted", r"\b16 (times|preemptions)"],
            "must_not_contain": [MORE_HARDWARE, SLOW_WORKER, PREFILL_STALL],
        },
    )


CASES = (
    interference_one_stream,
    prefill_freeze,
    frontend_freeze,
    freeze_client_only,
    spec_decode,
    itl_without_ttft,
    reasoning,
    preemption,
)
