"""Cases about what lies before the engine, and about whether the numbers can be believed."""

from __future__ import annotations

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
    client_span,
    engine_span,
    json_lines,
    log_row,
    otlp_lines,
    phase_span,
    run_clients,
    span,
    trace_id,
    traced,
)


def client_concurrency() -> Case:
    w = World(204)
    calls = w.traffic(120, every=160, inputs=(60, 900), outputs=(30, 90), workers=["engine-0"])
    run_clients(calls, 1)
    slo = 2_000.0
    late = [c for c in calls if c.ttft > slo]
    longest = max(calls, key=lambda c: c.client_wait)
    server = max(c.first - c.recv for c in calls)
    assert longest.client_wait > 29_000 and server < 100
    return Case(
        "04-client-concurrency",
        "MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks #166, vllm-project/vllm #13412",
        "A TTFT of 30 s and more is the benchmark client's own limit on requests in flight: the "
        "server answers each of them within 100 ms.",
        {
            "spans.otlp.jsonl": otlp_lines(s for c in calls for s in traced(c)),
            "client.jsonl": json_lines(log_row(c, traced=True, intended=True) for c in calls),
        },
        {
            "args": {"slo": "ttft=2s"},
            "victims": ids(late),
            "metric": "ttft",
            "class": "attributed",
            "phase": "client_wait",
            "cause": "client_concurrency",
            "confidence_floor": 0.9,
            "values": {
                "misses.by_metric.ttft": len(late),
                "findings.0.share_of_misses": at_least(0.99),
            },
            "rows": {
                longest.id: {
                    "client_wait_ms": approx(longest.client_wait, 1),
                    "queue_ms": approx(longest.queue, 1),
                    "ttft_ms": approx(longest.ttft, 1),
                }
            },
            "must_contain": [
                "client",
                r"before any server saw|server had not seen|server.*healthy",
            ],
            "must_not_contain": [
                MORE_HARDWARE,
                SLOW_WORKER,
                PREFILL_STALL,
                LOST_IN.format("(the queue|prefill)"),
                "--max-num-seqs|replica|scale (out|up)",
            ],
        },
    )


def client_concurrency_chunks() -> Case:
    w = World(205)
    calls = w.traffic(80, every=160, inputs=(60, 900), outputs=(20, 50), workers=["engine-0"])
    run_clients(calls, 1)
    late = [c for c in calls if c.ttft > 2_000]
    rows = [log_row(c, chunks=True, intended=True) for c in calls]
    for row in rows:
        del row["ttft_ms"], row["ttft_kind"], row["e2e_ms"]
    longest = max(calls, key=lambda c: c.client_wait)
    return Case(
        "04b-client-concurrency-chunks-only",
        "MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks #166, as a log of chunk times",
        "The wait of case 04 in a log that says when the call was meant and sent and when each "
        "chunk came, counted from the sending, and no TTFT.",
        {"client.jsonl": json_lines(rows)},
        {
            "args": {"slo": "ttft=2s"},
            "victims": ids(late),
            "metric": "ttft",
            "class": "attributed",
            "phase": "client_wait",
            "cause": "client_concurrency",
            "values": {"misses.by_metric.ttft": len(late)},
            "rows": {
                longest.id: {
                    "client_wait_ms": approx(longest.client_wait, 1),
                    "ttft_ms": approx(longest.ttft, 1),
                    "e2e_ms": approx(longest.e2e, 1),
                }
            },
            "must_not_contain": [MORE_HARDWARE, SLOW_WORKER],
        },
    )


def frontend_gap() -> Case:
    w = World(206)
    calls = w.traffic(70, every=450, inputs=(60, 900))
    gap = w.traffic(9, name="gap", start=32_000, every=1_500, inputs=(60, 900))
    for c in gap:
        c.frontend += 400
    one = gap[4]
    return Case(
        "06-frontend-gap",
        "vllm-project/vllm #29180, torch-spyre/sendnn-inference #1009",
        "QUEUED is stamped 400 ms after the arrival: queue and prefill do not add up to TTFT, and "
        "no other prompt is computed in the meantime.",
        {"spans.otlp.jsonl": otlp_lines(s for c in calls + gap for s in traced(c))},
        {
            "args": {"slo": "ttft=250ms"},
            "victims": ids(gap),
            "metric": "ttft",
            "any_of": [
                {"class": "attributed", "phase": "frontend", "cause": c}
                for c in ("frontend_stall", "unknown")
            ],
            "confidence_floor": 0.9,
            "rows": {
                one.id: {
                    "frontend_ms": approx(one.frontend + 0.3, 1.5),
                    "queue_ms": approx(one.queue, 0.1),
                    "prefill_ms": approx(one.prefill, 0.1),
                    "ttft_ms": approx(one.ttft, 1),
                    "unexplained_ms": approx(0, 1),
                }
            },
            "must_contain": ["front end"],
            "must_not_contain": [
                MORE_HARDWARE,
                SLOW_WORKER,
                PREFILL_STALL,
                LOST_IN.format("(the queue|prefill)"),
            ],
        },
    )


