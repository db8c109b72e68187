"""The little Markdown that reports need: tables and escaped cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tracekit.report import formats

#: Names come from outside: they may not begin HTML, nor turn the direction of writing.
_ESCAPES: Final = {ord("|"): "\\|", ord("<"): "&lt;", **dict.fromkeys(formats.DIRECTIONS)}


def cell(text: str) -> str:
    """``text`` on one line, as the content of a table cell, a heading or a bullet."""
    return " ".join(text.translate(_ESCAPES).split())


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()
) -> str:
    """A Markdown table; columns named in ``right`` are aligned to the right."""
    lines = [
        "| " + " | ".join(cell(h) for h in header) + " |",
        "| " + " | ".join("---:" if h in right else "---" for h in header) + " |",
    ]
    lines.extend("| " + " | ".join(cell(c) for c in row) + " |" for row in rows)
    return "\n".join(lines)
