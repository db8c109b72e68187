"""llama.cpp's log against what its clients were told (`timings`) and saw (headers)."""

from __future__ import annotations

from statistics import median

import pytest

from tests.sources._recorded import DATA, Recorded, Row, client, recorded, sound
from tracekit.errors import SourceError
from tracekit.ingest.engine_logs import BY_FORMAT, Facts, lines_of

MS = 1_000_000
BASE = "llama_cpp/base.server-log.txt.gz"
TRACE = "llama_cpp/trace.server-log.jsonl.gz"
#: LOG_T0 of the recording's start.txt: the zero of each log's clock.
ZERO = {BASE: 1_795_988_353_842_848_499, TRACE: 1_795_988_694_221_311_548}


def _log(name: str) -> Recorded:
    return recorded(name, log_start_unix_ns=ZERO[name])


def _by_timings(found: Recorded) -> dict[tuple[float, float, int], Row]:
    """No id is in the log: what the server printed is what it told the client."""
    legs: dict[tuple[float, float, int], Row] = {}
    requests = {r["request_key"]: r for r in found.requests}
    for leg in found.legs:
        request = requests[leg["request_key"]]
        if leg["scheduled_unix_ns"] is not None:
            prefill = (leg["prefill_end_unix_ns"] - leg["scheduled_unix_ns"]) / MS
            decode = (leg["last_token_unix_ns"] - leg["first_token_unix_ns"]) / MS
            legs[(round(prefill, 1), round(decode, 1), leg["output_tokens"])] = request
    return legs


def _key(timings: Row) -> tuple[float, float, int]:
    return (
        round(round(timings["prompt_ms"], 2), 1),
        round(round(timings["predicted_ms"], 2), 1),
        timings["predicted_n"],
    )


@pytest.mark.parametrize(
    ("log", "scenario"),
    [(BASE, "baseline"), (BASE, "long-prompt"), (BASE, "prefix-cache"), (TRACE, "overload-trace")],
)
def test_every_answer_is_in_the_log_with_its_times(log: str, scenario: str) -> None:
    found = _by_timings(_log(log))
    calls = [c for c in client("llama_cpp", scenario) if "timings" in c]
    hit = [(c, found[_key(c["timings"])]) for c in calls if _key(c["timings"]) in found]
    # rounding to a tenth of a ms hides a few
    assert len(hit) >= 0.9 * len(calls)
    late = []
    for call, request in hit:
        assert request["prefill_ms"] == pytest.approx(call["timings"]["prompt_ms"], abs=0.02)
        assert request["status"] == "ok"
        if call["stream"]:
            late.append((call["first_chunk_unix_ns"] - request["first_token_unix_ns"]) / MS)
    # one machine: the client sees a token within some ms, on a clock known within 1 ms
    assert abs(median(late)) < 5


def test_the_queue_is_headers_less_send() -> None:
    """Streamed answers send headers when the slot begins: that is the queue, from outside."""
    found = _by_timings(_log(TRACE))
    calls = [c for c in client("llama_cpp", "overload-trace") if c["stream"]]
    off = [
        (c["headers_unix_ns"] - c["send_unix_ns"]) / MS - found[_key(c["timings"])]["queue_ms"]
        for c in calls
    ]
    # posted 3 ms after the sending, at the median
    assert 0 < median(off) < 8
    assert max(found[_key(c["timings"])]["queue_ms"] for c in calls) > 700


def test_prompt_and_cache_are_the_clients() -> None:
    found = _by_timings(_log(TRACE))
    for call in client("llama_cpp", "overload-trace"):
        timings = call["timings"]
        request = found[_key(timings)]
        assert request["input_tokens"] == timings["prompt_n"] + timings["cache_n"]
        assert request["cached_tokens"] == timings["cache_n"]


def test_the_default_verbosity_knows_neither_arrival_nor_prompt_size() -> None:
    """Trap 2: launch_slot_ is no prefill start, and no arrival: the queue stays unknown."""
    found = _log(BASE)
    sound(found)
    done = [r for r in found.requests if r["status"] == "ok"]
    assert all(r["queue_ms"] is None for r in done)
    assert all(r["input_tokens"] is None for r in done)


def test_cancelled_and_refused_tasks_are_counted() -> None:
    """Trap 4: no timings for them; 24 clients left, and what was freed at once is not counted."""
    found = _log(BASE)
    left = sum(c.get("cancelled_by_client", False) for c in client("llama_cpp", "cancelled"))
    assert left == 24
    assert found.count(status="aborted") == 23
    # trap 5: two prompts did not fit
    refused = [r for r in found.requests if r["status"] == "error"]
    assert len(refused) == 2
    assert all("exceeds the available context size" in r["error"] for r in refused)


def test_without_the_zero_of_its_clock_nothing_is_placed() -> None:
    log = BY_FORMAT["llama-cpp-log"]
    data = b"0.05.166.366 I slot print_timing: id  2 | task 6 | prompt eval time = 55.03 ms / 13"
    with pytest.raises(SourceError, match="--log-start TIME"):
        list(log.read(lines_of([data]), Facts()))
    assert (DATA / BASE).exists()
