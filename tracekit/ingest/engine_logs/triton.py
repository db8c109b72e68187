"""Triton's trace file (``--trace-config triton,file=...``, level TIMESTAMPS): one JSON array.

Entries of one ``id`` belong together (Triton writes them in parts): model and timestamps
(``REQUEST_START`` .. ``REQUEST_END``, ns). Their clock counts from the machine's start, so when the
earliest one was must be told. What an ensemble calls (``parent_id``) lies within its own request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

from tracekit.ingest.engine_logs._record import (
    BadLine,
    EngineLog,
    Facts,
    Line,
    Read,
    Record,
    SourceError,
)

#: A trace is read whole: larger ones are cut into files by Triton's own log-frequency.
_MAX_BYTES: Final = 256 << 20
_NAMES: Final = (
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
)
_INT64_MAX: Final = 2**63 - 1


def _looks_like(head: bytes) -> bool:
    text = head.lstrip()
    return text[:1] == b"[" and b'"timestamps"' in text and b'"REQUEST_START"' in text


def _read(lines: Iterable[Line], facts: Facts) -> Read:
    parts, size = [], 0
    for line in lines:
        size += len(line.text) + 1
        if size > _MAX_BYTES:
            raise SourceError(
                f"the trace is larger than {_MAX_BYTES >> 20} MiB, and is read whole",
                where=f"line {line.number}",
                how="let Triton cut it: --trace-config triton,log-frequency=1000",
            )
        parts.append(line.text)
    try:
        found = orjson.loads(b"\n".join(parts))
    except ValueError as error:
        yield 1, BadLine("cut_line", f"not a whole JSON array: {error}")
        return
    entries: dict[int, dict[str, Any]] = {}
    order: dict[int, int] = {}
    spoilt: set[int] = set()
    for number, entry in enumerate(found if isinstance(found, list) else [], start=1):
        if not isinstance(entry, dict) or type(entry.get("id")) is not int:
            yield number, BadLine("missing_field", "an entry without a number as id")
            continue
        order.setdefault(entry["id"], number)
        bad = _gather(entries, entry)
        if bad is not None:
            spoilt.add(entry["id"])
            yield number, bad
    if entries and facts.log_start_unix_ns is None:
        raise SourceError(
            "the clock of this trace counts from the machine's start",
            where="line 1",
            how="say when its earliest request began with --log-start TIME (ISO time or unix ns)",
        )
    zero = facts.log_start_unix_ns or 0
    zero -= min((e["REQUEST_START"] for e in entries.values() if "REQUEST_START" in e), default=0)
    for i, entry in sorted(entries.items()):
        if i in spoilt:
            continue
        if "parent_id" in entry:
            yield order[i], None
            continue
        if not {"REQUEST_START", "REQUEST_END"} <= entry.keys():
            yield order[i], BadLine("missing_field", f"trace {i} has no start or no end")
            continue
        start, end = zero + entry["REQUEST_START"], zero + entry["REQUEST_END"]
        if not 0 < start <= end <= _INT64_MAX:
            yield order[i], BadLine("time_out_of_range", f"trace {i}: its end is before its start")
            continue
        identity = f"{i}|{entry['REQUEST_START']}|{entry.get('model_name')}"
        yield order[i], Record("triton request", identity, start, end, entry)


def _gather(entries: dict[int, dict[str, Any]], entry: dict[str, Any]) -> BadLine | None:
    into = entries.setdefault(entry["id"], {})
    for name in ("model_name", "model_version", "parent_id", "request_id"):
        if isinstance(entry.get(name), str | int):
            into.setdefault(name, entry[name])
    stamps = entry.get("timestamps", [])
    for stamp in stamps if isinstance(stamps, list) else []:
        if not isinstance(stamp, dict) or stamp.get("name") not in _NAMES:
            continue
        ns = stamp.get("ns")
        if type(ns) is not int or not 0 <= ns <= _INT64_MAX:
            return BadLine("bad_time", f"trace {entry['id']}: {stamp['name']} is {ns!r}, no ns")
        into.setdefault(stamp["name"], ns)
    return None


TRITON_TRACE: Final = EngineLog(
    "triton-trace",
    "Triton's trace file, JSON (with --log-start TIME)",
    "triton",
    _looks_like,
    _read,
    "a request with REQUEST_START and REQUEST_END",
    counts_from_start=True,
)
