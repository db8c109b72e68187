"""Consoles and tables: width, colour and characters that the reader's terminal can show."""

from __future__ import annotations

import os
from typing import IO, Final

from rich import box
from rich.console import Console
from rich.table import Table

#: Width where the output is no terminal (a file, a pipe) and COLUMNS says nothing.
_PIPE_WIDTH: Final = 110
_NARROWEST: Final = 40


def make_console(stream: IO[str], *, width: int | None = None) -> Console:
    """A console on ``stream``: no colour with NO_COLOR or outside a terminal, never under 40 wide.

    Text is printed as it stands: numbers are not recoloured and ``[x]`` in data is no markup.
    """
    if width is None and not stream.isatty():
        width = _columns() or _PIPE_WIDTH
    console = Console(
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
