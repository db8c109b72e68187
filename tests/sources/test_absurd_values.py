"""Values that no server writes: they must neither stop the others nor be believed."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import Row, engine, log_row, span, table
from tests.sources._recorded import DATA
from tracekit.analysis.session import Session
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store

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


#: What a field can say at the end of what a number holds, and past it.
ENDS = (
    "nan",
    "inf",
    "-inf",
    "1e300",
    "-1e300",
    "99999999999999999999.00",
    "-99999999999999999999",
    str(2**63 - 1),
    str(-(2**63)),
    "8796093022208000",
    str(2**31),
    str(-(2**31)),
)


def _pair(a: Row, b: Row, prefill: str, decode: str, room: str) -> list[Row]:
    """SGLang's two roots of one request, with attributes of their own."""
    base: Row = {"bootstrap_room": room, "gen_ai__response__finish_reasons": '["stop"]'}
    s = "sglang server"
    return [
        span(f"prefill Req {prefill}", id=prefill, start=0, end=90, scope=s, service="p",
             trace_name=room, gen_ai__request__id=prefill, **(base | a)),
        span("Prefill Scheduler [TP 0]", id=prefill + "t", parent=prefill, start=1, end=89,
             scope=s, service="p", trace_name=room),
        span("prefill_forward", id=prefill + "f", parent=prefill + "t", start=10, end=40,
             scope=s, service="p", trace_name=room),
        span(f"decode Req {decode}", id=decode, start=0, end=200, scope=s, service="d",
             trace_name=room, gen_ai__request__id=decode, **(base | b)),
        span("Decode Scheduler [TP 0]", id=decode + "t", parent=decode, start=1, end=199,
             scope=s, service="d", trace_name=room),
        span("decode_transferred", id=decode + "x", parent=decode + "t", start=5, end=60,
             scope=s, service="d", trace_name=room),
        span("decode_forward", id=decode + "f", parent=decode + "t", start=61, end=199,
             scope=s, service="d", trace_name=room),
    ]  # fmt: skip


def _counts(prompt: object, cached: object, output: object) -> Row:
    return {
        "gen_ai__usage__prompt_tokens": prompt,
        "gen_ai__usage__cached_tokens": cached,
        "gen_ai__usage__completion_tokens": output,
    }


def _good_stays(rows: list[Row], log: list[Row] | None = None) -> list[dict[str, Any]]:
    """The other requests, if nothing was raised and a sound one beside them is as it was."""
    good = engine("good", 0, trace_name="z")
    con = captures.derived(
        table("spans", [*rows, good]), None if log is None else table("request_log", log)
    )
    found = captures.records(con)
    (ok,) = [r for r in found if r["request_id"] == "good"]
    assert ok["prefill_ms"] == pytest.approx(40)
    for request in found:
        for column in ("cached_tokens", "reasoning_tokens", "cache_write_tokens", "kv_bytes"):
            assert request[column] is None or 0 <= request[column] <= 1e18, (request, column)
        for column in ("input_tokens", "output_tokens"):
            assert request[column] is None or abs(request[column]) <= 1e12, (request, column)
    return [r for r in found if r["request_id"] != "good"]


COUNTS = (2**63 - 1, -(2**63) + 1, 5)


@pytest.mark.parametrize("cached", COUNTS)
@pytest.mark.parametrize("output", COUNTS)
def test_token_counts_at_the_ends_of_64_bits_stop_nobody(cached: int, output: int) -> None:
    rows: list[Row] = []
    chosen = [(p, c) for p in COUNTS for c in COUNTS]
    for i, (prompt, other) in enumerate(chosen):
        a, b = _counts(prompt, cached, 1), _counts(prompt, other, output)
        rows += _pair(a, b, f"p{i}", f"d{i}", f"0x{i + 256:x}")
        # vLLM's two calls of one request, and two sequences of one call
        vllm: Row = {"trace_name": f"v{i}", "request_id": f"v{i}", "parent": "A"}
        rows += [
            engine(f"va{i}", 0, decode=0, service="vp", **vllm, tokens=(prompt, 1),
                   gen_ai__usage__cached_tokens=cached),
            engine(f"vb{i}", 60, service="vd", **vllm, tokens=(prompt, output),
                   gen_ai__usage__cached_tokens=other),
        ]  # fmt: skip
        for n in "cd":
            rows.append(
                engine(f"s{n}{i}", 0, trace_name=f"s{i}", parent="B", tokens=(prompt, output),
                       request_id=f"cmpl-s{i}-{n}", gen_ai__usage__cached_tokens=other)
            )  # fmt: skip
    found = _good_stays(rows)
    pairs = {r["request_id"]: r for r in found if r["sources"] == "sglang"}
    assert len(pairs) == len(chosen)
    for i, (prompt, _) in enumerate(chosen):
        (request,) = [r for name, r in pairs.items() if name in (f"p{i}", f"d{i}")]
        expected = "negative_tokens" if min(prompt, output) < 0 else None
        if expected is None and max(prompt, output) > 5:
            expected = "absurd_tokens"
        assert request["quarantine_reason"] == expected, (prompt, output)


