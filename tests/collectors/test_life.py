"""Configuration, ports, status, settling and maintenance of a receiver."""

from __future__ import annotations

import http.client
import logging
import math
import socket
import ssl
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.collectors.receiving import EXPORT, PROTOBUF, Running, export, post, spans, until
from tracekit.errors import UsageError
from tracekit.lake.lock import settle_lock
from tracekit.lake.store import Store
from tracekit_collectors import loops
from tracekit_collectors.collect import run
from tracekit_collectors.config import CollectConfig

Start = Callable[..., Running]
_TLS = Path(__file__).parent / "tls"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"host": "0.0.0.0"}, "give a token"),
        ({"host": "::"}, "give a token"),
        ({"host": "10.1.2.3"}, "give a token"),
        ({"host": "collector.example"}, "give a token"),
        ({"token": ""}, "token is empty"),
        ({"token": "a\nb"}, "printable"),
        ({"tls_cert": Path("c")}, "--tls-key"),
        ({"grpc_port": 70_000}, "--grpc-port"),
        ({"grpc_port": 4318}, "both 4318"),
        ({"flush_interval_s": 0}, "--flush-interval-s"),
        ({"max_in_flight_bytes": 10}, "--max-in-flight-bytes"),
        ({"max_spool_bytes": 1 << 20}, "--max-spool-bytes"),
        ({"max_body_bytes": 1 << 31, "max_in_flight_bytes": 1 << 33}, "--max-body-bytes"),
        ({"retain_ns": 0}, "--retain"),
        ({"max_bytes": 0}, "--max-bytes"),
        *(
            ({name: value}, f"--{name.replace('_', '-')} m")
            for name in (
                "flush_interval_s",
                "maintenance_interval_s",
                "quiet_s",
                "settle_interval_s",
                "shutdown_s",
            )
            for value in (math.nan, math.inf, -math.inf, -1.0, 1e300)
        ),
    ],
)
def test_what_cannot_work_is_refused_by_option_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        CollectConfig(store=Path("s"), **options)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_loopback_needs_no_token(host: str) -> None:
    assert CollectConfig(store=Path("s"), host=host).token is None


@pytest.mark.parametrize("option", ["grpc_port", "http_port"])
def test_a_port_in_use_names_port_and_option(start: Start, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} .*--{option.replace('_', '-')}"):
            start(**{option: port})
    # Nothing of the failed start is left over: not the other port, not the spool.
    start(**{option: port})


def test_two_receivers_do_not_share_a_port_or_a_store(start: Start, tmp_path: Path) -> None:
    first = start()
    with pytest.raises(UsageError, match="in use"):
        start(store=tmp_path / "other", grpc_port=first.ready.grpc_port)
    with pytest.raises(UsageError, match="one receiver"):
        start()


