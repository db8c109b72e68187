"""``tracekit demo``: real recordings in, an answer out, in one command."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import _options as opt
from tracekit.cli import _output as out
from tracekit.cli._import import import_with_progress
from tracekit.errors import SourceError
from tracekit.words import plural


def demo(
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            show_default=False,
            help="Keep the demonstration in this store (default: a temporary one).",
        ),
    ] = None,
    no_dashboard: Annotated[
        bool, typer.Option("--no-dashboard", help="Print the answer and stop.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Dashboard port; 0 takes a free one.")
    ] = 8501,
    as_json: opt.Json = False,
) -> None:
    """Import bundled recordings, diagnose, open the dashboard.

    Without a terminal, and with --json, it prints the diagnosis and ends.
    """
    from tracekit.analysis.diagnose import diagnose
    from tracekit.analysis.session import Session
    from tracekit.analysis.slo import Slo
    from tracekit.lake.store import Store

    # The environment's store is somebody's data: the demonstration never goes there.
    with _store(store) as path:
        opened = Store.open(path, create=True)
        summary = import_with_progress(opened, [str(_data())])
        out.notice(
            f"imported {plural(summary.taken, 'row')} of bundled recordings into {path}"
            + (f" ({summary.duplicates:,} were there already)" if summary.duplicates else "")
        )
        with Session.open(opened) as session:
            diagnosis = diagnose(session, Slo(), for_readers=False)
        if as_json:
            out.write_json(diagnosis.to_json())
        else:
            from tracekit.report import diagnosis_text

            console = out.console()
            console.print(diagnosis_text.render(diagnosis, width=console.width))
        if no_dashboard or as_json:
            return
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            out.notice("no terminal: the dashboard is not started")
            return
        from tracekit_dashboards.launch import run

        sys.stdout.flush()
        out.notice("starting the dashboard; Ctrl-C ends it")
        code = run(path, "127.0.0.1", port, True)
    raise typer.Exit(code)


@contextlib.contextmanager
def _store(chosen: Path | None) -> Iterator[Path]:
    if chosen is not None:
        yield chosen
        return
    with tempfile.TemporaryDirectory(prefix="tracekit-demo-", ignore_cleanup_errors=True) as path:
        yield Path(path) / "store"


def _data() -> Path:
    folder = Path(__file__).parent.parent / "demo_data"
    if not any(folder.glob("*")):
        raise SourceError(
            "the bundled recordings are missing", where=str(folder), how="reinstall tracekit-llm"
        )
    return folder
