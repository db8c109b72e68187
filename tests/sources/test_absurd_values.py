"""Values that no server writes: they must neither stop the others nor be believed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import Row, engine, span, table

BAD = (
    "",
    "nan",
    "inf",
    "-1",
    "-0.5",
    "1e308",
    "99999999999999999999",
    "true",
    "[1]",
    '{"a": 1}',
    "é",
)
MARKS = ("0x", "0xffffffffffffffffffff", "room", "-5", "1" * 400)


def _sglang(value: str, room: str) -> list[Row]:
    root: Row = {"rid": "r", "bootstrap_room": room, "gen_ai.request.id": "r"}
    for key in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        root[f"gen_ai.usage.{key}"] = value
    root |= {"gen_ai.request.n": value, "gen_ai.response.finish_reasons": value}
    named: dict[str, Any] = {k.replace(".", "__"): v for k, v in root.items()}
    scope = "sglang server"
    return [
        span("prefill Req r", id="r", start=0, end=90, scope=scope, **named),
        span("Prefill Scheduler [TP 0]", id="t", parent="r", start=1, end=89, scope=scope,
             tp_rank=value, dp_rank=value, host_id=value, reason=value, status=2,
             events=[("retract", 5.0)]),
        span("prefill_forward", id="f", parent="t", start=10, end=40, scope=scope),
        span("decode_forward", id="d", parent="t", start=40, end=80, scope=scope),
        span("prefill_forward", id="f2", parent="d", start=50, end=60, scope=scope),
    ]  # fmt: skip


def _dynamo(value: str, room: str) -> list[Row]:
    named: dict[str, Any] = dict.fromkeys(
        ("ttft_ms", "avg_itl_ms", "input_tokens", "output_tokens", "request__outcome"), value
    )
    return [
        span("http-request", id="H", start=0, end=90, trace_name="d", uri="/v1/completions",
             x_request_id=room, request_id=room, **named),
        span("handle_payload", id="w", parent="H", start=3, end=80, trace_name="d", kind=2,
             request_id=room, component=value, instance_id=value),
    ]  # fmt: skip


def _records(value: str, room: str) -> list[Row]:
    trace_named: dict[str, Any] = dict.fromkeys(
        ("prefill_wait_time_ms", "ttft_ms", "total_time_ms", "kv_transfer_estimated_latency_ms",
         "input_tokens", "output_tokens", "cached_tokens", "worker"), value)  # fmt: skip
    log_named: dict[str, Any] = dict.fromkeys(
        ("bootstrap_duration_ms", "alloc_wait_duration_ms", "transfer_duration_ms", "type",
         "queue_duration_ms", "forward_duration_ms", "transfer_total_mb"), value)  # fmt: skip
    return [
        span("x", id="a", start=0, end=90, trace_name="e", request_id=room,
             scope="tracekit.import.dynamo-request-trace", **trace_named),
        span("x", id="b", start=0, end=90, trace_name="f", rid=room, bootstrap_room=room,
             scope="tracekit.import.sglang-log", **log_named),
        span("x", id="c", start=0, end=90, trace_name="g",
             scope="tracekit.import.llama-cpp-log", prompt_ms=value,
             prompt_n=value, predicted_n=value, n_tokens=value, posted_us=value),
        span("http_request", id="h", start=0, end=90, trace_name="h", module="smg",
             uri="/v1/completions", request_id=room, status_code=value, latency=value,
             events=[("Received concurrent requests", 5.0)]),
        span("gateway.request", id="g", start=0, end=90, trace_name="i", kind=2,
             http__response__status_code=value),
    ]  # fmt: skip


def _servers(value: str, room: str) -> list[Row]:
    latency: dict[str, Any] = {
        f"gen_ai__latency__{key}": value
        for key in ("time_in_queue", "time_to_first_token", "e2e", "kv_cache_transfer_time")
    }
    latency |= {"gen_ai__usage__completion_tokens": value, "gen_ai__request__id": room}
    times: dict[str, Any] = dict.fromkeys(
        ("validation_time", "queue_time", "inference_time", "total_time", "time_per_token"), value
    )
    moved = [("kv_cache_transfer_end", 5.0), ("kv_cache_transfer_start", 6.0)]
    far = [("HTTP_RECV_START", -9e15), ("QUEUE_START", 9e9), ("INFER_RESPONSE_COMPLETE", 1e9)]
    return [
        span("disaggregated_request", id="d", start=0, end=90, trace_name="j", kind=2),
        span("llm_request", id="k", parent="d", start=1, end=80, trace_name="j", kind=2,
             scope="trt.llm", events=moved, **latency),
        span("generate_stream", id="l", parent="m", start=0, end=90, trace_name="k", **times),
        # two spans below each other, and tokens below them
        span("infer", id="m", parent="l", start=1, end=2, trace_name="k"),
        span("send_generation", id="n", parent="m", start=1, end=2, trace_name="k"),
        span("InferRequest", id="o", start=0, end=90, trace_name="l", kind=2, events=far,
             scope="triton-server"),
        span(value, id="p", parent="o", start=0, end=90, trace_name="l", triton__model_name=value,
             triton__request_id=room, events=[("REQUEST_START", 0.0), *far]),
    ]  # fmt: skip


MAKERS = [_sglang, _dynamo, _records, _servers]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("value", BAD)
def test_bad_values_stop_nobody(make: Any, value: str) -> None:
    for room in MARKS:
        good = engine("good", 0, trace_name="z")
        con = captures.derived(table("spans", [*make(value, room), good]))
        found = captures.records(con)
        (ok,) = [r for r in found if r["request_id"] == "good"]
        assert ok["prefill_ms"] == pytest.approx(40)
        for request in found:
            for phase in ("queue_ms", "prefill_ms", "decode_ms", "kv_transfer_ms", "ttft_ms"):
                assert request[phase] is None or 0 <= request[phase] <= 1e6


@pytest.mark.parametrize("make", MAKERS)
def test_times_without_end_are_set_aside(make: Any) -> None:
    rows = make("5", "7")
    for row in rows:
        row["start_unix_ns"] = 2**63 - 10
        row["end_unix_ns"] = 2**63 - 1
    con = captures.derived(table("spans", [*rows, engine("good", 0, trace_name="z")]))
    found = captures.records(con)
    assert [r["request_id"] for r in found if r["quarantine_reason"] is None] == ["good"]
