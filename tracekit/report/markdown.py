"""The little Markdown that reports need: tables and escaped cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    """``text`` as the content of a table cell."""
    return " ".join(text.replace("|", "\\|").split())


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
