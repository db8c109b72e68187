"""How the command ends: every error one clear line on stderr, every exit code as documented.

| code | meaning |
| --- | --- |
| 0 | ok |
| 1 | a gate failed (``diagnose --fail``), and nothing else |
| 2 | usage: a wrong option, window, name; a missing extra |
| 3 | data: bytes, a file or a table that could not be used |
| 70 | a bug in tracekit |
| 130, 141 | interrupted; the reader of the output went away |
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, Final

import typer
from typer.core import TyperGroup

from tracekit.cli._extras import missing_extra
from tracekit.errors import SourceError, TracekitError

OK: Final = 0
GATE_FAILED: Final = 1
USAGE: Final = 2
DATA: Final = 3
_BUG: Final = 70
#: Errors of DuckDB and Delta that speak of the data or the machine, not of a bug here. By name:
#: importing their classes would cost every command the import.
_DATA_ERRORS: Final = frozenset(("IOException", "OutOfMemoryException", "DeltaError"))
_INTERRUPTED: Final = 130
_PIPE_CLOSED: Final = 141


class Group(TyperGroup):
    """A command group whose commands may raise tracekit's errors."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a closed pipe shows here, not in the interpreter's last breath
            return result
        except BrokenPipeError:
            _silence_stdout()
            raise typer.Exit(_PIPE_CLOSED) from None
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except Exception as error:
            _reword(error)
            line, code = _explain(error)
            if line is None or os.environ.get("TRACEKIT_DEBUG") == "1":
                raise
            print(f"tracekit: {line}", file=sys.stderr)
            raise typer.Exit(code) from None


def _explain(error: Exception) -> tuple[str | None, int]:
    """The line to print and the exit code; no line where the framework reports it itself."""
    if isinstance(error, TracekitError):
        return _one_line(str(error)), DATA if isinstance(error, SourceError) else USAGE
    if isinstance(error, ModuleNotFoundError) and (line := missing_extra(error)) is not None:
        return line, USAGE
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        text = error.strerror or str(error) or type(error).__name__
        if error.errno == errno.ENOSPC:
            text += " (free some space, or give another --store)"
        return _one_line(f"{text}{where}"), DATA
    if type(error).__module__.partition(".")[0] == "typer":
        return None, USAGE  # its own usage errors, exits and aborts
    if any(kind.__name__ in _DATA_ERRORS for kind in type(error).__mro__):
        return _one_line(str(error)), DATA
    return (
        _one_line(
            f"internal error: {type(error).__name__}: {error}"
            " (TRACEKIT_DEBUG=1 shows where; please report it)"
        ),
        _BUG,
    )


def _reword(error: Exception) -> None:
    """Say in plain words what a value of an option must be.

    The framework checks values with a library whose texts are for programmers ("Value error,",
    "Input should be"); what was wrong is in the error that it raised.
    """
    details = getattr(error.__cause__, "errors", None)
    if not hasattr(error, "message") or not callable(details):
        return
    found = next(iter(details()), None)
    if isinstance(found, dict):
        error.message = _value_words(found)


def _value_words(found: dict[str, Any]) -> str:
    kind, context = str(found.get("type")), found.get("ctx") or {}
    given = f", not {found.get('input')!r}"
    if kind.startswith("int_"):
        return f"it must be a whole number{given}"
    if kind.startswith("float_"):
        return f"it must be a number{given}"
    for name, words in (
        ("ge", "{} or more"),
        ("le", "{} or less"),
        ("gt", "more than {}"),
        ("lt", "less than {}"),
    ):
        if name in context:
            return f"it must be {words.format(format(context[name], ','))}{given}"
    text = str(context.get("error") or found.get("msg") or "it cannot be used")
    return text.removesuffix(".").replace(" is not one of ", " is none of ")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the flush at exit does not complain a second time."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # stdout is not a real file (a test's buffer): nothing to silence
