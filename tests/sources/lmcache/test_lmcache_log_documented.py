"""LMCache's Retrieved lines as its source and its users show them (built by hand)."""

from __future__ import annotations

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import START_NS, engine, span, table
from tracekit.errors import SourceError
from tracekit.ingest.engine_logs import BY_FORMAT, BadLine, Facts, Record, lines_of

LOG = BY_FORMAT["lmcache-log"]
START = 1_795_982_687_000_000_000
HEAD = "[2026-11-29 22:21:10,470] LMCache INFO: "
LOAD = (
    "[req_id=chatcmpl-a] Retrieved 768 out of 768 required tokens (from 1024 total tokens). "
    "size: 0.5000 gb, cost 60.0000 ms, throughput: 8.3 GB/s; (cache_engine.py:509)"
)


def _read(text: str, facts: Facts | None = None) -> list[object]:
    lines = lines_of(text.encode().splitlines(keepends=True))
    return [found for _, found in LOG.read(lines, facts or Facts(log_start_unix_ns=START))]


def test_a_load_ends_when_its_line_is_written() -> None:
    first, found = _read(f"{HEAD}started\n{HEAD.replace('10,470', '12,970')}{LOAD}\n")
    assert first is None
    assert isinstance(found, Record)
    assert found.end_unix_ns == START + 2_500_000_000
    assert found.start_unix_ns == found.end_unix_ns - 60_000_000
    assert found.attributes["retrieved_tokens"] == 768


def test_a_load_that_names_no_request_is_told_to_nobody() -> None:
    facts = Facts(log_start_unix_ns=START)
    assert _read(HEAD + LOAD.removeprefix("[req_id=chatcmpl-a] ") + "\n", facts) == [None]
    assert facts.notices()[0].startswith("1 loads name no request")


@pytest.mark.parametrize("cut", [40, 80, 110, 130])
def test_a_cut_line_is_refused(cut: int) -> None:
    (found,) = _read(HEAD + LOAD[:cut] + "\n")
    assert isinstance(found, BadLine)


def test_its_times_have_no_zone() -> None:
    with pytest.raises(SourceError, match="--log-start TIME"):
        _read(HEAD + LOAD, Facts())


def test_a_load_in_the_queue_is_a_transfer_with_its_bytes() -> None:
    load = span(
        "lmcache retrieved",
        id="l",
        start=20,
        end=80,
        trace_name="lm",
        scope="tracekit.import.lmcache-log",
        session_id="chatcmpl-a",
        size_gb=0.5,
    )
    con = captures.derived(table("spans", [engine("a", 0, queue=90, prefill=40), load]))
    (record,) = captures.records(con)
    assert record["start_unix_ns"] == START_NS
    assert record["kv_transfer_ms"] == pytest.approx(60)
    assert record["queue_ms"] == pytest.approx(30)
    assert record["kv_bytes"] == 2**29
