"""Receivers under test: real sockets on loopback, free ports, a store in a temporary folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.collectors.receiving import Running
from tracekit_collectors.collect import Ready, run
from tracekit_collectors.config import CollectConfig


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start a receiver in this process; stopped (with exit code 0) at the end of the test."""
    started: list[Running] = []

    def start_one(**options: Any) -> Running:
        # Settling and maintenance have tests of their own.
        defaults: dict[str, Any] = {
            "store": tmp_path / "store",
            "grpc_port": 0,
            "http_port": 0,
            "flush_interval_s": 0.05,
            "settle_interval_s": 3600,
            "maintenance_interval_s": 3600,
            "shutdown_s": 10,
        }
        running = _start(CollectConfig(**{**defaults, **options}))
        started.append(running)
        return running

    yield start_one
    for running in started:
        running.stop()


def _start(config: CollectConfig) -> Running:
    stop = threading.Event()
    ready: list[Ready] = []
    ended: list[int | BaseException] = []
    is_ready = threading.Event()

    def serve() -> None:
        try:
            ended.append(run(config, on_ready=on_ready, stop_event=stop))
        except BaseException as error:
            ended.append(error)
        finally:
            is_ready.set()

    def on_ready(where: Ready) -> None:
        ready.append(where)
        is_ready.set()

    thread = threading.Thread(target=serve)
    thread.start()
    assert is_ready.wait(30)
    if not ready:
        thread.join()
        assert isinstance(ended[0], BaseException)
        raise ended[0]

    def end() -> int:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
        outcome = ended[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return Running(config=config, ready=ready[0], end=end, started=time.monotonic())
