"""A small, exact traffic for the command line's tests: OTLP JSON lines as a collector writes them.

Requests arrive every 2 s. Every tenth has a prompt of 4,000 tokens and a prefill to match; one
(``slow-queue``) waits 3 s in the engine's queue. Client and server spans share clock and trace.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

START_UNIX_NS: Final = 1_790_000_000_000_000_000
MODEL: Final = "tiny-llama"
REQUESTS: Final = 60
SLOW_QUEUE: Final = 33

#: The article's table of twenty requests: long input pushes TTFT, nothing else is recorded.
TWENTY: Final = "request,input_tokens,output_tokens,TTFT,total_latency,tokens/sec,비고\n" + "".join(
    f"q{n},{400 + 600 * n},{100 + n},{0.1 + 0.15 * n:.2f},{3 + 0.15 * n:.2f},"
    f"{(100 + n) / (3 + 0.15 * n):.2f},{'RAG 문서 포함' if n % 2 else ''}\n"
    for n in range(20)
)

_MS: Final = 1_000_000


def request_id(number: int) -> str:
    return "slow-queue" if number == SLOW_QUEUE else f"req-{number:03d}"


def expected_ms(number: int) -> dict[str, float]:
    """The phases of one request in ms, as the spans below state them."""
    prompt = input_tokens(number)
    return {
        "network": 4.0,
        "frontend": 5.0,
        "queue": 3_000.0 if number == SLOW_QUEUE else 1.0 + number % 3,
        "prefill": 20.0 + prompt / 10,
        "decode": 15.0 * (output_tokens(number) - 1),
    }


def input_tokens(number: int) -> int:
    return 4_000 if number % 10 == 0 else 100 + number


def output_tokens(number: int) -> int:
    return 20 + number % 7


def write(path: Path, *, first: int = 0, last: int = REQUESTS) -> Path:
    """Write requests ``first`` up to ``last`` (not included), a line a request."""
    lines = (json.dumps(_export(number)) for number in range(first, last))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _export(number: int) -> dict[str, Any]:
    ms = expected_ms(number)
    sent = START_UNIX_NS + number * 2_000 * _MS
    arrived = sent + int(ms["network"] / 2 * _MS)
    ttft_ms = ms["frontend"] + ms["queue"] + ms["prefill"]
    e2e_ms = ttft_ms + ms["decode"]
    trace, client, server = f"{number + 1:032x}", f"{number + 1:016x}", f"{number + 4097:016x}"
    client_span = _span(
        trace,
        client,
        None,
        f"chat {MODEL}",
        3,
        sent,
        sent + int((e2e_ms + ms["network"]) * _MS),
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": MODEL,
            "gen_ai.response.id": f"chatcmpl-{request_id(number)}",
            "gen_ai.usage.input_tokens": input_tokens(number),
            "gen_ai.usage.output_tokens": output_tokens(number),
        },
    )
    server_span = _span(
        trace,
        server,
        client,
        "llm_request",
        2,
        arrived,
        arrived + int(e2e_ms * _MS),
        {
            "gen_ai.request.id": f"chatcmpl-{request_id(number)}",
            "gen_ai.usage.prompt_tokens": input_tokens(number),
            "gen_ai.usage.completion_tokens": output_tokens(number),
            "gen_ai.latency.time_in_queue": ms["queue"] / 1e3,
            "gen_ai.latency.time_in_model_prefill": ms["prefill"] / 1e3,
            "gen_ai.latency.time_in_model_decode": ms["decode"] / 1e3,
            "gen_ai.latency.time_to_first_token": ttft_ms / 1e3,
            "gen_ai.latency.e2e": e2e_ms / 1e3,
        },
    )
    return {
        "resourceSpans": [
            _resource("chat-app", "app", client_span),
            _resource("vllm-server", "vllm.tracing.otel", server_span),
        ]
    }


def _resource(service: str, scope: str, span: dict[str, Any]) -> dict[str, Any]:
    return {
        "resource": {"attributes": _attributes({"service.name": service, "host.name": "node-a"})},
        "scopeSpans": [{"scope": {"name": scope}, "spans": [span]}],
    }


def _span(
    trace: str,
    span: str,
    parent: str | None,
    name: str,
    kind: int,
    start: int,
    end: int,
    attributes: dict[str, Any],
) -> dict[str, Any]:
    return {
        "traceId": trace,
        "spanId": span,
        **({"parentSpanId": parent} if parent else {}),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": _attributes(attributes),
    }


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    def value(v: Any) -> dict[str, Any]:
        if isinstance(v, bool):
            return {"boolValue": v}
        if isinstance(v, int):
            return {"intValue": str(v)}
        if isinstance(v, float):
            return {"doubleValue": v}
        return {"stringValue": str(v)}

    return [{"key": key, "value": value(v)} for key, v in values.items()]
