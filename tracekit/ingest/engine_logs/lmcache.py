"""LMCache's log: a ``Retrieved n out of m required tokens ... cost c ms`` line per load.

The line names the request (``[req_id=...]``) since that was added; one that does not can be told to
nobody. It is written when the load is done, and its time has no zone: when the first dated line was
must be told. Attributes are the line's numbers with their units: ``cost_ms``, ``size_gb`` (2^30),
``retrieved_tokens``, ``required_tokens`` (without what the engine had), ``total_tokens``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from tracekit.ingest.engine_logs._record import (
    BadLine,
    EngineLog,
    Facts,
    Line,
    Read,
    Record,
    SourceError,
    duration_ns,
)

_DATED: Final = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})\] LMCache [A-Z]+: (.*)$")
_RETRIEVED: Final = re.compile(
    r"^(?:\[req_id=(?P<rid>[^\]\s]{1,200})\] )?Retrieved (?P<got>\d{1,12}) out of "
    r"(?P<required>\d{1,12}) required tokens \(from (?P<total>\d{1,12}) total tokens\)\. "
    r"size: (?P<size>\d+(?:\.\d+)?) gb, cost (?P<cost>\d+(?:\.\d+)?) ms, throughput: "
)
_NAMELESS: Final = (
    "{n} loads name no request ([req_id=...] is missing in this release): nobody can be told them"
)


def _looks_like(head: bytes) -> bool:
    return b"] LMCache " in head and b"required tokens (from" in head


def _read(lines: Iterable[Line], facts: Facts) -> Read:
    first: datetime | None = None
    for line in lines:
        match = _DATED.search(line.text.decode("utf-8", "replace"))
        if match is None:
            if line.text.strip():
                yield line.number, None
            continue
        try:
            told = datetime.fromisoformat(match[1]).replace(microsecond=int(match[2]) * 1_000)
        except ValueError:
            yield line.number, BadLine("bad_time", f"{match[1]!r}: no such time")
            continue
        first = told if first is None else first
        if not match[3].startswith(("Retrieved ", "[req_id=")) or "Retrieved " not in match[3]:
            yield line.number, None
            continue
        if facts.log_start_unix_ns is None:
            raise SourceError(
                "the times of this log have no zone",
                where=f"line {line.number}",
                how="say when its first line was with --log-start TIME (ISO time with its zone, or "
                "unix ns)",
            )
        found = _RETRIEVED.match(match[3])
        if found is None:
            yield line.number, BadLine("cut_line", "a Retrieved line that is cut off")
        elif found["rid"] is None:
            facts.remarks[_NAMELESS] += 1
            yield line.number, None
        else:
            since_ms = round((told - first).total_seconds() * 1e3)
            at = facts.log_start_unix_ns + since_ms * 1_000_000
            yield line.number, _record(found, at, match[1] + match[2])


def _record(found: re.Match[str], at: int, told: str) -> Record | BadLine:
    took = duration_ns(float(found["cost"]), per_s=1_000)
    if took is None or at - took <= 0:
        return BadLine("bad_duration", f"cost {found['cost']} ms is none")
    attributes: dict[str, Any] = {
        "session_id": found["rid"],
        "cost_ms": float(found["cost"]),
        "size_gb": float(found["size"]),
        "retrieved_tokens": int(found["got"]),
        "required_tokens": int(found["required"]),
        "total_tokens": int(found["total"]),
    }
    return Record("lmcache retrieved", f"{found['rid']}|{told}", at - took, at, attributes)


LMCACHE_LOG: Final = EngineLog(
    "lmcache-log",
    "LMCache's log with Retrieved lines (with --log-start TIME)",
    "lmcache",
    _looks_like,
    _read,
    "a Retrieved line that names its request",
    counts_from_start=True,
)
