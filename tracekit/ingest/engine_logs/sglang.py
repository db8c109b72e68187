"""SGLang's log: a ``ReqTimeStats(...)`` line per request (--enable-request-time-stats-logging).

A line whose durations end after it was written is refused: of a request that was retracted,
``entry_time`` is that of its last entry, and ``forward_duration`` counts from its first forward.

Attributes are the line's names with the unit it writes added: ``queue_duration_ms``,
``transfer_speed_gb_s`` (2^30), ``transfer_total_mb`` (2^20), ``entry_time_s`` (since 1970).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from tracekit.ingest.engine_logs._record import (
    BadLine,
    EngineLog,
    Facts,
    Line,
    Read,
    Record,
    duration_ns,
    time_ns,
)

_MARKS: Final = (b"ReqTimeStats(", b"Req Time Stats(")
_LINE: Final = re.compile(r"Req ?Time ?Stats\((?P<head>[^()]*)\): (?P<body>[^()]+)$")
#: When a line was written, on the machine's clock and in its zone.
_WRITTEN: Final = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?: [^\]]{1,40})?\]")
#: Zones are this far apart.
_ZONE_NS: Final = 900_000_000_000
#: A line says the second that it was written in; its two clocks are hardly apart.
_LATEST_NS: Final = 1_100_000_000
_PAIR: Final = re.compile(r"^([a-zA-Z][a-zA-Z_ ]*)=(.*)$")
_VALUE: Final = re.compile(r"^(-?[0-9]+(?:\.[0-9]+)?) ?(ms|s|us|GB/s|MB|)$")
_UNIT: Final = {"ms": "_ms", "s": "_s", "us": "_us", "GB/s": "_gb_s", "MB": "_mb", "": ""}
_TYPES: Final = ("unified", "prefill", "decode")
#: Older releases' names.
_ALIASES: Final = {
    "input len": "input_len",
    "cached input len": "cached_input_len",
    "output len": "output_len",
    "bootstrap_queue_duration_ms": "bootstrap_duration_ms",
    "prealloc_queue_duration_ms": "alloc_wait_duration_ms",
    "entry_time": "entry_time_s",
}
#: What follows each other on a server, in order.
_STAGES: Final = (
    "bootstrap_duration_ms",
    "alloc_wait_duration_ms",
    "transfer_duration_ms",
    "queue_duration_ms",
    "forward_duration_ms",
)


def _looks_like(head: bytes) -> bool:
    return any(mark in head for mark in _MARKS)


def _read(lines: Iterable[Line], facts: Facts) -> Read:
    for line in lines:
        if not any(mark in line.text for mark in _MARKS):
            if line.text.strip():
                yield line.number, None
            continue
        yield line.number, _record(line.text.decode("utf-8", "replace"))


def _record(text: str) -> Record | BadLine | None:
    match = _LINE.search(text)
    if match is None or text.count("TimeStats(") + text.count("Time Stats(") > 1:
        return BadLine("cut_line", "a ReqTimeStats line that is cut off, or two in one")
    fields: dict[str, Any] = {}
    for part in [*match["head"].split(", "), *match["body"].split(", ")]:
        pair = _PAIR.match(part)
        if pair is None:
            return BadLine("cut_line", f"{part[:80]!r} is no name=value")
        name, value = pair[1], pair[2]
        number = _VALUE.match(value) if name not in ("rid", "bootstrap_room", "type") else None
        if number is not None:
            name = _ALIASES.get(name, name) + _UNIT[number[2]]
            fields[_ALIASES.get(name, name)] = float(number[1])
        else:
            fields[_ALIASES.get(name, name)] = value
    rid = str(fields.get("rid") or "")
    if rid.startswith("HEALTH_CHECK"):
        return None
    if not rid or fields.get("type") not in _TYPES:
        return BadLine("missing_field", "rid or type is missing, or type is none of " + str(_TYPES))
    start = time_ns(fields.get("entry_time_s"), per_s=1)
    stages = [duration_ns(fields[name], per_s=1_000) for name in _STAGES if name in fields]
    if start is None or "forward_duration_ms" not in fields or None in stages:
        return BadLine(
            "missing_field", "entry_time or forward_duration is missing, or a duration is none"
        )
    for name in ("input_len", "cached_input_len", "output_len", "attempts"):
        if isinstance(fields.get(name), float):
            fields[name] = int(fields[name])
    took = sum(stage for stage in stages if stage is not None)
    late_ns = _after_writing_ns(text[: match.start()], start + took)
    if late_ns > _LATEST_NS:
        return BadLine(
            "overlapping_durations",
            f"its durations end {late_ns / 1e9:.1f} s after it was written: they overlap, as those "
            "of a retracted request do (its spans tell them apart)",
        )
    return Record(
        f"sglang ReqTimeStats {fields['type']}",
        f"{rid}|{fields['type']}",
        start,
        start + took,
        fields,
    )


def _after_writing_ns(head: str, end_unix_ns: int) -> int:
    """How long after the line was written its durations end [ns]; 0 if it does not say when."""
    written = _WRITTEN.search(head)
    if written is None:
        return 0
    try:
        at = datetime.fromisoformat(written[1]).replace(tzinfo=UTC)
    except ValueError:
        return 0
    late_ns = end_unix_ns - int(at.timestamp()) * 1_000_000_000
    return late_ns - round(late_ns / _ZONE_NS) * _ZONE_NS


SGLANG_LOG: Final = EngineLog(
    "sglang-log",
    "SGLang's log with ReqTimeStats lines (--enable-request-time-stats-logging)",
    "sglang",
    _looks_like,
    _read,
    "a ReqTimeStats(...) line",
)
