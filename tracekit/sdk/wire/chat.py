"""OpenAI's chat completions and completions, and all that are compatible with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tracekit.sdk.wire.facts import (
    ANSWER,
    NOTHING,
    TOKENS,
    Answered,
    Asked,
    extras,
    get,
    number,
    text,
    whole_number,
)

#: Fields of a delta that bring tokens which are no visible answer.
_HIDDEN: Final = ("reasoning_content", "reasoning", "tool_calls", "function_call", "refusal")
#: Where providers of this format put their own timings.
_TIMINGS: Final = frozenset(
    {
        "time_info",
        "timings",
        "metrics",
        "perf_metrics",
        "stats",
        "nvext",
        "x_groq",
        "meta_info",
    }
)


class ChatCompletions:
    """``/chat/completions``: one choice or several, whole or in chunks."""

    operation = "chat"
    typed: frozenset[str] | None = None

    def ask(self, body: Mapping[str, Any]) -> Asked:
        return Asked(
            self.operation,
            text(body.get("model")),
            body.get("stream") is True,
            whole_number(body.get("max_completion_tokens")) or whole_number(body.get("max_tokens")),
            whole_number(body.get("n")),
            number(body.get("temperature")),
            number(body.get("top_p")),
        )

    def brings(self, chunk: Any) -> int:
        found = NOTHING
        for choice in get(chunk, "choices") or ():
            delta = get(choice, "delta")
            if delta is None:
                continue
            if get(delta, "content"):
                return ANSWER
            if any(get(delta, name) for name in _HIDDEN):
                found = TOKENS
        return found

    def read(self, part: Any, into: Answered) -> None:
        into.response_id = text(get(part, "id")) or into.response_id
        into.model = text(get(part, "model")) or into.model
        for choice in get(part, "choices") or ():
            reason = text(get(choice, "finish_reason"))
            if reason is not None:
                into.finished[whole_number(get(choice, "index")) or 0] = reason
        read_usage(get(part, "usage"), into)
        more = extras(part)
        if more:
            for name in _TIMINGS.intersection(more):
                if more[name] is not None:
                    into.timings[name] = more[name]
            if more.get("error") is not None:
                into.error = error_name(more["error"])


class Completions(ChatCompletions):
    """``/completions``: the older format, whose choices hold text."""

    operation = "text_completion"

    def brings(self, chunk: Any) -> int:
        return ANSWER if any(get(c, "text") for c in get(chunk, "choices") or ()) else NOTHING


def read_usage(usage: Any, into: Answered) -> None:
    """OpenAI's ``usage``, and DeepSeek's and Groq's fields of it."""
    if usage is None:
        return
    prompt = whole_number(get(usage, "prompt_tokens"))
    into.input_tokens = into.input_tokens if prompt is None else prompt
    output = whole_number(get(usage, "completion_tokens"))
    into.output_tokens = into.output_tokens if output is None else output
    details = get(usage, "prompt_tokens_details")
    cached = whole_number(get(details, "cached_tokens"))
    if cached is None:
        cached = whole_number(get(usage, "prompt_cache_hit_tokens"))
    into.cached_tokens = into.cached_tokens if cached is None else cached
    written = whole_number(get(details, "cache_write_tokens"))
    into.cache_write_tokens = into.cache_write_tokens if written is None else written
    reasoning = whole_number(get(get(usage, "completion_tokens_details"), "reasoning_tokens"))
    into.reasoning_tokens = into.reasoning_tokens if reasoning is None else reasoning
    if number(get(usage, "prompt_time")) is not None:
        into.timings["usage"] = usage


def error_name(error: Any) -> str:
    """The class of an error that a response holds: its code or type, never its text."""
    for name in ("code", "type"):
        value = get(error, name)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return "error"
