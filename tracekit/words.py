"""Grammar for every room: the one place where a count meets its noun."""

from __future__ import annotations


def plural(n: int, noun: str, nouns: str | None = None) -> str:
    """``1 request``, ``2 requests``; ``nouns`` where the plural is irregular."""
    return f"{n:,} {noun if n == 1 else nouns or noun + 's'}"


def verb(n: int, one: str, several: str) -> str:
    """The form of a verb that fits: ``verb(n, "has", "have")``."""
    return one if n == 1 else several


def reach_text(phase: str, reach: float, context: float | None, *, per_byte: bool) -> str:
    """The largest size that a phase was fitted on: ``64 tokens``, ``83 steps, context 94``.

    The context of a prefill goes without saying where little of a prompt came from a cache.
    """
    n = round(reach)
    if phase == "decode":
        text = plural(n, "step")
    elif phase == "kv_transfer":
        text = plural(n, "byte" if per_byte else "prompt token")
    else:
        text = plural(n, "token")
    if context is None or (phase != "decode" and context <= reach):
        return text
    return f"{text}, context {round(context):,}"