@pytest.mark.parametrize("value", ENDS)
def test_numbers_at_their_ends_stop_nobody(value: str) -> None:
    rows: list[Row] = []
    for type_ in ("prefill", "decode", "unified"):
        sound: Row = {"input_len": 50, "cached_input_len": 5, "output_len": 11,
            "transfer_total_mb": 16.0, "bootstrap_duration_ms": 5.0,
            "alloc_wait_duration_ms": 1.0, "transfer_duration_ms": 20.0,
            "queue_duration_ms": 3.0, "forward_duration_ms": 50.0}  # fmt: skip
        for i, key in enumerate(sound):
            rid = f"l{type_[0]}{i}"
            rows.append(
                span("x", id=rid, start=0, end=90, trace_name=rid, rid=rid, type=type_,
                     scope="tracekit.import.sglang-log", **(sound | {key: value}))
            )  # fmt: skip
    keys = ("prompt_tokens", "completion_tokens", "cache_read__input_tokens",
        "cache_creation__input_tokens", "reasoning__output_tokens")  # fmt: skip
    usage: Row = {f"gen_ai__usage__{key}": value for key in keys}
    rows += [
        span("mp.retrieve", id="m", start=5, end=20, trace_name="m", session_id="m",
             scope="tracekit.import.lmcache-log", size_gb=value),
        span("kv_transfer", id="k", start=5, end=20, trace_name="k", tracekit__phase="kv_transfer",
             tracekit__kv_bytes=value),
        span("chat m", id="c", start=0, end=90, trace_name="c", kind=3,
             gen_ai__operation__name="chat",
             **usage,
             tracekit__attempt=value, http__response__status_code=value,
             tracekit__intended_start_unix_ns=value,
             gen_ai__response__time_to_first_chunk=value),
    ]  # fmt: skip
    found = _good_stays(rows)
    told = {r["request_id"]: r for r in found}
    assert len(told) >= 27
    # a number that cannot be leaves the rest of its row as it was
    spoilt = told["lp3"]
    assert spoilt["quarantine_reason"] is None and spoilt["input_tokens"] == 50
    assert spoilt["kv_bytes"] is None


@pytest.mark.parametrize("bad", [2**63 - 1, -(2**63)])
def test_log_numbers_at_their_ends_stop_nobody(bad: int) -> None:
    columns = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens",
        "reasoning_tokens", "kv_bytes", "preemptions", "attempt", "choices")  # fmt: skip
    narrow = {"preemptions", "attempt", "choices"}
    log = [
        log_row(
            source_row=i, start=0, ttft_ms=50.0, e2e_ms=100.0, queue_ms=10.0, prefill_ms=5.0,
            decode_ms=50.0, engine="llama.cpp",
            **({"request_id": f"r{i}", "input_tokens": 50, "cached_tokens": 1,
                "output_tokens": 11} | {name: bad >> 32 if name in narrow else bad}),
        )
        for i, name in enumerate(columns)
    ]  # fmt: skip
    assert len(_good_stays([], log)) == len(columns)


@pytest.mark.parametrize("first,last", [(-(2**63), 2**63 - 1), (-(2**63), 5), (-5, -3)])
def test_times_before_1970_stop_nobody(first: int, last: int) -> None:
    log = log_row(request_id="l", source_row=1, start_unix_ns=first, end_unix_ns=last, queue_ms=1.0)
    (request,) = _good_stays([], [log])
    assert (request["quarantine_reason"] is None) == (last == -3)


def _requests(folder: Path, name: str, text: str) -> list[dict[str, Any]]:
    (folder / name).write_text(text)
    store = Store.open(folder / "store", create=True)
    import_paths(store, [str(folder / name)])
    with Session.open(store) as session:
        return session.frame("select * from requests").to_dicts()


def test_one_line_of_a_log_does_not_stop_the_others(tmp_path: Path) -> None:
    with gzip.open(DATA / "sglang" / "pd-chunked.log_prefill.txt.gz", "rt") as file:
        text = file.read()
    line = next(x for x in text.splitlines() if "transfer_total=" in x)
    line = re.sub(r"rid=\w+", "rid=deadbeef", line)
    line = re.sub(r"bootstrap_room=\d+", "bootstrap_room=7", line)
    line = re.sub(r"transfer_total=[0-9.]+", "transfer_total=99999999999999999999.00", line)
    found = _requests(tmp_path, "server.log", f"{text}\n{line}\n")
    assert len(found) == 37
    (bad,) = [r for r in found if r["request_id"] == "deadbeef"]
    assert bad["kv_bytes"] is None and bad["queue_ms"] is not None
    assert all(r["kv_bytes"] > 0 for r in found if r is not bad)


def test_one_pair_of_a_recording_does_not_stop_the_others(tmp_path: Path) -> None:
    changed: set[str] = set()
    lines = []
    with gzip.open(DATA / "sglang" / "pd-baseline.otlp.jsonl.gz", "rt") as file:
        for line in file:
            message = json.loads(line)
            for block in message["resourceSpans"]:
                for s in (s for scope in block["scopeSpans"] for s in scope["spans"]):
                    named = {a["key"]: a["value"] for a in s.get("attributes", ())}
                    room = named.get("bootstrap_room", {}).get("stringValue")
                    if room is None or not s["name"].startswith(("prefill Req", "decode Req")):
                        continue
                    changed = changed or {room}
                    if room in changed:
                        cached = "5" if s["name"].startswith("decode") else "1"
                        named["gen_ai.usage.prompt_tokens"] = {"intValue": str(2**63 - 1)}
                        named["gen_ai.usage.cached_tokens"] = {"intValue": cached}
                        s["attributes"] = [{"key": k, "value": v} for k, v in named.items()]
            lines.append(json.dumps(message))
    found = _requests(tmp_path, "spans.jsonl", "\n".join(lines))
    assert len(found) == 40
    assert [r["quarantine_reason"] for r in found if r["quarantine_reason"]] == ["absurd_tokens"]
