"""Acknowledged = stored, once: across SIGTERM, SIGKILL, a store that fails and a torn spool."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.collectors.receiving import (
    Running,
    counts,
    export,
    gauge,
    post,
    rows_of,
    span_ids,
    spans,
    until,
)

Start = Callable[..., Running]

_CHILD = """
import json, sys
from pathlib import Path
from tracekit_collectors.collect import run
from tracekit_collectors.config import CollectConfig

options = json.loads(sys.argv[1])
for name in ("store", "ready_file"):
    options[name] = Path(options[name])
sys.exit(run(CollectConfig(**options)))
"""


class Child:
    """A receiver in a process of its own."""

    def __init__(self, store: Path, **options: Any) -> None:
        self.ready_file = store.parent / "ready.json"
        self.ready_file.unlink(missing_ok=True)
        settings = {
            "store": str(store),
            "ready_file": str(self.ready_file),
            "grpc_port": 0,
            "http_port": 0,
            "settle_interval_s": 3600,
            "maintenance_interval_s": 3600,
            **options,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, json.dumps(settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: self.ready_file.exists() or self.process.poll() is not None, seconds=60)
        assert self.ready_file.exists(), self.process.communicate()
        self.ready = json.loads(self.ready_file.read_text())
        self.grpc_port = int(self.ready["grpc"]["port"])
        self.http_port = int(self.ready["http"]["port"])

    def end(self, number: int) -> tuple[int, str, str]:
        """Send the signal, wait: (exit code, standard output, standard error)."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@contextmanager
def child(store: Path, **options: Any) -> Iterator[Child]:
    one = Child(store, **options)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def test_sigterm_commits_what_is_in_memory_and_exits_0(tmp_path: Path) -> None:
    store = tmp_path / "store"
    # So slow a flush that only the shutdown can have committed the rows.
    with child(store, flush_interval_s=3600) as receiver:
        assert receiver.ready == {
            "pid": receiver.process.pid,
            "grpc": {"host": "127.0.0.1", "port": receiver.grpc_port},
            "http": {"host": "127.0.0.1", "port": receiver.http_port},
            "store": str(store),
            "tls": False,
        }
        export(receiver.grpc_port, spans(10).SerializeToString())
        assert post(receiver.http_port, body=spans(5).SerializeToString()).status == 200
        export(receiver.grpc_port, gauge(1.0).SerializeToString(), signal="metrics")
        assert rows_of(store) == []
        code, out, err = receiver.end(signal.SIGTERM)
    assert (code, err) == (0, "")
    assert f"127.0.0.1:{receiver.grpc_port}" in out
    assert f"http://127.0.0.1:{receiver.http_port}" in out
    assert str(store) in out
    assert not receiver.ready_file.exists()
    assert len(rows_of(store)) == 15
    assert len(rows_of(store, "metric_samples")) == 1


