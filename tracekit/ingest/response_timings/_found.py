"""Where a request log has the timings of a system, and how their cells are read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tracekit.ingest import _cells
from tracekit.ingest._cells import CellError
from tracekit.ingest._request_files import Row
from tracekit.response_timings.system import System, plain

__all__ = ["Found", "find", "plain"]

_TEXT_LIMIT: Final = 200
_LATEST_CLOCK_MS: Final = 1e13


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