def negative_queue() -> Case:
    w = World(207)
    calls = w.traffic(70, every=450, inputs=(60, 900))
    bad = [calls[i] for i in (11, 35, 62)]
    spans = []
    for c in calls:
        client = client_span(c)
        told = {"time_in_queue": -48.0} if c in bad else {}
        spans += [client, engine_span(c, parent=client.id, seconds=told)]
    return Case(
        "07-negative-queue-time",
        "vllm-project/vllm #56238, sgl-project/sglang #39312",
        "Three spans say that they waited -48 s.",
        {"spans.otlp.jsonl": otlp_lines(spans)},
        {
            "args": {"slo": "ttft=1s"},
            "no_fault": True,
            "values": {
                "requests.total": 70,
                "requests.completed": 67,
                "requests.quarantined.negative_duration:queue": 3,
                "percentiles.ttft_ms.n": 67,
                "percentiles.e2e_ms.n": 67,
                "misses.total": 0,
            },
            # set aside, never clipped to nothing
            "rows": {
                c.id: {"queue_ms": None, "quarantine_reason": "negative_duration:queue"}
                for c in bad
            },
            "must_contain": [r"\b3\b.*negative_duration:queue|negative_duration:queue.*\b3\b"],
            "must_not_contain": [LOST_IN.format("the queue")],
        },
    )


def swapped_fields() -> Case:
    w = World(208)
    calls = w.traffic(80, every=450, inputs=(60, 900), outputs=(20, 120), version="0.6.4")
    spans = []
    for c in calls:
        client = client_span(c)
        told = {
            "time_in_model_prefill": c.decode / 1e3,
            "time_in_model_decode": c.prefill / 1e3,
        }
        spans += [client, engine_span(c, parent=client.id, seconds=told)]
    return Case(
        "08-prefill-and-decode-swapped",
        "vllm-project/vllm #10853",
        "A release wrote prefill time into decode and decode time into prefill.",
        {"spans.otlp.jsonl": otlp_lines(spans)},
        {
            "args": {"slo": "tpot=8ms"},
            "no_fault": True,
            "must_contain": ["swap", r"0\.6\.4"],
            "must_not_contain": [SLOW_WORKER, PREFILL_STALL, LOST_IN.format("(prefill|decode)")],
        },
    )


def swapped_log() -> Case:
    w = World(209)
    calls = w.traffic(80, every=450, inputs=(60, 900), outputs=(20, 120))
    rows = []
    for c in calls:
        row = log_row(c, phases=True, engine="vllm")
        row["prefill_ms"], row["decode_ms"] = row["decode_ms"], row["prefill_ms"]
        # with a TTFT in the row the swap would contradict it; this log has the total only
        del row["ttft_ms"], row["ttft_kind"]
        rows.append(row)
    return Case(
        "08b-swapped-columns-in-a-log",
        "vllm-project/vllm #10853, as columns of a log",
        "The columns prefill_ms and decode_ms are swapped; nothing in a row contradicts it, but "
        "prefill grows with the output and decode with the prompt.",
        {"requests.jsonl": json_lines(rows)},
        {
            "args": {"slo": "ttft=300ms"},
            "no_fault": True,
            "must_contain": ["swap"],
            "must_not_contain": [SLOW_WORKER, PREFILL_STALL, LOST_IN.format("prefill")],
        },
    )


def short_span() -> Case:
    w = World(214)
    calls = w.traffic(64, every=900, inputs=(60, 900), outputs=(200, 500), workers=["engine-0"])
    spans = []
    for c in calls:
        client = client_span(
            c,
            gen_ai__request__stream=False,
            gen_ai__response__time_to_first_chunk=None,
            tracekit__request_id=c.id,
        )
        length = 0.1 * (c.last + c.back - c.send)
        start = c.scheduled
        spans += [client, phase_span(c, "prefill", start, start + length, parent=client.id)]
    slow = [c for c in calls if c.e2e > 4_000]
    return Case(
        "14-a-tenth-is-covered",
        "vllm-project/vllm #36383, #4683, #9952",
        "The only span inside the call covers a tenth of its time.",
        {"spans.otlp.jsonl": otlp_lines(spans)},
        {
            "args": {"slo": "e2e=4s"},
            "victims": ids(slow),
            "metric": "e2e",
            "class": "insufficient_evidence",
            "no_fault": True,
            "values": {"coverage": approx(0.1, 0.02)},
            "missing": ["coverage"],
            "sentence_must_contain": ["^Not enough evidence", "--otlp-traces-endpoint"],
            "must_not_contain": ["lost their time", SLOW_WORKER, MORE_HARDWARE],
        },
    )


