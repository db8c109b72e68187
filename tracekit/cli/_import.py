"""``tracekit import``: files in, a summary of what was taken and what was not."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import _options as opt
from tracekit.cli import _output as out
from tracekit.cli._group import DATA
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.ingest.importer import Progress
    from tracekit.ingest.summary import ImportSummary
    from tracekit.lake.store import Store


def import_command(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Files or folders; - is standard input."),
    ],
    store: opt.Store = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="THEIRS=OURS[:UNIT]",
            help="Read a foreign column as one of ours, e.g. latency=e2e_ms:s (may be repeated).",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="FORMAT",
            help="Format of the files, where detection needs help: csv, jsonl, parquet, "
            "otlp-jsonl, otlp-json, otlp-protobuf, dynamo-request-trace, prometheus-text, ...",
        ),
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(
            "--service",
            metavar="NAME",
            help="Name of the process whose log or metrics the files are: the service.name of its "
            "spans, so that statistics and metrics find their worker. Lines that name a request "
            "join by its id, whatever the name.",
        ),
    ] = None,
    log_start: Annotated[
        str | None,
        typer.Option(
            "--log-start",
            metavar="TIME",
            help="When an engine's log began, where its lines have no date (llama.cpp).",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="When a text of /metrics was taken, where no SCRAPE line tells "
            "(else the file's modification time).",
        ),
    ] = None,
    keep_text: Annotated[
        bool, typer.Option("--keep-text", help="Store prompts and answers found in attributes.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Import OTLP files, logs and /metrics texts into the store.

    Takes collector JSON lines, length-delimited protobuf, CSV, JSON lines, Parquet, the logs of
    engines and Prometheus text, also .gz and .zst, also whole folders. Importing a file again
    changes nothing. A bad line does not stop the good ones, nor does the cut end of a file those
    before it, nor a file that is nothing known the files beside it. Exit 3 if a file named here
    could not be used, or nothing in the files could (an empty file is no error).
    """
    from tracekit.lake.store import Store
    from tracekit.report import import_text

    pairs = _pairs(mapping or [])
    path = opt.store_path(store)
    done: list[ImportSummary] = []
    try:
        summary = import_with_progress(
            lambda: Store.open(path, create=True),
            paths,
            mapping=pairs,
            source=source,
            keep_text=keep_text,
            service=service,
            log_start_unix_ns=_time_ns(log_start),
            at_unix_ns=_time_ns(at),
            done=done.append,
        )
    finally:
        # what was taken is told before what stopped some of the files
        for whole in done:
            if as_json:
                out.write_json(whole.to_json())
            else:
                out.console().print(import_text.render(whole))
    there = summary.duplicates or summary.differing
    if summary.refused_count and not summary.taken and not there:
        raise typer.Exit(DATA)


def _time_ns(text: str | None) -> int | None:
    if text is None:
        return None
    import time

    from tracekit.analysis.window import parse_time_ns

    return parse_time_ns(text, now_unix_ns=time.time_ns())


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        # the last '=': their name may hold one, ours and a unit cannot
        theirs, equals, ours = text.rpartition("=")
        if not equals or not theirs.strip() or not ours.strip():
            raise UsageError(f"--map {text!r}: write THEIRS=OURS[:UNIT], e.g. latency=e2e_ms:s")
        if theirs.strip() in pairs:
            raise UsageError(f"--map names {theirs.strip()!r} twice")
        pairs[theirs.strip()] = ours.strip()
    return pairs


def import_with_progress(
    store: Store | Callable[[], Store],
    paths: Sequence[str],
    *,
    mapping: dict[str, str] | None = None,
    source: str | None = None,
    keep_text: bool = False,
    service: str | None = None,
    log_start_unix_ns: int | None = None,
    at_unix_ns: int | None = None,
    done: Callable[[ImportSummary], None] | None = None,
) -> ImportSummary:
    """Import, with a progress bar on stderr where that is a terminal."""
    from tracekit.ingest.importer import import_paths

    with _progress() as progress:
        return import_paths(
            store,
            paths,
            mapping=mapping,
            source=source,
            keep_text=keep_text,
            service=service,
            log_start_unix_ns=log_start_unix_ns,
            at_unix_ns=at_unix_ns,
            progress=progress,
            done=done,
        )


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[Progress], None] | None]:
    """A bar over the bytes read (a counter where their number is unknown), gone at the end."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from tracekit.report import formats
    from tracekit.report.console import make_console

    with Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TextColumn("{task.fields[rows]:,} rows", markup=False),
        TimeRemainingColumn(compact=True),
        console=make_console(sys.stderr),
        transient=True,
    ) as bar:
        task = bar.add_task("reading", total=None, rows=0)

        def update(state: Progress) -> None:
            done = state.bytes_total is not None and state.bytes_done >= state.bytes_total
            bar.update(
                task,
                description="settling" if done else formats.cut(Path(state.path).name, 32),
                total=state.bytes_total,
                completed=state.bytes_done,
                rows=state.rows,
            )

        yield update
