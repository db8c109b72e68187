"""Too much, or a store that takes nothing: refuse with a delay, stay bounded, lose nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from tests.collectors.receiving import (
    JSON,
    Running,
    counts,
    export,
    post,
    span_ids,
    span_json,
    spans,
    until,
)
from tracekit.lake.spool import Spool
from tracekit.lake.store import Store

Start = Callable[..., Running]


def test_a_store_that_fails_fills_the_spool_then_senders_are_told_to_wait(start: Start) -> None:
    receiver = start(
        max_spool_bytes=400_000,
        max_body_bytes=50_000,
        max_in_flight_bytes=200_000,
        max_buffer_rows=20,
        retry_after_s=7,
    )
    # A file where the table's directory should be: every commit fails.
    blocker = receiver.config.store / "spans"
    blocker.write_text("in the way")
    first = spans(10)
    export(receiver.ready.grpc_port, first.SerializeToString())
    until(lambda: receiver.status()["journal"]["lake_failing"])
    acknowledged = span_ids(first)
    while True:
        request = spans(10, payload=1000)
        try:
            export(receiver.ready.grpc_port, request.SerializeToString())
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            details = dict(error.trailing_metadata())["grpc-status-details-bin"]
            assert b"google.rpc.RetryInfo" in details
            assert details.endswith(b"\x12\x04\x0a\x02\x08\x07")  # 7 s
            break
        acknowledged += span_ids(request)
        assert len(acknowledged) < 10_000
    assert len(acknowledged) > 100  # far more than memory may hold
    refused = post(receiver.ready.http_port, body=span_json(spans(150)), content_type=JSON)
    assert (refused.status, refused.headers["retry-after"]) == (429, "7")
    status = receiver.status()
    assert status["journal"]["behind"]
    assert status["journal"]["buffer_rows"] <= 40
    assert status["lake"]["failures_in_a_row"] > 0
    assert status["lake"]["last_error"]
    assert set(status["refused_requests"]) == {"overload_spool"}

    blocker.unlink()
    until(lambda: receiver.status()["journal"]["spool_pending"] == 0)
    late = spans(3)
    export(receiver.ready.grpc_port, late.SerializeToString())
    expected = dict.fromkeys([*acknowledged, *span_ids(late)], 1)
    until(lambda: len(receiver.rows(columns="span_id")) >= len(expected))
    assert counts(receiver.rows(columns="span_id")) == expected
    assert not receiver.status()["journal"]["behind"]
    assert receiver.status()["lake"]["failures_in_a_row"] == 0


def test_a_slow_store_bounds_memory(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    append = Store.append

    def slow(self: Store, table: str, rows: Any, **options: Any) -> bool:
        entered.set()
        assert go_on.wait(60)
        return append(self, table, rows, **options)

    monkeypatch.setattr(Store, "append", slow)
    receiver = start(max_buffer_rows=100)
    sent = [spans(50) for _ in range(2)]
    export(receiver.ready.grpc_port, sent[0].SerializeToString())
    assert entered.wait(30)
    export(receiver.ready.grpc_port, sent[1].SerializeToString())
    with pytest.raises(grpc.RpcError) as caught:
        export(receiver.ready.grpc_port, spans(1).SerializeToString())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "rows wait for their commit" in caught.value.details()
    assert receiver.status()["refused_requests"] == {"overload_memory": 1}
    go_on.set()
    until(lambda: receiver.status()["journal"]["buffer_rows"] == 0)
    export(receiver.ready.grpc_port, spans(1).SerializeToString())
    until(lambda: len(receiver.rows()) == 101)


def test_bodies_in_flight_are_bounded(start: Start) -> None:
    import socket

    receiver = start(max_body_bytes=60_000, max_in_flight_bytes=60_000)
    port = receiver.ready.http_port
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(
            b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
            b"Content-Length: 60000\r\n\r\n" + b"\0" * 59_000
        )
        # Once these bytes are in, there is no room for another large body.
        large = spans(1, payload=20_000).SerializeToString()
        until(lambda: post(port, body=large).status == 429)
        assert receiver.status()["refused_requests"]["overload_in_flight"] >= 1
    until(lambda: post(port, body=large).status == 200)


def test_a_full_disk_under_the_spool_refuses(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracekit.lake import spool

    def full(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    receiver = start()
    with monkeypatch.context() as patch:
        patch.setattr(spool, "_write_all", full)
        answer = post(receiver.ready.http_port, body=spans(1).SerializeToString())
        assert answer.status == 429
    assert post(receiver.ready.http_port, body=spans(1).SerializeToString()).status == 200
    until(lambda: len(receiver.rows()) == 1)


def test_a_cut_that_cannot_be_written_down_is_tried_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = Spool.cut
    failures = iter([OSError(28, "No space left on device")] * 2)

    def failing_cut(self: Spool, through_seq: int) -> None:
        for error in failures:
            raise error
        cut(self, through_seq)

    monkeypatch.setattr(Spool, "cut", failing_cut)
    receiver = start()
    export(receiver.ready.grpc_port, spans(4).SerializeToString())
    until(lambda: receiver.status()["journal"]["spool_pending"] == 0)
    assert receiver.status()["journal"]["buffer_rows"] == 0
    assert len(receiver.rows()) == 4
