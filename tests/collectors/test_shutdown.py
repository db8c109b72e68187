"""However a receiver is stopped: it ends in bounded time, with code 0, and loses nothing."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.cli.conftest import process_environment
from tests.collectors.receiving import (
    EXPORT,
    PROTOBUF,
    Running,
    counts,
    export,
    rows_of,
    span_ids,
    spans,
    until,
)
from tracekit.errors import UsageError
from tracekit_collectors.process import check_replaceable
from tracekit_collectors.signals import stop_on_signals

Start = Callable[..., Running]

#: The command, with a hook: what it holds is run when ``{at}`` is imported for the first time.
_COMMAND = """
import os, signal, sys

class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == {at!r}:
            sys.meta_path.remove(self)
            {then}

sys.meta_path.insert(0, Hook())
from tracekit.cli import main
main(sys.argv[1:])
"""
_SIGTERM = "os.kill(os.getpid(), signal.SIGTERM)"


@contextmanager
def command(
    store: Path, *options: object, at: str = "", then: str = "pass", wait: bool = True
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """``tracekit collect`` as a process, and its ready file once that is there."""
    ready_file = store.parent / "ready.json"
    arguments = ("--store", store, "--ready-file", ready_file, "--grpc-port", 0, "--http-port", 0)
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND.format(at=at, then=then), "collect"]
        + [str(a) for a in (*arguments, "--settle-interval-s", 3600, *options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=process_environment(store),
    )
    try:
        if wait:
            until(lambda: ready_file.exists() or process.poll() is not None, seconds=60)
            assert ready_file.exists(), process.communicate()
        yield process, json.loads(ready_file.read_text()) if wait else {}
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


@pytest.mark.parametrize("module", ["typer", "pyarrow", "grpc", "uvicorn", "deltalake"])
def test_sigterm_while_it_starts_is_a_clean_stop(module: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with command(store, at=module, then=_SIGTERM, wait=False) as (process, _):
        code, out, err = _end(process)
    assert (code, out) == (0, ""), err
    assert "Traceback" not in err
    assert not (tmp_path / "ready.json").exists()


def test_sigterm_while_it_starts_leaves_the_spool_for_the_next_start(tmp_path: Path) -> None:
    store = tmp_path / "store"
    request = spans(7)
    with command(store, "--flush-interval-s", 3600) as (process, ready):
        export(ready["grpc"]["port"], request.SerializeToString())
        process.kill()
        process.communicate()
    with command(store, at="grpc", then=_SIGTERM, wait=False) as (process, _):
        assert _end(process)[0] == 0
    assert rows_of(store) == []
    with command(store) as (process, _):
        until(lambda: rows_of(store))
        process.send_signal(signal.SIGTERM)
        assert _end(process)[0] == 0
    assert counts(rows_of(store, columns="span_id")) == dict.fromkeys(span_ids(request), 1)


def test_handlers_of_an_outer_call_stay() -> None:
    """What the command set before its imports is what the receiver waits for."""
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as outer:
        with stop_on_signals() as inner:
            assert inner is outer
            signal.raise_signal(signal.SIGTERM)
        assert outer.is_set()
        with stop_on_signals(threading.Event()) as own:
            assert own is not outer and not own.is_set()
            signal.raise_signal(signal.SIGINT)
            assert own.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


def _half_a_body(stack: ExitStack, ready: dict[str, Any]) -> str:
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", ready["http"]["port"])))
    sock.sendall(
        f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\n"
        "Expect: 100-continue\r\nContent-Length: 100\r\n\r\n".encode()
    )
    assert sock.recv(100).startswith(b"HTTP/1.1 100 ")  # it is being served
    return "OTLP/HTTP: still in flight after 0.5 s and cut off: 1"


def _silent_on_the_grpc_port(stack: ExitStack, ready: dict[str, Any]) -> str:
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", ready["grpc"]["port"])))
    assert sock.recv(1)  # the settings of HTTP/2: it was accepted
    return "OTLP/gRPC: a call or connection did not end within 0.5 s"


def _half_a_call(stack: ExitStack, ready: dict[str, Any]) -> str:
    channel = stack.enter_context(
        grpc.insecure_channel(f"127.0.0.1:{ready['grpc']['port']}")  # stays open
    )
    until(lambda: channel.unary_unary(EXPORT["traces"])(b"", timeout=10) == b"")
    begun, never = threading.Event(), threading.Event()
    stack.callback(never.set)

    def body() -> Iterator[bytes]:
        begun.set()
        never.wait(60)
        yield from ()

    call = channel.stream_unary(EXPORT["traces"]).future(body())
    stack.callback(call.cancel)
    # a call that comes after it on the same connection is answered: so it has arrived
    assert begun.wait(30)
    assert channel.unary_unary(EXPORT["traces"])(b"", timeout=10) == b""
    return "OTLP/gRPC: a call or connection did not end within 0.5 s"


def _idle(stack: ExitStack, ready: dict[str, Any]) -> str:
    """Connections that were used and are kept: nothing is waited for."""
    connection = http.client.HTTPConnection("127.0.0.1", ready["http"]["port"], timeout=30)
    stack.callback(connection.close)
    connection.request("GET", "/healthz")
    connection.getresponse().read()
    channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{ready['grpc']['port']}"))
    channel.unary_unary(EXPORT["traces"])(b"", timeout=10)
    return ""


@pytest.mark.parametrize("hold", [_half_a_body, _silent_on_the_grpc_port, _half_a_call, _idle])
def test_a_client_that_holds_on_does_not_hold_up_the_end(
    hold: Callable[[ExitStack, dict[str, Any]], str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    options = ("--shutdown-s", 1, "--flush-interval-s", 3600)
    with command(store, *options) as (process, ready), ExitStack() as stack:
        # shutdown_s of 1 s allows for the grace; what is asked for here is the end and the rows
        export(ready["grpc"]["port"], spans(5).SerializeToString())
        said = hold(stack, ready)
        process.send_signal(signal.SIGTERM)
        code, _, err = _end(process)
    assert code == 0, err
    assert said in err
    assert ("cut off" in err) is bool(said)
    assert "Traceback" not in err
    with command(store) as (process, _):  # cut short on a slow machine, it is stored now
        until(lambda: len(rows_of(store)) == 5)
        process.send_signal(signal.SIGTERM)
        assert _end(process)[0] == 0
    assert len(rows_of(store)) == 5


def test_a_request_that_is_cut_off_hears_that_it_may_come_again(start: Start) -> None:
    receiver = start(shutdown_s=1)
    with socket.create_connection(("127.0.0.1", receiver.ready.http_port)) as sock:
        sock.sendall(
            f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\n"
            "Expect: 100-continue\r\nContent-Length: 100\r\n\r\n".encode()
        )
        assert sock.recv(100).startswith(b"HTTP/1.1 100 ")
        receiver.stop()
        assert sock.recv(100).startswith(b"HTTP/1.1 503 ")


def test_both_ports_close_at_once(start: Start) -> None:
    """While HTTP waits for a sender, gRPC takes no more requests either."""
    receiver = start(shutdown_s=20)
    with socket.create_connection(("127.0.0.1", receiver.ready.http_port)) as sock:
        sock.sendall(
            f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\n"
            "Expect: 100-continue\r\nContent-Length: 100\r\n\r\n".encode()
        )
        assert sock.recv(100).startswith(b"HTTP/1.1 100 ")
        ending = threading.Thread(target=receiver.stop)
        ending.start()
        try:
            until(lambda: _refuses(receiver.ready.grpc_port), seconds=4)
        finally:
            sock.close()
            ending.join(60)
    assert not ending.is_alive()


def _refuses(port: int) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            channel.unary_unary(EXPORT["traces"])(b"", timeout=1)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAVAILABLE)
    return False


_HANG = {
    "the last commit": ("tracekit.lake.store", "Store.append"),
    "a pass": ("tracekit_collectors.loops", "maintenance_pass"),
}


@pytest.mark.parametrize("what", _HANG)
def test_a_disk_that_hangs_does_not_hold_up_the_end(what: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    module, name = _HANG[what]
    hang = (
        f"import {module} as m, threading as t; m.{name} = lambda *a, **k: "
        f"(print('hanging', file=sys.stderr, flush=True), t.Event().wait())"
    )
    # when the last of its modules is imported, what it uses is there to be replaced
    options = ("--shutdown-s", 2, "--flush-interval-s", 0.05, "--maintenance-interval-s", 0.05)
    request = spans(3)
    with command(store, *options, "--json", at="tracekit_collectors.writer", then=hang) as running:
        process, ready = running
        export(ready["grpc"]["port"], request.SerializeToString())
        assert process.stderr is not None
        assert process.stderr.readline() == "hanging\n"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code, out, err = _end(process)
    assert code == 0
    assert time.monotonic() - began < 20
    assert "took longer than 2 s (--shutdown-s) and is cut short" in err
    first, last = (json.loads(line) for line in out.splitlines())
    assert first == ready
    assert last["signals"]["traces"]["accepted"] == 3
    with command(store) as (process, _):
        until(lambda: rows_of(store))
        process.send_signal(signal.SIGTERM)
        assert _end(process)[0] == 0
    assert counts(rows_of(store, columns="span_id")) == dict.fromkeys(span_ids(request), 1)


def test_only_a_receivers_ready_file_is_replaced(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("a year of work")
    for file in (path, tmp_path):
        with pytest.raises(UsageError, match=r"--ready-file .* is no receiver's"):
            start(ready_file=file)
    assert path.read_text() == "a year of work"
    assert not (tmp_path / "store").exists(), "found out before anything is made"
    left_behind = tmp_path / "left.json"
    left_behind.write_text('{"pid": 1, "grpc": {}, "http": {}}')
    check_replaceable(left_behind)
    empty = tmp_path / "empty"
    empty.touch()
    check_replaceable(empty)
    start(ready_file=left_behind)
    assert json.loads(left_behind.read_text())["pid"] != 1
