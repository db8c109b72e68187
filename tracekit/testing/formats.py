"""The four formats the fake server speaks: bodies and events, and no times.

Owns what is said; when it is said is for `serve`. Texts are words without meaning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

CONTENT: Final = "content"
REASONING: Final = "reasoning"
TOOL: Final = "tool"

_CREATED: Final = 1_767_225_600


class Event(NamedTuple):
    """One server-sent event: what it is (`Sent.kind`), its JSON, and its ``event:`` name."""

    kind: str
    data: dict[str, Any]
    name: str | None = None

    def encode(self) -> bytes:
        head = f"event: {self.name}\n" if self.name else ""
        return f"{head}data: {json.dumps(self.data)}\n\n".encode()


@dataclass(frozen=True)
class Counts:
    """Tokens of one request; ``prompt`` holds the cached and written ones."""

    prompt: int
    cached: int
    written: int
    output: int
    reasoning: int


@dataclass(frozen=True)
class Ending:
    """How an answer ends: ``finish`` None for the usual; ``usage`` None where it is not told."""

    finish: str | None
    counts: Counts | None
    with_tool: bool
    body: Mapping[str, Any]
    usage: Mapping[str, Any]


class Format(Protocol):
    """One API: whole responses, streams, errors."""

    #: what ends a stream, if anything does
    done: bytes | None

    def opening(self) -> list[Event]:
        """What comes before the first token."""

    def token(self, kind: str, text: str, choice: int, counts: Counts | None) -> list[Event]:
        """One chunk with tokens (``counts`` so far, where every chunk tells them)."""

    def closing(self, ending: Ending) -> list[Event]:
        """What comes after the last token."""

    def whole(self, texts: Mapping[str, str], choices: int, ending: Ending) -> dict[str, Any]:
        """All at once: ``texts`` by kind."""

    def error_event(self) -> Event:
        """An error inside a stream that began well."""

    def error_body(self, status: int) -> dict[str, Any]:
        """The body of an error status."""

    def comment(self) -> bytes:
        """What keeps a connection alive and says nothing."""


class Chat:
    """OpenAI's chat completions, and with ``plain`` its completions."""

    done: bytes | None = b"data: [DONE]\n\n"

    def __init__(self, response_id: str, model: str, choices: int, *, plain: bool = False) -> None:
        self.id, self.model, self.choices, self.plain = response_id, model, choices, plain
        self._called: set[int] = set()

    def _chunk(self, choices: list[dict[str, Any]], counts: Counts | None) -> dict[str, Any]:
        data: dict[str, Any] = {
            "id": self.id,
            "object": "text_completion" if self.plain else "chat.completion.chunk",
            "created": _CREATED,
            "model": self.model,
            "choices": choices,
        }
        if counts is not None:
            data["usage"] = self._usage(counts)
        return data

    def _usage(self, counts: Counts) -> dict[str, Any]:
        return {
            "prompt_tokens": counts.prompt,
            "completion_tokens": counts.output,
            "total_tokens": counts.prompt + counts.output,
            "prompt_tokens_details": {"cached_tokens": counts.cached},
            "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
        }

    def opening(self) -> list[Event]:
        if self.plain:
            return []
        return [
            Event("opening", self._chunk([_choice(i, {"role": "assistant", "content": ""})], None))
            for i in range(self.choices)
        ]

    def token(self, kind: str, text: str, choice: int, counts: Counts | None) -> list[Event]:
        if self.plain:
            said = {"index": choice, "text": text, "logprobs": None, "finish_reason": None}
            return [Event(kind, self._chunk([said], counts))]
        delta: dict[str, Any] = {"content": text}
        if kind == REASONING:
            delta = {"reasoning_content": text}
        elif kind == TOOL:
            call: dict[str, Any] = {"index": 0, "function": {"arguments": text}}
            if choice not in self._called:
                self._called.add(choice)
                call |= {"id": "call_fake", "type": "function"}
                call["function"]["name"] = "look_up"
            delta = {"tool_calls": [call]}
        return [Event(kind, self._chunk([_choice(choice, delta)], counts))]

    def _finish(self, ending: Ending) -> str:
        return ending.finish or ("tool_calls" if ending.with_tool else "stop")

    def closing(self, ending: Ending) -> list[Event]:
        events = []
        for i in range(self.choices):
            last: dict[str, Any] = (
                {"index": i, "text": "", "logprobs": None} if self.plain else _choice(i, {})
            )
            events.append(
                Event(
                    "closing", self._chunk([last | {"finish_reason": self._finish(ending)}], None)
                )
            )
        if ending.counts is not None:
            events.append(Event("usage", self._chunk([], ending.counts)))
            events[-1].data["usage"].update(ending.usage)
        events[-1].data.update(ending.body)
        return events

    def whole(self, texts: Mapping[str, str], choices: int, ending: Ending) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": texts.get(CONTENT) or None}
        if REASONING in texts:
            message["reasoning_content"] = texts[REASONING]
        if TOOL in texts:
            function = {"name": "look_up", "arguments": texts[TOOL]}
            message["tool_calls"] = [{"id": "call_fake", "type": "function", "function": function}]
        said = {"text": texts.get(CONTENT, "")} if self.plain else {"message": message}
        data: dict[str, Any] = {
            "id": self.id,
            "object": "text_completion" if self.plain else "chat.completion",
            "created": _CREATED,
            "model": self.model,
            "choices": [
                {"index": i, "logprobs": None, "finish_reason": self._finish(ending), **said}
                for i in range(choices)
            ],
        }
        if ending.counts is not None:
            data["usage"] = self._usage(ending.counts) | dict(ending.usage)
        return data | dict(ending.body)

    def error_event(self) -> Event:
        return Event("error", self.error_body(500))

    def error_body(self, status: int) -> dict[str, Any]:
        kind, code = {
            429: ("rate_limit_error", "rate_limit_exceeded"),
            404: ("invalid_request_error", "model_not_found"),
        }.get(status, ("server_error", "fake_error"))
        return {"error": {"message": "scripted", "type": kind, "param": None, "code": code}}

    def comment(self) -> bytes:
        return b": keep-alive\n\n"


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


