"""``tracekit compare``: what changed between two sides."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import typer

from tracekit.cli import _options as opt
from tracekit.cli import _output as out


class CompareFormat(StrEnum):
    """How the comparison is printed."""

    text = "text"
    json = "json"
    md = "md"


_SIDE = "A window, label or store; see above."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"Before. {_SIDE}")],
    b: Annotated[str, typer.Argument(metavar="B", help=f"After. {_SIDE}")],
    store: opt.Store = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="From when, for a side that names no window."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help="Until when, for a side that names no window."
        ),
    ] = None,
    model: opt.Model = None,
    route: opt.Route = None,
    slo: Annotated[
        str | None,
        typer.Option(
            "--slo",
            metavar="SLO",
            help="Also compare goodput, e.g. ttft=800ms,tpot=50ms,e2e=10s.",
        ),
    ] = None,
    as_json: opt.Json = False,
    compare_format: Annotated[
        CompareFormat, typer.Option("--format", help="How to print it.")
    ] = CompareFormat.text,
) -> None:
    """Say what changed from A to B: by phase, mix or cost.

    A side is a window (2h..1h, 1h, 2026-11-29T10:00Z..2026-11-29T11:00Z, unix ns), a label
    (model=, route=, engine=, engine_version=, provider=, tenant=, worker=, prefill_worker=,
    decode_worker=), a store (PATH), or several: PATH@WINDOW,LABEL. Examples:

    tracekit compare 2h..1h 1h

    tracekit compare worker=gpu-0 worker=gpu-1 --since 1h

    tracekit compare before/ after/@15m,model=llama

    The change of each mean is taken apart exactly: traffic mix (other models, routes, sizes),
    prefix-cache hits, and cost at equal mix. Only what is certain and large enough is a change.
    """
    from tracekit.analysis.compare import compare as run
    from tracekit.analysis.compare_side import parse_side
    from tracekit.analysis.slo import parse_slo

    now = time.time_ns()
    result = run(
        parse_side(a, now_unix_ns=now),
        parse_side(b, now_unix_ns=now),
        store=opt.store_path(store),
        window=opt.window(since, until),
        model=model,
        route=route,
        slo=parse_slo(slo),
    )
    if as_json or compare_format is CompareFormat.json:
        out.write_json(result.to_json())
    elif compare_format is CompareFormat.md:
        from tracekit.report import compare_md

        out.write(compare_md.render(result))
    else:
        from tracekit.report import compare_text

        console = out.console()
        console.print(compare_text.render(result, width=console.width))
