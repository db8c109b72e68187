"""``tracekit collect``: fills the receiver's configuration and runs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tracekit.cli import _options as opt
from tracekit.cli._sizes import parse_size
from tracekit.errors import UsageError


def collect(
    store: opt.Store = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback needs a token.")
    ] = "127.0.0.1",
    grpc_port: Annotated[int, typer.Option(help="Port of OTLP/gRPC; 0 takes a free one.")] = 4317,
    http_port: Annotated[int, typer.Option(help="Port of OTLP/HTTP; 0 takes a free one.")] = 4318,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TRACEKIT_TOKEN", help="Bearer token that senders must show (TRACEKIT_TOKEN)."
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="TLS certificate file (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="TLS key file (PEM).")] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(help="Write pid, host and ports there as JSON while requests are answered."),
    ] = None,
    retain: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Delete rows received longer ago, e.g. 14d."),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Delete the oldest rows above this size, e.g. 50GB."),
    ] = None,
    keep_text: Annotated[
        bool, typer.Option("--keep-text", help="Store prompts and answers found in attributes.")
    ] = False,
    quiet_s: Annotated[
        float, typer.Option(help="A request settles when its spans were quiet this long.")
    ] = 60.0,
    settle_interval_s: Annotated[float, typer.Option(help="Time between settling passes.")] = 10.0,
    flush_interval_s: Annotated[float, typer.Option(help="Longest wait for a commit.")] = 1.0,
    flush_rows: Annotated[int, typer.Option(help="Commit sooner when so many rows wait.")] = 10_000,
    max_body_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Largest request, before and after decompression.")
    ] = "16MiB",
    max_in_flight_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Requests being received at one time, all together.")
    ] = "128MiB",
    max_spool_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Acknowledged data on disk, not yet in the lake.")
    ] = "1GiB",
    max_buffer_rows: Annotated[
        int, typer.Option(help="Decoded rows in memory, not yet in the lake.")
    ] = 200_000,
    max_buffer_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Decoded data in memory, not yet in the lake.")
    ] = "256MiB",
    retry_after_s: Annotated[int, typer.Option(help="What a refused sender is told to wait.")] = 2,
    maintenance_interval_s: Annotated[
        float, typer.Option(help="Time between compaction passes.")
    ] = 60.0,
    shutdown_s: Annotated[
        float, typer.Option(help="How long a shutdown may take before it is cut short.")
    ] = 20.0,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print two lines of JSON: where it listens, and the last counts."
        ),
    ] = False,
) -> None:
    """Receive OTLP over gRPC and HTTP until stopped.

    Listens on loopback unless told otherwise. SIGTERM or Ctrl-C commits what arrived and exits 0.
    """
    from tracekit.analysis.window import parse_duration_ns
    from tracekit_collectors.config import CollectConfig

    sizes: dict[str, Any] = {
        name: parse_size(text, option="--" + name.replace("_", "-"))
        for name, text in (
            ("max_body_bytes", max_body_bytes),
            ("max_in_flight_bytes", max_in_flight_bytes),
            ("max_spool_bytes", max_spool_bytes),
            ("max_buffer_bytes", max_buffer_bytes),
        )
    }
    config = CollectConfig(
        store=opt.store_path(store),
        host=host,
        grpc_port=grpc_port,
        http_port=http_port,
        token=token,
        tls_cert=_existing(tls_cert, "--tls-cert"),
        tls_key=_existing(tls_key, "--tls-key"),
        ready_file=ready_file,
        keep_text=keep_text,
        flush_interval_s=flush_interval_s,
        flush_rows=flush_rows,
        max_buffer_rows=max_buffer_rows,
        retry_after_s=retry_after_s,
        retain_ns=None if retain is None else parse_duration_ns(retain),
        max_bytes=None if max_bytes is None else parse_size(max_bytes, option="--max-bytes"),
        maintenance_interval_s=maintenance_interval_s,
        quiet_s=quiet_s,
        settle_interval_s=settle_interval_s,
        shutdown_s=shutdown_s,
        **sizes,
    )
    from tracekit_collectors.collect import run

    _log_to_stderr()
    raise typer.Exit(run(config, as_json=as_json))


def _existing(path: Path | None, option: str) -> Path | None:
    if path is not None and not path.is_file():
        raise UsageError(f"{option}: no such file: {path}")
    return path


def _log_to_stderr() -> None:
    import logging

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("tracekit")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
