"""What an import did: rows taken, refused (why, where), duplicate, and what was mapped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_PLACES: Final = 3


@dataclass(frozen=True)
class Refusal:
    """``count`` items refused for one reason; ``where`` names the first few places."""

    reason: str
    where: str
    count: int
    detail: str


@dataclass(frozen=True)
class DifferingRow:
    """A row that was not taken, since one with the same id and start is there, which differs."""

    file: str
    row: int
    fields: tuple[str, ...]


@dataclass(frozen=True)
class FileSummary:
    """One input. ``taken`` counts rows written, ``tables`` the same by table; ``mapped`` is
    their column to ours, ``unmapped`` the columns kept only as extra. ``duplicates`` say what is
    there already; ``differing`` have the id and start of such a row, but other values (the first
    one is kept), and ``differs`` is an example."""

    path: str
    format: str
    taken: int
    refused: tuple[Refusal, ...]
    duplicates: int
    tables: Mapping[str, int] = field(default_factory=dict)
    mapped: Mapping[str, str] = field(default_factory=dict)
    unmapped: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    differing: int = 0
    differs: DifferingRow | None = None

    @property
    def refused_count(self) -> int:
        return sum(r.count for r in self.refused)

    def to_json(self) -> dict[str, Any]:
        """A JSON object (as a dict)."""
        return {
            "path": self.path,
            "format": self.format,
            "taken": self.taken,
            "refused": self.refused_count,
            "duplicates": self.duplicates,
            "differing": self.differing,
            "differing_example": None
            if self.differs is None
            else {
                "file": self.differs.file,
                "row": self.differs.row,
                "fields": list(self.differs.fields),
            },
            "tables": dict(self.tables),
            "mapped": dict(self.mapped),
            "unmapped": list(self.unmapped),
            "notices": list(self.notices),
            "refusals": [
                {"reason": r.reason, "where": r.where, "count": r.count, "detail": r.detail}
                for r in self.refused
            ],
        }


@dataclass(frozen=True)
class ImportSummary:
    """All inputs of one import, in the order they were read."""

    files: tuple[FileSummary, ...]

    @property
    def taken(self) -> int:
        return sum(f.taken for f in self.files)

    @property
    def refused_count(self) -> int:
        return sum(f.refused_count for f in self.files)

    @property
    def duplicates(self) -> int:
        return sum(f.duplicates for f in self.files)

    @property
    def differing(self) -> int:
        return sum(f.differing for f in self.files)

    def to_json(self) -> dict[str, Any]:
        """A JSON object (as a dict): totals and one entry a file."""
        return {
            "taken": self.taken,
            "refused": self.refused_count,
            "duplicates": self.duplicates,
            "differing": self.differing,
            "files": [f.to_json() for f in self.files],
        }


class Tally:
    """Counts refusals by reason while a file is read."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._places: dict[str, list[str]] = {}
        self._details: dict[str, str] = {}

    def add(self, reason: str, where: str, detail: str) -> None:
        self._counts[reason] = self._counts.get(reason, 0) + 1
        places = self._places.setdefault(reason, [])
        if len(places) < _PLACES and where not in places:
            places.append(where)
        self._details.setdefault(reason, detail)

    def refusals(self) -> tuple[Refusal, ...]:
        """The most frequent first; ``detail`` is that of the first item."""
        ordered = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return tuple(
            Refusal(reason, self._where(reason, count), count, self._details[reason])
            for reason, count in ordered
        )

    def _where(self, reason: str, count: int) -> str:
        places = self._places[reason]
        return ", ".join(places) + (", ..." if count > len(places) else "")
