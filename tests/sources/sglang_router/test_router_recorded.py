"""sglang-router alone, between stand-ins for workers: what its span tells and what it does not."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from statistics import median

import pytest

from tests.sources._recorded import DATA, call_log, client, recorded, sound

MS = 1_000_000


def test_six_calls_were_sent_on_and_a_probe_is_none() -> None:
    """Seven spans of eight calls were exported, one of them of /health; two calls were lost."""
    found = recorded("sglang_router/router_pd.otlp.jsonl.gz")
    assert sorted(found.by_id()) == [f"router_pd-000{n}" for n in (0, 3, 4, 5, 6, 7)]
    sound(found)


@pytest.mark.trap("sglang_router", 2)
def test_the_end_of_the_routers_span_is_no_end_of_the_call() -> None:
    """It lasts 418 ms where the client had its last token after 90, with workers 44 s longer."""
    found = recorded("sglang_router/router_pd.otlp.jsonl.gz").by_id()
    (call,) = [
        c for c in client("sglang_router", "router_pd") if c["request_id"] == "router_pd-0005"
    ]
    assert call["last_token_ms"] < 91
    assert found["router_pd-0005"]["e2e_ms"] is None
    assert found["router_pd-0005"]["decode_ms"] is None
    assert all(r["quarantine_reason"] is None for r in found.values())


@pytest.mark.trap("sglang_router", 2)
def test_with_workers_a_call_ends_with_its_last_token() -> None:
    found = recorded("sglang/pd-chunked.otlp.jsonl.gz")
    by_id, by_trace = found.by_id(), found.by_trace()
    late_ms = []
    for call in client("sglang", "pd-chunked"):
        request = by_id.get(call["request_id"]) or by_trace[call["trace_id"]]
        late_ms.append((request["end_unix_ns"] - call["last_chunk_unix_ns"]) / MS)
    assert len(late_ms) == 36
    assert max(late_ms) < 50
    assert median(late_ms) > -50


@pytest.mark.trap("sglang_router", 1)
def test_clients_join_by_x_request_id_though_their_trace_ends_at_the_router(
    tmp_path: Path,
) -> None:
    """The router's spans last up to 44 s longer than the calls that they are of."""
    calls = client("sglang", "pd-chunked")
    rows = [
        (c["request_id"], c["send_unix_ns"], *(
            (c[f"{n}_chunk_unix_ns"] - c["send_unix_ns"]) / MS for n in ("first", "last")))
        for c in calls
    ]  # fmt: skip
    found = recorded("sglang/pd-chunked.otlp.jsonl.gz", call_log(tmp_path, rows))
    sound(found)
    named = [r for r in found.requests if r["request_id"].startswith("pd-chunked-")]
    assert sorted(r["request_id"] for r in named) == sorted(c["request_id"] for c in calls)
    for request in named:
        assert request["leg_roles"].startswith("client,gateway,prefill_engine,decode_engine")
    assert found.count(quarantine_reason=None) == len(found.requests) == 36


def test_a_client_sees_nothing_before_both_workers_have_answered() -> None:
    found = recorded("sglang_router/router_pd.otlp.jsonl.gz").by_id()
    calls = [c for c in client("sglang_router", "router_pd") if c["request_id"] in found]
    late_ms = [c["first_token_ms"] - found[c["request_id"]]["ttft_ms"] for c in calls]
    assert min(late_ms) > 0
    assert median(late_ms) < 2
    # nor is the router's own word a measurement of a token
    legs = recorded("sglang_router/router_pd.otlp.jsonl.gz").legs
    assert all(leg["first_token_src"].startswith("inferred") for leg in legs)


def _decode_ms_per_token(scenario: str) -> dict[str, float]:
    """rid → what the decode server's own log says of the time per token [ms]."""
    told = {}
    with gzip.open(DATA / "sglang" / f"{scenario}.log_decode.txt.gz", "rt") as lines:
        for line in lines:
            found = re.search(r"ReqTimeStats\(rid=(\w+),.* output_len=(\d+),", line)
            if found and found[2] != "1":  # a health check
                lasted = re.search(r"forward_duration=([\d.]+)ms", line)
                assert lasted is not None
                told[found[1]] = float(lasted[1]) / (int(found[2]) - 1)
    return told


@pytest.mark.trap("sglang_router", 1)
def test_a_first_token_that_was_held_back_makes_no_tokens_faster() -> None:
    """Of 36 calls 16 came nearly whole: the client's own stamps say 8.9 ms a token (p50)."""
    log = "sglang/pd-chunked.calls.jsonl.gz"
    found = recorded("sglang/pd-chunked.otlp.jsonl.gz", log)
    with gzip.open(DATA / log, "rt") as lines:
        calls = {call["request_id"]: call for call in map(json.loads, lines)}
    told = _decode_ms_per_token("pd-chunked")
    rids = {
        leg["request_key"]: leg["request_id"] for leg in found.legs if leg["request_id"] in told
    }
    assert sorted(found.by_id()) == sorted(calls)
    seen, true = [], []
    for request_id, request in found.by_id().items():
        chunks, sent = calls[request_id]["chunk_unix_ns"], calls[request_id]["send_unix_ns"]
        # the wait for it was the client's all the same
        assert request["ttft_ms"] == pytest.approx((chunks[0] - sent) / MS, abs=0.01)
        assert request["e2e_ms"] == pytest.approx((chunks[-1] - sent) / MS, abs=0.01)
        steps = request["output_tokens"] - 1
        seen.append((chunks[-1] - chunks[0]) / MS / steps)
        true.append(told[rids[request["request_key"]]])
        is_held = seen[-1] < true[-1] * (1 - 0.5 / steps)
        expected = true[-1] if is_held else seen[-1]
        assert request["tpot_ms"] == pytest.approx(expected, rel=0.02)
    assert median(seen) < 9 and sum(ms < 1 for ms in seen) == 16
    assert median(true) > 27 and min(true) > 18


def test_without_the_servers_nobody_knows_how_long_it_was_held_back(tmp_path: Path) -> None:
    calls = client("sglang_router", "router_pd")
    log = tmp_path / "calls.jsonl"
    rows = (
        {
            "request_id": c["request_id"],
            "chunk_offsets_ms": [c["first_token_ms"], c["last_token_ms"]],
            "chunk_tokens": [1, 7],
            "output_tokens": 8,
        }
        for c in calls
    )
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    alone = recorded(str(log)).by_id()
    beside = recorded("sglang_router/router_pd.otlp.jsonl.gz", str(log))
    (call,) = [c for c in calls if c["request_id"] == "router_pd-0005"]
    stream_ms = call["last_token_ms"] - call["first_token_ms"]
    assert alone["router_pd-0005"]["tpot_ms"] == pytest.approx(stream_ms / 7, rel=1e-3)
    request = beside.by_id()["router_pd-0005"]
    assert request["leg_roles"] == "client,gateway"
    assert request["ttft_ms"] == pytest.approx(call["first_token_ms"], abs=0.01)
    assert request["tpot_ms"] is None
    # calls whose router's span was lost are the client's alone, and its word stands
    assert beside.by_id()["router_pd-0001"]["tpot_ms"] is not None
