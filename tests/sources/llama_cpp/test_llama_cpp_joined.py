"""Clients' rows and the server's log of the same calls: no id is shared, the timings are."""

from __future__ import annotations

from statistics import median

import pytest

from tests.sources._recorded import client, recorded, sound

MS = 1_000_000
ZERO = 1_795_988_694_221_311_548
BASE_ZERO = 1_795_988_353_842_848_499


def test_rows_and_log_join_by_what_the_server_told() -> None:
    """Precision and recall, by an independent word: the server's arrival lies in the call."""
    found = recorded(
        "llama_cpp/overload-trace.client.jsonl.gz",
        "llama_cpp/trace.server-log.jsonl.gz",
        log_start_unix_ns=ZERO,
    )
    calls = {c["request_id"]: c for c in client("llama_cpp", "overload-trace")}
    joined = [r for r in found.requests if r["sources"] == "llama_cpp_log,request_log"]
    assert len(joined) == len(calls) == 40
    assert len(found.requests) == 40
    sound(found)
    waits = []
    for request in joined:
        call = calls[request["request_id"]]
        (leg,) = [
            leg
            for leg in found.legs
            if leg["request_key"] == request["request_key"] and leg["source"] == "llama_cpp_log"
        ]
        # posted after the sending, done before the client had it all: by the clocks, not the names
        assert call["send_unix_ns"] < leg["recv_unix_ns"] < leg["leg_end_unix_ns"]
        assert leg["leg_end_unix_ns"] < call["end_unix_ns"] + 100 * MS
        assert request["match_score"] == 0.9
        if call["stream"]:
            waits.append(
                (call["headers_unix_ns"] - call["send_unix_ns"]) / MS - request["queue_ms"]
            )
    assert 0 < median(waits) < 8


@pytest.mark.parametrize("scenario", ["baseline", "long-prompt", "prefix-cache", "edge"])
def test_a_log_that_tells_no_arrival_takes_no_queue_away(scenario: str) -> None:
    """Level 3: the log tells when a prompt began, the client since when it waited for that."""
    calls = client("llama_cpp", scenario)
    found = recorded(
        f"llama_cpp/{scenario}.client.jsonl.gz",
        "llama_cpp/base.server-log.txt.gz",
        log_start_unix_ns=BASE_ZERO,
    )
    sound(found)
    by_id = found.by_id()
    off_ms = []
    for call in calls:
        request = by_id[call["request_id"]]
        if "timings" not in call or request["sources"] != "llama_cpp_log,request_log":
            continue
        assert request["queue_ms"] is not None
        assert request["prefill_ms"] == pytest.approx(call["timings"]["prompt_ms"], abs=1)
        if call["stream"]:
            waited_ms = (call["headers_unix_ns"] - call["send_unix_ns"]) / MS
            off_ms.append(abs(request["queue_ms"] - waited_ms))
        # the way there and back are all that nobody tells
        assert request["unexplained_ms"] < 70
    assert len(off_ms) >= 20
    assert median(off_ms) < 3
