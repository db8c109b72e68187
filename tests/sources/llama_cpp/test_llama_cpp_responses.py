"""Clients' rows with the `timings` of llama.cpp's responses: phases against the clients' clock."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from tests.sources._recorded import Recorded, Row, client, recorded, sound

MS = 1_000_000
SCENARIOS = ("baseline", "long-prompt", "prefix-cache", "cancelled", "edge", "overload-trace")


def _found(scenario: str) -> Recorded:
    return recorded(f"llama_cpp/{scenario}.client.jsonl.gz")


def _pairs(*scenarios: str) -> list[tuple[Row, Row]]:
    """(what the client wrote, what became of it), by request id."""
    pairs = []
    for scenario in scenarios:
        requests = _found(scenario).by_id()
        pairs += [(c, requests[c["request_id"]]) for c in client("llama_cpp", scenario)]
    return pairs


def _headers_ms(call: Row) -> float:
    return float(call["headers_unix_ns"] - call["send_unix_ns"]) / MS


def _ttft_ms(call: Row) -> float:
    return float(call["chunk_unix_ns"][0] - call["send_unix_ns"]) / MS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_call_is_a_request_with_exclusive_phases(scenario: str) -> None:
    found = _found(scenario)
    calls = client("llama_cpp", scenario)
    assert sorted(found.by_id()) == sorted(c["request_id"] for c in calls)
    sound(found)
    assert found.count(quarantine_reason=None) == len(calls)


def test_how_calls_ended() -> None:
    kinds = Counter((c["kind"], r["status"]) for c, r in _pairs("cancelled", "edge"))
    assert {kind: n for kind, n in kinds.items() if kind[1] != "ok"} == {
        ("cancel-in-decode", "aborted"): 12,
        ("cancel-early", "aborted"): 6,
        ("cancel-not-streamed", "aborted"): 6,
        ("prompt-too-long", "error"): 2,
        ("bad-body", "error"): 4,
    }


def test_prefill_and_decode_are_the_timings() -> None:
    seen = 0
    for call, request in _pairs(*SCENARIOS):
        if "timings" not in call or call.get("n", 1) > 1:
            continue
        timings = call["timings"]
        seen += 1
        assert request["engine"] == "llama.cpp"
        assert request["prefill_ms"] == pytest.approx(timings["prompt_ms"], abs=0.001)
        # decode ends at the client's last chunk: some ms of stalls lie between
        assert request["decode_ms"] == pytest.approx(timings["predicted_ms"], abs=25)
        assert request["input_tokens"] == timings["prompt_n"] + timings["cache_n"]
        assert request["cached_tokens"] == timings["cache_n"]
        assert request["output_tokens"] == timings["predicted_n"]
    assert seen == 276 - 4


def test_a_streams_queue_is_headers_less_send() -> None:
    """By the README: within 10 ms of TTFT - prompt_ms in 94 %, 0.23 ms apart at the median."""
    calls = [
        (c, r)
        for c, r in _pairs(*SCENARIOS)
        if c["stream"] and c["chunk_unix_ns"] and "timings" in c
    ]
    assert len(calls) == 188
    off = [r["queue_ms"] - (_ttft_ms(c) - c["timings"]["prompt_ms"]) for c, r in calls]
    assert abs(median(off)) < 0.5
    assert sum(abs(ms) <= 10 for ms in off) >= 0.93 * len(off)
    exact = sum(r["queue_ms"] == pytest.approx(_headers_ms(c), abs=3) for c, r in calls)
    assert exact >= 0.9 * len(calls)
    # queues of many seconds are among them
    assert max(r["queue_ms"] for _, r in calls) == pytest.approx(
        max(_headers_ms(c) for c, _ in calls), abs=10
    )
    assert max(_headers_ms(c) for c, _ in calls) > 5_000


def test_a_call_that_is_not_streamed_waited_for_what_is_left() -> None:
    for call, request in _pairs("baseline", "overload-trace"):
        if call["stream"]:
            continue
        e2e = (call["end_unix_ns"] - call["send_unix_ns"]) / MS
        timings = call["timings"]
        rest = e2e - timings["prompt_ms"] - timings["predicted_ms"]
        assert request["queue_ms"] == pytest.approx(rest, abs=0.01)
        assert request["unexplained_ms"] == pytest.approx(0, abs=0.01)


@pytest.mark.trap("llama_cpp", 4)
def test_cancelled_streams_keep_the_queue_their_headers_tell() -> None:
    """Trap 4: no timings; headers came when the slot began, the rest is the client's own clock."""
    for call, request in _pairs("cancelled"):
        if not call.get("cancelled_by_client"):
            continue
        if call["stream"] and "headers_unix_ns" in call:
            assert request["queue_ms"] == pytest.approx(_headers_ms(call), abs=0.01)
        else:
            assert request["queue_ms"] is None
    refused = [r for c, r in _pairs("edge") if c["http_status"] == 400]
    assert all(r["queue_ms"] is None and r["prefill_ms"] is None for r in refused)


