"""``tracekit doctor``: is anything arriving, from whom, joined how well, what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import _options as opt
from tracekit.cli import _output as out
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.analysis.doctor import Health


def doctor(
    store: opt.Store = None,
    host: Annotated[
        str | None,
        typer.Option(help="Where the receiver listens (else as noted in the store; 127.0.0.1)."),
    ] = None,
    grpc_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Its OTLP/gRPC port (else as noted; 4317)."),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Its OTLP/HTTP port (else as noted; 4318)."),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(help="Take host and ports from this file of collect --ready-file."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="TRACEKIT_TOKEN", help="The receiver's token (TRACEKIT_TOKEN)."),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds to wait for the test span to arrive.")
    ] = 10.0,
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Look at the store only; send nothing.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Check the way in: is anything arriving, and joined?

    Looks at receiver, protocols, joins, coverage, quarantine and missing engine flags.
    Sends one test span to a receiver that answers. The store's receiver notes its ports in the
    store, so they need not be given; those given count. Always exits 0: it reports, it does not
    judge.
    """
    from tracekit.analysis.probe import find_receiver, probe
    from tracekit.lake.store import Store

    path = opt.store_path(store)
    opened: Store | None = None
    missing: str | None = None
    try:
        opened = Store.open(path)
    except UsageError as error:
        missing = str(error)
    health = None if opened is None else _health(opened)
    result = None
    if not no_probe:
        result = probe(
            opened,
            where=find_receiver(
                opened, host=host, grpc_port=grpc_port, http_port=http_port, ready_file=ready_file
            ),
            token=token,
            wait_s=wait,
        )
    if as_json:
        document = {"schema": "tracekit.doctor/1", "store": str(path), "store_missing": missing}
        document |= {} if health is None else health.to_json()
        out.write_json(document | {"probe": None if result is None else result.to_json()})
    else:
        from tracekit.report import doctor_text

        console = out.console()
        console.print(doctor_text.render(health, result, missing=missing))


def _health(store: object) -> Health:
    from tracekit.analysis.doctor import health
    from tracekit.analysis.session import Session
    from tracekit.lake.store import Store

    assert isinstance(store, Store)
    with Session.open(store) as session:
        return health(session)
