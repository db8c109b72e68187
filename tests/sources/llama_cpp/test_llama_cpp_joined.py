"""Clients' rows and the server's log of the same calls: no id is shared, the timings are."""

from __future__ import annotations

from statistics import median

from tests.sources._recorded import client, recorded, sound

MS = 1_000_000
ZERO = 1_795_988_694_221_311_548


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
