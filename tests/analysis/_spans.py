"""Raw rows made by hand: spans as vLLM, GenAI clients, proxies and the SDK send them, and log rows.

Times are milliseconds from `START_NS`; ids are short names, padded to their width.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tracekit.lake.schema import TABLES

START_NS = 1_795_982_400_000_000_000
INGESTED_NS = START_NS + 3_600 * 10**9
MS = 1_000_000

Row = dict[str, Any]


def trace(name: str) -> str:
    """A trace id of 32 hex digits that holds the name."""
    return name.encode().hex().rjust(32, "0")


def span_id(name: str) -> str:
    """A span id of 16 hex digits that holds the name."""
    return name.encode().hex().rjust(16, "0")


def at(ms: float) -> int:
    """Unix ns of a time of these tests."""
    return START_NS + round(ms * MS)


def span(
    name: str,
    *,
    id: str,
    start: float,
    end: float,
    trace_name: str = "t",
    parent: str | None = None,
    kind: int = 1,
    service: str = "app",
    instance: str | None = "i0",
    process: str | None = "1",
    status: int = 0,
    message: str | None = None,
    events: Iterable[tuple[str, float]] = (),
    resource: Row | None = None,
    scope: str | None = None,
    **attributes: Any,
) -> Row:
    """One row of `spans`; attributes are given with ``__`` for ``.``."""
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    listed = [{"name": n, "time_unix_ns": at(ms), "attributes": {}} for n, ms in events]
    row: Row = dict.fromkeys(TABLES["spans"].column_names)
    row |= {
        "trace_id": trace(trace_name),
        "span_id": span_id(id),
        "parent_span_id": span_id(parent) if parent else None,
        "name": name,
        "kind": kind,
        "start_unix_ns": at(start),
        "end_unix_ns": at(end),
        "status_code": status,
        "status_message": message,
        "flags": 256,
        "service_name": service,
        "service_instance_id": instance,
        "process_id": process,
        "scope_name": scope,
        "operation_name": named.get("gen_ai.operation.name"),
        "model": named.get("gen_ai.request.model"),
        "request_id": named.get("gen_ai.request.id") or named.get("request_id") or named.get("rid"),
        "response_id": named.get("gen_ai.response.id")
        or named.get("x_request_id")
        or named.get("bootstrap_room"),
        "http_route": named.get("http.route") or named.get("url.path") or named.get("http.target"),
        "tracekit_phase": named.get("tracekit.phase"),
        "input_tokens": named.get("gen_ai.usage.input_tokens"),
        "output_tokens": named.get("gen_ai.usage.output_tokens"),
        "attributes": json.dumps(named),
        "resource": json.dumps({"service.name": service} | (resource or {})),
        "events": json.dumps(listed) if listed else None,
        "origin": "import",
        "ingested_unix_ns": INGESTED_NS,
        "date": "2026-11-29",
    }
    return row


def engine(
    id: str,
    start: float,
    *,
    request_id: str | None = None,
    step_wait: float = 2,
    queue: float = 10,
    prefill: float = 40,
    decode: float = 100,
    tokens: tuple[int, int] = (50, 11),
    service: str = "vllm",
    **more: Any,
) -> Row:
    """vLLM's span of one sequence; phases in ms, tokens are (input, output)."""
    ttft = step_wait + queue + prefill
    attributes: Row = {
        "gen_ai__latency__time_in_queue": queue / 1e3,
        "gen_ai__latency__time_in_model_prefill": prefill / 1e3,
        "gen_ai__latency__time_in_model_decode": decode / 1e3,
        "gen_ai__latency__time_to_first_token": ttft / 1e3,
        "gen_ai__latency__e2e": (ttft + decode) / 1e3,
        "gen_ai__usage__prompt_tokens": tokens[0],
        "gen_ai__usage__completion_tokens": tokens[1],
        "gen_ai__request__id": request_id or f"chatcmpl-{id}",
    }
    end = start + ttft + decode + 1
    named: Row = {"id": id, "start": start, "end": end, "kind": 2, "service": service}
    values: Row = named | attributes | more
    return span("llm_request", **values)


def chat(id: str, start: float, end: float, **more: Any) -> Row:
    """A GenAI client span."""
    attributes: Row = {
        "gen_ai__operation__name": "chat",
        "gen_ai__request__model": "m",
        "gen_ai__provider__name": "openai",
        "gen_ai__request__stream": True,
    }
    named: Row = {"id": id, "start": start, "end": end, "kind": 3}
    values: Row = named | attributes | more
    return span("chat m", **values)


def http(id: str, start: float, end: float, *, kind: int, **more: Any) -> Row:
    """An HTTP span on the chat route; kind 2 is a server's, 3 a client's."""
    attributes: Row = {"http__route" if kind == 2 else "url__path": "/v1/chat/completions"}
    named: Row = {"id": id, "start": start, "end": end, "kind": kind}
    values: Row = named | attributes | more
    return span("POST /v1/chat/completions", **values)


def phase(id: str, name: str, start: float, end: float, **more: Any) -> Row:
    """The SDK's span of one phase."""
    named: Row = {"id": id, "start": start, "end": end, "tracekit__phase": name}
    values: Row = named | more
    return span(name, **values)


def log_row(**values: Any) -> Row:
    """One row of `request_log`; ``start`` and ``end`` are ms, the rest column names."""
    row: Row = dict.fromkeys(TABLES["request_log"].column_names)
    for name in ("start", "end", "intended_start"):
        if name in values:
            values[f"{name}_unix_ns"] = at(values.pop(name))
    key = f"{values.get('request_id')}@{values.get('start_unix_ns')}#{values.get('source_row')}"
    row |= {"status": "ok", "log_key": key} | values
    row |= {"origin": "import", "ingested_unix_ns": INGESTED_NS, "date": "2026-11-29"}
    return row


def table(name: str, rows: Iterable[Row]) -> pa.Table:
    """Rows as a table of the lake."""
    return pa.Table.from_pylist(list(rows), schema=TABLES[name].schema)
