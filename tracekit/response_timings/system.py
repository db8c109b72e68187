"""What it takes to read one system's timings out of a response.

Owns the shape of that knowledge (`System`); where the response is found (a row of a request log, a
client library's object) and how its values are read is for those who look for it. Names are
compared in lower case with every separator as ``_``, so that ``nvext.timing.ttft_ms``,
``nvext_timing_ttft_ms`` and, for headers, ``X-Queue-Time`` and ``x_queue_time`` are the same.
Standard library only: applications read responses with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

#: A lifted value: durations and offsets in ms, times in unix ns, counts, ids and words.
Value = float | int | str | None

#: Fields of one row by name, in ms (durations, and times of a clock without a date), unix ns
#: (times), tokens (counts) or text; what the row does not say is not in it.
Fields = Mapping[str, float | int | str]

_SEPARATORS: Final = re.compile(r"[^0-9a-z]+")

#: Milliseconds in one of each unit of `System.fields`.
MS_PER: Final[Mapping[str, float]] = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class Lifted:
    """``value`` for our column ``target``, None if it is not known; ``how`` says, for a notice,
    what it was made of where it is not simply one field."""

    target: str
    value: Value
    how: str | None = None


@dataclass(frozen=True)
class Unset:
    """What the row's own column ``target`` says is not so; ``why`` is for a notice."""

    target: str
    why: str


@dataclass(frozen=True)
class Remark:
    """Something to tell of the row's timings."""

    text: str


#: What a system's `lift` yields.
Told = Lifted | Unset | Remark


@dataclass(frozen=True)
class Call:
    """What the client itself knows of the call; durations in ms from the sending on."""

    streaming: bool | None
    ttft_ms: float | None
    e2e_ms: float | None
    start_unix_ns: int | None
    output_tokens: int | None
    choices: int | None
    failed: bool


@dataclass(frozen=True)
class System:
    """How one system tells its timings in a response.

    ``fields``: path of a field inside the timing object -> how its cells are read (a unit of
    `MS_PER`; ``clock_s``, seconds of a clock without a date, 0 = not recorded; ``time``,
    ``count``, ``flag`` or ``text``). ``marks``: sets of fields one of which is all there wherever
    this is the system. ``beside``: further fields -> the columns of the client's own that hold
    them. ``only_with``: fields that are this system's only where another one is too.
    ``direct``: field -> our column that it becomes as it is. ``made``: fields that serve for what
    is computed. ``not_under``: ends of paths that are another system's. ``knows``: whether a row
    without marks is this system's by other fields.
    """

    label: str
    engine: str | None
    fields: Mapping[str, str]
    marks: tuple[frozenset[str], ...]
    direct: Mapping[str, str]
    lift: Callable[[Fields, Call], Iterator[Told]]
    made: frozenset[str] = frozenset()
    beside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    only_with: Mapping[str, str] = field(default_factory=dict)
    not_under: tuple[str, ...] = ()
    knows: Callable[[Fields], bool] = lambda _: False

    def marked(self, fields: Iterable[str]) -> bool:
        """Whether these fields show that the timings are this system's."""
        there = set(fields)
        return any(mark <= there for mark in self.marks)


def plain(name: str) -> str:
    """A column's name in lower case, its parts joined by ``_``."""
    return _SEPARATORS.sub("_", name.lower()).strip("_")


def apart(whole: float | None, *parts: float | None) -> float | None:
    """[ms] ``whole`` less its ``parts``; None where one is unknown or they do not fit into it.

    A difference within 1 ms or 1 % of nothing is nothing: clocks and roundings of two sides.
    """
    if whole is None:
        return None
    rest = whole
    for part in parts:
        if part is None:
            return None
        rest -= part
    if rest >= 0:
        return rest
    return 0.0 if -rest <= max(1.0, 0.01 * whole) else None
