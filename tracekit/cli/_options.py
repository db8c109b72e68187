"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from tracekit.analysis.window import Window

#: More rows no store holds; SQL counts them in 64 bits.
MAX_COUNT: Final = 10**15

Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        envvar="TRACEKIT_STORE",
        show_default=False,
        show_envvar=False,
        help="Store directory (TRACEKIT_STORE; else the user data folder).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="From when: ISO time, unix ns, a duration back from now (15m), or A..B.",
    ),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Until when (not included).")
]
Model = Annotated[str | None, typer.Option("--model", help="Only this model.")]
Route = Annotated[str | None, typer.Option("--route", help="Only this route.")]
SloText = Annotated[
    str | None,
    typer.Option(
        "--slo",
        metavar="SLO",
        help="The SLO, e.g. ttft=800ms,tpot=50ms,e2e=10s. Without: the slowest 5 % are slow.",
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="A..B",
        help="Window that shows what is normal. Without: the window itself.",
    ),
]


def store_path(store: Path | None) -> Path:
    """The store to use: the option, else the environment's or the platform's."""
    if store is not None:
        return store
    from tracekit.lake.store import default_store_path

    return default_store_path()


def window(since: str | None, until: str | None) -> Window:
    """The window of ``--since``/``--until``; UsageError for what is no time."""
    from tracekit.analysis.window import parse_window

    return parse_window(since, until, now_unix_ns=time.time_ns())


def range_of(text: str | None) -> Window | None:
    """The window of ``--baseline``; None where it is not given."""
    if text is None:
        return None
    from tracekit.analysis.window import parse_range

    return parse_range(text, now_unix_ns=time.time_ns())
