"""vLLM's log as samples of its engine: the lines of its statistics and of each iteration.

Every vLLM prints `Engine 000: Avg prompt throughput ...` each ten seconds, and with
--enable-logging-iteration-details a line per engine step. Both tell of the engine, not of a
request, so they become rows of `metric_samples` under the names that the same values have in
/metrics where there are some (`vllm:kv_cache_usage_perc`), else `vllm:iteration_*`.

A line has month, day and time of day in the server's own zone: when the first one was must be told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from tracekit.ingest.engine_logs._record import (
    BadLine,
    EngineLog,
    Facts,
    Line,
    Read,
    Sample,
    SourceError,
)

_DATED: Final = re.compile(
    r"(?:^|\s)[A-Z]+ (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) \[[^\]]*\] Engine (\d{1,6}): (.*)$"
)
_ITERATION: Final = re.compile(
    r"^Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: (\d+(?:\.\d+)?) ms"
    r"(?:, (?:GPU |CPU )?KV cache usage: (\d+(?:\.\d+)?)%)?$"
)
_STATISTICS: Final = re.compile(
    r"^Avg prompt throughput: .*Running: (\d+) reqs, Waiting: (\d+) reqs, "
    r"(?:Preempted: \d+ reqs, )?(?:GPU |CPU )?KV cache usage: (\d+(?:\.\d+)?)%"
)
_MARKS: Final = ("Iteration(", "Avg prompt throughput:")


def _looks_like(head: bytes) -> bool:
    """Whether this begins a log of vLLM with lines that tell of its engine."""
    return any(
        (match := _DATED.search(line)) is not None and match[7].startswith(_MARKS)
        for line in head.decode("utf-8", "replace").splitlines()[:2000]
    )


def _read(lines: Iterable[Line], facts: Facts) -> Read:
    clock = _Clock(facts.log_start_unix_ns)
    for line in lines:
        match = _DATED.search(line.text.decode("utf-8", "replace"))
        if match is None:
            if line.text.strip():
                yield line.number, None
            continue
        at = clock.at(match, line.number)
        if at is None:
            yield line.number, BadLine("bad_time", f"{match[0].strip()[:40]!r}: no such time")
            continue
        found = _samples(match[7], at, str(int(match[6])))
        if found is None and match[7].startswith(_MARKS):
            yield line.number, BadLine("cut_line", "a line of statistics that is cut off")
        else:
            yield line.number, found


class _Clock:
    """Dates without a year or zone, counted from the first one."""

    def __init__(self, start_unix_ns: int | None) -> None:
        self._start_unix_ns = start_unix_ns
        self._first: datetime | None = None
        self._last: datetime | None = None
        self._same = 0

    def at(self, match: re.Match[str], number: int) -> int | None:
        if self._start_unix_ns is None:
            raise SourceError(
                "the lines of this log have neither year nor zone",
                where=f"line {number}",
                how="say when the first of them was with --log-start TIME (ISO time with its zone, "
                "or unix ns)",
            )
        month, day, hour, minute, second = (int(match[i]) for i in range(1, 6))
        year = self._last.year if self._last is not None else 2024  # a leap year: 29 February is
        try:
            told = datetime(year, month, day, hour, minute, second)
        except ValueError:
            return None
        if self._last is not None and told < self._last - timedelta(days=180):
            told = told.replace(year=year + 1) if (month, day) != (2, 29) else told
        if self._first is None:
            self._first = told
        if told < self._first:
            return None
        # lines of one second are kept apart, in their order: when in it they were is not known
        self._same = self._same + 1 if told == self._last else 0
        self._last = max(self._last or told, told)
        seconds = round((told - self._first).total_seconds())
        return self._start_unix_ns + seconds * 1_000_000_000 + self._same * 1_000


def _samples(text: str, at: int, engine: str) -> list[Sample] | None:
    if match := _ITERATION.match(text):
        values = [
            ("vllm:iteration_context_requests", "requests", float(match[1])),
            ("vllm:iteration_context_tokens", "tokens", float(match[2])),
            ("vllm:iteration_generation_requests", "requests", float(match[3])),
            ("vllm:iteration_generation_tokens", "tokens", float(match[4])),
            ("vllm:iteration_seconds", "s", float(match[5]) / 1e3),
        ]
        usage = match[6]
    elif match := _STATISTICS.match(text):
        values = [
            ("vllm:num_requests_running", "requests", float(match[1])),
            ("vllm:num_requests_waiting", "requests", float(match[2])),
        ]
        usage = match[3]
    else:
        return None
    if usage is not None:
        values.append(("vllm:kv_cache_usage_perc", "1", float(usage) / 100))
    return [Sample(name, unit, at, value, {"engine": engine}) for name, unit, value in values]


VLLM_LOG: Final = EngineLog(
    "vllm-log",
    "vLLM's log with statistics or iteration lines (with --log-start TIME)",
    "vllm",
    _looks_like,
    _read,
    "a line of statistics or of an iteration",
    counts_from_start=True,
)
