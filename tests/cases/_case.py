"""The form of a case: what goes in, what must and must not come out.

Owns the words of ``expected.json``. Every expectation here is computed from the case's own calls or
taken from the report of the user who had the problem; none comes from an answer of this project.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

#: Advice and blame that no case may get unless it is about just that.
MORE_HARDWARE: Final = r"\b(add|buy|more|bigger|faster) (GPUs?|replicas?|hardware|workers)"
SLOW_WORKER: Final = r"slower than its peers|out of rotation"
PREFILL_STALL: Final = r"other requests were prefilling|prefill_interference"
LOST_IN: Final = r"lost their time in {}"


@dataclass(frozen=True)
class Case:
    """``files``: name to text. ``expect``: the content of ``expected.json`` (see README.md)."""

    name: str
    about: str
    story: str
    files: dict[str, str]
    expect: dict[str, Any] = field(default_factory=dict)


def approx(value: float, within: float) -> dict[str, float]:
    """A number that may differ by ``within`` in its own unit."""
    return {"approx": round(value, 4), "within": round(within, 4)}


def at_least(value: float) -> dict[str, float]:
    return {"at_least": round(value, 4)}


def at_most(value: float) -> dict[str, float]:
    return {"at_most": round(value, 4)}


def ids(calls: Sequence[Any]) -> list[str]:
    return [c.id for c in calls]
