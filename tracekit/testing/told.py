"""How providers tell a call's phases in responses, for the fake server to tell them so.

Owns names, units and places of the fields; the times are the server's. Fields that a provider has
and that hold no time are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Times:
    """What the server waited for: all [ms]."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    received_unix_ms: float

    @property
    def total_ms(self) -> float:
        return self.queue_ms + self.prefill_ms + self.decode_ms


@dataclass(frozen=True)
class Fields:
    """Fields to put into the body, into its ``usage``, and into the headers."""

    body: dict[str, Any]
    usage: dict[str, Any]
    headers: dict[str, str]


def _groq(t: Times) -> Fields:
    """Seconds; ``total_time`` leaves the queue out."""
    usage = {
        "queue_time": t.queue_ms / 1e3,
        "prompt_time": t.prefill_ms / 1e3,
        "completion_time": t.decode_ms / 1e3,
        "total_time": (t.prefill_ms + t.decode_ms) / 1e3,
    }
    return Fields({"x_groq": {"id": "req_fake", "usage": usage}}, usage, {})


def _cerebras(t: Times) -> Fields:
    """Seconds."""
    info = {
        "queue_time": t.queue_ms / 1e3,
        "prompt_time": t.prefill_ms / 1e3,
        "completion_time": t.decode_ms / 1e3,
        "total_time": t.total_ms / 1e3,
        "created": t.received_unix_ms / 1e3,
    }
    return Fields({"time_info": info}, {}, {})


def _fireworks(t: Times) -> Fields:
    """Seconds, as text; the same names in headers, where they start with ``fireworks-``."""
    told = {
        "tokenizer-queue-duration": "0.0",
        "prefill-queue-duration": f"{t.queue_ms / 1e3:.6f}",
        "prefill-duration": f"{t.prefill_ms / 1e3:.6f}",
        "generation-queue-duration": "0.0",
        "generation-duration": f"{t.decode_ms / 1e3:.6f}",
        "server-time-to-first-token": f"{(t.queue_ms + t.prefill_ms) / 1e3:.6f}",
        "server-processing-time": f"{t.total_ms / 1e3:.6f}",
    }
    return Fields({"perf_metrics": told}, {}, {f"fireworks-{k}": v for k, v in told.items()})


def _vllm(t: Times) -> Fields:
    """Milliseconds; the time to first token counts from when it was scheduled."""
    metrics = {
        "queue_time_ms": t.queue_ms,
        "time_to_first_token_ms": t.prefill_ms,
        "generation_time_ms": t.decode_ms,
    }
    return Fields({"metrics": metrics}, {}, {})


def _nim(t: Times) -> Fields:
    """Milliseconds; the time to first token counts from the start of processing."""
    stats = {
        "time_in_queue_in_ms": t.queue_ms,
        "generation_time_in_ms": t.prefill_ms + t.decode_ms,
        "response_tokens": {"time_to_first_token_in_ms": t.prefill_ms},
    }
    return Fields({"stats": stats}, {}, {})


def _llama_cpp(t: Times) -> Fields:
    """Milliseconds; no queue."""
    return Fields({"timings": {"prompt_ms": t.prefill_ms, "predicted_ms": t.decode_ms}}, {}, {})


def _dynamo(t: Times) -> Fields:
    """Milliseconds; its prefill time holds the engine's queue."""
    timing = {
        "request_received_ms": round(t.received_unix_ms),
        "prefill_wait_time_ms": 0.0,
        "prefill_time_ms": t.queue_ms + t.prefill_ms,
        "ttft_ms": t.queue_ms + t.prefill_ms,
        "total_time_ms": t.total_ms,
    }
    return Fields({"nvext": {"timing": timing}}, {}, {})


def _openai(t: Times) -> Fields:
    """Milliseconds until the headers, as a header."""
    return Fields({}, {}, {"openai-processing-ms": str(round(t.total_ms))})


#: Provider or engine -> what it tells.
TOLD: Final[dict[str, Callable[[Times], Fields]]] = {
    "cerebras": _cerebras,
    "dynamo": _dynamo,
    "fireworks": _fireworks,
    "groq": _groq,
    "llama_cpp": _llama_cpp,
    "nim": _nim,
    "openai": _openai,
    "vllm": _vllm,
}
