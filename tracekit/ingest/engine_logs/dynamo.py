"""Dynamo's request-trace records (``DYN_REQUEST_TRACE=1``), schema ``dynamo.request.trace.v1``.

One JSON object a line: ``{"timestamp": ms, "event": {"schema", "event_type", "request": {...}}}``,
or the event alone. Only ``request_end`` tells of a request; other events are passed over.
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
    duration_ns,
    time_ns,
)

_SCHEMA: Final = b'"dynamo.request.trace.'

#: Hashes of prompt blocks: large, and told by nobody else.
_LEFT_OUT: Final = ("replay",)


def _looks_like(head: bytes) -> bool:
    return any(_SCHEMA in line for line in head.splitlines()[:20])


def _read(lines: Iterable[Line], facts: Facts) -> Read:
    for line in lines:
        if not line.text.strip():
            continue
        if _SCHEMA not in line.text:
            yield line.number, None
            continue
        yield line.number, _record(line.text)


def _record(text: bytes) -> Record | BadLine | None:
    try:
        found = orjson.loads(text)
    except ValueError as error:
        return BadLine("undecodable", f"not JSON: {error}")
    event = found.get("event", found) if isinstance(found, dict) else None
    if not isinstance(event, dict):
        return BadLine("undecodable", "no JSON object with an event")
    if event.get("event_type") != "request_end":
        return None
    request = event.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("request_id"), str):
        return BadLine("missing_field", "event.request.request_id is missing")
    received = time_ns(request.get("request_received_ms"), per_s=1_000)
    if received is None:
        return BadLine(
            "missing_field",
            f"event.request.request_received_ms is {request.get('request_received_ms')!r}: no "
            "unix time in ms",
        )
    took = duration_ns(request.get("total_time_ms"), per_s=1_000)
    attributes: dict[str, Any] = {k: v for k, v in request.items() if k not in _LEFT_OUT}
    return Record(
        "dynamo request_end",
        request["request_id"],
        received,
        received + (took or 0),
        attributes,
    )


DYNAMO_REQUEST_TRACE: Final = EngineLog(
    "dynamo-request-trace",
    "Dynamo's request trace, JSON lines (DYN_REQUEST_TRACE=1)",
    "dynamo-frontend",
    _looks_like,
    _read,
    "a request_end event of schema dynamo.request.trace.v1",
)
