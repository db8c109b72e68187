"""The application: which commands there are, in the order ``--help`` shows them.

Command modules import only typer and the standard library at their top; what they need to work
they import inside the command, so that ``tracekit --help`` stays quick.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tracekit import __version__
from tracekit.cli import (
    _collect,
    _compare,
    _dashboard,
    _demo,
    _diagnose,
    _doctor,
    _import,
    _join,
    _requests,
    _show,
    _sql,
    _store,
    _table,
    _verdicts,
)
from tracekit.cli._group import Group

app = typer.Typer(
    name="tracekit",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: a third of the start-up time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Why is this LLM request slow? Queue, prefill, KV transfer or decode, with evidence.\n\n"
        "Exit codes: 0 ok, 1 gate failed (diagnose --fail), 2 usage, 3 bad data."
    ),
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tracekit {__version__}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


app.command("demo")(_demo.demo)
app.command("collect")(_collect.collect)
app.command("import")(_import.import_command)
app.command("join")(_join.join)
app.command("requests")(_requests.requests)
app.command("show")(_show.show)
app.command("table")(_table.table)
app.command("diagnose")(_diagnose.diagnose)
app.command("verdicts")(_verdicts.verdicts)
app.command("compare")(_compare.compare)
app.command("sql")(_sql.sql)
app.command("dashboard")(_dashboard.dashboard)
app.command("doctor")(_doctor.doctor)
app.add_typer(_store.app, name="store")


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the application; ends in SystemExit."""
    for stream in (sys.stdout, sys.stderr):
        # A note in Korean must not kill the command in a terminal that cannot show it.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(args=None if arguments is None else list(arguments), prog_name="tracekit")
