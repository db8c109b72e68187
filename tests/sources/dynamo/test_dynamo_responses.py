"""Clients' rows with `nvext` of Dynamo's last chunk: phases against client and simulator.

The rows are those of the recordings, reshaped: the last `nvext` as one object, the client's own
first and last token as `ttft_ms` and `e2e_ms`.
"""

from __future__ import annotations

import gzip
import json
from statistics import median

import pytest

from tests.sources._recorded import DATA, Recorded, Row, recorded, sound
from tests.sources.dynamo.test_dynamo_request_trace import _truth_ms

NAMES = ("pd_slow_kv", "pd_slow_kv_bootstrap", "overload_engine_queue")


def _calls(name: str) -> list[Row]:
    with gzip.open(DATA / f"dynamo/{name}.responses.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def _found(name: str) -> Recorded:
    return recorded(f"dynamo/{name}.responses.jsonl.gz")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.trap("dynamo", 1)
def test_every_call_is_a_sound_request(name: str) -> None:
    found = _found(name)
    sound(found)
    calls = _calls(name)
    assert sorted(found.by_id()) == sorted(c["request_id"] for c in calls)
    assert found.count(quarantine_reason=None) == len(calls)
    assert found.count(engine="dynamo") == len(calls)
    for call in calls:
        request = found.by_id()[call["request_id"]]
        timing = call["nvext"]["timing"]
        # trap 1: prefill_time holds the engine's queue
        assert request["prefill_ms"] is None
        assert request["queue_ms"] is None
        assert request["queue_or_prefill_ms"] == pytest.approx(timing["prefill_time_ms"], abs=0.01)
        assert request["route_ms"] == pytest.approx(timing["prefill_wait_time_ms"], abs=0.01)
        # the client's own TTFT stays what it is
        assert request["ttft_ms"] == pytest.approx(call["ttft_ms"], abs=0.001)


@pytest.mark.trap("dynamo", 2)
def test_a_transfer_in_sequence_is_what_the_simulator_was_told() -> None:
    """Trap 2: ttft_ms is the prefill worker's (29 ms), the client's is 194 ms."""
    found = _found("pd_slow_kv")
    late = []
    for call in _calls("pd_slow_kv"):
        request = found.by_id()[call["request_id"]]
        estimate = call["nvext"]["timing"]["kv_transfer_estimated_latency_ms"]
        assert request["kv_transfer_ms"] == pytest.approx(estimate, abs=0.01)
        truth = _truth_ms("pd_slow_kv", request["input_tokens"])
        late.append((request["kv_transfer_ms"] - truth) / truth)
        assert request["prefill_worker"] != request["worker"]
        assert request["worker"] == request["decode_worker"]
    # an upper bound: the decode worker's queue and first step are in it
    assert 0 < median(late) < 0.15


@pytest.mark.trap("dynamo", 3)
def test_an_estimate_of_zero_is_no_transfer_of_zero() -> None:
    """Trap 3: all 40 say 0.0, where 72-205 ms were spent."""
    found = _found("pd_slow_kv_bootstrap")
    for call in _calls("pd_slow_kv_bootstrap"):
        timing = call["nvext"]["timing"]
        assert timing["kv_transfer_estimated_latency_ms"] == 0
        between = call["ttft_ms"] - timing["ttft_ms"]
        request = found.by_id()[call["request_id"]]
        assert request["kv_transfer_ms"] == pytest.approx(between, abs=0.01)
        assert request["kv_transfer_ms"] > 0.9 * _truth_ms(
            "pd_slow_kv_bootstrap", request["input_tokens"]
        )


def test_an_aggregated_worker_transfers_nothing() -> None:
    found = _found("overload_engine_queue")
    assert len(found.requests) == 80
    for request in found.requests:
        assert request["kv_transfer_ms"] is None
        assert request["prefill_worker"] is None
        assert request["worker"] is not None
