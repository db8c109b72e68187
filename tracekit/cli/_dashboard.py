"""``tracekit dashboard``: the Streamlit app on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli import _options as opt


def dashboard(
    store: opt.Store = None,
    host: Annotated[
        str,
        typer.Option(
            "--address", "--host", help="Address to listen on; other than loopback needs a token."
        ),
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(envvar="TRACEKIT_DASHBOARD_TOKEN", help="What viewers must know."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8501,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Do not open a browser.")
    ] = False,
) -> None:
    """Open the dashboard.

    Read-only, and on loopback unless told otherwise.
    """
    from tracekit.lake.store import Store
    from tracekit_dashboards.launch import run

    opened = Store.open(opt.store_path(store))
    raise typer.Exit(run(opened.path, host, port, not no_browser, token=token))
