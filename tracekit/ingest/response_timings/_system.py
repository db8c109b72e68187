"""What it takes to read one system's timings out of a row of a request log.

Owns the shape of that knowledge (`System`), how a timing object is found among the columns of a
file (`Found`) and how its cells are read. Names are compared in lower case with every separator
as ``_``, so that ``nvext.timing.ttft_ms``, ``nvext_timing_ttft_ms`` and, for headers,
``X-Queue-Time`` and ``x_queue_time`` are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tracekit.ingest import _cells
from tracekit.ingest._cells import CellError
from tracekit.ingest._request_files import Row

#: A lifted value: durations and offsets in ms, times in unix ns, counts, ids and words.
Value = float | int | str | None

#: Fields of one row by name, in ms (durations, and times of a clock without a date), unix ns
#: (times), tokens (counts) or text; what the row does not say is not in it.
Fields = Mapping[str, float | int | str]

_SEPARATORS: Final = re.compile(r"[^0-9a-z]+")
_TEXT_LIMIT: Final = 200
_LATEST_CLOCK_MS: Final = 1e13


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
    """What the row's own columns say of the call; durations in ms from the sending on."""

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
    `_cells.MS_PER`; ``clock_s``, seconds of a clock without a date, 0 = not recorded; ``time``,
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


@dataclass(frozen=True)
class Found:
    """Where a file has the timings of ``system``: field -> the file's column."""

    system: System
    columns: Mapping[str, str]

    def mapped(self, lifted: Collection[str]) -> dict[str, str]:
        """Their column -> ours, of each that became one of ``lifted`` as it is."""
        return {
            self.columns[name]: target
            for name, target in self.system.direct.items()
            if name in self.columns and target in lifted
        }

    def consumed(self) -> Iterator[str]:
        """Columns that are told by what they become: they need not be kept as they are."""
        for name, column in self.columns.items():
            if name in self.system.direct or name in self.system.made:
                yield column

    def fields(self, row: Row) -> dict[str, float | int | str]:
        """What ``row`` says. Raises `CellError`, naming the column, for a cell that is none."""
        out: dict[str, float | int | str] = {}
        for name, column in self.columns.items():
            cell = row.get(column)
            if cell is None or _cells.is_null(cell):
                continue
            try:
                value = _read(cell, self.system.fields[name])
            except CellError as error:
                raise CellError(error.reason, f"{column}: {error}") from None
            if value is not None:
                out[name] = value
        return out


def plain(name: str) -> str:
    """A column's name in lower case, its parts joined by ``_``."""
    return _SEPARATORS.sub("_", name.lower()).strip("_")


def find(system: System, names: Mapping[str, str]) -> list[Found]:
    """Each place where columns are the timings of ``system``; ``names``: column -> `plain`."""
    places: dict[str, dict[str, str]] = {}
    inside = [name for name in system.fields if name not in system.beside]
    for column, words in names.items():
        for name in inside:
            if words == name or words.endswith("_" + name):
                place = words[: len(words) - len(name)].strip("_")
                if not place.endswith(system.not_under or ("\0",)):
                    places.setdefault(place, {}).setdefault(name, column)
    found = []
    for there in places.values():
        if not system.marked(there):
            continue
        for name, spellings in system.beside.items():
            beside = next((c for c, words in names.items() if words in spellings), None)
            if beside is not None:
                there[name] = beside
        for name, other in system.only_with.items():
            if name in there and other not in there:
                del there[name]
        found.append(Found(system, there))
    return found


def _read(cell: object, kind: str) -> float | int | str | None:
    if kind in _cells.MS_PER:
        return _cells.parse_duration(cell, unit=kind)
    if kind == "clock_s":
        ms = _cells.parse_real(cell) * 1e3
        if ms > _LATEST_CLOCK_MS:
            raise CellError("out_of_range", f"{_cells.show(cell)} is too large for a clock")
        return ms or None  # 0: not recorded
    if kind == "time":
        return _cells.parse_time(cell)[0]
    if kind == "count":
        return _cells.parse_count(cell)
    if kind == "flag":
        return _cells.parse_flag(cell)
    return _cells.parse_text(cell, limit=_TEXT_LIMIT) or None


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
