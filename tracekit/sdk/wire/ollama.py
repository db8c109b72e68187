"""Ollama's own API: lines of JSON, the last of which tells counts and durations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.sdk.wire.chat import error_name
from tracekit.sdk.wire.facts import (
    ANSWER,
    NOTHING,
    TOKENS,
    Answered,
    Asked,
    get,
    number,
    text,
    whole_number,
)


class OllamaChat:
    """``/api/chat``. It streams unless it is told not to."""

    operation = "chat"
    typed: frozenset[str] | None = None

    def ask(self, body: Mapping[str, Any]) -> Asked:
        options = body.get("options")
        return Asked(
            self.operation,
            text(body.get("model")),
            body.get("stream") is not False,
            whole_number(get(options, "num_predict")),
            None,
            number(get(options, "temperature")),
            number(get(options, "top_p")),
        )

    def brings(self, chunk: Any) -> int:
        said = get(chunk, "message")
        if get(said, "content"):
            return ANSWER
        return TOKENS if get(said, "thinking") or get(said, "tool_calls") else NOTHING

    def read(self, part: Any, into: Answered) -> None:
        into.model = text(get(part, "model")) or into.model
        if (error := get(part, "error")) is not None:
            into.error = error_name(error)
        if get(part, "done") is not True:
            return
        into.finished[0] = text(get(part, "done_reason")) or "stop"
        into.input_tokens = whole_number(get(part, "prompt_eval_count"))
        into.cached_tokens = whole_number(get(part, "prompt_eval_cached_count"))
        into.output_tokens = whole_number(get(part, "eval_count"))
        into.timings["ollama"] = part


class OllamaGenerate(OllamaChat):
    """``/api/generate``: a prompt, and the answer beside it."""

    operation = "text_completion"

    def brings(self, chunk: Any) -> int:
        if get(chunk, "response"):
            return ANSWER
        return TOKENS if get(chunk, "thinking") else NOTHING
