"""Which cause is named for what evidence, and what each must rule out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tracekit.analysis import sqlfiles
from tracekit.analysis._duck import put
from tracekit.analysis.rules import Rules
from tracekit.lake.duck import connect

_NUMBERS = (
    *(
        "excess_ms",
        "expected_ms",
        "interference_ms",
        "contention_ms",
        "decoding_ms",
        "slow_share",
        "slow_ms",
    ),
    *("slow_error", "own_share", "waiting", "busy", "peer_waiting", "peer_busy", "waiting_share"),
    *("slots_share", "full_share", "kv_usage", "worker_preemptions", "transfer_share"),
    *("clock_share", "throttled_share", "cache_ms", "step_wait_ms", "transfer_wait_ms"),
    "alloc_ms",
    *("again_ms", "wire_ms", "size_ms", "arrivals", "peer_arrivals", "frozen_ms", "surplus_share"),
    *("idle_ms", "moving", "decode_share"),
)
_COUNTS = ("suspect_id", "peers", "is_elevated", "is_spike", "preemptions")
_SCHEMA = pa.schema(
    [("request_key", pa.string()), ("phase", pa.string())]
    + [(n, pa.float64()) for n in _NUMBERS]
    + [(n, pa.int64()) for n in _COUNTS]
)

#: A second lost, ordinary load, nothing known from metrics.
_PLAIN: dict[str, Any] = {
    "excess_ms": 1000.0,
    "expected_ms": 200.0,
    "interference_ms": 0.0,
    "contention_ms": 0.0,
    "decoding_ms": 0.0,
    "cache_ms": 0.0,
    "waiting": 2.0,
    "busy": 8.0,
    "moving": 1.0,
    "waiting_share": 0.1,
    "slots_share": 1.0,
    "peers": 0,
    "is_elevated": 0,
    "is_spike": 0,
    "slow_ms": 0.0,
    "frozen_ms": 0.0,
}

_ROOM = {
    **{"peers": 1, "peer_waiting": 0.0, "peer_busy": 2.0},
    **{"arrivals": 90.0, "peer_arrivals": 30.0},
}
_SLOW = {"slow_share": 0.9, "slow_error": 0.05, "slow_ms": 900.0, "own_share": 0.9, "peers": 1}
_COLD = {"clock_share": 0.5, "throttled_share": 1.0}
_SPIKE = {"is_elevated": 1, "is_spike": 1}


def _cause(phase: str, **evidence: Any) -> tuple[str, float | None]:
    row = {n: None for n in _SCHEMA.names} | _PLAIN | evidence
    row |= {"suspect_id": 1, "request_key": "r", "phase": phase}
    with connect() as con:
        put(con, "cause_evidence", pa.Table.from_pylist([row], schema=_SCHEMA))
        put(con, "attribution_rules", Rules().to_arrow())
        body = sqlfiles.load("attribution", "causes").body
        ((cause, cause_ms),) = con.sql(f"select cause, cause_ms from ({body})").fetchall()
    return cause, cause_ms


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        ({}, "unknown"),
        (_SPIKE, "arrival_burst"),
        ({"is_elevated": 1}, "capacity"),
        # a spike that is not more than usual is chance
        ({"is_spike": 1}, "unknown"),
        # more came in than usual: a queue needs no slow worker then, unless its clock fell
        (_SPIKE | _SLOW | {"surplus_share": 4.0}, "arrival_burst"),
        (_SPIKE | _SLOW | {"surplus_share": 0.5}, "slow_worker"),
        ({"is_elevated": 1, "surplus_share": 0.6, "own_share": 2.0}, "unknown"),
        ({"is_elevated": 1, "surplus_share": 0.6, "own_share": 0.2}, "capacity"),
        (_SLOW, "slow_worker"),
        (_SPIKE | _SLOW | _COLD, "gpu_throttled"),
        # slower than its peers, but within what chance gives
        (_SLOW | {"slow_error": 0.4}, "unknown"),
        (_ROOM, "router_imbalance"),
        # the peers were waiting too, or as busy
        (_ROOM | {"peer_waiting": 2.0}, "unknown"),
        (_ROOM | {"peer_busy": 7.0}, "unknown"),
        # the worker got no more than its peers: it got rid of less
        (_ROOM | {"arrivals": 33.0}, "unknown"),
        # few came at all: chance
        (_ROOM | {"arrivals": 6.0, "peer_arrivals": 2.0}, "unknown"),
        # one request at a time on each worker is no imbalance
        (_ROOM | {"waiting": 0.5, "busy": 0.9, "peer_busy": 0.0}, "unknown"),
        ({"full_share": 0.8}, "kv_capacity"),
        ({"full_share": 0.0, "worker_preemptions": 3.0}, "kv_capacity"),
        # memory is full because more came in
        ({"full_share": 0.8} | _SPIKE, "arrival_burst"),
        # metrics say that memory is not full
        ({"full_share": 0.0, "slots_share": 0.4}, "unknown"),
        # without metrics of the KV cache nobody knows whether it is full
        ({"slots_share": 0.4}, "unknown"),
        # free slots, filled memory, and yet they wait; with an empty one it is something else
        ({"full_share": 0.0, "kv_usage": 0.7, "slots_share": 0.5}, "kv_capacity"),
        ({"full_share": 0.0, "kv_usage": 0.2, "slots_share": 0.5}, "unknown"),
        ({"full_share": 0.0, "kv_usage": 0.7, "slots_share": 0.9}, "unknown"),
        ({"slots_share": 1.0}, "unknown"),
        ({"interference_ms": 600.0}, "prefill_interference"),
        ({"interference_ms": 400.0}, "unknown"),
        # a long prefill is there on any day: what made a queue of it comes first
        ({"interference_ms": 900.0} | _SPIKE, "arrival_burst"),
        ({"interference_ms": 900.0, "is_elevated": 1}, "prefill_interference"),
        ({"interference_ms": 900.0} | _ROOM, "router_imbalance"),
        ({"interference_ms": 900.0} | _SLOW, "slow_worker"),
        ({"interference_ms": 900.0, "full_share": 0.5, "slots_share": 0.5}, "kv_capacity"),
        # all slots were taken: memory is not what was short
        ({"interference_ms": 900.0, "full_share": 0.5}, "prefill_interference"),
        # no more came here than to its peers, and yet it holds four times as many
        (_ROOM | {"arrivals": 30.0, "slow_share": 0.1, "slow_error": 0.05}, "slow_worker"),
        (_ROOM | {"arrivals": 30.0, "slow_share": 0.02, "slow_error": 0.05}, "unknown"),
        # a clock that fell is believed unless service was as quick as that of the peers
        (_COLD | {"slow_share": 0.0, "slow_error": 0.2}, "gpu_throttled"),
        (_COLD | {"slow_share": 0.0, "slow_error": 0.03}, "unknown"),
    ],
)
def test_queue(evidence: dict[str, Any], cause: str) -> None:
    assert _cause("queue", **evidence)[0] == cause


@pytest.mark.parametrize(
    ("evidence", "cause", "cause_ms"),
    [
        ({}, "unknown", None),
        ({"interference_ms": 700.0}, "prefill_interference", 700.0),
        # a peer would have taken nearly as long
        (_SLOW | {"slow_ms": 200.0}, "unknown", None),
        # load and longer prefills are how a slow worker slows, but not where more came in
        (_SLOW | {"slow_ms": 300.0, "interference_ms": 550.0}, "slow_worker", 300.0),
        (_SLOW | {"slow_ms": 300.0, "interference_ms": 700.0}, "slow_worker", 300.0),
        (_SLOW | {"slow_ms": 300.0, "interference_ms": 850.0}, "prefill_interference", 850.0),
        (_SLOW | {"slow_ms": 300.0, "is_elevated": 1}, "unknown", None),
        (_SLOW, "slow_worker", 900.0),
        (_SLOW | {"slow_ms": 2000.0}, "slow_worker", 1000.0),
        (_SLOW | _COLD, "gpu_throttled", 900.0),
        # without peers a clock that fell is evidence enough, its being slow without it is not
        ({"own_share": 0.9} | _COLD, "gpu_throttled", None),
        ({"own_share": 0.9}, "unknown", None),
        ({"clock_share": 0.5, "throttled_share": 1.0}, "unknown", None),
        ({"preemptions": 2, "interference_ms": 900.0}, "preemption", None),
        ({"worker_preemptions": 2.0}, "preemption", None),
        # more at once, because more came in
        ({"contention_ms": 800.0, "decoding_ms": 800.0} | _SPIKE, "arrival_burst", None),
        ({"contention_ms": 800.0, "decoding_ms": 800.0, "is_elevated": 1}, "capacity", None),
        ({"contention_ms": 800.0, "decoding_ms": 800.0} | _ROOM, "router_imbalance", None),
        ({"contention_ms": 800.0, "decoding_ms": 800.0}, "unknown", None),
        (
            {"contention_ms": 800.0, "decoding_ms": 100.0, "interference_ms": 300.0},
            *("prefill_interference", 800.0),
        ),
        # nobody whom it could be blamed on
        ({"contention_ms": 800.0, "decoding_ms": 100.0}, "unknown", None),
        # all streams of the worker went on at the same moment, and no prefill explains it
        ({"frozen_ms": 700.0}, "frontend_stall", None),
        ({"frozen_ms": 700.0, "interference_ms": 700.0}, "prefill_interference", 700.0),
        # more came in, but load does not explain the loss
        ({"contention_ms": 300.0, "decoding_ms": 300.0} | _SPIKE, "unknown", None),
    ],
)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_service(phase: str, evidence: dict[str, Any], cause: str, cause_ms: float | None) -> None:
    assert _cause(phase, **evidence) == (cause, cause_ms)


def test_a_prompt_computed_twice_is_no_fault_of_a_worker() -> None:
    for found in ({}, _SLOW, _COLD | _SLOW, {"cache_ms": 900.0}, {"interference_ms": 900.0}):
        assert _cause("prefill", again_ms=700.0, **found) == ("double_prefill", 700.0)
    assert _cause("prefill", again_ms=1700.0) == ("double_prefill", 1000.0)
    assert _cause("prefill", again_ms=400.0)[0] == "unknown"
    # where another phase was lost, it is not why
    assert _cause("kv_transfer", again_ms=900.0)[0] == "unknown"
    assert _cause("decode", again_ms=900.0)[0] == "unknown"


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        ({"idle_ms": 9_000.0, "clock_share": 0.5, "own_share": 0.9}, "gpu_asleep"),
        ({"idle_ms": 9_000.0, "clock_share": 0.5, "cache_ms": 900.0}, "gpu_asleep"),
        # heat or power hold it back: it did not sleep
        ({"idle_ms": 9_000.0, "own_share": 0.9} | _COLD, "gpu_throttled"),
        # awake, or nobody knows
        ({"idle_ms": 9_000.0, "clock_share": 0.9}, "unknown"),
        ({"idle_ms": 9_000.0}, "unknown"),
        ({"clock_share": 0.5}, "unknown"),
    ],
)
def test_a_low_clock_after_an_idle_time_has_slept(evidence: dict[str, Any], cause: str) -> None:
    assert _cause("prefill", **evidence) == (cause, None)
    assert _cause("decode", **evidence)[0] != "gpu_asleep"


def test_a_worker_far_away_is_not_slow() -> None:
    """What a client alone sees before the first token holds the way there and the queue."""
    assert _cause("queue_or_prefill", **_SLOW, decode_share=0.3)[0] == "slow_worker"
    assert _cause("queue_or_prefill", **_SLOW, decode_share=0.02)[0] == "unknown"
    assert _cause("queue_or_prefill", **_SLOW)[0] == "unknown"
    assert _cause("prefill", **_SLOW)[0] == "slow_worker"


def test_a_missed_prefix_costs_prefill_only() -> None:
    assert _cause("prefill", cache_ms=700.0) == ("cache_miss", 700.0)
    assert _cause("queue_or_prefill", cache_ms=1700.0) == ("cache_miss", 1000.0)
    assert _cause("prefill", cache_ms=400.0)[0] == "unknown"
    assert _cause("decode", cache_ms=700.0)[0] == "unknown"


def test_requests_that_say_they_waited_for_memory() -> None:
    """More than half of the loss is the decode server's KV space, whatever else was there."""
    busy = {"is_spike": 1, "is_elevated": 1}
    assert _cause("queue", alloc_ms=700.0, **busy) == ("kv_capacity", 700.0)
    assert _cause("queue", alloc_ms=1700.0) == ("kv_capacity", 1000.0)
    assert _cause("queue", alloc_ms=400.0)[0] == "unknown"
    assert _cause("prefill", alloc_ms=900.0)[0] == "unknown"


