"""What is refused, in whole or in part, and what the sender is told."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable

import grpc
import pytest
from google.protobuf import any_pb2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tests.collectors.receiving import (
    JSON,
    Running,
    export,
    post,
    post_gzip,
    span_ids,
    span_json,
    spans,
    until,
)
from tracekit_collectors import answers

Start = Callable[..., Running]
DAY_NS = 86_400 * 1_000_000_000


def test_bad_spans_are_named_and_quarantined_and_the_good_ones_kept(start: Start) -> None:
    receiver = start()
    request = spans(4)
    bad = request.resource_spans[0].scope_spans[0].spans[1]
    bad.trace_id = b"short"
    answer = ExportTraceServiceResponse.FromString(
        export(receiver.ready.grpc_port, request.SerializeToString())
    )
    assert answer.partial_success.rejected_spans == 1
    assert answer.partial_success.error_message.startswith("1 of 4 spans refused")
    until(lambda: len(receiver.rows()) == 3 and receiver.rows("quarantine"))
    kept = {r[0] for r in receiver.rows(columns="span_id")}
    assert kept == set(span_ids(request)) - {bad.span_id.hex()}
    ((signal, reason, service, origin, ingested),) = receiver.rows(
        "quarantine", "signal, reason, service_name, origin, ingested_unix_ns"
    )
    assert (signal, service, origin) == ("traces", "svc", "otlp_grpc")
    assert reason in answer.partial_success.error_message
    assert abs(time.time_ns() - ingested) < 60 * 10**9
    assert receiver.status()["signals"]["traces"]["rejected"] == {reason: 1}


@pytest.mark.parametrize("off_ns", [-400 * DAY_NS, 2 * DAY_NS])
def test_dates_out_of_range_are_refused(start: Start, off_ns: int) -> None:
    receiver = start()
    good, bad = spans(2), spans(1, start_unix_ns=time.time_ns() + off_ns)
    good.resource_spans.extend(bad.resource_spans)
    answer = post(receiver.ready.http_port, body=span_json(good), content_type=JSON)
    assert answer.status == 200
    partial = json.loads(answer.body)["partialSuccess"]
    assert partial["rejectedSpans"] == "1"
    until(lambda: len(receiver.rows()) == 2 and receiver.rows("quarantine"))
    assert receiver.rows("quarantine", "span_id, reason") == [
        (span_ids(bad)[0], "start_out_of_range")
    ]


def test_retention_bounds_how_old_a_span_may_be(start: Start) -> None:
    receiver = start(retain_ns=14 * DAY_NS)
    old = spans(1, start_unix_ns=time.time_ns() - 15 * DAY_NS)
    young = spans(1, start_unix_ns=time.time_ns() - 13 * DAY_NS)
    assert export(receiver.ready.grpc_port, old.SerializeToString()) != b""
    assert export(receiver.ready.grpc_port, young.SerializeToString()) == b""
    until(lambda: len(receiver.rows()) == 1 and len(receiver.rows("quarantine")) == 1)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"\xff\xff\xff not protobuf", "application/x-protobuf"), (b'{"resourceSpans": [', JSON)],
)
def test_a_body_that_does_not_parse_is_400(start: Start, body: bytes, content_type: str) -> None:
    receiver = start()
    answer = post(receiver.ready.http_port, body=body, content_type=content_type)
    assert answer.status == 400
    assert answer.headers["content-type"] == content_type
    if content_type == JSON:
        assert json.loads(answer.body)["code"] == answers.INVALID_ARGUMENT
    else:
        assert answer.body.startswith(b"\x08\x03\x12")  # Status: code 3, a message
    status = receiver.status()
    assert status["refused_requests"] == {"bad_body": 1}
    assert status["journal"]["spool_pending"] == 0


def test_a_body_that_does_not_parse_is_invalid_argument(start: Start) -> None:
    receiver = start()
    with pytest.raises(grpc.RpcError) as caught:
        export(receiver.ready.grpc_port, b"\xff\xff\xff not protobuf")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert receiver.status()["refused_requests"] == {"bad_body": 1}


def test_wrong_requests_get_their_own_status(start: Start) -> None:
    receiver = start()
    port = receiver.ready.http_port
    body = spans(1).SerializeToString()

    missing = post(port, "/v1/trace", body)
    assert missing.status == 404
    assert b"/v1/traces" in missing.body

    wrong = post(port, "/v1/traces", method="GET")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    wrong = post(port, "/status", body)
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD")

    for content_type in ("text/plain", None):
        strange = post(port, body=body, content_type=content_type)
        assert strange.status == 415
        assert b"application/x-protobuf" in strange.body

    brotli = post(port, body=body, headers={"Content-Encoding": "br"})
    assert (brotli.status, brotli.headers["accept-encoding"]) == (415, "gzip")

    for data in (b"no gzip", gzip.compress(body)[:-9], gzip.compress(body) + b"trailing"):
        broken = post(port, body=data, headers={"Content-Encoding": "gzip"})
        assert broken.status == 400
        assert b"gzip" in broken.body

    assert receiver.status()["refused_requests"] == {
        "path": 1,
        "method": 2,
        "content_type": 2,
        "content_encoding": 1,
        "bad_body": 3,
    }
    assert post(port, body=body).status == 200


def test_oversize_bodies_are_refused_also_packed(start: Start) -> None:
    limit = 64 << 10
    receiver = start(max_body_bytes=limit)
    port = receiver.ready.http_port
    large = spans(1, payload=2 * limit).SerializeToString()

    declared = post(port, body=large)
    assert declared.status == 413
    assert b"--max-body-bytes" in declared.body
    chunked = post(port, body=iter([large]))  # type: ignore[arg-type]  # no content-length
    assert chunked.status == 413
    packed = post_gzip(port, b"\0" * (32 << 20))
    assert packed.status == 413
    assert receiver.status()["refused_requests"] == {"too_large": 3}

    for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        with pytest.raises(grpc.RpcError) as caught:
            export(receiver.ready.grpc_port, b"\0" * (2 << 20), compression=compression)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in caught.value.details()

    # Nothing of it is held on to, and the next one is welcome.
    assert post(port, body=spans(1).SerializeToString()).status == 200


def test_token(start: Start) -> None:
    receiver = start(token="s3cret")
    body = spans(1).SerializeToString()
    for value in (None, "Bearer wrong", "s3cret"):
        headers: dict[str, str] = {} if value is None else {"Authorization": value}
        answer = post(receiver.ready.http_port, body=body, headers=headers)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        metadata: tuple[tuple[str, str], ...] = () if value is None else (("authorization", value),)
        with pytest.raises(grpc.RpcError) as caught:
            export(receiver.ready.grpc_port, body, metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert post(receiver.ready.http_port, "/status", method="GET").status == 401
    assert post(receiver.ready.http_port, "/healthz", method="GET").status == 200

    good = {"Authorization": "Bearer s3cret"}
    assert post(receiver.ready.http_port, body=body, headers=good).status == 200
    metadata = (("authorization", "Bearer s3cret"),)
    assert export(receiver.ready.grpc_port, body, metadata=metadata) == b""
    assert post(receiver.ready.http_port, "/status", method="GET", headers=good).status == 200
    until(lambda: len(receiver.rows()) == 2)


def test_status_bytes_are_a_google_rpc_status() -> None:
    raw = answers.error_protobuf(8, "wait", retry_after_s=300)
    assert raw.startswith(b"\x08\x08\x12\x04wait\x1a")
    detail = any_pb2.Any.FromString(raw[raw.index(b"\x1a") + 2 :])
    assert detail.type_url == "type.googleapis.com/google.rpc.RetryInfo"
    assert detail.value == b"\x0a\x03\x08\xac\x02"  # retry_delay { seconds: 300 }
