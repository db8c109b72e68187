"""``tracekit verdicts``: one row a slow request."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tracekit.cli import _options as opt
from tracekit.cli import _output as out


class VerdictFormat(StrEnum):
    """How verdicts are printed."""

    table = "table"
    json = "json"


def verdicts(
    store: opt.Store = None,
    slo: opt.SloText = None,
    baseline: opt.Baseline = None,
    since: opt.Since = None,
    until: opt.Until = None,
    model: opt.Model = None,
    route: opt.Route = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            min=1,
            max=opt.MAX_COUNT,
            help="Only the N largest excesses (default: all).",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines (same as --format json).")
    ] = False,
    verdict_format: Annotated[
        VerdictFormat, typer.Option("--format", help="How to print them.")
    ] = VerdictFormat.table,
) -> None:
    """List slow requests and what made each slow.

    The largest excess comes first.
    A request that is slow in several metrics has one row a metric. The JSON rows have a fixed
    set of keys; the table adds what the metric was.
    """
    from tracekit.analysis.attribution import define_attribution
    from tracekit.analysis.causes import SUSPECTS_LISTED
    from tracekit.analysis.rules import Rules
    from tracekit.analysis.session import Session
    from tracekit.analysis.slo import parse_slo
    from tracekit.analysis.verdicts import VERDICT_COLUMNS, list_verdicts
    from tracekit.report import texts

    limits = parse_slo(slo)
    with Session.open(
        opt.store_path(store), window=opt.window(since, until), model=model, route=route
    ) as session:
        healthy = opt.range_of(baseline)
        define_attribution(session.con, limits, baseline=healthy, suspects_max=SUSPECTS_LISTED)
        rows = list_verdicts(session, last=last)
        ((n,),) = session.con.execute(
            "select count(*) from request_facts where completed = 1"
        ).fetchall()
        if n < Rules().min_rows:
            out.notice(texts.nothing_judged(n, Rules().min_rows))
        if as_json or verdict_format is VerdictFormat.json:
            out.write_json_lines({key: row[key] for key in VERDICT_COLUMNS} for row in rows)
        else:
            from tracekit.report import verdicts_text

            console = out.console()
            console.print(verdicts_text.render(list(rows), width=console.width))
