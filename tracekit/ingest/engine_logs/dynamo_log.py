"""Dynamo's JSON-lines logs (``DYN_LOGGING_JSONL=true``) of frontend and workers.

Its log lines name the span they were written in, so that a call's first and last line give the span
back: `http-request` of the frontend, `handle_payload` of a worker, and the router's choice
(`kv_router.route_request`) at its end. They are read as those spans are.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import orjson

from tracekit.ingest.engine_logs._record import (
    BadLine,
    EngineLog,
    Facts,
    Line,
    Read,
    Record,
)

_MARKS: Final = (b'"span_name":"http-request"', b'"span_name":"handle_payload"')
_ROUTED: Final = b'"span_name":"kv_router.route_request"'
_FIRST: Final = "request received"
_LAST: Final = "request completed"

#: Calls under way at a time; a log that was cut leaves some for ever.
_OPEN_MAX: Final = 100_000

#: What of a line is about the log, not about the call.
_ABOUT_THE_LOG: Final = frozenset(
    {"time", "level", "file", "line", "target", "message", "span_name", "span_id", "parent_id"}
)
_UNDER_WAY: Final = "{n} of its calls had not ended where the log ends; they are left out"


def _looks_like(head: bytes) -> bool:
    return any(
        line[:1] == b"{" and (b'"span_name"' in line or b'"target":"dynamo' in line)
        for line in head.splitlines()[:200]
    )


def _read(lines: Iterable[Line], facts: Facts) -> Read:
    begun: dict[tuple[str, str], int] = {}
    for line in lines:
        if not any(mark in line.text for mark in (*_MARKS, _ROUTED)):
            if line.text.strip():
                yield line.number, None
            continue
        found = _line(line.text)
        if isinstance(found, BadLine):
            yield line.number, found
            continue
        at, fields = found
        name, message = fields["span_name"], fields.get("message")
        key = (fields["trace_id"], fields["span_id"])
        if name == "kv_router.route_request":
            yield line.number, _record(fields, at, at)
        elif message == _FIRST:
            if len(begun) >= _OPEN_MAX:
                begun.pop(next(iter(begun)))
            begun[key] = at
        elif message == _LAST and key in begun:
            start = begun.pop(key)
            yield line.number, _record(fields, min(start, at), at)
        else:
            # the end of a call that began before the log, or a line in the middle of one
            yield line.number, None
    if begun:
        facts.remarks[_UNDER_WAY] += len(begun)


def _line(text: bytes) -> tuple[int, dict[str, Any]] | BadLine:
    try:
        fields = orjson.loads(text)
    except ValueError as error:
        return BadLine("cut_line", f"not JSON: {error}")
    if not isinstance(fields, dict):
        return BadLine("cut_line", "no JSON object")
    for name, digits in (("trace_id", 32), ("span_id", 16)):
        value = fields.get(name)
        if not isinstance(value, str) or len(value) != digits or not _is_hex(value):
            return BadLine("missing_field", f"{name} is {value!r}, not {digits} hex digits")
    if not isinstance(fields.get("span_name"), str):
        return BadLine("missing_field", "span_name is missing")
    at = _time_ns(fields.get("time"))
    if at is None:
        return BadLine("missing_field", f"time is {fields.get('time')!r}: no ISO time with a zone")
    return at, fields


def _is_hex(value: str) -> bool:
    return all(c in "0123456789abcdef" for c in value) and any(c != "0" for c in value)


def _time_ns(value: object) -> int | None:
    """Unix ns of an ISO time that names its zone, to its microsecond."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return None
    if at.tzinfo is None or not 1971 <= at.year < 2200:
        return None
    return int(at.timestamp()) * 1_000_000_000 + at.microsecond * 1_000


def _record(fields: dict[str, Any], start: int, end: int) -> Record:
    parent = fields.get("parent_id")
    return Record(
        fields["span_name"],
        f"{fields['trace_id']}|{fields['span_id']}",
        start,
        end,
        {k: v for k, v in fields.items() if k not in _ABOUT_THE_LOG},
        trace_id=fields["trace_id"],
        span_id=fields["span_id"],
        parent_span_id=parent if isinstance(parent, str) and len(parent) == 16 else None,
    )


DYNAMO_LOG: Final = EngineLog(
    "dynamo-log",
    "Dynamo's log, JSON lines (DYN_LOGGING_JSONL=true)",
    "dynamo",
    _looks_like,
    _read,
    "a request received or completed by http-request or handle_payload",
)
