"""The ``tracekit`` command.

Owns the way in and nothing else: the application lives in :mod:`tracekit.cli._app`, which is
imported only when the command runs, so that ``import tracekit`` stays light and an environment
with the base package alone is told in one line what to install.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``tracekit`` with ``arguments`` (default: the process's); ends in SystemExit.

    Exit codes: 0 ok, 1 a gate failed (``diagnose --fail``), 2 usage, 3 bad data.
    """
    words = sys.argv[1:] if arguments is None else arguments
    # most of what a command makes lives until it ends: looking through it for cycles after every
    # 700 objects costs a tenth of a short command
    gc.set_threshold(100_000)
    with _signals(words):
        try:
            from tracekit.cli._app import run
        except ModuleNotFoundError as error:
            from tracekit.cli._extras import missing_extra

            line = missing_extra(error)
            if line is None:
                raise
            print(f"tracekit: {line}", file=sys.stderr)
            raise SystemExit(2) from None
        run(arguments)


def _signals(words: Sequence[str]) -> AbstractContextManager[object]:
    """``collect`` ends cleanly on a signal, from the first moment on: its imports take a second."""
    if list(words[:1]) != ["collect"]:
        return nullcontext()
    from tracekit_collectors.signals import stop_on_signals

    return stop_on_signals()
