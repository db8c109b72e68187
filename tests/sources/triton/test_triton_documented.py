"""Triton's trace file as its documentation describes it (built by hand: there is no recording)."""

from __future__ import annotations

import json

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import Row, log_row, span, table
from tests.sources._recorded import recorded, sound
from tracekit.errors import SourceError
from tracekit.ingest.engine_logs import BY_FORMAT, BadLine, Facts, Record, lines_of

LOG = BY_FORMAT["triton-trace"]
START = 1_795_982_687_000_000_000
MADE = "triton/made.trace.json.gz"


def _read(entries: object, start: int | None = START) -> list[object]:
    lines = lines_of(json.dumps(entries).encode().splitlines(keepends=True))
    return [found for _, found in LOG.read(lines, Facts(log_start_unix_ns=start))]


def _entry(id: int, **stamps: int) -> dict[str, object]:
    return {
        "id": id,
        "model_name": "m",
        "timestamps": [{"name": name, "ns": ns} for name, ns in stamps.items()],
    }


def test_the_batchers_queue_is_known_and_no_more() -> None:
    """A decoupled model's own queue, prefill and tokens are within COMPUTE: unexplained."""
    found = recorded(MADE, log_start_unix_ns=START)
    assert len(found.requests) == 30
    sound(found)
    by_start = sorted(found.requests, key=lambda r: r["start_unix_ns"])
    first, last = by_start[0], by_start[-1]
    assert first["start_unix_ns"] == START
    # QUEUE_START after 0.2 ms, COMPUTE_START after 1.2 ms, and 0.1 ms more each
    assert first["queue_ms"] == pytest.approx(1.0)
    assert last["queue_ms"] == pytest.approx(1.0 + 2.9)
    assert first["e2e_ms"] == pytest.approx(402)
    for request in found.requests:
        assert request["prefill_ms"] is None
        assert request["decode_ms"] is None
        assert request["unexplained_ms"] == pytest.approx(request["e2e_ms"] - request["queue_ms"])
        assert request["ttft_ms"] is None


def test_what_follows_the_batcher_is_queue_or_prefill_until_the_clients_first_token() -> None:
    """Trap: the engine queues again within COMPUTE, which is no prefill."""
    stamps: Row = {"REQUEST_START": 0, "QUEUE_START": 1_000_000, "COMPUTE_START": 2_000_000}
    traced = span("triton request", id="t", start=10, end=500, trace_name="x", service="triton",
                  scope="tracekit.import.triton-trace", request_id="q1", **stamps)  # fmt: skip
    row = log_row(request_id="q1", start=0, ttft_ms=200.0, e2e_ms=510.0)
    con = captures.derived(table("spans", [traced]), table("request_log", [row]))
    (request,) = captures.records(con)
    assert request["leg_roles"] == "client,gateway"
    assert request["queue_ms"] == pytest.approx(1)
    # 200 ms until the first token, of them 10 on the way and 1 in the batcher's queue
    assert request["queue_or_prefill_ms"] == pytest.approx(189)
    assert request["prefill_ms"] is None
    assert request["decode_ms"] == pytest.approx(310)


def test_an_ensemble_is_one_request() -> None:
    whole = _entry(1, REQUEST_START=10, REQUEST_END=90)
    member = _entry(2, REQUEST_START=20, REQUEST_END=80) | {"parent_id": 1}
    found = _read([whole, member])
    assert [f.name for f in found if isinstance(f, Record)] == ["triton request"]
    assert found.count(None) == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"model_name": "m"},
        _entry(7, REQUEST_START=5),
        _entry(7, REQUEST_START=9, REQUEST_END=5),
        {"id": 7, "timestamps": [{"name": "REQUEST_START", "ns": "x"}]},
        3,
    ],
)
def test_bad_entries_are_refused_and_the_rest_is_kept(bad: object) -> None:
    found = _read([_entry(1, REQUEST_START=10, REQUEST_END=90), bad])
    assert sum(isinstance(f, Record) for f in found) == 1
    assert sum(isinstance(f, BadLine) for f in found) == 1


def test_its_clock_has_no_date() -> None:
    with pytest.raises(SourceError, match="--log-start TIME"):
        _read([_entry(1, REQUEST_START=10, REQUEST_END=90)], start=None)
