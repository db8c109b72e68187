"""``tracekit show``: one request, whole."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli import _options as opt
from tracekit.cli import _output as out


def show(
    request: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Request id, trace id or request key, or a beginning that is unique."
        ),
    ],
    store: opt.Store = None,
    slo: opt.SloText = None,
    baseline: opt.Baseline = None,
    since: opt.Since = None,
    until: opt.Until = None,
    no_verdict: Annotated[
        bool,
        typer.Option("--no-verdict", help="Leave the verdict out: quicker on a large store."),
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Show one request: timeline, phases, gaps, verdict.

    The verdict compares the request with those of the window (default: the whole store).
    """
    from tracekit.analysis.detail import request_detail
    from tracekit.analysis.session import Session
    from tracekit.analysis.slo import parse_slo

    limits = parse_slo(slo)
    with Session.open(opt.store_path(store), window=opt.window(since, until)) as session:
        detail = request_detail(
            session,
            request,
            slo=limits,
            baseline=opt.range_of(baseline),
            with_verdict=not no_verdict,
        )
    if as_json:
        out.write_json(detail.to_json())
    else:
        from tracekit.report import request_text

        console = out.console()
        console.print(request_text.render(detail, width=console.width))
