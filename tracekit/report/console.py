"""Consoles and tables: width, colour and characters that the reader's terminal can show."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO, Final

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from tracekit.report import formats

#: Width where the output is no terminal (a file, a pipe) and COLUMNS says nothing.
_PIPE_WIDTH: Final = 110
_NARROWEST: Final = 40


#: Control characters but the line feed, and those that turn the direction of writing: ids and
#: notes come from outside and must not steer the reader's terminal.
_CONTROL: Final = dict.fromkeys(
    c for c in (*range(32), *range(127, 160), *formats.DIRECTIONS) if c != 10
)


class _Console(Console):
    """Prints text without the control characters that data may hold."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(segment.text.translate(_CONTROL), segment.style)


def make_console(stream: IO[str], *, width: int | None = None) -> Console:
    """A console on ``stream``: no colour with NO_COLOR or outside a terminal, never under 40 wide.

    Text is printed as it stands: numbers are not recoloured and ``[x]`` in data is no markup.
    """
    if width is None and not stream.isatty():
        width = _columns() or _PIPE_WIDTH
    console = _Console(
        file=stream,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        safe_box=True,
    )
    if console.width < _NARROWEST:
        console.width = _NARROWEST
    return console


def make_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An undecorated table; columns named in ``right`` hold numbers and never wrap."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        if name in right:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    return table


def _columns() -> int | None:
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdigit() and int(text) > 0 else None
