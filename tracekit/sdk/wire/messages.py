"""Anthropic's messages: its input counts leave out what came from, or went to, the cache."""

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

_DELTA: Final = "content_block_delta"


class Messages:
    """``/v1/messages``: ``message_start`` comes before the first token, counts are cumulative."""

    operation = "chat"
    typed: frozenset[str] | None = frozenset({_DELTA})

    def ask(self, body: Mapping[str, Any]) -> Asked:
        return Asked(
            self.operation,
            text(body.get("model")),
            body.get("stream") is True,
            whole_number(body.get("max_tokens")),
            None,
            number(body.get("temperature")),
            number(body.get("top_p")),
        )

    def brings(self, chunk: Any) -> int:
        if get(chunk, "type") != _DELTA:
            return NOTHING
        return ANSWER if get(get(chunk, "delta"), "type") == "text_delta" else TOKENS

    def read(self, part: Any, into: Answered) -> None:
        kind = get(part, "type")
        if kind == "error":
            into.error = error_name(get(part, "error"))
            return
        message = get(part, "message") if kind == "message_start" else part
        if kind in ("message_start", "message"):
            into.response_id = text(get(message, "id")) or into.response_id
            into.model = text(get(message, "model")) or into.model
        if kind in ("message_start", "message", "message_delta"):
            said = get(message, "delta") if kind == "message_delta" else message
            reason = text(get(said, "stop_reason"))
            if reason is not None:
                into.finished[0] = reason
            _read_usage(get(message, "usage"), into)


def _read_usage(usage: Any, into: Answered) -> None:
    if usage is None:
        return
    fresh = whole_number(get(usage, "input_tokens"))
    read = whole_number(get(usage, "cache_read_input_tokens"))
    written = whole_number(get(usage, "cache_creation_input_tokens"))
    if fresh is not None:
        into.input_tokens = fresh + (read or 0) + (written or 0)
    into.cached_tokens = into.cached_tokens if read is None else read
    into.cache_write_tokens = into.cache_write_tokens if written is None else written
    output = whole_number(get(usage, "output_tokens"))
    into.output_tokens = into.output_tokens if output is None else output
