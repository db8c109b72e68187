"""``doctor``: what arrives, what is missing, and a wrong protocol on a port by its name."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import traffic
from tests.cli.conftest import Run
from tracekit.analysis import sqlfiles
from tracekit.analysis.probe import Where, find_receiver, probe
from tracekit.analysis.session import Session
from tracekit.errors import UsageError
from tracekit.lake.store import Store
from tracekit_collectors.collect import Ready
from tracekit_collectors.collect import run as collect
from tracekit_collectors.config import CollectConfig


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Callable[..., Ready]]:
    """Start a receiver on free ports; stopped at the end."""
    running: list[tuple[threading.Event, threading.Thread]] = []

    def start(**options: Any) -> Ready:
        ready: list[Ready] = []
        is_ready = threading.Event()
        stop = threading.Event()

        def on_ready(where: Ready) -> None:
            ready.append(where)
            is_ready.set()

        config = CollectConfig(
            **{
                "store": tmp_path / "store",
                "grpc_port": 0,
                "http_port": 0,
                "flush_interval_s": 0.05,
                **options,
            }
        )
        thread = threading.Thread(
            target=collect, args=(config,), kwargs={"on_ready": on_ready, "stop_event": stop}
        )
        thread.start()
        running.append((stop, thread))
        assert is_ready.wait(60)
        return ready[0]

    yield start
    for stop, thread in running:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def _doctor(run: Run, *arguments: object) -> dict[str, Any]:
    result = run("doctor", "--json", *arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def _texts(document: dict[str, Any]) -> str:
    remarks = [*document.get("remarks", []), *(document["probe"] or {}).get("remarks", [])]
    return "\n".join(f"{r['level']} {r['text']} / {r['how']}" for r in remarks)


def test_a_healthy_store(run: Run) -> None:
    document = _doctor(run, "--no-probe")
    assert document["schema"] == "tracekit.doctor/1"
    assert document["probe"] is None
    joins = document["joins"]
    assert (joins["requests"], joins["joined"], joins["completed"]) == (60, 60, 60)
    assert joins["covered_share"] == pytest.approx(1, abs=0.01)
    services = {s["service_name"]: s for s in document["services"]}
    assert set(services) == {"chat-app", "vllm-server"}
    assert services["vllm-server"]["legs"] == 60
    assert services["vllm-server"]["engines"] == "vllm"
    texts = _texts(document)
    assert "ok 60 of 60 requests seen by client and server" in texts
    assert "--enable-prompt-tokens-details" in texts
    assert "no chunk times" in texts
    assert "problem" not in texts
    assert (joins["engine_spans"], joins["engine_spans_alone"]) == (60, 0)
    assert "found no client's call" not in texts
    text = run("doctor", "--no-probe").stdout
    assert "chat-app" in text and "60 requests: 60 completed" in text


@pytest.mark.parametrize("name", sqlfiles.names("health"))
def test_every_fact_is_described(name: str, store: Path) -> None:
    file = sqlfiles.load("health", name)
    assert file.purpose and file.grain and file.inputs
    with Session.open(store) as session:
        given = {"slack_ns": 0, "chance_max": 0.05} if "$slack_ns" in file.text else None
        assert session.frame(file.body, given).columns == list(file.columns)


def test_empty_and_missing_store(run: Run, empty_store: Path, tmp_path: Path) -> None:
    assert "the store is empty" in _texts(_doctor(run, "--no-probe", "--store", empty_store))
    missing = _doctor(run, "--no-probe", "--store", tmp_path / "nowhere")
    assert "no tracekit store" in missing["store_missing"]
    assert run("doctor", "--no-probe", "--store", tmp_path / "nowhere").exit_code == 0


def _edited(tmp_path: Path, run: Run, edit: Callable[[dict[str, Any], int], None]) -> Path:
    """A store of traffic whose exports ``edit`` has changed (export, request number)."""
    file = traffic.write(tmp_path / "t.jsonl", last=12)
    exports = [json.loads(line) for line in file.read_text().splitlines()]
    for number, export in enumerate(exports):
        edit(export, number)
    file.write_text("\n".join(map(json.dumps, exports)) + "\n")
    assert run("import", file, "--store", tmp_path / "store").exit_code == 0
    return tmp_path / "store"


def _server_span(export: dict[str, Any]) -> dict[str, Any]:
    span: dict[str, Any] = export["resourceSpans"][-1]["scopeSpans"][0]["spans"][0]
    return span


def test_missing_client_spans(run: Run, tmp_path: Path) -> None:
    def drop_clients(export: dict[str, Any], _: int) -> None:
        del export["resourceSpans"][0]

    document = _doctor(run, "--no-probe", "--store", _edited(tmp_path, run, drop_clients))
    texts = _texts(document)
    assert "no client reported anything" in texts
    assert "problem vllm: the parents of 12 of 12 request spans never arrived" in texts


def test_missing_server_spans(run: Run, tmp_path: Path) -> None:
    def drop_servers(export: dict[str, Any], _: int) -> None:
        del export["resourceSpans"][1]

    document = _doctor(run, "--no-probe", "--store", _edited(tmp_path, run, drop_servers))
    assert "no server reported anything" in _texts(document)
    assert "--otlp-traces-endpoint" in _texts(document)


def test_context_that_is_not_propagated(run: Run, tmp_path: Path) -> None:
    def cut(export: dict[str, Any], number: int) -> None:
        if number % 2:
            span = _server_span(export)
            span["traceId"] = f"{number + 1000:032x}"
            del span["parentSpanId"]

    texts = _texts(_doctor(run, "--no-probe", "--store", _edited(tmp_path, run, cut)))
    assert "vllm: 6 of 12 request spans without a parent" in texts


def test_engine_spans_without_a_call(run: Run, tmp_path: Path) -> None:
    def drop_some_clients(export: dict[str, Any], number: int) -> None:
        if number == 3:
            # a prefill and a decode server: two spans of one request without a call
            twin = json.loads(json.dumps(export["resourceSpans"][1]))
            twin["resource"]["attributes"][0]["value"]["stringValue"] = "vllm-decode"
            span = twin["scopeSpans"][0]["spans"][0]
            span["spanId"] = f"{number + 5000:016x}"
            export["resourceSpans"].append(twin)
            prefill = export["resourceSpans"][1]["scopeSpans"][0]["spans"][0]
            for attribute in prefill["attributes"]:
                if attribute["key"] == "gen_ai.usage.completion_tokens":
                    attribute["value"] = {"intValue": "1"}
        if number < 4:
            del export["resourceSpans"][0]

    store = _edited(tmp_path, run, drop_some_clients)
    document = _doctor(run, "--no-probe", "--store", store)
    joins = document["joins"]
    assert (joins["engine_spans"], joins["engine_spans_alone"], joins["server_only"]) == (13, 5, 4)
    assert "note 5 of 13 engine spans (38 %) found no client's call: 4 requests" in _texts(document)


def test_prefill_and_decode_in_two_traces(run: Run, tmp_path: Path) -> None:
    """A proxy that forwards no traceparent: one request id, two servers, two traces."""

    def split(export: dict[str, Any], number: int) -> None:
        span = _server_span(export)
        span["traceId"] = f"{number + 1000:032x}"
        del span["parentSpanId"]
        twin = json.loads(json.dumps(export["resourceSpans"][1]))
        twin["resource"]["attributes"][0]["value"]["stringValue"] = "vllm-decode"
        twin["scopeSpans"][0]["spans"][0]["traceId"] = f"{number + 2000:032x}"
        export["resourceSpans"].append(twin)

    texts = _texts(_doctor(run, "--no-probe", "--store", _edited(tmp_path, run, split)))
    assert "problem vllm: 12 request ids on several servers in several traces" in texts
    assert "traceparent" in texts


def test_engine_spans_without_phases_and_ids(run: Run, tmp_path: Path) -> None:
    def strip(export: dict[str, Any], _: int) -> None:
        span = _server_span(export)
        gone = ("gen_ai.latency.time_in_queue", "gen_ai.latency.time_in_model_prefill")
        span["attributes"] = [
            a for a in span["attributes"] if a["key"] not in (*gone, "gen_ai.request.id")
        ]

    texts = _texts(_doctor(run, "--no-probe", "--store", _edited(tmp_path, run, strip)))
    assert "vllm: 12 of 12 spans without a request id" in texts
    assert "vllm: 12 of 12 request spans not telling queue from prefill" in texts


def test_only_start_up_spans(run: Run, tmp_path: Path) -> None:
    def start_up(export: dict[str, Any], _: int) -> None:
        del export["resourceSpans"][0]
        span = export["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
        span.update(name="Overall Loading", kind=1, attributes=[])

    texts = _texts(_doctor(run, "--no-probe", "--store", _edited(tmp_path, run, start_up)))
    assert "vllm-server sent its start-up spans and never a request span" in texts
    assert "problem none of 12 spans is part of an LLM request" in texts


def test_probe_round_trip(run: Run, receiver: Callable[..., Ready]) -> None:
    ready = receiver()
    ports = ("--grpc-port", ready.grpc_port, "--http-port", ready.http_port)
    document = _doctor(run, *ports, "--store", ready.store, "--wait", 30)
    result = document["probe"]
    assert [p["speaks"] for p in result["ports"]] == ["grpc", "http"]
    assert sorted(result["sent_via"]) == ["grpc", "http"]
    assert result["arrived"] is True
    assert "ok test spans over HTTP and gRPC arrived" in _texts(document)
    # the doctor's own spans are in nobody's way
    again = _doctor(run, "--no-probe", "--store", ready.store)
    assert again["services"] == [] and again["joins"]["requests"] == 0
    assert not any(row["total"] for row in again["arrivals"]), "a probe is no arrival"


def test_the_stores_receiver_is_found_on_any_ports(
    run: Run, receiver: Callable[..., Ready], tmp_path: Path
) -> None:
    ready_file = tmp_path / "ready"
    ready = receiver(host="127.0.0.1", ready_file=ready_file)
    found = _doctor(run, "--store", ready.store, "--wait", 30)["probe"]
    assert found["found_by"] == "store" and found["arrived"] is True
    assert [p["port"] for p in found["ports"]] == [ready.grpc_port, ready.http_port]
    text = run("doctor", "--store", ready.store, "--wait", "30").stdout
    assert "as its receiver noted in the store" in " ".join(text.split())
    # from another store, by the ready file
    named = _doctor(run, "--ready-file", ready_file, "--wait", 0.1)["probe"]
    assert named["found_by"] == "ready_file"
    assert [p["port"] for p in named["ports"]] == [ready.grpc_port, ready.http_port]


def test_where_a_receiver_is_looked_for(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", create=True)
    assert find_receiver(None) == find_receiver(store) == Where()
    note = store.path / ".receiver.json"
    note.write_text(json.dumps({"pid": 1, "grpc": {"host": "0.0.0.0", "port": 5}, "http": {}}))
    assert find_receiver(store).found_by == "default", "what is no receiver's says nothing"
    ports = {"grpc": {"host": "0.0.0.0", "port": 5}, "http": {"host": "0.0.0.0", "port": 6}}
    note.write_text(json.dumps({"pid": 1, **ports}))
    assert find_receiver(store) == Where("127.0.0.1", 5, 6, "store")
    assert find_receiver(store, grpc_port=7) == Where("127.0.0.1", 7, 6, "options")
    assert find_receiver(store, host="h") == Where("h", 5, 6, "options")
    with pytest.raises(UsageError, match="--ready-file"):
        find_receiver(store, ready_file=tmp_path / "nothing")
    # one that was killed leaves its note: the doctor says so
    note.write_text(json.dumps({"pid": 1, "grpc": {"host": "127.0.0.1", "port": _free_port()},
        "http": {"host": "127.0.0.1", "port": _free_port()}}))  # fmt: skip
    closed = probe(store, where=find_receiver(store))
    assert "has ended without clearing its note" in str(closed.remarks[-1].how)


def test_the_note_goes_with_the_receiver(tmp_path: Path) -> None:
    stop, on = threading.Event(), threading.Event()
    config = CollectConfig(store=tmp_path / "gone", grpc_port=0, http_port=0)
    thread = threading.Thread(
        target=collect,
        args=(config,),
        kwargs={"on_ready": lambda _: on.set(), "stop_event": stop},
    )
    thread.start()
    assert on.wait(60)
    note = tmp_path / "gone" / ".receiver.json"
    assert note.is_file()
    stop.set()
    thread.join(60)
    assert not note.exists()


def test_probe_names_swapped_ports(run: Run, receiver: Callable[..., Ready]) -> None:
    ready = receiver()
    ports = ("--grpc-port", ready.http_port, "--http-port", ready.grpc_port)
    texts = _texts(_doctor(run, *ports, "--store", ready.store))
    assert f"port {ready.http_port} speaks HTTP, where gRPC is expected" in texts
    assert f"port {ready.grpc_port} speaks gRPC, where HTTP is expected" in texts
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in texts


def test_probe_with_another_store(run: Run, receiver: Callable[..., Ready], tmp_path: Path) -> None:
    ready = receiver()
    ports = ("--grpc-port", ready.grpc_port, "--http-port", ready.http_port)
    texts = _texts(_doctor(run, *ports, "--wait", 0.3))
    assert f"the receiver writes to {ready.store}" in texts
    assert "is not in this store" in texts


def test_probe_with_a_token(
    run: Run, receiver: Callable[..., Ready], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = receiver(token="secret")
    ports = ("--grpc-port", ready.grpc_port, "--http-port", ready.http_port)
    monkeypatch.delenv("TRACEKIT_TOKEN", raising=False)
    texts = _texts(_doctor(run, *ports, "--store", ready.store))
    assert "wants a token" in texts and "UNAUTHENTICATED" in texts
    with_token = _doctor(run, *ports, "--store", ready.store, "--token", "secret", "--wait", 30)
    assert with_token["probe"]["arrived"] is True


def test_probe_of_closed_ports_and_strangers(tmp_path: Path) -> None:
    with _listening(b"") as silent, _listening(b"220 mail ESMTP\r\n") as mail:
        closed = _free_port()
        both = probe(None, where=Where(grpc_port=closed, http_port=_free_port()))
        assert [p.speaks for p in both.ports] == [None, None]
        assert "tracekit collect" in str(both.remarks[-1].how)
        strange = probe(None, where=Where(grpc_port=mail.port, http_port=silent.port))
        assert [p.speaks for p in strange.ports] == ["unknown", "unknown"]
        assert strange.arrived is None


def test_probe_of_a_foreign_http_server() -> None:
    with _listening(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as web:
        result = probe(None, where=Where(grpc_port=_free_port(), http_port=web.port))
    assert result.ports[1].speaks == "http"
    assert any("not tracekit's receiver" in r.text for r in result.remarks)
    assert result.sent_via == ()


class _listening:
    """A server that answers every connection with the same bytes and closes it."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                if self._answer:
                    connection.sendall(self._answer)

    def __enter__(self) -> _listening:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
