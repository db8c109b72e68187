"""Every way in: gRPC and HTTP, protobuf and JSON, plain and gzip, three signals."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tests.collectors.receiving import (
    JSON,
    Running,
    export,
    gauge,
    log_record,
    post,
    post_gzip,
    span_ids,
    span_json,
    spans,
    until,
)

Start = Callable[..., Running]


def test_grpc_stub_exports_spans_with_and_without_gzip(start: Start) -> None:
    receiver = start()
    sent = [spans(3, service="plain"), spans(4, service="packed")]
    with grpc.insecure_channel(f"127.0.0.1:{receiver.ready.grpc_port}") as channel:
        stub = trace_service_pb2_grpc.TraceServiceStub(channel)  # type: ignore[no-untyped-call]
        plain = stub.Export(sent[0])
        packed = stub.Export(sent[1], compression=grpc.Compression.Gzip)
    assert plain == packed == ExportTraceServiceResponse()
    assert not plain.HasField("partial_success")
    until(lambda: len(receiver.rows()) == 7)
    rows = receiver.rows(columns="span_id, service_name, origin")
    assert {r[0] for r in rows} == {*span_ids(sent[0]), *span_ids(sent[1])}
    assert {r[1] for r in rows} == {"plain", "packed"}
    assert {r[2] for r in rows} == {"otlp_grpc"}


def test_grpc_takes_metrics_and_logs(start: Start) -> None:
    receiver = start()
    port = receiver.ready.grpc_port
    assert export(port, gauge(7.5).SerializeToString(), signal="metrics") == b""
    assert export(port, log_record("preempted").SerializeToString(), signal="logs") == b""
    until(lambda: receiver.rows("metric_samples") and receiver.rows("log_records"))
    assert receiver.rows("metric_samples", "name, value") == [("vllm:num_requests_waiting", 7.5)]
    assert receiver.rows("log_records", "service_name, body") == [("svc", "preempted")]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_http_exports_spans(start: Start, encoding: str, packed: bool) -> None:
    receiver = start()
    request = spans(5)
    body = span_json(request) if encoding == "json" else request.SerializeToString()
    media_type = "application/json; charset=utf-8" if encoding == "json" else None
    send = post_gzip if packed else post
    answer = send(
        receiver.ready.http_port, body=body, content_type=media_type or "application/x-protobuf"
    )
    assert answer.status == 200
    if encoding == "json":
        assert answer.headers["content-type"] == JSON
        assert json.loads(answer.body) == {}
    else:
        assert answer.headers["content-type"] == "application/x-protobuf"
        assert answer.body == b""
    until(lambda: len(receiver.rows()) == 5)
    rows = receiver.rows(columns="span_id, origin, start_unix_ns, ingested_unix_ns")
    assert sorted(r[0] for r in rows) == sorted(span_ids(request))
    assert {r[1] for r in rows} == {"otlp_http"}
    assert all(r[2] < r[3] for r in rows)


def test_http_takes_metrics_and_logs(start: Start) -> None:
    receiver = start()
    port = receiver.ready.http_port
    assert post(port, "/v1/metrics", gauge(1.0).SerializeToString()).status == 200
    assert post(port, "/v1/logs", log_record("x").SerializeToString()).status == 200
    until(lambda: receiver.rows("metric_samples") and receiver.rows("log_records"))


def test_gzip_of_several_members_is_one_body(start: Start) -> None:
    receiver = start()
    body = spans(2).SerializeToString()
    packed = gzip.compress(body[:40]) + gzip.compress(body[40:])
    answer = post(receiver.ready.http_port, body=packed, headers={"Content-Encoding": "gzip"})
    assert answer.status == 200
    until(lambda: len(receiver.rows()) == 2)


def test_an_empty_request_is_fine_and_stores_nothing(start: Start) -> None:
    receiver = start()
    assert export(receiver.ready.grpc_port, b"") == b""
    answer = post(receiver.ready.http_port, body=b"{}", content_type=JSON)
    assert (answer.status, answer.body) == (200, b"{}")
    status = receiver.status()
    assert status["signals"]["traces"]["requests"] == 2
    assert status["signals"]["traces"]["received"] == 0
    assert status["journal"]["spool_pending"] == 0


def test_one_connection_carries_many_requests(start: Start) -> None:
    import http.client

    receiver = start()
    connection = http.client.HTTPConnection("127.0.0.1", receiver.ready.http_port, timeout=30)
    for _ in range(3):
        connection.request(
            "POST", "/v1/traces", spans(1).SerializeToString(), {"Content-Type": JSON}
        )
        response = connection.getresponse()
        assert response.status == 400  # protobuf is no JSON; the connection lives on
        response.read()
        connection.request(
            "POST",
            "/v1/traces",
            spans(1).SerializeToString(),
            {"Content-Type": "application/x-protobuf"},
        )
        response = connection.getresponse()
        assert response.status == 200
        response.read()
    connection.close()
    until(lambda: len(receiver.rows()) == 3)


def test_pages_say_where_to_send(start: Start) -> None:
    receiver = start()
    for path in ("/", "/healthz"):
        answer = post(receiver.ready.http_port, path, method="GET")
        assert answer.status == 200
        assert b"/v1/traces" in answer.body
        assert str(receiver.ready.grpc_port).encode() in answer.body
    assert post(receiver.ready.http_port, "/healthz", method="HEAD").body == b""


def test_a_grpc_sender_at_the_http_port_is_told_the_right_one(start: Start) -> None:
    receiver = start()
    with pytest.raises(grpc.RpcError):
        export(receiver.ready.http_port, spans(1).SerializeToString())
    until(lambda: receiver.status()["hints"])
    (hint,) = receiver.status()["hints"]
    assert f"OTLP/gRPC is on port {receiver.ready.grpc_port}" in hint


@pytest.mark.parametrize("keep_text", [False, True])
def test_text_of_prompts_is_stored_only_if_asked_for(start: Start, keep_text: bool) -> None:
    receiver = start(keep_text=keep_text)
    request = spans(1)
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.attributes.add(key="gen_ai.prompt").value.string_value = "my secret"
    export(receiver.ready.grpc_port, request.SerializeToString())
    body = span_json(spans(1)).replace(
        b'"kind"',
        b'"attributes": [{"key": "gen_ai.prompt", "value": {"stringValue": "my secret"}}], "kind"',
    )
    assert post(receiver.ready.http_port, body=body, content_type=JSON).status == 200
    until(lambda: len(receiver.rows()) == 2)
    for (attributes,) in receiver.rows(columns="attributes"):
        assert ("my secret" in attributes) is keep_text
