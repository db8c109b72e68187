"""SGLang's spans against what its clients saw, and against stages read by hand."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from tests.sources._recorded import Row, client, recorded, sound

MS = 1_000_000

UNIFIED = (
    "unified-baseline",
    "unified-chunked",
    "unified-prefix",
    "unified-edge",
    "unified-retract",
    "unified-tp2",
    "unified-dp2",
)
PD = ("pd-baseline", "pd-chunked", "pd-decode-full")


def _scenario(name: str):  # type: ignore[no-untyped-def]
    return recorded(f"sglang/{name}.otlp.jsonl.gz")


def _pairs(name: str) -> list[tuple[Row, Row]]:
    """(client, request) of every call that can be told: by id at the router, or by trace."""
    found = _scenario(name)
    ids, traces = found.by_id(), found.by_trace()
    return [
        (c, r)
        for c in client("sglang", name)
        if (r := ids.get(c["request_id"]) or traces.get(c["trace_id"] or "")) is not None
    ]


@pytest.mark.trap("sglang", 6)
@pytest.mark.parametrize("name", [*UNIFIED, *PD])
def test_every_call_is_one_request_and_no_health_check_is(name: str) -> None:
    found = _scenario(name)
    calls = client("sglang", name)
    assert len(found.requests) == len(calls)
    # a busy server answers without running the check: a tokenizer's thread is all of it
    assert found.incomplete == []
    # trap 6: in eight of the ten a stage begins up to 0.5 us before the one before it ended
    assert found.count(quarantine_reason=None) == len(calls)
    assert found.count(status="aborted") == sum(c["cancelled"] for c in calls)
    assert found.count(status="error") == sum(c["failed"] for c in calls)
    sound(found)


@pytest.mark.parametrize("name", [*UNIFIED, *PD])
def test_calls_join_their_own_request(name: str) -> None:
    pairs = _pairs(name)
    without_trace = sum(not c["trace_id"] for c in client("sglang", name))
    assert len(pairs) == len(client("sglang", name)) - without_trace
    assert len({r["request_key"] for _, r in pairs}) == len(pairs)
    for call, request in pairs:
        if call["failed"] or call["cancelled"] or call["usage"] is None:
            continue
        assert request["input_tokens"] == call["usage"]["prompt_tokens"]
        assert request["output_tokens"] == call["usage"]["completion_tokens"]
        assert request["choices"] == call["n"]


@pytest.mark.parametrize(("name", "median_ms"), [(n, 15) for n in UNIFIED] + [(n, 8) for n in PD])
def test_ttft_is_the_clients_within_the_noise(name: str, median_ms: float) -> None:
    """The client is on the same clock; the loaded machine adds some ms, never takes any."""
    late_ms = [
        (call["first_chunk_unix_ns"] - call["send_unix_ns"]) / MS - request["ttft_ms"]
        for call, request in _pairs(name)
        if call["first_chunk_unix_ns"] and request["ttft_ms"] is not None
    ]
    assert len(late_ms) >= len(_pairs(name)) * 0.6
    assert 0 <= median(late_ms) <= median_ms
    assert min(late_ms) > -5


@pytest.mark.trap("sglang", 14)
def test_two_ranks_are_one_request() -> None:
    """TP 2: every stage is there twice, and counts once."""
    found = _scenario("unified-tp2")
    by_key: dict[str, list[Row]] = {}
    for leg in found.legs:
        by_key.setdefault(leg["request_key"], []).append(leg)
    for request in found.requests:
        spans = [
            (leg["scheduled_unix_ns"], leg["prefill_end_unix_ns"])
            for leg in by_key[request["request_key"]]
            if leg["scheduled_unix_ns"]
        ]
        assert len(spans) == 2
        whole_ns = max(end for _, end in spans) - min(start for start, _ in spans)
        # a rank's decode begins while the other still ends its prefill, if at all
        assert request["prefill_ms"] <= whole_ns / MS
        assert request["prefill_ms"] >= whole_ns / MS - 5


def test_data_parallel_ranks_are_workers_of_their_own() -> None:
    found = _scenario("unified-dp2")
    assert {r["worker"] for r in found.requests} == {"sglang/DP0", "sglang/DP1"}
    # every phase of a request is one rank's, whichever of its spans told it
    ranks = {(p["request_key"], p["worker"]) for p in found.phases if p["worker"]}
    assert len(ranks) == len(found.requests)
    # one rank alone has no number
    alone = _scenario("pd-baseline").requests
    assert {(r["prefill_worker"], r["decode_worker"]) for r in alone} == {
        ("sglang-prefill", "sglang-decode")
    }


@pytest.mark.trap("sglang", 5)
@pytest.mark.trap("sglang", 8)
def test_a_retraction_is_found_and_its_time_is_decode_that_stood_still() -> None:
    """Read by hand: retracted at 931.4 ms, prefilled again until 3365.7 (1290.4, 4427.4)."""
    found = _scenario("unified-retract")
    hit = [r for r in found.requests if r["preemptions"]]
    assert [r["preemptions"] for r in hit] == [1, 1]
    lost = sorted(r["decode_preempted_ms"] for r in hit)
    assert lost == pytest.approx([3365.7 - 931.4, 4427.4 - 1290.4], abs=0.2)
    # decode is counted once: it is what remains after the first token
    for request in hit:
        assert request["prefill_ms"] < 120
        assert request["prefill_ms"] + request["decode_ms"] < request["e2e_ms"]


@pytest.mark.trap("sglang", 9)
def test_what_lies_in_the_schedulers_socket_is_queue() -> None:
    """Trap 9: between api_server_dispatch and the scheduler's first stage lies up to a second."""
    found = _scenario("pd-chunked")
    request = found.by_id()["pd-chunked-0005"]
    # dispatched at 20.8 ms, prefill_forward from 2650.8 ms
    assert request["queue_ms"] == pytest.approx(2650.8 - 20.8, abs=0.5)
    assert request["prefill_ms"] == pytest.approx(3373.3 - 2650.8, abs=0.5)


