"""Grammar for every room: the one place where a count meets its noun."""

from __future__ import annotations


def plural(n: int, noun: str, nouns: str | None = None) -> str:
    """``1 request``, ``2 requests``; ``nouns`` where the plural is irregular."""
    return f"{n:,} {noun if n == 1 else nouns or noun + 's'}"


def verb(n: int, one: str, several: str) -> str:
    """The form of a verb that fits: ``verb(n, "has", "have")``."""
    return one if n == 1 else several
