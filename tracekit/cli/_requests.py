"""``tracekit requests``: the normalised rows, for people or for other programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, Final

import typer

from tracekit.cli import _options as opt
from tracekit.cli import _output as out

_SHOWN: Final = 20
_CSV_ROWS: Final = 4_096


class RequestFormat(StrEnum):
    """How requests are printed."""

    table = "table"
    json = "json"
    csv = "csv"


def requests(
    store: opt.Store = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            max=opt.MAX_COUNT,
            help="Only the newest N (default: 20 in a table, all in JSON and CSV).",
        ),
    ] = None,
    slow: Annotated[
        bool, typer.Option("--slow", help="Only requests over a limit of --slo (else slowest 5 %).")
    ] = False,
    slo: opt.SloText = None,
    status: Annotated[
        str | None, typer.Option(help="Only this status: ok, error, aborted, timeout, open.")
    ] = None,
    worker: Annotated[str | None, typer.Option(help="Only requests this worker served.")] = None,
    since: opt.Since = None,
    until: opt.Until = None,
    model: opt.Model = None,
    route: opt.Route = None,
    chunks: Annotated[
        bool,
        typer.Option("--chunks", help="With --json: add chunk_offsets_ms and chunk_tokens."),
    ] = False,
    key: Annotated[
        bool, typer.Option("--key", help="With --json or CSV: add request_key, the store's id.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines (same as --format json).")
    ] = False,
    request_format: Annotated[
        RequestFormat, typer.Option("--format", help="How to print them.")
    ] = RequestFormat.table,
) -> None:
    """List requests, newest first.

    JSON and CSV have one request a line with the columns of the request record, as they can be
    imported again.
    """
    from tracekit.analysis.attribution import define_attribution
    from tracekit.analysis.listing import count_requests, list_requests
    from tracekit.analysis.session import Session
    from tracekit.analysis.slo import parse_slo
    from tracekit.errors import UsageError

    shape = RequestFormat.json if as_json else request_format
    if chunks and shape is not RequestFormat.json:
        raise UsageError("--chunks goes with --json")
    limits = parse_slo(slo)
    if slo is not None and not slow:
        raise UsageError("--slo goes with --slow")
    with Session.open(
        opt.store_path(store), window=opt.window(since, until), model=model, route=route
    ) as session:
        if slow:
            define_attribution(session.con, limits)
        labels = (("worker", worker), ("model", model), ("route", route))
        if given := [(label, value) for label, value in labels if value is not None]:
            from tracekit.analysis.compare_notes import unknown_labels

            for note in unknown_labels(session, given):
                typer.echo(f"tracekit: {note}", err=True)
        if last is None and shape is RequestFormat.table:
            last = _SHOWN
        rows = list_requests(
            session, last=last, slow=slow, status=status, worker=worker, with_chunks=chunks
        )
        if shape is RequestFormat.table:
            from tracekit.report import requests_text

            console = out.console()
            total = count_requests(session, slow=slow, status=status, worker=worker)
            console.print(requests_text.render(list(rows), total=total, width=console.width))
            return
        if not key:
            rows = _without_key(rows)
        if shape is RequestFormat.json:
            out.write_json_lines(rows)
        else:
            _write_csv(rows)


def _without_key(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        del row["request_key"]
        yield row


def _write_csv(rows: Iterator[dict[str, Any]]) -> None:
    import csv
    import sys

    from tracekit.lake.schema import RECORD_COLUMNS

    first = next(rows, None)
    writer = csv.DictWriter(sys.stdout, list(first or RECORD_COLUMNS), lineterminator="\n")
    writer.writeheader()
    if first is not None:
        writer.writerow(first)
    while batch := list(islice(rows, _CSV_ROWS)):
        writer.writerows(batch)