def test_a_second_signal_exits_at_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with child(store, shutdown_s=600) as receiver:
        export(receiver.grpc_port, spans(3).SerializeToString())
        # A sender that never finishes its body keeps the first SIGTERM waiting.
        with socket.create_connection(("127.0.0.1", receiver.http_port)) as stuck:
            stuck.sendall(
                b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
                b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n"
            )
            assert stuck.recv(100).startswith(b"HTTP/1.1 100 ")  # it waits for the body
            receiver.process.send_signal(signal.SIGTERM)
            until(lambda: not receiver.ready_file.exists())
            assert receiver.process.poll() is None
            code, _, _ = receiver.end(signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    with child(store) as receiver:
        assert receiver.end(signal.SIGINT)[0] == 0
    assert len(rows_of(store)) == 3


def test_kill_9_loses_nothing_acknowledged_and_doubles_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    acknowledged: list[str] = []
    for round_ in range(3):
        with child(store, flush_interval_s=0.03, flush_rows=200) as receiver:
            killed = threading.Event()
            senders = [
                threading.Thread(target=_send, args=(receiver, acknowledged, killed, use_grpc))
                for use_grpc in (True, False, True)
            ]
            target = len(acknowledged) + 1500
            for sender in senders:
                sender.start()
            until(lambda target=target: len(acknowledged) >= target, seconds=60)  # type: ignore[misc]
            receiver.process.kill()
            receiver.process.communicate()
            killed.set()
            for sender in senders:
                sender.join(60)
            assert all(not sender.is_alive() for sender in senders), round_
    with child(store) as receiver:
        assert receiver.end(signal.SIGTERM)[0] == 0
    stored = counts(rows_of(store, columns="span_id"))
    assert len(acknowledged) >= 4500
    assert [i for i in acknowledged if stored[i] != 1] == []
    assert max(stored.values()) == 1


def _send(
    receiver: Child, acknowledged: list[str], killed: threading.Event, use_grpc: bool
) -> None:
    while not killed.is_set():
        request = spans(10)
        body = request.SerializeToString()
        try:
            if use_grpc:
                export(receiver.grpc_port, body)
            elif post(receiver.http_port, body=body).status != 200:
                continue
        except (grpc.RpcError, OSError):
            continue
        acknowledged.extend(span_ids(request))


def test_a_torn_spool_tail_is_cut_and_reported(tmp_path: Path, start: Start) -> None:
    store = tmp_path / "store"
    with child(store, flush_interval_s=3600) as receiver:
        export(receiver.grpc_port, spans(4).SerializeToString())
        receiver.end(signal.SIGKILL)
    (segment,) = (store / ".spool").glob("*.spool")
    with segment.open("ab") as file:
        file.write(b"\x10\x00\x00\x00half a record")
    again = start()
    until(lambda: len(again.rows()) == 4)
    (hint,) = again.status()["hints"]
    assert "17 bytes at the end of the spool were torn" in hint


def test_a_commit_that_died_between_two_tables_is_finished_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit.lake.store import Store

    receiver = start()
    request = spans(6)
    request.resource_spans[0].scope_spans[0].spans[0].trace_id = b""
    append = Store.append
    failed = threading.Event()

    def append_but_no_quarantine(self: Store, table: str, rows: Any, **options: Any) -> bool:
        if table == "quarantine":
            failed.set()
            raise OSError(28, "No space left on device")
        return append(self, table, rows, **options)

    monkeypatch.setattr(Store, "append", append_but_no_quarantine)
    export(receiver.ready.grpc_port, request.SerializeToString())
    assert failed.wait(30)
    later = spans(2)  # acknowledged while the lake fails, behind the half-committed flush
    export(receiver.ready.grpc_port, later.SerializeToString())
    receiver.stop()
    assert len(receiver.rows()) == 5
    assert receiver.rows("quarantine") == []

    monkeypatch.setattr(Store, "append", append)
    again = start()
    until(lambda: again.status()["journal"]["spool_pending"] == 0)
    assert counts(again.rows(columns="span_id")) == dict.fromkeys(
        [*span_ids(request)[1:], *span_ids(later)], 1
    )
    assert len(again.rows("quarantine")) == 1


def test_a_record_that_no_longer_decodes_is_set_aside(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit_collectors import writer

    receiver = start(flush_interval_s=3600)
    body = spans(1).SerializeToString()
    export(receiver.ready.grpc_port, body)
    monkeypatch.setattr(writer.Writer, "_commit", lambda *a, **k: False)
    receiver.stop()  # the rows stay in the spool
    monkeypatch.undo()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("a bug of a later version")

    monkeypatch.setattr(writer, "decode", broken)
    again = start()
    until(lambda: again.status()["journal"]["spool_pending"] == 0)
    (kept,) = (again.config.store / ".spool-set-aside").iterdir()
    assert kept.read_bytes().endswith(body)
    assert os.stat(kept).st_mode & 0o077 == 0
    assert str(kept) in again.status()["hints"][0]
    assert again.rows() == []
