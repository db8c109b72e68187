"""Cases about the hand-off between a prefill and a decode server."""

from __future__ import annotations

from statistics import median

from tests.cases._case import (
    LOST_IN,
    MORE_HARDWARE,
    PREFILL_STALL,
    SLOW_WORKER,
    Case,
    approx,
    at_least,
    at_most,
    ids,
)
from tests.cases._pd import Handover, double_prefill, handovers, pd_spans
from tests.cases._world import World, otlp_lines, window

_FASTER_LINK = r"(?<!not a )\bfaster (link|NICs?|network)(?! (will|would) not)"


def _file(calls: list[Handover], **more: bool) -> dict[str, str]:
    return {"spans.otlp.jsonl": otlp_lines(s for h in calls for s in pd_spans(h, **more))}


def _requests(w: World, n: int, name: str, start: float, every: float = 450) -> list[Handover]:
    calls = w.traffic(n, name=name, start=start, every=every, inputs=(700, 2400), outputs=(20, 60))
    return handovers(w, calls, bytes_per_token=33_400, gb_per_s=5.76, wait=15.0)


def orchestration() -> Case:
    w = World(421)
    good = _requests(w, 60, "good", 0)
    slow = handovers(
        w,
        w.traffic(20, name="slow", start=32_000, every=500, inputs=(4_900, 5_100)),
        bytes_per_token=33_400,
        gb_per_s=5.76,
        wait=139.0,
        recompute=15.0,
        spread=0.05,
    )
    one = slow[7]
    late = [h for h in slow if h.ttft > 450]
    assert len(late) >= 18
    assert 190 < median(h.handover for h in slow) < 205
    assert 27 < median(h.wire for h in slow) < 31
    return Case(
        "21-handover-is-orchestration",
        "vllm-project/vllm #50913, #51919",
        "The hand-off of 5,000 tokens takes 0.2 s, of which bytes move for 29 ms: 85 % of it is "
        "waiting, posting and the step that notices, and no link changes that.",
        _file(good + slow, wire_span=True),
        {
            "args": {"slo": "ttft=450ms", "baseline": window(-1_000, 31_000)},
            "victims": ids(late),
            "metric": "ttft",
            "class": "attributed",
            "phase": "kv_transfer",
            "cause": "kv_transfer_wait",
            "rows": {
                one.id: {
                    "kv_transfer_ms": approx(one.wait + one.wire + one.recompute, 3),
                    "kv_transfer_wait_ms": approx(one.wait, 5),
                    "kv_bytes": one.kv_bytes,
                }
            },
            "must_contain": ["waiting", "(hand-?off|handover)"],
            "must_not_contain": [
                _FASTER_LINK,
                MORE_HARDWARE,
                LOST_IN.format("(the queue|decode)"),
                "slow link",
            ],
        },
    )


def link_gets_slow() -> Case:
    w = World(422)
    good = _requests(w, 60, "good", 0)
    ramp = handovers(
        w,
        w.traffic(30, name="ramp", start=32_000, every=110, inputs=(700, 2400), outputs=(20, 60)),
        bytes_per_token=33_400,
        gb_per_s=0.05,
        wait=15.0,
    )
    one = ramp[9]
    return Case(
        "22a-transfer-bandwidth-falls",
        "sgl-project/sglang #5450",
        "Under concurrency a transfer of the usual size runs at 50 MB/s instead of 5.8 GB/s.",
        _file(good + ramp, wire_span=True),
        {
            "args": {"slo": "ttft=350ms"},
            "victims": ids(ramp),
            "metric": "ttft",
            "class": "attributed",
            "phase": "kv_transfer",
            "cause": "kv_transfer_bandwidth",
            "confidence_floor": 0.9,
            "rows": {
                one.id: {
                    "kv_transfer_ms": approx(one.wait + one.wire + one.recompute, 3),
                    "kv_transfer_wait_ms": approx(one.wait, 5),
                }
            },
            "must_contain": [r"(MB|GB)/s|bandwidth"],
            "must_not_contain": [
                "not because bytes were slow",
                LOST_IN.format("(the queue|decode|prefill)"),
                "shorten prompts",
                PREFILL_STALL,
            ],
        },
    )


def transfers_wait() -> Case:
    w = World(423)
    good = _requests(w, 60, "good", 0)
    ramp = handovers(
        w,
        w.traffic(30, name="ramp", start=32_000, every=110, inputs=(700, 2400), outputs=(20, 60)),
        bytes_per_token=33_400,
        gb_per_s=5.76,
        wait=1_400.0,
    )
    one = ramp[9]
    return Case(
        "22b-transfers-wait",
        "sgl-project/sglang #5450",
        "Under concurrency transfers wait 1.4 s for their turn; once they run, bytes move as "
        "fast as ever.",
        _file(good + ramp, wire_span=True),
        {
            "args": {"slo": "ttft=350ms"},
            "victims": ids(ramp),
            "metric": "ttft",
            "class": "attributed",
            "phase": "kv_transfer",
            "cause": "kv_transfer_wait",
            "confidence_floor": 0.9,
            "rows": {one.id: {"kv_transfer_wait_ms": approx(one.wait, 5)}},
            "must_contain": ["waiting"],
            "must_not_contain": [
                _FASTER_LINK,
                "slow link",
                LOST_IN.format("(the queue|decode|prefill)"),
            ],
        },
    )