@pytest.mark.trap("sglang", 1)
@pytest.mark.parametrize("name", PD)
def test_a_slow_remote_prefill_is_no_transfer(name: str) -> None:
    """Trap 1: decode_transferred holds the remote queue and prefill; what follows is transfer."""
    found = _scenario(name)
    for request in found.requests:
        if request["status"] != "ok":
            continue
        legs = [leg for leg in found.legs if leg["request_key"] == request["request_key"]]
        done = max(leg["prefill_end_unix_ns"] or 0 for leg in legs)
        came = max(leg["kv_end_unix_ns"] or 0 for leg in legs if leg["role"] == "decode_engine")
        assert request["kv_transfer_ms"] <= max(came - done, 0) / MS + 1e-6


@pytest.mark.trap("sglang", 10)
def test_polling_of_the_prefill_scheduler_is_no_transfer() -> None:
    """Trap 10: prefill_transfer_kv_cache 437 ms (p50), the last send 38 ms after the prefill."""
    requests = _scenario("pd-chunked").requests
    assert median(r["kv_transfer_wire_ms"] for r in requests) < 60
    assert median(r["kv_transfer_ms"] for r in requests) < 150


@pytest.mark.trap("sglang", 10)
def test_a_transfer_is_over_when_the_decode_server_has_it() -> None:
    """Read by hand: it has it at 7894.4 and at 289.4 ms, the prefill server looks at 8444 and 451.

    The second one is after the last token: nothing is transferred then.
    """
    request = _scenario("pd-chunked").by_id()["pd-chunked-0030"]
    assert request["kv_transfer_ms"] == pytest.approx(7894.418 - 7832.880, abs=0.01)
    request = _scenario("pd-baseline").by_id()["pd-baseline-0018"]
    assert request["kv_transfer_ms"] == pytest.approx(289.447 - 256.334, abs=0.01)
    assert request["decode_ms"] == pytest.approx(157.673, abs=0.01)


@pytest.mark.trap("sglang", 10)
@pytest.mark.parametrize("name", PD)
def test_ends_of_transfers_in_any_order_are_no_fault(name: str) -> None:
    found = _scenario(name)
    ends: dict[str, dict[str, int]] = {}
    for leg in found.legs:
        if leg["kv_end_unix_ns"]:
            told = ends.setdefault(leg["request_key"], {})
            told[leg["kv_end_src"]] = max(leg["kv_end_unix_ns"], told.get(leg["kv_end_src"], 0))
    late = {
        key
        for key, told in ends.items()
        if told.get("inferred prefill_transfer_kv_cache", 0)
        > told.get("measured decode_transferred", 1 << 62)
    }
    assert len(late) >= 8
    assert found.count(quarantine_reason=None) == len(found.requests)
    for phase in found.phases:
        if phase["request_key"] in late and phase["phase"] == "kv_transfer":
            told = ends[phase["request_key"]]
            assert phase["end_unix_ns"] <= max(
                told["measured decode_transferred"], told["measured mooncake_worker_send"]
            )


