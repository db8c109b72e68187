"""Dynamo's request-trace records: alone, beside its spans, and against the simulator's truth."""

from __future__ import annotations

import gzip
import json
from statistics import median

import pytest

from tests.sources._recorded import DATA, Recorded, client, recorded, sound

PD = ("pd_baseline", "pd_slow_kv", "pd_slow_kv_bootstrap")
#: Bytes a token and bytes a second that the simulator was given.
TOKEN_BYTES = 131_072
BANDWIDTH = {"pd_baseline": 16e9, "pd_slow_kv": 0.4e9, "pd_slow_kv_bootstrap": 0.4e9}


def _both(name: str) -> Recorded:
    return recorded(f"dynamo/{name}.otlp.jsonl.gz", f"dynamo/{name}.request_trace.jsonl.gz")


def _truth_ms(name: str, tokens: int) -> float:
    return tokens * TOKEN_BYTES / BANDWIDTH[name] * 1e3


@pytest.mark.parametrize("name", [*PD, "overload_engine_queue", "repeated_prefix"])
def test_records_join_the_spans_of_their_request(name: str) -> None:
    """They carry no trace id: the join is Dynamo's own request id, which the spans have too."""
    found = _both(name)
    calls = {c["request_id"]: c for c in client("dynamo", name)}
    assert sorted(found.by_id()) == sorted(calls)
    sound(found)
    for request_id, request in found.by_id().items():
        assert "dynamo_trace" in request["sources"]
        # a wrong join would bring another request's numbers
        assert request["cached_tokens"] == calls[request_id]["cached_tokens"]
        assert request["input_tokens"] == calls[request_id]["prompt_tokens"]


@pytest.mark.parametrize("name", PD)
def test_the_transfer_is_exposed_from_the_workers_token_to_the_clients(name: str) -> None:
    """Trap 2: the record's ttft_ms is the prefill worker's, the client's own is later."""
    found = _both(name).by_id()
    for call in client("dynamo", name):
        request = found[call["request_id"]]
        own_ms = call["timing"]["ttft_ms"]
        exposed_ms = request["ttft_ms"] - own_ms
        # the record's arrival is cut to whole ms, and the span begins up to 58 ms before it
        assert request["kv_transfer_ms"] == pytest.approx(exposed_ms, abs=60)
        assert request["prefill_ms"] is None
    assert median(
        found[c["request_id"]]["kv_transfer_ms"]
        - (found[c["request_id"]]["ttft_ms"] - c["timing"]["ttft_ms"])
        for c in client("dynamo", name)
    ) == pytest.approx(0, abs=1.5)


def test_a_transfer_in_sequence_is_what_the_simulator_was_told() -> None:
    """An upper bound: the decode worker's queue and first step are in it (10 ms at the median)."""
    late = [
        (r["kv_transfer_ms"] - _truth_ms("pd_slow_kv", r["input_tokens"]))
        / _truth_ms("pd_slow_kv", r["input_tokens"])
        for r in _both("pd_slow_kv").requests
    ]
    assert 0 < median(late) < 0.15


def test_a_rendezvous_costs_a_fixed_time_beside_its_bytes() -> None:
    """Trap 3: Dynamo writes an estimate of 0.0 where it has none; the difference is what is known.

    Both requests run at once there, and meet: 45-50 ms go by beside the transfer of the bytes.
    """
    found = _both("pd_slow_kv_bootstrap")
    truth = [_truth_ms("pd_slow_kv_bootstrap", r["input_tokens"]) for r in found.requests]
    over = [r["kv_transfer_ms"] - t for r, t in zip(found.requests, truth, strict=True)]
    assert 40 < median(over) < 60
    assert all(c["timing"]["kv_transfer_estimated_latency_ms"] == 0 for c in client(
        "dynamo", "pd_slow_kv_bootstrap"))  # fmt: skip


@pytest.mark.trap("dynamo", 2)
def test_records_alone_are_requests() -> None:
    """Without spans: arrival, the merged time before the prefill worker's token, the rest."""
    found = recorded("dynamo/pd_slow_kv.request_trace.jsonl.gz")
    assert len(found.requests) == 40
    sound(found)
    assert found.count(trace_id=None) == 40  # no tracing system knows what stands for it here
    for request in found.requests:
        assert request["queue_or_prefill_ms"] > 0
        assert request["decode_ms"] > 0
    assert median(r["kv_transfer_ms"] for r in found.requests) > 100


@pytest.mark.trap("dynamo", 4)
@pytest.mark.parametrize("spans", [True, False])
def test_a_transfer_within_the_prefill_workers_time_is_no_prefill(spans: bool) -> None:
    """Three tokens of that worker were seen 120 ms late, when its bytes had moved or nearly so."""
    name = "pd_slow_kv"
    found = (_both(name) if spans else recorded(f"dynamo/{name}.request_trace.jsonl.gz")).requests
    by_input = {(r["input_tokens"], r["output_tokens"]): r for r in found}
    slow = [c for c in client("dynamo", name) if c["timing"]["prefill_time_ms"] > 100]
    assert sorted(c["request_id"][-2:] for c in slow) == ["10", "11", "12"]
    for call in slow:
        request = by_input[call["prompt_tokens"], call["completion_tokens"]]
        # the simulator's transfer took longer than what is left after that token
        truth = _truth_ms(name, call["prompt_tokens"])
        assert request["kv_transfer_ms"] < truth
        # so the time before it is queue, prefill or transfer: merged, and no prefill of 150 ms
        assert request["prefill_ms"] is None
        assert request["queue_ms"] is None or request["queue_ms"] < 1
        together = request["queue_or_prefill_ms"] + request["kv_transfer_ms"]
        assert together > truth
        timing = call["timing"]
        told = timing["prefill_time_ms"] + timing["kv_transfer_estimated_latency_ms"]
        assert together == pytest.approx(told, abs=2)


@pytest.mark.trap("dynamo", 3)
def test_without_an_estimate_the_first_token_is_not_known() -> None:
    found = recorded("dynamo/pd_slow_kv_bootstrap.request_trace.jsonl.gz")
    assert all(r["ttft_ms"] is None for r in found.requests)
    assert all(r["kv_transfer_ms"] is None or r["kv_transfer_ms"] == 0 for r in found.requests)


@pytest.mark.trap("dynamo", 1)
def test_aggregated_records_know_no_transfer() -> None:
    found = recorded("dynamo/overload_engine_queue.request_trace.jsonl.gz")
    assert len(found.requests) == 80
    for request in found.requests:
        assert request["kv_transfer_ms"] is None
        assert request["prefill_ms"] is None
        assert request["queue_or_prefill_ms"] > 0


def test_without_an_estimate_what_follows_the_prefill_is_not_explained() -> None:
    """Transfer and decode are in it: nothing tells them apart, and no router took that time."""
    name = "dynamo/pd_slow_kv_bootstrap.request_trace.jsonl.gz"
    found = recorded(name)
    sound(found)
    with gzip.open(DATA / name, "rt") as lines:
        told = [json.loads(line) for line in lines]
    records = {r["request_id"]: r for r in (t.get("event", t)["request"] for t in told)}
    assert sorted(found.by_id()) == sorted(records)
    for request_id, request in found.by_id().items():
        record = records[request_id]
        rest = record["total_time_ms"] - record["ttft_ms"]
        assert request["unexplained_ms"] == pytest.approx(rest, abs=1e-3)
        assert request["route_ms"] == pytest.approx(record["prefill_wait_time_ms"], abs=1e-3)
        assert request["kv_transfer_ms"] is None
        assert request["decode_ms"] is None
