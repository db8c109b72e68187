"""``tracekit table``: the ten-minute table of the last requests, and its one sentence."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tracekit.cli import _options as opt
from tracekit.cli import _output as out


class TableFormat(StrEnum):
    """How the table is printed."""

    text = "text"
    json = "json"
    md = "md"


def table(
    store: opt.Store = None,
    last: Annotated[
        int, typer.Option("--last", min=1, max=opt.MAX_COUNT, help="How many requests.")
    ] = 20,
    since: opt.Since = None,
    until: opt.Until = None,
    model: opt.Model = None,
    route: opt.Route = None,
    as_json: opt.Json = False,
    table_format: Annotated[
        TableFormat, typer.Option("--format", help="How to print it.")
    ] = TableFormat.text,
) -> None:
    """Print the ten-minute table of the last requests.

    Request, input, output, TTFT, E2E (total time), tokens/s and note, and one sentence as
    conclusion.

    Marks long TTFT and low tokens/s apart, and says whether long input or long output pushes
    the latency.
    """
    from tracekit.analysis.session import Session
    from tracekit.analysis.ten_minute import ten_minute_table
    from tracekit.report import ten_minute_text

    with Session.open(
        opt.store_path(store), window=opt.window(since, until), model=model, route=route
    ) as session:
        result = ten_minute_table(session, last=last)
    if as_json or table_format is TableFormat.json:
        out.write_json(result.to_json())
    elif table_format is TableFormat.md:
        out.write(ten_minute_text.markdown_table(result))
    else:
        console = out.console()
        console.print(ten_minute_text.render(result, width=console.width))