@pytest.mark.trap("llama_cpp", 5)
def test_a_long_prompts_refusal_of_seconds_is_no_service() -> None:
    """Trap 5: it came after 7.66 s in the queue, which nothing tells but the server's log."""
    by_id = _found("edge").by_id()
    request = by_id["edge-011"]
    assert (request["status"], request["error"]) == ("error", "exceed_context_size_error")
    assert request["e2e_ms"] == pytest.approx(7663.912, abs=0.001)
    for phase in ("prefill", "decode", "queue", "queue_or_prefill"):
        assert not request[f"{phase}_ms"], phase
    # that of a stream has headers too, which tell no slot then
    assert by_id["edge-000"]["queue_ms"] is None
    assert by_id["edge-000"]["e2e_ms"] == pytest.approx(54.254, abs=0.001)
    # a body that was bad is refused at once
    assert by_id["edge-006"]["e2e_ms"] == pytest.approx(1.506, abs=0.001)


@pytest.mark.trap("llama_cpp", 6)
@pytest.mark.parametrize("as_object", [False, True])
def test_documented_a_full_kv_cache_fails_streams_of_status_200(
    tmp_path: Path, as_object: bool
) -> None:
    """Trap 6: all four slots at once; streams have their status and text, and end with an error."""
    start = 1_795_988_000_000_000_000
    told = {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}
    error = told if as_object else told["message"]
    rows = [
        {
            "request_id": f"r{i}",
            "stream": True,
            "send_unix_ns": start + i * MS,
            "http_status": 200,
            "chunk_unix_ns": [start + (100 + 20 * k) * MS for k in range(5)],
            "end_unix_ns": start + 185 * MS,
            "error": error,
        }
        for i in range(3)
    ]
    last = {"request_id": "r3", "stream": False, "http_status": 500}
    rows.append(rows[0] | last | {"chunk_unix_ns": None})
    log = tmp_path / "calls.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = recorded(str(log))
    assert [r["status"] for r in found.requests] == ["error"] * 4
    assert all(r["error"] for r in found.requests)
    # the tokens came, and are told
    assert found.by_id()["r0"]["ttft_ms"] == pytest.approx(100)


@pytest.mark.trap("llama_cpp", 3)
def test_two_choices_are_told_by_one() -> None:
    """Trap 3: usage and timings are both of one choice, so neither says what the call made."""
    pairs = [(c, r) for c, r in _pairs("edge") if c.get("n") == 2]
    assert len(pairs) == 4
    for call, request in pairs:
        assert call["usage"]["completion_tokens"] == call["timings"]["predicted_n"] == 40
        assert request["choices"] == 2
        assert request["output_tokens"] is None
        if not call["stream"]:
            # how long the other choice went on is not known
            assert request["queue_ms"] is None
            assert request["decode_ms"] is None


@pytest.mark.trap("llama_cpp", 3)
def test_one_token_takes_no_decode() -> None:
    """Trap 3: what stands there is a filler of 0.001 ms, and rates of 0."""
    pairs = [(c, r) for c, r in _pairs("edge") if c["kind"] == "one-token"]
    assert len(pairs) == 4
    for call, request in pairs:
        assert call["timings"]["predicted_ms"] == 0.001
        assert request["tpot_ms"] is None
        assert request["decode_ms"] == pytest.approx(0, abs=5)


@pytest.mark.trap("llama_cpp", 1)
def test_a_cached_prompt_beside_anothers_prefill_is_as_slow_as_that() -> None:
    """Trap 1: prompt_ms is wall time of the slot; that is the request's own prefill phase too."""
    slow = [
        r
        for c, r in _pairs("prefix-cache")
        if c["timings"]["prompt_n"] == 1 and c["timings"]["prompt_ms"] > 1000
    ]
    assert slow
    assert all(r["prefill_ms"] > 1000 for r in slow)
