"""A line of an engine's log about one request, as a row of `spans`: a record span.

So the lake, settling and ``sql/sources`` treat it as any span. Owns its shape and its identity;
what a line means is its system's module's, what its fields mean ``sql/sources``'.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, NamedTuple

from tracekit.errors import SourceError

#: Scope of record spans, before the name of their format.
SCOPE: Final = "tracekit.import."

#: A longer line is none that says anything of a request: debug output of a whole prompt, say.
MAX_LINE_BYTES: Final = 1 << 20

#: First bytes of the trace ids that are made up here: no tracing system knows them.
MADE_UP: Final = b"tkrec"


@dataclass(frozen=True)
class Record:
    """One record. ``identity`` is what names it wherever it is read again; times in unix ns.

    ``attributes`` are the fields as the engine wrote them: its names, its units. The ids are those
    of the span that a line says it was written in, hex digits.
    """

    name: str
    identity: str
    start_unix_ns: int
    end_unix_ns: int
    attributes: dict[str, Any]
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None


@dataclass(frozen=True)
class Sample:
    """One gauge of a process at one time [unix ns], as a scrape of its metrics would have it."""

    name: str
    unit: str
    at_unix_ns: int
    value: float
    attributes: dict[str, Any]


@dataclass(frozen=True)
class BadLine:
    """A line that looks like a record and cannot be read."""

    reason: str
    detail: str


class Line(NamedTuple):
    """One line of a file, numbered from 1."""

    number: int
    text: bytes


@dataclass(frozen=True)
class Facts:
    """What the user said of a log: the zero of its clock [unix ns], where its lines lack a date.

    ``remarks``: what its reader found that the user should know, and how often; ``{n}`` in a text
    stands for that.
    """

    log_start_unix_ns: int | None = None
    remarks: Counter[str] = field(default_factory=Counter, compare=False)

    def notices(self) -> list[str]:
        """The remarks with their counts, in the order of their first time."""
        return [text.replace("{n}", f"{count:,}") for text, count in self.remarks.items()]


#: What a reader gives: records, samples and bad lines with their line, None for a line about none.
#: A line that is one of several about a request brings nothing by itself.
Read = Iterator[tuple[int, "Record | list[Sample] | BadLine | None"]]


@dataclass(frozen=True)
class EngineLog:
    """One format. ``service`` names the process unless the user does; ``read`` never raises but
    SourceError."""

    format: str
    label: str
    service: str
    looks_like: Callable[[bytes], bool]
    read: Callable[[Iterable[Line], Facts], Read]
    #: what the file must hold to be of use, for the error when it does not
    wants: str = field(default="a record of a request")
    #: whether its times count from the start of the process: then one start is one log's
    counts_from_start: bool = False


def ids_of(log: EngineLog, record: Record) -> tuple[bytes, bytes, bytes]:
    """(trace id, span id, parent) of a record: the same wherever and whenever it is read."""
    named = hashlib.sha256(f"{log.format}|{record.identity}".encode()).digest()
    whole = hashlib.sha256(f"{log.format}|{record.identity}|{record.name}".encode()).digest()
    trace_id = MADE_UP + named[:11]
    return (
        _told(record.trace_id, 16) or trace_id,
        _told(record.span_id, 8) or whole[:8],
        _told(record.parent_span_id, 8),
    )


def _told(text: str | None, size: int) -> bytes:
    """An id of ``size`` bytes from its hex digits; empty if it is none."""
    try:
        told = bytes.fromhex(text or "")
    except ValueError:
        return b""
    return told if len(told) == size and any(told) else b""


def lines_of(chunks: Iterable[bytes]) -> Iterator[Line]:
    """Numbered lines without their ends."""
    for number, text in enumerate(chunks, start=1):
        yield Line(number, text.rstrip(b"\r\n"))


def lines_in(stream: BinaryIO, *, is_cut: Callable[[], bool]) -> Iterator[Line]:
    """`lines_of` a file, empty ones for those over `MAX_LINE_BYTES`.

    ``is_cut`` is asked at its end: a line without an end is half a line then, and no line.
    """
    number = 0
    while text := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if text.endswith(b"\n"):
            yield Line(number, text.rstrip(b"\r\n"))
        elif len(text) > MAX_LINE_BYTES:
            while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                continue
            yield Line(number, b"")
        elif not is_cut():
            yield Line(number, text)


def time_ns(value: object, *, per_s: int) -> int | None:
    """Unix ns of a number that counts ``per_s`` a second since 1970; None if it is no time."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not value == value:
        return None
    if not 0 < value < 7_258_118_400 * per_s:
        return None
    if isinstance(value, int):
        return value * (1_000_000_000 // per_s)
    return round(value * (1_000_000_000 // per_s))


def duration_ns(value: object, *, per_s: int) -> int | None:
    """Ns of a number that counts ``per_s`` a second; None if it is no duration of at most a day."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 <= value <= 86_400 * per_s:
        return None
    return round(value * (1_000_000_000 // per_s))


__all__ = [
    "MADE_UP",
    "SCOPE",
    "BadLine",
    "EngineLog",
    "Facts",
    "Line",
    "Read",
    "Record",
    "Sample",
    "SourceError",
    "duration_ns",
    "ids_of",
    "lines_in",
    "lines_of",
    "time_ns",
]