class Responses:
    """OpenAI's responses."""

    done: bytes | None = None

    def __init__(self, response_id: str, model: str) -> None:
        self.id, self.model = response_id, model
        self._number = -1
        self._texts: dict[str, str] = {}
        self._places: dict[str, int] = {}

    def _event(self, kind: str, name: str, **data: Any) -> Event:
        self._number += 1
        return Event(kind, {"type": name, "sequence_number": self._number, **data}, name)

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": _CREATED,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self.model,
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None,
        }

    def _item(self, kind: str, text: str, status: str) -> dict[str, Any]:
        if kind == REASONING:
            summary = [{"type": "summary_text", "text": text}] if text else []
            return {"id": "rs_fake", "type": "reasoning", "summary": summary}
        if kind == TOOL:
            return {
                "id": "fc_fake",
                "type": "function_call",
                "call_id": "call_fake",
                "name": "look_up",
                "arguments": text,
                "status": status,
            }
        content = [{"type": "output_text", "text": text, "annotations": []}] if text else []
        return {
            "id": "msg_fake",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def opening(self) -> list[Event]:
        return [
            self._event("opening", name, response=self._response("in_progress", []))
            for name in ("response.created", "response.in_progress")
        ]

    def token(self, kind: str, text: str, choice: int, counts: Counts | None) -> list[Event]:
        events = []
        if kind not in self._places:
            self._places[kind] = len(self._places)
            at = {"output_index": self._places[kind]}
            item = self._item(kind, "", "in_progress")
            events.append(self._event("opening", "response.output_item.added", item=item, **at))
            inside: dict[str, Any] = {**at, "item_id": item["id"]}
            if kind == CONTENT:
                part = {"type": "output_text", "text": "", "annotations": []}
                events.append(
                    self._event(
                        "opening",
                        "response.content_part.added",
                        content_index=0,
                        part=part,
                        **inside,
                    )
                )
            elif kind == REASONING:
                events.append(
                    self._event(
                        "opening",
                        "response.reasoning_summary_part.added",
                        summary_index=0,
                        part={"type": "summary_text", "text": ""},
                        **inside,
                    )
                )
        self._texts[kind] = self._texts.get(kind, "") + text
        place: dict[str, Any] = {"output_index": self._places[kind], "delta": text}
        if kind == REASONING:
            name = "reasoning_summary_text"
            place |= {"item_id": "rs_fake", "summary_index": 0}
        elif kind == TOOL:
            name = "function_call_arguments"
            place |= {"item_id": "fc_fake"}
        else:
            name = "output_text"
            place |= {"item_id": "msg_fake", "content_index": 0, "logprobs": []}
        return [*events, self._event(kind, f"response.{name}.delta", **place)]

    def closing(self, ending: Ending) -> list[Event]:
        events = [
            self._event(
                "closing",
                "response.output_item.done",
                output_index=at,
                item=self._item(kind, self._texts[kind], "completed"),
            )
            for kind, at in self._places.items()
        ]
        whole = self.whole(self._texts, 1, ending)
        name = "response.incomplete" if whole["status"] == "incomplete" else "response.completed"
        return [*events, self._event("closing", name, response=whole)]

    def whole(self, texts: Mapping[str, str], choices: int, ending: Ending) -> dict[str, Any]:
        output = [self._item(kind, text, "completed") for kind, text in texts.items()]
        whole = self._response("incomplete" if ending.finish else "completed", output)
        if ending.finish:
            whole["incomplete_details"] = {"reason": ending.finish}
        if (counts := ending.counts) is not None:
            whole["usage"] = {
                "input_tokens": counts.prompt,
                "input_tokens_details": {"cached_tokens": counts.cached},
                "output_tokens": counts.output,
                "output_tokens_details": {"reasoning_tokens": counts.reasoning},
                "total_tokens": counts.prompt + counts.output,
                **ending.usage,
            }
        return whole | dict(ending.body)

    def error_event(self) -> Event:
        return self._event("error", "error", code="server_error", message="scripted", param=None)

    def error_body(self, status: int) -> dict[str, Any]:
        return Chat("", "", 1).error_body(status)

    def comment(self) -> bytes:
        return b": keep-alive\n\n"


_BLOCKS: Final[dict[str, dict[str, Any]]] = {
    REASONING: {"type": "thinking", "thinking": "", "signature": ""},
    TOOL: {"type": "tool_use", "id": "toolu_fake", "name": "look_up", "input": {}},
    CONTENT: {"type": "text", "text": ""},
}


class Messages:
    """Anthropic's messages: its input count leaves out what came from, or went to, the cache."""

    done: bytes | None = None

    def __init__(self, response_id: str, model: str, counts: Counts) -> None:
        self.id, self.model, self.counts = response_id, model, counts
        self._open: list[str] = []

    def _usage(self, counts: Counts, output: int) -> dict[str, Any]:
        return {
            "input_tokens": counts.prompt - counts.cached - counts.written,
            "cache_read_input_tokens": counts.cached,
            "cache_creation_input_tokens": counts.written,
            "output_tokens": output,
        }

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _event(self, kind: str, name: str, **data: Any) -> Event:
        return Event(kind, {"type": name, **data}, name)

    def opening(self) -> list[Event]:
        message = self._message([]) | {"usage": self._usage(self.counts, 1)}
        return [self._event("opening", "message_start", message=message)]

    def _close_block(self) -> list[Event]:
        if not self._open:
            return []
        return [self._event("closing", "content_block_stop", index=len(self._open) - 1)]

    def token(self, kind: str, text: str, choice: int, counts: Counts | None) -> list[Event]:
        events = []
        if not self._open or self._open[-1] != kind:
            events = self._close_block()
            self._open.append(kind)
            at = len(self._open) - 1
            events.append(
                self._event("opening", "content_block_start", index=at, content_block=_BLOCKS[kind])
            )
        delta = {
            REASONING: {"type": "thinking_delta", "thinking": text},
            TOOL: {"type": "input_json_delta", "partial_json": text},
            CONTENT: {"type": "text_delta", "text": text},
        }[kind]
        at = len(self._open) - 1
        return [*events, self._event(kind, "content_block_delta", index=at, delta=delta)]

    def _finish(self, ending: Ending) -> str:
        return ending.finish or ("tool_use" if ending.with_tool else "end_turn")

    def closing(self, ending: Ending) -> list[Event]:
        delta = {"stop_reason": self._finish(ending), "stop_sequence": None}
        usage: dict[str, Any] = {"output_tokens": 0}
        if ending.counts is not None:
            usage = {"output_tokens": ending.counts.output, **ending.usage}
        last = self._event("closing", "message_delta", delta=delta, usage=usage)
        last.data.update(ending.body)
        return [*self._close_block(), last, self._event("closing", "message_stop")]

    def whole(self, texts: Mapping[str, str], choices: int, ending: Ending) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        for kind, text in texts.items():
            said: dict[str, Any] = {"text": text}
            if kind == REASONING:
                said = {"thinking": text}
            elif kind == TOOL:
                said = {"input": json.loads(text)}
            content.append(_BLOCKS[kind] | said)
        counts = ending.counts or self.counts
        return {
            **self._message(content),
            "stop_reason": self._finish(ending),
            "usage": self._usage(counts, counts.output) | dict(ending.usage),
            **ending.body,
        }

    def error_event(self) -> Event:
        body = {"type": "overloaded_error", "message": "scripted"}
        return self._event("error", "error", error=body)

    def error_body(self, status: int) -> dict[str, Any]:
        kind = {429: "rate_limit_error", 404: "not_found_error", 529: "overloaded_error"}
        name = kind.get(status, "api_error")
        return {"type": "error", "error": {"type": name, "message": "scripted"}}

    def comment(self) -> bytes:
        return b'event: ping\ndata: {"type": "ping"}\n\n'
