"""``tracekit collect``: one receiver, from its first bind to its last commit.

Owns what starts and ends in which order; signals are `signals`, the ready file and the bound of a
shutdown `process`. The command line that fills the configuration is `tracekit.cli`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tracekit
from tracekit.errors import TracekitError
from tracekit.lake.receiver_file import RECEIVER_FILE
from tracekit.lake.spool import Spool
from tracekit.lake.store import Store
from tracekit.words import plural
from tracekit_collectors.config import CollectConfig, is_loopback
from tracekit_collectors.grpc_server import GrpcServer
from tracekit_collectors.http_server import HttpServer
from tracekit_collectors.intake import Intake
from tracekit_collectors.journal import Journal
from tracekit_collectors.loops import Loops
from tracekit_collectors.process import ShutdownLimit, check_replaceable, ready_at
from tracekit_collectors.signals import stop_on_signals
from tracekit_collectors.stats import Stats
from tracekit_collectors.writer import Writer

_LOG = logging.getLogger("tracekit.collect")


@dataclass(frozen=True)
class Ready:
    """Where a receiver listens; also what the ready file holds."""

    pid: int
    host: str
    grpc_port: int
    http_port: int
    store: Path
    tls: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "grpc": {"host": self.host, "port": self.grpc_port},
            "http": {"host": self.host, "port": self.http_port},
            "store": str(self.store),
            "tls": self.tls,
        }

    def lines(self) -> list[str]:
        """The same for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "https" if self.tls else "http"
        return [
            f"OTLP/gRPC  {scheme}://{host}:{self.grpc_port}",
            f"OTLP/HTTP  {scheme}://{host}:{self.http_port}  (/v1/traces, /v1/metrics, /v1/logs)",
            f"store      {self.store}",
        ]


def run(
    config: CollectConfig,
    *,
    as_json: bool = False,
    on_ready: Callable[[Ready], None] | None = None,
    stop_event: threading.Event | None = None,
) -> int:
    """Receive until SIGTERM, SIGINT or ``stop_event``; returns the exit code 0.

    Prints where it listens; ``as_json``: as one line of JSON, and at the end a second one with
    the last state of ``/status``. ``on_ready`` is called once requests are answered. Raises
    UsageError where it cannot start (port in use, store in use), TracekitError if a part of it
    dies.

    Called in the main thread, it handles signals (a second one ends the process at once) and
    ends the process with code 0 where the shutdown takes longer than ``config.shutdown_s``. In
    any case the spool keeps what was acknowledged.
    """
    with stop_on_signals(stop_event) as stop:
        if not stop.is_set():  # nothing was begun, so a signal during start-up has nothing to end
            _serve(config, stop, as_json=as_json, on_ready=on_ready)
    return 0


