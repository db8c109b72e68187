"""vLLM's log lines of its engine: values read by hand, times from the first line on."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pytest

from tracekit.analysis.session import Session
from tracekit.errors import SourceError
from tracekit.ingest.engine_logs import BY_FORMAT, BadLine, Facts, Sample, lines_of
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store

LOG = BY_FORMAT["vllm-log"]
DATA = Path(__file__).parents[1] / "data" / "vllm_metrics" / "kv-pressure.engine-log.txt.gz"
START = 1_795_982_687_000_000_000
S = 1_000_000_000


def _read(text: str) -> list[object]:
    lines = lines_of(text.encode().splitlines(keepends=True))
    return [found for _, found in LOG.read(lines, Facts(log_start_unix_ns=START))]


def _line(at: str, rest: str, engine: str = "000") -> str:
    return f"INFO {at} [loggers.py:199] Engine {engine}: {rest}\n"


ITERATION = (
    "Iteration({}): 1 context requests, 81 context tokens, 2 generation requests, "
    "3 generation tokens, iteration elapsed time: 69.94 ms, CPU KV cache usage: 7.7%"
)
STATISTICS = (
    "Avg prompt throughput: 8.4 tokens/s, Avg generation throughput: 4.5 tokens/s, "
    "Running: 7 reqs, Waiting: 38 reqs, GPU KV cache usage: 99.5%, Prefix cache hit rate: 0.0%"
)


def test_an_iterations_values() -> None:
    (found,) = _read(_line("11-29 20:04:47", ITERATION.format(0)))
    assert isinstance(found, list)
    assert {s.name: s.value for s in found} == {
        "vllm:iteration_context_requests": 1,
        "vllm:iteration_context_tokens": 81,
        "vllm:iteration_generation_requests": 2,
        "vllm:iteration_generation_tokens": 3,
        "vllm:iteration_seconds": pytest.approx(0.06994),
        "vllm:kv_cache_usage_perc": pytest.approx(0.077),
    }
    assert {s.at_unix_ns for s in found} == {START}


def test_statistics_have_the_names_of_the_metrics() -> None:
    (found,) = _read(_line("11-29 20:04:47", STATISTICS, "001"))
    assert isinstance(found, list)
    assert [(s.name, s.value, s.attributes) for s in found] == [
        ("vllm:num_requests_running", 7, {"engine": "1"}),
        ("vllm:num_requests_waiting", 38, {"engine": "1"}),
        ("vllm:kv_cache_usage_perc", pytest.approx(0.995), {"engine": "1"}),
    ]


def test_times_count_from_the_first_line_over_midnight_and_new_year() -> None:
    text = "".join(
        _line(at, STATISTICS)
        for at in ("12-31 23:59:58", "12-31 23:59:58", "01-01 00:00:03", "02-29 12:00:00")
    )
    at = [found[0].at_unix_ns for found in _read(text) if isinstance(found, list)]
    # two lines of one second are kept apart, in their order
    assert at[:3] == [START, START + 1_000, START + 5 * S]


@pytest.mark.parametrize(
    "bad",
    [
        _line("13-41 20:04:47", STATISTICS),
        _line("11-29 20:04:47", ITERATION.format(0)[:60]),
        _line("11-29 20:04:47", STATISTICS[:70]),
    ],
)
def test_cut_lines_and_times_that_are_none_are_refused(bad: str) -> None:
    first, second = _read(_line("11-29 20:04:47", STATISTICS) + bad)
    assert isinstance(first, list)
    assert isinstance(second, BadLine)


def test_other_lines_tell_nothing() -> None:
    text = _line("11-29 20:04:47", STATISTICS) + 'INFO: 127.0.0.1 - "POST /v1/completions" 200 OK\n'
    assert _read(text)[1] is None


def test_without_a_start_nothing_is_placed() -> None:
    with pytest.raises(SourceError, match="--log-start TIME"):
        list(LOG.read(lines_of([_line("11-29 20:04:47", STATISTICS).encode()]), Facts()))


def test_the_log_tells_of_the_worker_as_a_scrape_does() -> None:
    """KV cache at its limit: 100.0 % in the recording's own lines."""
    lines = gzip.decompress(DATA.read_bytes()).decode().splitlines()
    fullest = max(
        float(line.split("usage: ")[1].split("%")[0]) for line in lines if "usage: " in line
    )
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "s", create=True)
        summary = import_paths(store, [str(DATA)], service="vllm", log_start_unix_ns=START)
        assert summary.duplicates == 0
        with Session.open(store) as session:
            frame = session.frame(
                "select max(value) as most, count(*) as n from worker_metrics "
                "where worker = 'vllm' and field = 'kv_usage'"
            )
            most, n = frame.row(0)
    assert most == pytest.approx(fullest / 100)
    assert n > 800
    assert Sample("a", "1", START, 1.0, {}).value == 1
