"""Asks the receiver itself: what do its ports speak, and does a span sent there arrive.

Owns the network part of ``tracekit doctor``. The commonest mistake is a protocol on the wrong
port (an exporter then loses every span in silence), so each port is asked in both protocols.
"""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.analysis.doctor import DOCTOR_SERVICE
from tracekit.analysis.doctor_chains import Remark
from tracekit.errors import UsageError
from tracekit.lake.receiver_file import RECEIVER_FILE, Listening, read_listening

if TYPE_CHECKING:
    from tracekit.lake.store import Store

_CONNECT_S: Final = 2.0
_POLL_S: Final = 0.2
#: HTTP/2's greeting and an empty SETTINGS frame: a gRPC server answers with its own SETTINGS.
_HTTP2_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
_SETTINGS_FRAME: Final = 4
_TLS_ALERT: Final = 0x15


@dataclass(frozen=True)
class Port:
    """What one port speaks: ``grpc``, ``http``, ``tls``, ``unknown``, or None if it is closed."""

    port: int
    expected: str
    speaks: str | None


@dataclass(frozen=True)
class Where:
    """Where a receiver is asked for, and how that is known: ``options``, ``ready_file``, ``store``
    (as its receiver noted it) or ``default``."""

    host: str = "127.0.0.1"
    grpc_port: int = 4317
    http_port: int = 4318
    found_by: str = "default"


