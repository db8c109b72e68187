"""What was asked and what was answered, in the words of OpenTelemetry's GenAI conventions.

Owns the shapes and how a field of an unknown object is read; knows no format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

#: What a chunk brings.
NOTHING: Final = 0
#: tokens, but no part of the visible answer: reasoning, a tool call's name or arguments
TOKENS: Final = 1
#: the visible answer
ANSWER: Final = 2


@dataclass
class Asked:
    """One request: None where it does not say."""

    operation: str
    model: str | None = None
    streaming: bool = False
    max_tokens: int | None = None
    choices: int | None = None
    temperature: float | None = None
    top_p: float | None = None


@dataclass
class Answered:
    """What a response said so far: None where it did not.

    ``input_tokens`` includes cached ones, and ``output_tokens`` reasoning, however it was counted.
    """

    response_id: str | None = None
    model: str | None = None
    #: why each choice ended, by its index
    finished: dict[int, str] = field(default_factory=dict)
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    #: error class or code that came inside a response that began well
    error: str | None = None
    #: objects that providers put their own timings into, by name
    timings: dict[str, Any] = field(default_factory=dict)

    @property
    def finish_reasons(self) -> list[str]:
        """In the order of the choices."""
        return [self.finished[index] for index in sorted(self.finished)]


class Wire(Protocol):
    """One format of requests and responses."""

    operation: str
    #: chunk types that bring tokens, for formats whose chunks tell their type
    typed: frozenset[str] | None

    def ask(self, body: Mapping[str, Any]) -> Asked:
        """What a request's body asks for."""

    def brings(self, chunk: Any) -> int:
        """`NOTHING`, `TOKENS` or `ANSWER`."""

    def read(self, part: Any, into: Answered) -> None:
        """Take what a chunk, or a whole response, says. Later parts win: counts are cumulative."""


def get(thing: Any, name: str) -> Any:
    """A field of a dict or of a client library's object; None if it is not there."""
    if type(thing) is dict:
        return thing.get(name)
    return getattr(thing, name, None)


def extras(thing: Any) -> Mapping[str, Any]:
    """Fields that the client library has no name for; all of a dict's.

    Asking an object for each that might be there costs a microsecond a miss.
    """
    if type(thing) is dict:
        return thing
    found = getattr(thing, "model_extra", None)
    if found is None and not hasattr(thing, "model_fields_set"):
        found = getattr(thing, "__dict__", None)
    return found or {}


def whole_number(value: Any) -> int | None:
    """``value`` if it is a count."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None


def text(value: Any) -> str | None:
    """``value`` if it is a text that is not empty."""
    return value if isinstance(value, str) and value else None


def number(value: Any) -> float | None:
    """``value`` if it is a number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return None
