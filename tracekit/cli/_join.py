"""``tracekit join``: clients and engines that share no id, paired by time and token counts."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli import _options as opt
from tracekit.cli import _output as out


def join(
    store: opt.Store = None,
    write: Annotated[
        bool,
        typer.Option("--write", help="Write the pairs down: each is one request from then on."),
    ] = False,
    slack: Annotated[
        float,
        typer.Option(
            "--clock-slack-ms",
            min=0,
            max=10_000,
            help="By how much the clocks of clients and engines may differ.",
        ),
    ] = 50.0,
    since: opt.Since = None,
    until: opt.Until = None,
    every: Annotated[bool, typer.Option("--all", help="List every pair.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Pair clients' calls with engines' requests without ids.

    For logs that share no trace and no id with the engines' spans. A call and a request of an
    engine are paired if the engine ran inside the call, both count the same tokens in and out,
    neither fits any other, and one like it would hardly lie there by accident. Nothing is written
    without --write, and what was written is not taken back: look first. Trace context
    (traceparent) or one request id on both sides is always better.
    """
    from tracekit.analysis.likely import propose, record
    from tracekit.analysis.session import Session
    from tracekit.lake.store import Store

    opened = Store.open(opt.store_path(store))
    with Session.open(opened, window=opt.window(since, until)) as session:
        found = propose(session, slack_ms=slack)
    settled = record(opened, found.pairs) if write else None
    if as_json:
        out.write_json(found.to_json() | {"written": len(found.pairs) if write else 0})
    else:
        from tracekit.report import join_text

        out.show(join_text.render(found, every=every))
    if not found.pairs:
        return
    if settled is None:
        out.notice("nothing was written; --write joins these pairs")
    elif not settled:
        out.notice("written; the receiver that runs on this store joins them within a minute")
