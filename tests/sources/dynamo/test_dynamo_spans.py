"""Dynamo's spans alone, against what its clients saw: what they tell, and what they must not."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from tests.sources._recorded import call_log, client, recorded, sound

AGGREGATED = ("agg_baseline", "overload_engine_queue", "repeated_prefix", "kv_pressure")
PD = ("pd_baseline", "pd_slow_kv", "pd_slow_kv_bootstrap")


def _scenario(name: str):  # type: ignore[no-untyped-def]
    return recorded(f"dynamo/{name}.otlp.jsonl.gz")


@pytest.mark.parametrize("name", [*AGGREGATED, *PD])
@pytest.mark.trap("dynamo", 6)
def test_every_call_is_one_request_and_housekeeping_is_none(name: str) -> None:
    found, calls = _scenario(name), client("dynamo", name)
    assert sorted(found.by_id()) == sorted(c["request_id"] for c in calls)
    assert found.count(status="ok") == len(calls)
    sound(found)
    roles = "gateway,router,prefill_engine,decode_engine" if name in PD else "gateway,router,engine"
    assert found.count(leg_roles=roles) == len(calls)
    for call in calls:
        request = found.by_id()[call["request_id"]]
        assert request["input_tokens"] == call["prompt_tokens"]
        assert request["output_tokens"] == call["completion_tokens"]


@pytest.mark.trap("dynamo", 5)
@pytest.mark.parametrize("name", [*AGGREGATED, *PD])
def test_the_end_is_the_last_token_and_neither_spans_end(name: str) -> None:
    """The frontend's span ended up to 462 ms after the client's last token, workers' 0.4 ms later.

    A starved machine gives the client its token late, never early.
    """
    found = _scenario(name).by_id()
    late_ms = []
    for call in client("dynamo", name):
        request = found[call["request_id"]]
        assert request["quarantine_reason"] is None
        last_ms = (request["end_unix_ns"] - call["start_unix_ns"]) / 1e6
        late_ms.append(call["last_token_ms"] - last_ms)
    assert min(late_ms) > 0
    assert median(late_ms) < 2
    assert max(late_ms) < 60


@pytest.mark.trap("dynamo", 9)
def test_a_frontend_that_begins_long_after_the_client_sent_is_the_same_call(
    tmp_path: Path,
) -> None:
    """Up to 141 ms lie between; they are on the way, and neither lost nor a clock's fault."""
    calls = client("dynamo", "pd_baseline")
    names = ("request_id", "start_unix_ns", "first_token_ms", "last_token_ms")
    log = call_log(tmp_path, [tuple(c[n] for n in names) for c in calls])
    found = recorded("dynamo/pd_baseline.otlp.jsonl.gz", log)
    sound(found)
    assert sorted(found.by_id()) == sorted(c["request_id"] for c in calls)
    assert found.count(quarantine_reason=None, status="ok") == len(calls)
    alone = _scenario("pd_baseline").by_id()
    apart = []
    for call in calls:
        request = found.by_id()[call["request_id"]]
        assert request["leg_roles"].startswith("client,gateway,")
        assert request["ttft_ms"] == pytest.approx(call["first_token_ms"])
        at = alone[call["request_id"]]["start_unix_ns"] - call["start_unix_ns"]
        apart.append(at / 1e6)
        assert request["network_ms"] > at / 1e6 - 1
    assert max(apart) == pytest.approx(141, abs=1)


@pytest.mark.parametrize("name", [*AGGREGATED, *PD])
def test_ttft_is_the_clients_within_the_noise(name: str) -> None:
    """Trap 9: the frontend starts 0.5 ms after the client, and tens of ms under contention."""
    found = _scenario(name).by_id()
    late_ms = [
        call["first_token_ms"] - found[call["request_id"]]["ttft_ms"]
        for call in client("dynamo", name)
    ]
    assert min(late_ms) > 0
    assert median(late_ms) < 3
    assert sorted(late_ms)[int(len(late_ms) * 0.9)] < 60


@pytest.mark.parametrize("name", AGGREGATED)
@pytest.mark.trap("dynamo", 1)
def test_engine_queueing_is_not_called_prefill(name: str) -> None:
    """Trap 1: Dynamo alone cannot tell the engine's queue from its prefill."""
    requests = _scenario(name).requests
    assert all(r["prefill_ms"] is None for r in requests)
    told = [r for r in requests if r["queue_or_prefill_ms"] is not None]
    # one frontend started 58 ms before it counted (trap 9): its token came before its worker
    assert len(told) >= len(requests) - 1
    for request in told:
        rest_ms = request["ttft_ms"] - request["route_ms"] - (request["queue_ms"] or 0)
        # what the router did not take; routing back and forth is a few ms
        assert rest_ms - 10 < request["queue_or_prefill_ms"] < rest_ms + 10


@pytest.mark.parametrize("name", PD)
def test_spans_alone_do_not_tell_a_transfer_from_what_came_before(name: str) -> None:
    """The prefill worker's span holds the transfer or not, by the mode: unknown, not zero."""
    for request in _scenario(name).requests:
        assert request["kv_transfer_ms"] is None
        assert request["queue_or_prefill_ms"] > 0


def test_workers_are_named_by_service_and_instance() -> None:
    request = _scenario("pd_slow_kv").by_id()["pd_slow_kv-0004"]
    assert request["prefill_worker"] == "dynamo-worker-prefill/8347435537116620557"
    assert request["decode_worker"] == "dynamo-worker-decode/7275312642746853869"
