"""Engines' logs as inputs: what is detected, refused, passed over; and bytes of any kind."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from tracekit.errors import SourceError
from tracekit.ingest.engine_logs import (
    BY_FORMAT,
    ENGINE_LOGS,
    BadLine,
    EngineLog,
    Facts,
    Record,
    Sample,
    detect_engine_log,
    ids_of,
    lines_of,
)
from tracekit.ingest.files import detect

DATA = Path(__file__).parents[1] / "data"

SAMPLES = {
    "dynamo-request-trace": "dynamo/pd_slow_kv.request_trace.jsonl.gz",
    "dynamo-log": "dynamo/pd_slow_kv.log_frontend.jsonl.gz",
    "sglang-log": "sglang/pd-decode-full.log_decode.txt.gz",
    "lmcache-log": "lmcache/made.log.txt.gz",
    "triton-trace": "triton/made.trace.json.gz",
    "vllm-log": "vllm_metrics/kv-pressure.engine-log.txt.gz",
    "llama-cpp-log": "llama_cpp/base.server-log.txt.gz",
}
FACTS = Facts(log_start_unix_ns=1_795_988_353_842_848_499)


def _bytes(log: EngineLog) -> bytes:
    return gzip.decompress((DATA / SAMPLES[log.format]).read_bytes())


def _read(log: EngineLog, data: bytes) -> list[Record | list[Sample] | BadLine | None]:
    return [found for _, found in log.read(lines_of(data.splitlines(keepends=True)), FACTS)]


def _records(log: EngineLog, data: bytes) -> list[Record]:
    return [found for found in _read(log, data) if isinstance(found, Record)]


def test_every_format_has_a_sample() -> None:
    assert set(SAMPLES) == set(BY_FORMAT)


@pytest.mark.parametrize("log", ENGINE_LOGS, ids=lambda log: log.format)
def test_a_log_is_told_by_its_content(log: EngineLog) -> None:
    assert detect("x", _bytes(log), complete=True) == log.format


@pytest.mark.parametrize("log", ENGINE_LOGS, ids=lambda log: log.format)
def test_no_other_log_is_taken_for_it(log: EngineLog) -> None:
    others = [other for other in ENGINE_LOGS if other is not log]
    assert not any(other.looks_like(_bytes(log)) for other in others)
    for foreign in (
        b"request,input_tokens,output_tokens,TTFT,total_latency\n1,2,3,4,5\n",
        b'{"request_id": "a", "start_unix_ns": 1795988353842848499, "e2e_ms": 5}\n',
        b"INFO 11-29 20:00:00 [api_server.py:117] Started server process [12]\n",
        b"",
        bytes(range(256)) * 4,
    ):
        assert detect_engine_log(foreign) is None


@pytest.mark.parametrize("log", ENGINE_LOGS, ids=lambda log: log.format)
def test_records_are_the_same_whoever_reads_them(log: EngineLog) -> None:
    first, again = _records(log, _bytes(log)), _records(log, _bytes(log))
    assert first == again
    ids = {ids_of(log, record) for record in first}
    assert len(ids) == len(first)
    samples = [s for found in _read(log, _bytes(log)) if isinstance(found, list) for s in found]
    assert len({(s.name, s.at_unix_ns, str(s.attributes)) for s in samples}) == len(samples)
    assert len(first) + len(samples) > 20


@pytest.mark.parametrize("log", ENGINE_LOGS, ids=lambda log: log.format)
def test_cut_interleaved_and_foreign_lines_are_refused_and_never_guessed(log: EngineLog) -> None:
    """What is read of a spoiled log is what is read of the whole one, or nothing."""
    data = _bytes(log)
    lines = data.splitlines(keepends=True)
    good = {ids_of(log, r): r for r in _records(log, data)}
    rng = random.Random(4)
    for _ in range(150):
        spoiled = list(lines)
        for _ in range(rng.randint(1, 6)):
            i = rng.randrange(len(spoiled))
            match rng.randrange(5):
                case 0:  # cut
                    spoiled[i] = spoiled[i][: rng.randrange(len(spoiled[i]) + 1)]
                case 1:  # two processes wrote at once
                    j = rng.randrange(len(spoiled))
                    at = rng.randrange(len(spoiled[i]) + 1)
                    spoiled[i] = spoiled[i][:at] + spoiled[j]
                case 2:  # bytes of any kind
                    spoiled[i] = rng.randbytes(rng.randrange(200)) + b"\n"
                case 3:  # a foreign line
                    spoiled.insert(i, b'127.0.0.1 - "POST /v1/completions HTTP/1.1" 200\n')
                case _:  # out of order
                    j = rng.randrange(len(spoiled))
                    spoiled[i], spoiled[j] = spoiled[j], spoiled[i]
        try:
            found = _read(log, b"".join(spoiled))
        except SourceError:
            continue
        for record in found:
            if isinstance(record, list):
                assert all(0 < s.at_unix_ns < 2**63 and s.value >= 0 for s in record)
            if not isinstance(record, Record):
                continue
            assert 0 < record.start_unix_ns <= record.end_unix_ns < 2**63
            known = good.get(ids_of(log, record))
            if known is not None:
                for key in ("prompt_ms", "predicted_ms", "ttft_ms", "transfer_duration_ms"):
                    assert record.attributes.get(key) == known.attributes.get(key)


@pytest.mark.parametrize("log", ENGINE_LOGS, ids=lambda log: log.format)
def test_any_bytes_give_lines_or_the_one_error(log: EngineLog) -> None:
    rng = random.Random(5)
    alphabet = _bytes(log)[:4000]
    for _ in range(300):
        noise = bytes(rng.choice(alphabet) for _ in range(rng.randrange(300)))
        try:
            assert all(not isinstance(found, Record | list) for found in _read(log, noise))
        except SourceError:
            continue
