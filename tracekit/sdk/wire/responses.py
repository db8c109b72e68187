"""OpenAI's responses API: events that tell their type, and one object at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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

_ANSWERS: Final = frozenset({"response.output_text.delta", "response.audio.delta"})
_HIDDEN: Final = frozenset(
    {
        "response.refusal.delta",
        "response.reasoning_text.delta",
        "response.reasoning_summary_text.delta",
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
        "response.mcp_call_arguments.delta",
        "response.code_interpreter_call_code.delta",
    }
)


class Responses:
    """``/responses``."""

    operation = "chat"
    typed: frozenset[str] | None = _ANSWERS | _HIDDEN

    def ask(self, body: Mapping[str, Any]) -> Asked:
        return Asked(
            self.operation,
            text(body.get("model")),
            body.get("stream") is True,
            whole_number(body.get("max_output_tokens")),
            None,
            number(body.get("temperature")),
            number(body.get("top_p")),
        )

    def brings(self, chunk: Any) -> int:
        kind = get(chunk, "type")
        return ANSWER if kind in _ANSWERS else TOKENS if kind in _HIDDEN else NOTHING

    def read(self, part: Any, into: Answered) -> None:
        if get(part, "type") == "error":
            into.error = error_name(part)
            return
        whole = get(part, "response")
        if whole is None:
            whole = part if get(part, "object") == "response" else None
        if whole is None:
            return
        into.response_id = text(get(whole, "id")) or into.response_id
        into.model = text(get(whole, "model")) or into.model
        status = text(get(whole, "status"))
        if status == "completed":
            into.finished[0] = "stop"
        elif status == "incomplete":
            why = text(get(get(whole, "incomplete_details"), "reason"))
            into.finished[0] = "length" if why == "max_output_tokens" else why or "incomplete"
        elif status == "failed":
            into.error = error_name(get(whole, "error"))
        usage = get(whole, "usage")
        if usage is None:
            return
        into.input_tokens = whole_number(get(usage, "input_tokens"))
        into.output_tokens = whole_number(get(usage, "output_tokens"))
        into.cached_tokens = whole_number(get(get(usage, "input_tokens_details"), "cached_tokens"))
        into.reasoning_tokens = whole_number(
            get(get(usage, "output_tokens_details"), "reasoning_tokens")
        )
