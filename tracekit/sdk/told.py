"""What an author may tell of a request: roles, phases, facts, headers, and how each is read.

Owns the names and their kinds; when they are told is `request`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tracekit.names import SUB_PHASES
from tracekit.sdk.call import ABORTED, ERROR, OK, TIMEOUT, Call
from tracekit.sdk.emit import CLIENT
from tracekit.sdk.wire.facts import NOTHING, Answered, Asked, text, whole_number

#: What a request may be to the component that tells of it.
ROLES: Final = ("engine", "prefill_engine", "decode_engine", "gateway", "router", CLIENT)

#: Phases that may be told, and what they are made of.
TOLD_PHASES: Final = frozenset(
    ("queue", "prefill", "queue_or_prefill", "kv_transfer", "decode", *SUB_PHASES)
)

#: Phases of one request that become spans; a scheduler may tell of very many small ones.
PHASES_MAX: Final = 256

STATUSES: Final = (OK, ERROR, ABORTED, TIMEOUT)

#: Counts that may be set.
_COUNTS: Final = frozenset(
    (
        "input_tokens",
        "output_tokens",
        "cached_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
    )
)
#: What may be set -> attribute, how its value is read.
_ATTRIBUTES: Final = {
    "kv_bytes": ("tracekit.kv_bytes", whole_number),
    "preemptions": ("tracekit.preemptions", whole_number),
    "pair_id": ("tracekit.pair_id", text),
    "worker": ("tracekit.worker", text),
    "engine": ("tracekit.engine", text),
    "route": ("tracekit.route", text),
    "tenant": ("tracekit.tenant", text),
}


class _Own:
    """The format of what is told in Python: nothing goes over a wire."""

    operation = "chat"
    typed: frozenset[str] | None = None

    def ask(self, body: Mapping[str, Any]) -> Asked:
        return Asked(self.operation)

    def brings(self, chunk: Any) -> int:
        return NOTHING

    def read(self, part: Any, into: Answered) -> None:
        pass


OWN: Final = _Own()


def take_fact(call: Call, name: str, value: Any) -> None:
    """One of `Request.set`; ValueError for a name or value that is none."""
    answer = call.answer
    if name in _COUNTS:
        setattr(answer, name, known(whole_number(value), name))
    elif name in _ATTRIBUTES:
        attribute, read = _ATTRIBUTES[name]
        call.extra[attribute] = known(read(value), name)
    elif name in ("finish_reason", "finish_reasons"):
        reasons = [value] if isinstance(value, str) else value
        answer.finished = dict(enumerate(known(text(r), name) for r in reasons))
    elif name == "response_id":
        answer.response_id = known(text(value), name)
    elif name == "response_model":
        answer.model = known(text(value), name)
    elif name == "request_id":
        call.request_id = known(text(value), name)
    else:
        raise ValueError(f"{name!r} is nothing that can be set")


def known(value: Any, name: str) -> Any:
    """``value``; ValueError if it is None, for it was of the wrong kind."""
    if value is None:
        raise ValueError(f"a value of {name!r} is of the wrong kind")
    return value


def lower_headers(headers: Mapping[str, str] | Iterable[tuple[Any, Any]] | None) -> dict[str, str]:
    """Headers of any framework by name in lower case; ASGI has pairs of bytes."""
    if headers is None:
        return {}
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return {_text(name).lower(): _text(value) for name, value in pairs}


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