@pytest.mark.parametrize(
    ("evidence", "cause", "cause_ms"),
    [
        ({}, "unknown", None),
        # a slow link and a long wait look alike where neither wire nor size is known
        ({"transfer_wait_ms": 900.0}, "unknown", None),
        ({"transfer_wait_ms": 900.0, "size_ms": 700.0}, "kv_transfer_bandwidth", 700.0),
        ({"transfer_wait_ms": 900.0, "size_ms": 100.0}, "kv_transfer_wait", 900.0),
        # beside others' transfers it may have waited for the link, unless that is known to be quick
        ({"transfer_wait_ms": 900.0, "size_ms": 100.0, "moving": 3.0}, "unknown", None),
        (
            {"transfer_wait_ms": 900.0, "size_ms": 100.0, "moving": 3.0, "transfer_share": 0.9},
            *("kv_transfer_wait", 900.0),
        ),
        # the transfers themselves were slow
        ({"transfer_wait_ms": 900.0, "transfer_share": 0.3}, "kv_transfer_bandwidth", None),
        # no room on the decode server: never the link
        (
            {"transfer_wait_ms": 900.0, "size_ms": 700.0, "full_share": 0.9},
            "kv_transfer_wait",
            900.0,
        ),
        # told apart, neither its size nor a full decode server is needed
        ({"transfer_wait_ms": 100.0, "wire_ms": 950.0}, "kv_transfer_bandwidth", 950.0),
        ({"transfer_wait_ms": 900.0, "wire_ms": 150.0}, "kv_transfer_wait", 900.0),
        (
            {"transfer_wait_ms": 900.0, "wire_ms": 150.0, "size_ms": 700.0},
            "kv_transfer_wait",
            900.0,
        ),
        (
            {"transfer_wait_ms": 100.0, "wire_ms": 1300.0, "full_share": 0.9},
            "kv_transfer_bandwidth",
            1000.0,
        ),
        # nor do both carry it: neither does
        ({"transfer_wait_ms": 300.0, "wire_ms": 300.0}, "unknown", None),
    ],
)
def test_transfer(evidence: dict[str, Any], cause: str, cause_ms: float | None) -> None:
    assert _cause("kv_transfer", **evidence) == (cause, cause_ms)


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        ({"step_wait_ms": 1000.0}, "unknown"),
        ({"step_wait_ms": 1000.0, "interference_ms": 800.0}, "prefill_interference"),
        ({"step_wait_ms": 1000.0} | _SLOW, "slow_worker"),
        # prefills take longer on a slow worker
        ({"step_wait_ms": 1000.0, "interference_ms": 800.0} | _SLOW, "slow_worker"),
        ({"step_wait_ms": 1000.0, "frozen_ms": 700.0}, "frontend_stall"),
        ({"step_wait_ms": 100.0}, "frontend_stall"),
    ],
)
def test_frontend(evidence: dict[str, Any], cause: str) -> None:
    assert _cause("frontend", **evidence)[0] == cause