@dataclass(frozen=True)
class Probe:
    """``arrived`` is None where no test span could be sent; ``waited_s`` is how long it took."""

    host: str
    found_by: str
    ports: tuple[Port, ...]
    receiver: dict[str, Any] | None
    sent_via: tuple[str, ...]
    arrived: bool | None
    waited_s: float | None
    remarks: tuple[Remark, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def probe(
    store: Store | None,
    *,
    where: Where | None = None,
    token: str | None = None,
    wait_s: float = 10.0,
) -> Probe:
    """Ask both ports, send a test span where a receiver answers, wait for it in ``store``.

    Never raises for what the network does: that becomes a remark.
    """
    where = where or Where()
    host, grpc_port, http_port = where.host, where.grpc_port, where.http_port
    ports = (
        Port(grpc_port, "grpc", _speaks(host, grpc_port, "grpc")),
        Port(http_port, "http", _speaks(host, http_port, "http")),
    )
    remarks = [r for port in ports for r in _port_remarks(port)]
    if all(port.speaks is None for port in ports):
        remarks.append(
            Remark(
                "note",
                "receiver",
                f"no receiver answers on {host}:{grpc_port} or :{http_port}",
                _NOBODY[where.found_by],
            )
        )
        return Probe(host, where.found_by, ports, None, (), None, None, tuple(remarks))
    receiver: dict[str, Any] | None = None
    if ports[1].speaks == "http":
        receiver, remark = _status(host, http_port, token)
        remarks.extend([remark] if remark else [])
    if receiver is not None:
        remarks.extend(_receiver_remarks(receiver, store))
    sent: dict[str, str] = {}
    if receiver is not None:
        error = _send_http(host, http_port, token, trace_id := _new_id(16))
        remarks.extend(_sent_remark("HTTP", http_port, error))
        if error is None:
            sent["http"] = trace_id
    if ports[0].speaks == "grpc":
        error = _send_grpc(host, grpc_port, token, trace_id := _new_id(16))
        remarks.extend(_sent_remark("gRPC", grpc_port, error))
        if error is None:
            sent["grpc"] = trace_id
    if not sent or store is None:
        said = tuple(remarks)
        return Probe(host, where.found_by, ports, receiver, tuple(sent), None, None, said)
    began = time.monotonic()
    missing = _wait(store, set(sent.values()), began + wait_s)
    waited = time.monotonic() - began
    via = " and ".join({"http": "HTTP", "grpc": "gRPC"}[name] for name in sent)
    if missing:
        lost = " and ".join(name for name, trace_id in sent.items() if trace_id in missing)
        remarks.append(
            Remark(
                "problem",
                "receiver",
                f"the test span sent over {lost} was accepted and is not in this store after "
                f"{waited:.0f} s",
                "does the receiver write to another store? see --store; its log says more",
            )
        )
    else:
        remarks.append(Remark("ok", "receiver", f"test spans over {via} arrived in {waited:.1f} s"))
    said = tuple(remarks)
    return Probe(host, where.found_by, ports, receiver, tuple(sent), not missing, waited, said)


_START: Final = "start one: tracekit collect (imports work without it)"
#: What to do where nobody answers, by how the place was found.
_NOBODY: Final = {
    "options": f"give other --host, --grpc-port and --http-port, or {_START}",
    "ready_file": f"the ready file is left from a receiver that was killed; {_START}",
    "store": (
        "the receiver that noted these ports in the store has ended without clearing its note, or "
        f"runs on another machine (--host); {_START}"
    ),
    "default": (
        "a receiver of this store would have noted its ports there; if one runs for another "
        f"store, name it (--store, --ready-file, or --grpc-port and --http-port), or {_START}"
    ),
}


def find_receiver(
    store: Store | None,
    *,
    host: str | None = None,
    grpc_port: int | None = None,
    http_port: int | None = None,
    ready_file: Path | None = None,
) -> Where:
    """Where to ask: the options, else the ready file, else the store's note, else the defaults.

    UsageError if ``ready_file`` is no receiver's.
    """
    noted: Listening | None = None
    found_by = "default"
    if ready_file is not None:
        found_by, noted = "ready_file", read_listening(ready_file)
        if noted is None:
            raise UsageError(
                f"--ready-file {ready_file} is not there or no receiver's: it is the file that "
                "`tracekit collect --ready-file` writes while it runs"
            )
    elif store is not None:
        noted = read_listening(store.path / RECEIVER_FILE)
        found_by = "default" if noted is None else "store"
    if grpc_port is not None or http_port is not None or host is not None:
        found_by = "options"
    base = Where() if noted is None else Where(noted.host, noted.grpc_port, noted.http_port)
    return Where(
        host or base.host, grpc_port or base.grpc_port, http_port or base.http_port, found_by
    )


def _speaks(host: str, port: int, expected: str) -> str | None:
    """What the port speaks; greeted first as is expected of it, so that a receiver does not take
    the question for a sender at the wrong port."""
    http = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    hellos = (_HTTP2_HELLO, http) if expected == "grpc" else (http, _HTTP2_HELLO)
    for first, hello in zip((True, False), hellos, strict=True):
        answer = _exchange(host, port, hello)
        if answer is None and first:
            return None
        kind = _classify(answer or b"")
        if kind is not None:
            return kind
    return "unknown"


def _classify(answer: bytes) -> str | None:
    if answer.startswith(b"HTTP/1."):
        return "http"
    if len(answer) >= 9 and answer[3] == _SETTINGS_FRAME:
        return "grpc"
    if answer[:1] == bytes([_TLS_ALERT]):
        return "tls"
    return None


def _exchange(host: str, port: int, hello: bytes) -> bytes | None:
    """What the port answers to ``hello``; None if it is closed, empty if it says nothing."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S) as connection:
            connection.sendall(hello)
            try:
                return connection.recv(64)
            except OSError:
                return b""
    except OSError:
        return None


def _port_remarks(port: Port) -> list[Remark]:
    if port.speaks in (None, port.expected):
        return []
    names = {"grpc": "gRPC", "http": "HTTP", "tls": "TLS", "unknown": "something else"}
    variable = {
        "grpc": "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
        "http": "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
    }
    if port.speaks == "tls":
        how = "exporters need an https:// endpoint; the doctor does not probe through TLS"
    elif port.speaks == "unknown":
        how = f"another program listens on {port.port}: choose other ports for tracekit collect"
    else:
        how = (
            f"exporters that send {names[port.expected]} to {port.port} lose every span in "
            f"silence: set {variable[str(port.speaks)]} for this port, or use the other port"
        )
    return [
        Remark(
            "problem",
            "receiver",
            f"port {port.port} speaks {names[str(port.speaks)]}, where {names[port.expected]} is "
            "expected",
            how,
        )
    ]


def _status(host: str, port: int, token: str | None) -> tuple[dict[str, Any] | None, Remark | None]:
    request = urllib.request.Request(f"http://{_in_url(host)}:{port}/status")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with _open(request) as answer:
            document = json.load(answer)
        if str(document.get("schema", "")).startswith("tracekit.collect.status/"):
            return document, None
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return None, Remark(
                "problem",
                "receiver",
                f"the receiver on port {port} wants a token",
                "give it with --token or TRACEKIT_TOKEN; exporters send it as "
                "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20TOKEN",
            )
    except (OSError, ValueError):
        pass  # whatever it is, it is no receiver of ours
    return None, Remark(
        "note",
        "receiver",
        f"port {port} speaks HTTP, but it is not tracekit's receiver",
        "another collector may listen there; name tracekit's ports with --grpc-port, --http-port",
    )


def _receiver_remarks(status: dict[str, Any], store: Store | None) -> list[Remark]:
    remarks = [Remark("problem", "receiver", str(text)) for text in status.get("hints", ())]
    lake = status.get("lake", {})
    if lake.get("failures_in_a_row"):
        remarks.append(
            Remark(
                "problem",
                "receiver",
                f"the receiver cannot write to its store: {lake.get('last_error')}",
                "accepted spans are safe in its spool and follow once this is mended",
            )
        )
    path = status.get("endpoints", {}).get("store")
    if path and (store is None or Path(path).resolve() != store.path.resolve()):
        remarks.append(
            Remark(
                "problem",
                "receiver",
                f"the receiver writes to {path}, not to the store looked at here",
                f"pass --store {path}",
            )
        )
    refused = {k: v for k, v in status.get("refused_requests", {}).items() if v}
    if refused:
        listed = ", ".join(f"{reason} {n:,}" for reason, n in sorted(refused.items()))
        remarks.append(Remark("note", "receiver", f"the receiver refused whole requests: {listed}"))
    return remarks


def _sent_remark(name: str, port: int, error: str | None) -> list[Remark]:
    if error is None:
        return []
    return [
        Remark("problem", "receiver", f"a test span over {name} to port {port} failed: {error}")
    ]


def _send_http(host: str, port: int, token: str | None, trace_id: str) -> str | None:
    body = json.dumps(_test_span(trace_id)).encode()
    request = urllib.request.Request(
        f"http://{_in_url(host)}:{port}/v1/traces",
        data=body,
        headers={"Content-Type": "application/json"},
    )
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with _open(request) as answer:
            answer.read()
    except OSError as error:
        return str(error)
    return None


def _send_grpc(host: str, port: int, token: str | None, trace_id: str) -> str | None:
    """Send over gRPC; quietly nothing where grpcio (the collect extra) is not installed."""
    try:
        import grpc
    except ModuleNotFoundError:
        return "grpcio is not installed here (pip install 'tracekit-llm[collect]')"
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
    )

    document = _test_span(trace_id)
    span = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    # protobuf's own JSON form takes bytes as base64, OTLP's as hex
    import base64

    for key in ("traceId", "spanId"):
        span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    message = ParseDict(document, ExportTraceServiceRequest())
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with grpc.insecure_channel(f"{_in_url(host)}:{port}") as channel:
        call = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        try:
            call(message.SerializeToString(), timeout=5, metadata=metadata)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return None


def _test_span(trace_id: str) -> dict[str, Any]:
    now = time.time_ns()
    return {
        "resourceSpans": [
            {
                "resource": {
                    "attributes": [
                        {"key": "service.name", "value": {"stringValue": DOCTOR_SERVICE}}
                    ]
                },
                "scopeSpans": [
                    {
                        "scope": {"name": "tracekit.doctor"},
                        "spans": [
                            {
                                "traceId": trace_id,
                                "spanId": _new_id(8),
                                "name": "test span of tracekit doctor",
                                "kind": 1,
                                "startTimeUnixNano": str(now),
                                "endTimeUnixNano": str(now + 1_000_000),
                            }
                        ],
                    }
                ],
            }
        ]
    }


def _wait(store: Store, trace_ids: set[str], deadline: float) -> set[str]:
    """The trace ids that are not in ``spans`` by ``deadline`` (monotonic seconds)."""
    from tracekit.lake.duck import connect
    from tracekit.lake.store import StoreReader

    reader = StoreReader(store)
    since = time.time_ns() - 60 * 1_000_000_000
    with connect() as con:
        while True:
            snapshot = reader.snapshot("spans").select("ingested_unix_ns", low=since)
            rows = con.execute(
                f"select distinct trace_id from ({snapshot.scan_sql()}) where service_name = ?",
                [DOCTOR_SERVICE],
            ).fetchall()
            missing = trace_ids - {trace_id for (trace_id,) in rows}
            if not missing or time.monotonic() >= deadline:
                return missing
            time.sleep(_POLL_S)


def _open(request: urllib.request.Request) -> Any:
    """Open without the environment's proxies: the receiver is asked directly."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=5)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _new_id(size: int) -> str:
    return os.urandom(size).hex()