def test_ready_file_and_output(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run" / "ready.json"
    receiver = start(ready_file=path)
    assert f'"port": {receiver.ready.grpc_port}' in path.read_text()
    assert [p.name for p in path.parent.iterdir()] == ["ready.json"]
    lines = capsys.readouterr().out.splitlines()
    assert f"127.0.0.1:{receiver.ready.grpc_port}" in lines[0]
    assert f"127.0.0.1:{receiver.ready.http_port}" in lines[1]
    receiver.stop()
    assert not path.exists()


def test_status_counts_what_came_in(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    receiver = start()
    export(receiver.ready.grpc_port, spans(3, service="a").SerializeToString())
    assert (
        post(receiver.ready.http_port, body=spans(2, service="b").SerializeToString()).status == 200
    )
    until(lambda: receiver.status()["lake"]["rows"] == 5)
    status = receiver.status()
    assert status["schema"] == "tracekit.collect.status/1"
    assert status["endpoints"]["grpc"]["port"] == receiver.ready.grpc_port
    traces = status["signals"]["traces"]
    assert traces == {
        "requests": 2,
        "requests_otlp_grpc": 1,
        "requests_otlp_http": 1,
        "received": 5,
        "accepted": 5,
        "rejected": {},
    }
    assert {name: seen["traces"] for name, seen in status["services"].items()} == {"a": 3, "b": 2}
    assert status["services"]["a"]["last_seen_unix_ns"] <= status["now_unix_ns"]
    assert status["lake"]["last_commit_unix_ns"] <= status["now_unix_ns"]
    assert status["lake"]["late_commits"] == 0
    receiver.stop()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "stopped: 5 rows received, 5 stored, 0 refused, 0 pending"


def test_ipv6(start: Start) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 on this machine")
    receiver = start(host="::1")
    connection = http.client.HTTPConnection("::1", receiver.ready.http_port, timeout=30)
    connection.request("GET", "/healthz")
    assert connection.getresponse().read()
    connection.close()
    with grpc.insecure_channel(f"[::1]:{receiver.ready.grpc_port}") as channel:
        assert channel.unary_unary(EXPORT["traces"])(b"", timeout=30) == b""


def test_tls(start: Start) -> None:
    cert, key = _TLS / "cert.pem", _TLS / "key.pem"  # self-signed, for tests only
    receiver = start(tls_cert=cert, tls_key=key)
    assert receiver.ready.lines()[1].startswith("OTLP/HTTP  https://")
    trust = ssl.create_default_context(cafile=cert)
    connection = http.client.HTTPSConnection(
        "127.0.0.1", receiver.ready.http_port, timeout=30, context=trust
    )
    connection.request(
        "POST", "/v1/traces", spans(1).SerializeToString(), {"Content-Type": PROTOBUF}
    )
    assert connection.getresponse().status == 200
    connection.close()
    credentials = grpc.ssl_channel_credentials(cert.read_bytes())
    with grpc.secure_channel(f"127.0.0.1:{receiver.ready.grpc_port}", credentials) as channel:
        call = channel.unary_unary(EXPORT["traces"])
        assert call(spans(1).SerializeToString(), timeout=30) == b""
    until(lambda: len(receiver.rows()) == 2)


def test_unreadable_tls_files_are_named(start: Start, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.pem"):
        start(tls_cert=tmp_path / "nowhere.pem", tls_key=tmp_path / "nowhere.pem")


class _Settler:
    """Stands in for the settler: what matters here is who calls it, when, and its failures."""

    passes: ClassVar[list[int]] = []
    fail_next: ClassVar[bool] = False
    made: ClassVar[int] = 0

    def __init__(self, store: Store, *, quiet_ns: int, stands_back: bool) -> None:
        assert stands_back, "a receiver leaves cores to its senders and readers"
        type(self).made += 1
        assert quiet_ns == 12_000_000_000

    def run_pass(self, now_unix_ns: int) -> None:
        if type(self).fail_next:
            type(self).fail_next = False
            raise ValueError("settling failed")
        type(self).passes.append(now_unix_ns)


def test_settling_holds_the_lock_and_survives_failures(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = types.ModuleType("tracekit.analysis.settle")
    module.Settler = _Settler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tracekit.analysis.settle", module)
    store = Store.open(tmp_path / "store", create=True)
    with settle_lock(store, blocking=False) as held:
        assert held
        receiver = start(settle_interval_s=0.01, quiet_s=12)
        until(lambda: receiver.status()["loops"].get("settle", {}).get("holds_lock") is False)
        assert _Settler.passes == []
    until(lambda: len(_Settler.passes) >= 2)
    with settle_lock(store, blocking=False) as held:
        assert not held
    assert _Settler.made == 1

    with caplog.at_level(logging.ERROR, logger="tracekit.collect"):
        _Settler.fail_next = True
        until(lambda: not _Settler.fail_next)
        before = len(_Settler.passes)
        until(lambda: len(_Settler.passes) > before)
    assert _Settler.made == 2  # one that failed is not trusted again
    assert [r.message for r in caplog.records if "settling failed" in r.message]
    export(receiver.ready.grpc_port, spans(1).SerializeToString())
    receiver.stop()
    with settle_lock(store, blocking=False) as held:
        assert held


def _call() -> ExportTraceServiceRequest:
    """A finished LLM call: one span of a client."""
    request = spans(1, service="app")
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.name, span.kind = "chat tiny", 3
    for key, text in (("gen_ai.operation.name", "chat"), ("gen_ai.request.model", "tiny")):
        span.attributes.add(key=key).value.string_value = text
    for key, number in (("input_tokens", 7), ("output_tokens", 5)):
        span.attributes.add(key=f"gen_ai.usage.{key}").value.int_value = number
    return request


def test_a_call_that_came_in_is_settled(start: Start) -> None:
    receiver = start(settle_interval_s=0.05, quiet_s=0, maintenance_interval_s=0.05)
    request = _call()
    span = request.resource_spans[0].scope_spans[0].spans[0]
    export(receiver.ready.grpc_port, request.SerializeToString())
    until(lambda: receiver.rows("requests"))
    assert receiver.rows("requests", "trace_id, model, input_tokens, output_tokens") == [
        (span.trace_id.hex(), "tiny", 7, 5)
    ]
    until(lambda: "last_pass_unix_ns" in receiver.status()["loops"].get("maintenance", {}))
    loops_now = receiver.status()["loops"]
    assert loops_now["settle"]["holds_lock"]
    assert loops_now["settle"]["error"] is None
    assert loops_now["maintenance"]["error"] is None


def test_a_loop_logs_each_kind_of_failure_once(caplog: pytest.LogCaptureFixture) -> None:
    from tracekit_collectors.stats import Stats

    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        raise ValueError(f"failure number {len(calls)}")

    stats = Stats()
    loop = loops.Loop("maintenance", 0.001, work, stats)
    with caplog.at_level(logging.ERROR, logger="tracekit.collect"):
        loop.start()
        until(lambda: len(calls) >= 5)
        loop.join()
    assert len(caplog.records) == 1
    assert "failure number" in stats.to_json()["loops"]["maintenance"]["error"]


def test_maintenance_runs(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    done = threading.Event()

    def maintenance(store: Store, **options: Any) -> None:
        seen.append(options)
        done.set()

    monkeypatch.setattr(loops, "maintenance_pass", maintenance)
    start(maintenance_interval_s=0.01, retain_ns=5 * 86_400 * 10**9, max_bytes=1 << 30)
    assert done.wait(30)
    assert (seen[0]["retain_ns"], seen[0]["max_bytes"]) == (5 * 86_400 * 10**9, 1 << 30)


def test_a_dead_part_ends_the_receiver_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit.errors import TracekitError
    from tracekit_collectors import writer

    monkeypatch.setattr(writer.Writer, "_loop", lambda self: None)
    with pytest.raises(TracekitError, match="writer ended unexpectedly"):
        run(CollectConfig(store=tmp_path / "store", grpc_port=0, http_port=0))


def test_settling_does_not_pass_rows_whose_commit_is_under_way(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a commit takes, its rows are settled when they are there at last."""
    from tracekit.analysis.settle import Settler

    receiver = start()
    store = Store.open(receiver.config.store)
    append = Store.append
    under_way, go_on = threading.Event(), threading.Event()
    stamps: list[int] = []

    def slow_append(self: Store, table: str, rows: Any, **options: Any) -> bool:
        if table == "spans":
            stamps.extend(rows["ingested_unix_ns"].to_pylist())
            under_way.set()
            assert go_on.wait(60)
        return append(self, table, rows, **options)

    monkeypatch.setattr(Store, "append", slow_append)
    export(receiver.ready.grpc_port, _call().SerializeToString())
    try:
        assert under_way.wait(30)
        # ten minutes go by: what was stamped before is long settled, but for these rows
        later = stamps[0] + 600 * 1_000_000_000
        assert Settler(store, quiet_ns=0).run_pass(later).watermark_unix_ns <= stamps[0]
    finally:
        go_on.set()
    until(lambda: receiver.rows())
    assert Settler(store, quiet_ns=0).run_pass(later + 1).settled == 1
    assert receiver.rows("requests", "model") == [("tiny",)]


def test_a_commit_that_is_tried_again_has_a_new_stamp(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Store.append
    stamps: list[int] = []

    def failing_once(self: Store, table: str, rows: Any, **options: Any) -> bool:
        stamps.extend(rows["ingested_unix_ns"].to_pylist())
        if len(stamps) == 1:
            raise OSError(28, "No space left on device")
        return append(self, table, rows, **options)

    monkeypatch.setattr(Store, "append", failing_once)
    receiver = start()
    export(receiver.ready.grpc_port, spans(1).SerializeToString())
    until(lambda: receiver.rows())
    assert stamps[1] > stamps[0]
    assert receiver.rows("spans", "ingested_unix_ns") == [(stamps[1],)]
