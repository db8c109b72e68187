"""What the fake server is told to do with a request, and what it wrote down of it.

Owns the shapes and their JSON form, for both cross from one process to another.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tracekit.testing.told import TOLD

#: Header that carries the script of one request as JSON, instead of its model's.
SCRIPT_HEADER: Final = "x-fake-script"

_USAGE: Final = ("asked", "always", "every", "never")


@dataclass(frozen=True)
class Script:
    """How one request goes. Times are [ms] that the server waits; it never computes anything.

    The order: ``headers_ms``, then ``queue_ms``, then ``prefill_ms``, then the first token, then a
    token chunk after every ``gap_ms`` (one number, or several that are gone through again and
    again; likewise ``tokens_per_chunk``): reasoning first, then a tool call, then the answer.
    """

    headers_ms: float = 0.0
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    gap_ms: float | Sequence[float] = 2.0
    #: chunks of the visible answer; with n > 1 there are so many of each choice
    chunks: int = 8
    tokens_per_chunk: int | Sequence[int] = 1
    reasoning_chunks: int = 0
    #: chunks of a tool call's arguments
    tool_chunks: int = 0

    #: all of the prompt, with what came from the cache
    prompt_tokens: int = 12
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    #: usage in streams of OpenAI's older formats: ``asked`` for with ``include_usage``, ``always``,
    #: on ``every`` chunk, ``never`` (which goes for whole responses too)
    usage: str = "asked"
    #: in the format's own words; None: that it stopped, or called a tool
    finish_reason: str | None = None
    #: send headers and what comes before tokens (role chunk, message_start) before the queue
    early_opening: bool = False
    #: send a comment (Anthropic: a ping) so often while nothing is to be said; headers go early
    keep_alive_ms: float | None = None

    #: other than 200: an error instead of an answer, after ``headers_ms``
    status: int = 200
    retry_after_s: float | None = None
    #: close the connection instead of answering
    drop: bool = False
    #: after so many chunks with tokens: close the connection, send an error event, or say no more
    cut_after: int | None = None
    error_after: int | None = None
    hang_after: int | None = None
    #: a stream without any event (but ``[DONE]``); a whole response without choices
    empty: bool = False
    #: only so many requests of this script fail as the above says, and later ones go well
    fail_first: int | None = None

    #: whose timing fields the response carries, with what really was: a key of `TOLD`
    timings: str | None = None
    #: more fields of a whole response, or of a stream's last chunk
    extra: Mapping[str, Any] = field(default_factory=dict)
    extra_headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.usage not in _USAGE:
            raise ValueError(f"usage is one of {', '.join(_USAGE)}, not {self.usage!r}")
        if self.timings is not None and self.timings not in TOLD:
            raise ValueError(f"timings are those of {', '.join(TOLD)}, not of {self.timings!r}")

    def gap(self, number: int) -> float:
        """[ms] before token chunk ``number``, from 1 (the first one has none)."""
        if isinstance(self.gap_ms, int | float):
            return float(self.gap_ms)
        return float(self.gap_ms[(number - 1) % len(self.gap_ms)])

    def tokens(self, number: int) -> int:
        """Tokens of token chunk ``number``, from 0."""
        if isinstance(self.tokens_per_chunk, int):
            return self.tokens_per_chunk
        return self.tokens_per_chunk[number % len(self.tokens_per_chunk)]

    def healed(self) -> Script:
        """This script without its failures."""
        return dataclasses.replace(
            self,
            status=200,
            drop=False,
            cut_after=None,
            error_after=None,
            hang_after=None,
            empty=False,
        )

    def to_json(self) -> str:
        """For `SCRIPT_HEADER`: one line of ASCII."""
        given = {
            f.name: value
            for f in dataclasses.fields(self)
            if (value := getattr(self, f.name)) != _default(f)
        }
        return json.dumps(given, default=list)

    @classmethod
    def from_json(cls, text: str) -> Script:
        """The opposite of `to_json`. ValueError or TypeError for anything else."""
        given = json.loads(text)
        if not isinstance(given, dict):
            raise TypeError("a script is a JSON object")
        return cls(**given)


def _default(of: dataclasses.Field[Any]) -> Any:
    return of.default if of.default is not dataclasses.MISSING else {}


class Sent(NamedTuple):
    """One thing the server put on the wire.

    ``kind``: ``content``, ``reasoning``, ``tool`` (these bring tokens), ``opening``, ``closing``,
    ``usage``, ``comment``, ``error``, ``done``, ``body`` (a whole response).
    """

    unix_ns: int
    kind: str
    tokens: int


TOKEN_KINDS: Final = frozenset({"content", "reasoning", "tool"})


@dataclass
class Record:
    """What really happened to one request: the truth that spans are compared with.

    Times are [unix ns] of the same machine's clock as the client's. ``outcome``: ``complete``,
    ``error`` (an HTTP status), ``stream_error``, ``cut``, ``dropped``, ``client_left``.
    """

    number: int
    path: str
    arrival_unix_ns: int
    headers: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    streaming: bool = False
    choices: int = 1
    response_id: str | None = None
    status: int | None = None
    headers_sent_unix_ns: int | None = None
    first_token_unix_ns: int | None = None
    sent: list[Sent] = field(default_factory=list)
    end_unix_ns: int | None = None
    outcome: str = "complete"
    #: as they were, which is a little more than the script said
    queue_ms: float | None = None
    prefill_ms: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def tokens_sent(self) -> list[Sent]:
        """What brought tokens, in order."""
        return [one for one in self.sent if one.kind in TOKEN_KINDS]

    @property
    def traceparent(self) -> str | None:
        return self.headers.get("traceparent")

    @property
    def trace_id(self) -> int | None:
        """Of the received ``traceparent``."""
        parts = (self.traceparent or "").split("-")
        return int(parts[1], 16) if len(parts) == 4 else None

    @property
    def span_id(self) -> int | None:
        """Of the received ``traceparent``."""
        parts = (self.traceparent or "").split("-")
        return int(parts[2], 16) if len(parts) == 4 else None

    @property
    def request_id(self) -> str | None:
        """The ``x-request-id`` received."""
        return self.headers.get("x-request-id")

    @property
    def client_left(self) -> bool:
        """Whether the client closed the connection before the answer was complete."""
        return self.outcome == "client_left"

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Record:
        return cls(**{**given, "sent": [Sent(*one) for one in given["sent"]]})