@pytest.mark.trap("sglang", 3)
@pytest.mark.parametrize(
    ("request_id", "sent_ms"),
    [
        ("pd-chunked-0006", (7.626, 6.416, 8.434, 6.506, 4.779, 4.549)),
        ("pd-chunked-0030", (5.528, 37.076, 22.286, 5.298, 33.974, 48.449)),
    ],
)
def test_bytes_move_from_the_first_chunk_on(request_id: str, sent_ms: tuple[float, ...]) -> None:
    """Two prompts of 2,100 tokens and 17 MB, sent in six parts each; what the log calls their
    speeds are 3.38 and 0.03 GB/s, which would be 5 and 549 ms."""
    found = recorded("sglang/pd-chunked.otlp.jsonl.gz", "sglang/pd-chunked.log_prefill.txt.gz")
    request = found.by_id()[request_id]
    assert request["kv_bytes"] == pytest.approx(17.5e6, rel=0.02)
    moved = request["kv_transfer_wire_ms"] + request["kv_hidden_ms"]
    assert moved == pytest.approx(sum(sent_ms), abs=0.01)
    # but for the last part the prefill hides them
    assert request["kv_transfer_wire_ms"] == pytest.approx(sent_ms[-1], abs=0.01)


@pytest.mark.trap("sglang", 3)
def test_sends_during_the_prefill_are_hidden() -> None:
    """Chunks are sent while later ones compute: that part is told apart, not added."""
    requests = _scenario("pd-chunked").requests
    assert max(r["kv_hidden_ms"] for r in requests) > 5
    assert all(r["kv_hidden_ms"] is not None for r in requests)


@pytest.mark.trap("sglang", 2)
@pytest.mark.trap("sglang", 11)
def test_a_full_decode_pool_is_a_queue_and_no_slow_network() -> None:
    """Traps 2 and 11: both servers wait 5-10 s for KV space of the decode server."""
    found = _scenario("pd-decode-full")
    late = [r for r in found.requests if r["status"] == "ok" and r["ttft_ms"] > 5000]
    assert len(late) >= 10
    waits: dict[str, float] = {}
    for phase in found.phases:
        if phase["sub_phase"] == "queue.kv_alloc":
            assert phase["phase"] == "queue"
            waits[phase["request_key"]] = waits.get(phase["request_key"], 0) + phase["duration_ms"]
    for request in late:
        assert request["queue_ms"] > 0.75 * request["ttft_ms"]
        assert waits[request["request_key"]] > 0.8 * request["queue_ms"]
        assert request["kv_transfer_ms"] < 0.2 * request["ttft_ms"]


def test_what_a_failed_transfer_lost_is_counted_with_its_reason() -> None:
    lost = [r for r in _scenario("pd-decode-full").requests if r["status"] == "error"]
    assert sorted(r["request_id"] for r in lost) == [
        f"pd-decode-full-00{n}" for n in (30, 31, 32, 33, 34, 35, 36)
    ]
    assert all("KVTransferError" in r["error"] for r in lost)
    assert all(r["ttft_ms"] is None for r in lost)


@pytest.mark.trap("sglang", 7)
def test_decode_is_whole_without_its_steps() -> None:
    """At level 2 decode_forward has no decode_loop below it: between the client's chunks too."""
    apart = [
        request["decode_ms"] - (call["last_chunk_unix_ns"] - call["first_chunk_unix_ns"]) / MS
        for call, request in _pairs("unified-dp2")
    ]
    assert len(apart) == 30
    assert max(map(abs, apart)) < 10


@pytest.mark.trap("sglang", 7)
def test_a_client_that_left_and_a_prompt_too_long() -> None:
    found = _scenario("unified-edge").by_trace()
    by_kind: dict[str, list[Row]] = {}
    for call in client("sglang", "unified-edge"):
        if call["trace_id"]:
            by_kind.setdefault(call["kind"], []).append(found[call["trace_id"]])
    assert {r["status"] for r in by_kind["cancel-mid-decode"]} == {"aborted"}
    # a stage that an abort closed is as long as it was, to when the scheduler saw it
    for call in client("sglang", "unified-edge"):
        if call["kind"] == "cancel-mid-decode":
            seen_ms = (call["last_chunk_unix_ns"] - call["first_chunk_unix_ns"]) / MS
            assert seen_ms < found[call["trace_id"]]["decode_ms"] < seen_ms + 150
    # nothing was heard of the stage they were in: neither queue nor prefill is guessed
    for request in by_kind["gone-early"]:
        assert request["status"] == "aborted"
        assert request["ttft_ms"] is None
        assert request["queue_or_prefill_ms"] > 4000
        assert not request["prefill_ms"]
    assert {r["error"] for r in by_kind["too-long"]} == {"refused before it was scheduled"}