def _serve(
    config: CollectConfig,
    stop: threading.Event,
    *,
    as_json: bool,
    on_ready: Callable[[Ready], None] | None,
) -> None:
    check_replaceable(config.ready_file)
    with contextlib.ExitStack() as stack:
        store = Store.open(config.store, create=True)
        spool = stack.enter_context(Spool.open(config.spool_dir, max_bytes=config.max_spool_bytes))
        stats = Stats()
        _report_torn(spool, stats)
        journal = Journal(
            spool,
            max_rows=config.max_buffer_rows,
            max_bytes=config.max_buffer_bytes,
            flush_rows=config.flush_rows,
        )
        writer = Writer(
            store,
            journal,
            stats,
            spool_id=spool.id,
            flush_interval_s=config.flush_interval_s,
            oldest_back_ns=config.oldest_back_ns,
            keep_text=config.keep_text,
            set_aside_dir=store.path / ".spool-set-aside",
        )
        loops = Loops(config, store, stats)
        say = _Voice(as_json)
        limit = ShutdownLimit(config.shutdown_s, last_words=lambda: say.ended(stats.to_json()))
        # Torn down in reverse: senders, then the last commit, then whatever pass is running.
        stack.callback(limit.cancel)
        stack.callback(loops.join)
        journal.start()
        writer.start()
        stack.callback(_finish, journal, writer)
        intake = Intake(config, journal, stats)
        grpc_server = GrpcServer(config, intake)
        stack.callback(grpc_server.stop, grace_s=config.grace_s)

        def status() -> dict[str, Any]:
            return {
                **stats.to_json(),
                "version": tracekit.__version__,
                "endpoints": ready.to_json(),
                "journal": journal.to_json(),
            }

        http_server = HttpServer(config, intake, stats, status=status, grpc_port=grpc_server.port)
        stack.callback(http_server.stop, grace_s=config.grace_s)
        ready = Ready(
            pid=os.getpid(),
            host=config.host,
            grpc_port=grpc_server.port,
            http_port=http_server.port,
            store=store.path,
            tls=config.tls_cert is not None,
        )
        if config.token is not None and not ready.tls and not is_loopback(config.host):
            _LOG.warning("the token travels in clear text: give --tls-cert and --tls-key")
        grpc_server.start()
        http_server.start()
        loops.start()

        say.ready(ready)
        # there for `tracekit doctor`, whatever the ports are
        stack.enter_context(ready_at(store.path / RECEIVER_FILE, ready.to_json()))
        if config.ready_file is not None:
            stack.enter_context(ready_at(config.ready_file, ready.to_json()))
        if on_ready is not None:
            on_ready(ready)
        _wait(
            stop,
            {
                "spool's thread": lambda: journal.alive,
                "store's writer": lambda: writer.alive,
                "HTTP server": lambda: http_server.alive,
            },
        )
        _LOG.info("stopping: finishing what is in flight (a second signal exits at once)")
        limit.start()
        loops.ask_to_stop()
        # Both at once: neither may take requests while the other is still finishing.
        http_server.ask_to_stop()
        grpc_server.ask_to_stop(grace_s=config.grace_s)
    say.ended(status())


def _wait(stop: threading.Event, alive: Mapping[str, Callable[[], bool]]) -> None:
    """Wait for the end; a receiver that lost one of its threads must not look alive."""
    while not stop.wait(1.0):
        for name, is_alive in alive.items():
            if not is_alive():
                raise TracekitError(
                    f"the {name} ended unexpectedly; acknowledged data is safe in the spool, "
                    "start again"
                )


class _Voice:
    """What the receiver says on stdout: for people, or a line of JSON at each end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def ready(self, ready: Ready) -> None:
        for line in [json.dumps(ready.to_json())] if self._as_json else ready.lines():
            print(line, flush=True)

    def ended(self, state: Mapping[str, Any]) -> None:
        print(json.dumps(state) if self._as_json else last_counts(state), flush=True)


def last_counts(state: Mapping[str, Any]) -> str:
    """The last counts for people, in rows; pending ones are in the spool for the next start."""
    signals = state["signals"].values()
    received = sum(s["received"] for s in signals)
    refused = sum(sum(s["rejected"].values()) for s in signals)
    pending = state.get("journal", {}).get("buffer_rows")
    parts = [f"{plural(received, 'row')} received", f"{state['lake']['rows']:,} stored"]
    parts += [f"{refused:,} refused", f"{pending:,} pending" if pending is not None else ""]
    if whole := sum(state["refused_requests"].values()):
        parts.append(f"{plural(whole, 'whole request')} refused")
    return f"stopped: {', '.join(filter(None, parts))}"


def _finish(journal: Journal, writer: Writer) -> None:
    journal.close()
    if not writer.stop():
        _LOG.warning(
            "the last rows could not be committed; they are in the spool and will be stored at "
            "the next start"
        )


def _report_torn(spool: Spool, stats: Stats) -> None:
    if spool.torn_bytes:
        text = (
            f"{spool.torn_bytes} bytes at the end of the spool were torn (the machine or process "
            "died while writing them; they were never acknowledged) and were cut off"
        )
        stats.hint(text)
        _LOG.warning("%s", text)