def two_traces() -> Case:
    w = World(235)
    calls = w.traffic(72, every=450, inputs=(60, 900))
    late = calls[30:36]
    for c in late:
        c.queue += 900
    spans = []
    for i, c in enumerate(calls):
        spans.append(client_span(c, gen_ai__response__id=f"chatcmpl-{c.id}"))
        lost = i % 9 == 4 and c not in late
        other = span(
            "x", key="t" + c.id, trace=trace_id(c)[::-1], start=0, end=0, kind=1, resource={},
            attributes={},
        )  # fmt: skip
        spans.append(
            engine_span(
                c,
                parent=None,
                trace=str(other.body["traceId"]),
                request_id=f"internal-{i}" if lost else None,
            )
        )
    orphans = sum(1 for i, c in enumerate(calls) if i % 9 == 4 and c not in late)
    return Case(
        "35-two-traces-of-one-request",
        "llm-d/llm-d-router #1485, ai-dynamo/dynamo #7030, sgl-project/sglang #36243",
        "The caller's trace context is not passed on: client and engine write separate traces that "
        "share only the request id, and seven engine spans not even that.",
        {"spans.otlp.jsonl": otlp_lines(spans)},
        {
            "args": {"slo": "ttft=500ms"},
            "victims": ids(late),
            "metric": "ttft",
            "class": "attributed",
            "phase": "queue",
            "cause": "unknown",
            "values": {"requests.total": 72 + orphans},
            "rows": {
                late[0].id: {
                    "legs_count": 2,
                    "match_score": {"at_most": 0.95},
                    "queue_ms": approx(late[0].queue, 0.1),
                }
            },
            "must_contain": ["traceparent", rf"\b{orphans} of 72|{100 * orphans / 72:.0f} %"],
        },
    )


def decode_under_prefill() -> Case:
    w = World(236)
    calls = w.traffic(64, every=900, inputs=(60, 900), outputs=(40, 110), workers=["engine-0"])
    one = w.call("blog", 30_000, input=780, output=330)
    one.prefill, scale = 49.9, 3_092 / one.decode
    one.gaps = [g * scale for g in one.gaps]
    calls.append(one)
    spans = []
    for c in calls:
        client = client_span(c, tracekit__request_id=c.id)
        pre = phase_span(c, "prefill", c.scheduled, c.first, parent=client.id)
        # as seen: the decode stage hangs below the prefill stage and outlives it by far
        spans += [client, pre, phase_span(c, "decode", c.first, c.last, parent=pre.id)]
    return Case(
        "36-decode-nested-under-prefill",
        "llm-d tracing blog (llm-d.github.io PR #469)",
        "A decode span of 3,092 ms is the child of a prefill span of 49.9 ms.",
        {"spans.otlp.jsonl": otlp_lines(spans)},
        {
            "args": {"slo": "e2e=3s"},
            "victims": ["blog"],
            "metric": "e2e",
            "class": "request_shape",
            "phase": "decode",
            "no_fault": True,
            "values": {"requests.total": 65, "requests.completed": 65, "requests.quarantined": {}},
            "rows": {
                "blog": {
                    "prefill_ms": approx(49.9, 0.1),
                    "decode_ms": approx(3_092, 4),
                    "coverage": at_least(0.9),
                }
            },
            "must_not_contain": [LOST_IN.format("(prefill|decode)")],
        },
    )


def outcomes() -> Case:
    w = World(239)
    calls = w.traffic(80, every=450, inputs=(60, 900))
    ends = ["aborted"] * 5 + ["gone"] * 3 + ["error"] * 4 + ["timeout"] * 2 + ["open"] * 2
    places = w.rng.sample(range(80), len(ends))
    rows = []
    for i, c in enumerate(calls):
        end = ends[places.index(i)] if i in places else "ok"
        c.status = "aborted" if end == "gone" else end
        row = log_row(c)
        if end == "aborted":
            row |= {"ttft_ms": round(c.ttft, 3), "e2e_ms": round(c.ttft + c.decode / 2, 3)}
        elif end == "gone":
            row |= {"e2e_ms": 3_000.0}
        elif end == "error":
            row |= {"error": "http 500", "e2e_ms": 20.0}
        elif end == "timeout":
            row |= {"e2e_ms": 5_000.0}
        if end not in ("ok", "aborted"):
            del row["output_tokens"]
        rows.append(row)
    ok = [c for c in calls if c.status == "ok"]
    return Case(
        "39-how-requests-ended",
        "vllm-project/vllm #8115, #22227",
        "The number of TTFTs is not the number of finished requests: some are cut before a token, "
        "some after, some fail, some are still open.",
        {"client.jsonl": json_lines(rows)},
        {
            "args": {"slo": "ttft=1s"},
            "values": {
                "requests.total": 80,
                "requests.completed": 64,
                "requests.aborted": 8,
                "requests.errored": 4,
                "requests.timeout": 2,
                "requests.open": 2,
                "percentiles.ttft_ms.n": len(ok),
                # three were cut after 3 s and two after 5 s without a token: those are misses
                "misses.by_metric.ttft": 5,
            },
            "must_contain": ["64 completed", "8 aborted"],
            "must_not_contain": [r"No request missed"],
        },
    )


CASES = (
    client_concurrency,
    client_concurrency_chunks,
    frontend_gap,
    negative_queue,
    swapped_fields,
    swapped_log,
    short_span,
    two_traces,
    decode_under_prefill,
    outcomes,
)