@pytest.mark.trap("sglang", 14)
def test_three_answers_are_one_request() -> None:
    """Trap 14: n=3 makes five roots and more threads, of which one is a prefill without tokens."""
    found = _scenario("unified-edge").by_trace()
    calls = [c for c in client("sglang", "unified-edge") if c["n"] == 3]
    assert len(calls) == 3
    for call in calls:
        request = found[call["trace_id"]]
        assert request["choices"] == 3
        assert request["status"] == "ok"
        assert request["output_tokens"] == call["usage"]["completion_tokens"]


@pytest.mark.trap("sglang", 14)
def test_a_thread_that_outlives_its_request_makes_it_no_longer() -> None:
    """A failed transfer: the decode server's root ended after 11.13 s, its scheduler's thread
    after 40.77 s."""
    request = _scenario("pd-decode-full").by_id()["pd-decode-full-0030"]
    assert request["status"] == "error"
    assert request["e2e_ms"] == pytest.approx(11_130.465, abs=0.001)


def test_one_token_has_no_decode() -> None:
    found = _scenario("unified-edge").by_trace()
    calls = [c for c in client("sglang", "unified-edge") if c["kind"] == "one-token"]
    for call in calls:
        request = found[call["trace_id"]]
        assert request["output_tokens"] == 1
        assert not request["decode_ms"]
        assert request["e2e_ms"] == pytest.approx(request["ttft_ms"])


def test_cached_tokens_are_the_servers() -> None:
    found = _scenario("unified-prefix").by_trace()
    cached = [found[c["trace_id"]]["cached_tokens"] for c in client("sglang", "unified-prefix")]
    assert sum(n > 100 for n in cached) >= 15


def test_sends_are_the_prefill_servers() -> None:
    """The sender has a trace of its own, joined by the room, as legs of the prefill server."""
    found = _scenario("pd-decode-full")
    senders = {
        leg["request_key"]
        for leg in found.legs
        if leg["kv_start_src"] == "measured mooncake_worker_send"
        and leg["role"] == "prefill_engine"
    }
    done = {r["request_key"] for r in found.requests if r["status"] == "ok"}
    assert done <= senders


#: As the capture's client wrote it down, cut.
_LOST = '{"object": "error", "message": "Decode transfer failed for request rank=0'


@pytest.mark.parametrize("error", [None, _LOST])
def test_a_200_beside_a_failed_transfer_is_no_success(error: str | None, tmp_path: Path) -> None:
    """The headers came before the transfer failed, whether or not the client says what came."""
    calls = client("sglang", "pd-decode-full")
    log = tmp_path / "client.jsonl"
    log.write_text(
        "".join(json.dumps({**c, "error": error if c["failed"] else None}) + "\n" for c in calls)
    )
    found = recorded("sglang/pd-decode-full.otlp.jsonl.gz", str(log))
    lost = {c["request_id"] for c in calls if c["failed"]}
    assert len(lost) == 7
    assert {r["request_id"] for r in found.requests if r["status"] == "error"} == lost
    assert found.count(status="ok") == len(calls) - 7
    for request in found.requests:
        is_lost = request["request_id"] in lost
        assert request["finish_reason"] == ("abort" if is_lost else "length")
        wanted = (error or "Prefill transfer failed for request rank=0") if is_lost else ""
        assert (request["error"] or "").startswith(wanted)
        assert is_lost == (request["error"] is not None)


def test_a_200_before_the_client_left_is_no_success(tmp_path: Path) -> None:
    """Nothing came, the server broke off, and the log says no more than the headers' code."""
    calls = client("sglang", "unified-edge")
    early = {c["request_id"] for c in calls if c["cancelled"] and not c["first_chunk_unix_ns"]}
    log = tmp_path / "client.jsonl"
    log.write_text(
        "".join(
            json.dumps({k: v for k, v in c.items() if k != "cancelled"} | {"http_status": 200})
            + "\n"
            for c in calls
        )
    )
    found = recorded("sglang/unified-edge.otlp.jsonl.gz", str(log)).by_id()
    assert early
    assert {found[name]["status"] for name in early} == {"aborted"}