def two_ttfts() -> Case:
    w = World(424)
    good = _requests(w, 60, "good", 0)
    slow = handovers(
        w,
        w.traffic(12, name="slow", start=32_000, every=900, inputs=(700, 2400), outputs=(20, 60)),
        bytes_per_token=33_400,
        gb_per_s=5.76,
        wait=308.0,
        spread=0.06,
    )
    one = slow[5]
    assert one.p_ttft < 200 and 300 < one.d_ttft < 370
    return Case(
        "24-two-ttfts-on-one-trace",
        "vllm-project/vllm #22454, llm-d tracing blog (llm-d.github.io PR #469)",
        "The prefill server reports a TTFT of 0.1 s, the decode server one of 0.34 s of which 0.32 "
        "s is its queue time; the user waits for both. That queue is the wait for the KV cache.",
        _file(good + slow),
        {
            "args": {"slo": "ttft=330ms"},
            "victims": ids(slow),
            "metric": "ttft",
            "any_of": [
                {"class": "attributed", "phase": "kv_transfer", "cause": c}
                for c in ("kv_transfer_wait", "unknown")
            ],
            "confidence_floor": 0.7,
            "rows": {
                one.id: {
                    "ttft_ms": approx(one.ttft, 1),
                    "queue_ms": approx(one.p_queue, 0.5),
                    "prefill_ms": approx(one.call.prefill, 0.5),
                    "kv_transfer_ms": approx(one.wait + one.wire + one.recompute, 3),
                    "kv_transfer_wait_ms": approx(one.wait + one.wire, 3),
                    "leg_roles": {"matches": "prefill_engine.*decode_engine"},
                }
            },
            "boundaries": {one.id: ["prefill_engine first_token", "decode_engine first_token"]},
            "must_contain": ["KV transfer"],
            "must_not_contain": [
                "decode queue",
                LOST_IN.format("(the queue|prefill|decode)"),
                MORE_HARDWARE,
                _FASTER_LINK,
            ],
        },
    )


def stuck() -> Case:
    w = World(425)
    good = _requests(w, 60, "good", 0)
    hung = _requests(w, 6, "hung", 30_000, every=1_000)
    spans = [s for h in good for s in pd_spans(h)]
    for h in hung:
        h.call.status = "timeout"
        spans += pd_spans(h, decode_side=False, gave_up=h.call.send + 300_000)
    return Case(
        "25-transfers-that-never-end",
        "sgl-project/sglang #31800, #36108, vllm-project/vllm #50754",
        "Six requests were prefilled, handed over and never heard of again: the client gives up "
        "after 300 s.",
        {"spans.otlp.jsonl": otlp_lines(spans)},
        {
            "args": {"slo": "ttft=1s"},
            "victims": ids(hung),
            "metric": "ttft",
            "any_of": [
                {"class": "attributed", "phase": "kv_transfer", "cause": "kv_transfer_wait"},
                {"class": "attributed", "phase": "kv_transfer", "cause": "unknown"},
            ],
            "values": {
                "requests.total": 66,
                "requests.completed": 60,
                "requests.timeout": 6,
                "misses.by_metric.ttft": 6,
            },
            "rows": {hung[0].id: {"status": "timeout", "kv_transfer_ms": at_least(295_000)}},
            "must_contain": [r"lower bound|never (ended|completed|came)|no completion"],
            "must_not_contain": [
                LOST_IN.format("(decode|the queue|prefill)"),
                MORE_HARDWARE,
                "No request missed",
            ],
        },
    )


def no_transfer_at_all() -> Case:
    w = World(427)
    shape = {"inputs": (2_800, 3_200), "outputs": (20, 60), "every": 450.0}
    good = handovers(w, w.traffic(40, name="good", **shape), bytes_per_token=33_400, gb_per_s=5.76)  # type: ignore[arg-type]
    twice = handovers(w, w.traffic(40, name="twice", start=20_000, **shape))  # type: ignore[arg-type]
    for h in twice:
        double_prefill(h)
    slo = 300.0
    late = [h for h in twice if h.ttft > slo]
    assert len(late) >= 36 and not [h for h in good if h.ttft > slo]
    one = twice[11]
    return Case(
        "27-double-prefill",
        "vllm-project/vllm #21037, #42703, llm-d/llm-d #2535",
        "The KV parameters are missing, so the decode server computes every prompt again: twice "
        "the prefill, no transfer, not disaggregated at all.",
        _file(good + twice),
        {
            "args": {"slo": "ttft=300ms", "baseline": window(-1_000, 19_500)},
            "victims": ids(late),
            "metric": "ttft",
            "class": "attributed",
            "phase": "prefill",
            "cause": "double_prefill",
            "rows": {
                one.id: {
                    "prefill_ms": approx(one.call.prefill + one.recompute, 2),
                    "kv_transfer_ms": at_most(5),
                },
                good[11].id: {"prefill_ms": approx(good[11].call.prefill, 1)},
            },
            "must_contain": ["twice|again|double|not disaggregated"],
            "must_not_contain": [
                LOST_IN.format("KV transfer"),
                _FASTER_LINK,
                MORE_HARDWARE,
                SLOW_WORKER,
                "nixl_xfer_time",
            ],
        },
    )


CASES = (
    orchestration,
    link_gets_slow,
    transfers_wait,
    two_ttfts,
    stuck,
    no_transfer_at_all,
)
