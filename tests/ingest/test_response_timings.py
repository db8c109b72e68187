"""What servers tell of their own times in a response, lifted from a row of a request log.

Recordings of Ollama, TensorRT-LLM and TGI are built from what their documentation says of the
fields; those of the others are cells that real recordings do not have.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.ingest._request_logs import NOON, NS, batches, lines, read, refused, rows
from tracekit.errors import SourceError
from tracekit.ingest import _request_files
from tracekit.ingest.request_log import looks_like_request_log
from tracekit.ingest.response_timings import SYSTEMS, find_timings

Row = dict[str, Any]

LLAMA = {"cache_n": 5, "prompt_n": 10, "prompt_ms": 100.0, "predicted_n": 21, "predicted_ms": 400.0}
OLLAMA: Row = {
    "model": "gemma4",
    "created_at": "2026-11-29T12:00:01Z",
    "response": "not to be stored",
    "done": True,
    "done_reason": "stop",
    "total_duration": 1_000_000_000,
    "load_duration": 200_000_000,
    "prompt_eval_count": 11,
    "prompt_eval_cached_count": 8,
    "prompt_eval_duration": 100_000_000,
    "eval_count": 18,
    "eval_duration": 600_000_000,
}
DYNAMO: Row = {
    "timing": {
        "request_received_ms": NOON * 1000,
        "prefill_wait_time_ms": 3.0,
        "prefill_time_ms": 27.0,
        "ttft_ms": 30.0,
        "total_time_ms": 500.0,
    },
    "worker_id": {"prefill_worker_id": 7, "decode_worker_id": 7},
}
SGLANG: Row = {
    "id": "r1",
    "request_received_ts": NOON + 0.0,
    "api_server_dispatch_finish_ts": NOON + 0.25,
    "forward_entry_time": NOON + 0.75,
    "prefill_finished_time": NOON + 1.75,
    "request_finished_ts": NOON + 4.0,
    "first_token_latency": 1.8125,
    "e2e_latency": 4.0,
    "queue_time": 0.125,
    "prompt_tokens": 40,
    "cached_tokens": 16,
    "completion_tokens": 12,
    "num_retractions": 0,
    "finish_reason": {"type": "length", "length": 12},
}
TRT_ONE: Row = {
    "arrival_time": 100.5,
    "first_scheduled_time": 100.75,
    "first_token_time": 101.0,
    "last_token_time": 102.5,
    "server_arrival_time": 100.375,
    "kv_cache_transfer_start": 0,
    "kv_cache_transfer_end": 0,
}
TRT_BOTH: Row = {
    "ctx_server": "a:8001",
    "gen_server": "b:8002",
    "disagg_server_arrival_time": 50.0,
    "disagg_server_first_token_time": 51.0625,
    "ctx_perf_metrics": {
        "request_id": 1,
        "ctx_request_id": 77,
        "perf_metrics": {
            "timing_metrics": {
                "arrival_time": 50.125,
                "first_scheduled_time": 50.25,
                "first_token_time": 50.5,
                "last_token_time": 50.5,
            }
        },
    },
    "gen_perf_metrics": {
        "request_id": 2,
        "ctx_request_id": 77,
        "perf_metrics": {
            "timing_metrics": {
                "arrival_time": 50.5,
                "kv_cache_transfer_start": 50.5625,
                "kv_cache_transfer_end": 50.8125,
                "first_scheduled_time": 50.9375,
                "first_token_time": 51.0,
                "last_token_time": 53.0,
            }
        },
    },
}
TGI: Row = {
    "x-queue-time": "300",
    "x-validation-time": "2",
    "x-inference-time": "1180",
    "x-total-time": "1483",
    "x-time-per-token": "59",
    "x-compute-time": "1.483",
    "x-prompt-tokens": "55",
    "x-generated-tokens": "20",
}


def _one(row: Row, mapping: dict[str, str] | None = None) -> Row:
    (found,) = rows(read(lines(row), mapping=mapping))
    found.pop("extra", None)
    return found


# --- llama.cpp --------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["timings", "response.timings", "body.data.timings", ""])
def test_llama_cpps_timings_are_found_wherever_they_lie(where: str) -> None:
    row: Row = LLAMA
    for part in reversed([p for p in where.split(".") if p]):
        row = {part: row}
    data = lines({**row, "latency_ms": 600})
    assert looks_like_request_log("x", lines(row)) == "jsonl"
    assert rows(read(data))[0] | {"extra": None} == {
        "e2e_ms": 600.0,
        "queue_ms": 100.0,
        "prefill_ms": 100.0,
        "decode_ms": 400.0,
        "input_tokens": 15,
        "cached_tokens": 5,
        "output_tokens": 21,
        "tokens_source": "server",
        "engine": "llama.cpp",
        "status": "ok",
        "extra": None,
    }


def test_the_summary_says_what_came_from_where() -> None:
    batch = read(lines({"timings": LLAMA, "latency_ms": 600, "shard": 3}))
    assert batch.mapped == {
        "latency_ms": "e2e_ms:ms",
        "timings.prompt_ms": "prefill_ms",
        "timings.predicted_ms": "decode_ms",
        "timings.cache_n": "cached_tokens",
        "timings.predicted_n": "output_tokens",
    }
    assert batch.unmapped == ("shard",)
    assert batch.notices == (
        "llama.cpp: input_tokens is cache_n + prompt_n: 1 row(s)",
        "llama.cpp: queue_ms is total - prompt_ms - predicted_ms: 1 row(s)",
    )


def test_a_column_of_the_logs_own_wins() -> None:
    row = _one({"timings": LLAMA, "latency_ms": 600, "prefill_ms": 7, "prompt_tokens": 99})
    assert (row["prefill_ms"], row["input_tokens"], row["decode_ms"]) == (7.0, 99, 400.0)
    # also where its cell is empty, for a duration: a column has one meaning
    first, second = rows(
        read(
            lines(
                {"timings": LLAMA, "prefill_ms": 7, "prompt_tokens": 99},
                {"timings": LLAMA, "prefill_ms": None, "prompt_tokens": None},
            )
        )
    )
    assert first["prefill_ms"] == 7.0
    assert "prefill_ms" not in second
    assert second["input_tokens"] == 15


def test_a_rule_makes_a_servers_field_the_logs_own() -> None:
    row = {"timings": LLAMA, "latency_ms": 600}
    batch = read(lines(row), mapping={"timings.prompt_ms": "extra"})
    assert "prefill_ms" not in rows(batch)[0]
    taken = _one(row, {"timings.prompt_ms": "queue_ms:ms"})
    assert taken["queue_ms"] == 100.0


@pytest.mark.parametrize(
    ("headers", "ttft", "total", "queue"),
    [
        (50, 160, 560, 50.0),  # 60 by TTFT: a stall of the client
        (50, 260, 560, 50.0),  # 160 by TTFT, 60 by the total: the client saw the token late
        (0, 600, 1000, 500.0),  # headers on arrival: an older build
        (600, 600, 1000, 500.0),  # headers with the first token: an older build, or a proxy
        (None, 600, 1000, 500.0),
    ],
)
def test_headers_are_a_streams_queue_unless_the_rest_contradicts(
    headers: int | None, ttft: int, total: int, queue: float
) -> None:
    row: Row = {
        "start": "2026-11-29T12:00:00Z",
        "stream": True,
        "ttft_ms": ttft,
        "e2e_ms": total,
        "timings": LLAMA,
    }
    for extra in ({"headers_ms": headers}, {"headers_unix_ns": NOON * NS + (headers or 0) * 10**6}):
        if headers is not None or "headers_ms" in extra:
            assert _one(row | extra)["queue_ms"] == pytest.approx(queue)


def test_headers_are_a_queue_for_llama_cpp_only() -> None:
    row = {"stream": True, "headers_ms": 50, "ttft_ms": 160, "e2e_ms": 560}
    assert "queue_ms" not in _one(row)
    assert "queue_ms" not in _one({**row, "nvext": DYNAMO})
    assert "queue_ms" not in _one({**row, "stream": False, "ttft_ms": None, "timings": {}})


def test_phases_longer_than_the_call_are_not_made_to_fit() -> None:
    row = _one({"timings": LLAMA, "latency_ms": 300, "stream": False})
    assert "queue_ms" not in row
    assert (row["prefill_ms"], row["decode_ms"]) == (100.0, 400.0)


def test_without_cache_n_the_prompt_is_not_known() -> None:
    old = {name: value for name, value in LLAMA.items() if name != "cache_n"}
    assert "input_tokens" not in _one({"timings": old, "latency_ms": 600})


def test_a_whole_response_has_no_start() -> None:
    """llama.cpp stamps `created` when it has the answer."""
    whole = {"object": "chat.completion", "created": NOON, "timings": LLAMA, "choices": [{}]}
    assert "start_unix_ns" not in _one(whole)
    assert any("no start: not used" in text for text in read(lines(whole)).notices)
    assert _one({**whole, "sent_at": NOON - 1})["start_unix_ns"] == (NOON - 1) * NS
    # a log's own column of that name
    assert _one({"created": NOON, "timings": LLAMA})["start_unix_ns"] == NOON * NS


# --- Ollama, as documented --------------------------------------------------------------------


def test_ollama_documented_final_object() -> None:
    assert _one(OLLAMA) == {
        # created_at is when the object was made, its end
        "start_unix_ns": NOON * NS,
        "e2e_ms": 1000.0,
        "model": "gemma4",
        "engine": "ollama",
        "input_tokens": 11,
        "cached_tokens": 8,
        "output_tokens": 18,
        "tokens_source": "server",
        "queue_ms": 300.0,
        "prefill_ms": 100.0,
        "decode_ms": 600.0,
        "finish_reason": "stop",
        "note": "load_duration 200 ms, part of the queue",
        "status": "ok",
    }


def test_ollama_documented_full_cache_hit_is_no_prefill_of_zero() -> None:
    hit = {n: v for n, v in OLLAMA.items() if n not in ("prompt_eval_duration",)}
    row = _one(hit)
    assert "prefill_ms" not in row and "queue_ms" not in row
    assert row["queue_or_prefill_ms"] == 400.0
    assert "input_tokens" not in _one(
        {n: v for n, v in hit.items() if not n.startswith("prompt_eval")}
    )


def test_ollama_documented_beside_a_clients_own_columns() -> None:
    row = _one({"sent_at": "2026-11-29T12:00:00.5Z", "latency_ms": 1200, "response": OLLAMA})
    assert row["start_unix_ns"] == NOON * NS + NS // 2
    assert row["e2e_ms"] == 1200.0
    assert row["queue_ms"] == 300.0
    # a log's own created_at is no Ollama's: that has `done` beside it
    durations = {n: v for n, v in OLLAMA.items() if n.endswith(("_duration", "_count"))}
    own = _one({"created_at": OLLAMA["created_at"], **durations})
    assert own["start_unix_ns"] == (NOON + 1) * NS


def test_ollama_documented_durations_in_another_unit_are_not_taken_for_ns() -> None:
    other = OLLAMA | {
        "total_duration": 1000,
        "load_duration": 200,
        "prompt_eval_duration": 100,
        "eval_duration": 600,
    }
    row = _one({**other, "latency_ms": 1100})
    assert row["e2e_ms"] == 1100.0
    assert not {"queue_ms", "prefill_ms", "decode_ms"} & row.keys()


def test_ollama_documented_chunks_of_a_stream_are_no_requests() -> None:
    chunk = {"model": "m", "created_at": OLLAMA["created_at"], "response": "x", "done": False}
    batch = read(lines(chunk, chunk, OLLAMA))
    assert batch.table.num_rows == 1
    assert refused(batch) == [(1, "nothing_known"), (2, "nothing_known")]


def test_a_total_duration_that_is_not_ollamas_is_read_as_before() -> None:
    row = _one({"id": "a", "total_duration": "1500 ms", "created_at": "2026-11-29T12:00:01Z"})
    assert (row["e2e_ms"], row["start_unix_ns"]) == (1500.0, (NOON + 1) * NS)


# --- Dynamo -----------------------------------------------------------------------------------


def test_dynamo_alone_tells_ttft_and_total() -> None:
    assert _one({"id": "a", "nvext": DYNAMO}) == {
        "request_id": "a",
        "start_unix_ns": NOON * NS,
        "ttft_ms": 30.0,
        "ttft_kind": "server",
        "e2e_ms": 500.0,
        "route_ms": 3.0,
        "queue_or_prefill_ms": 27.0,
        "decode_ms": 470.0,
        "worker": "7",
        "engine": "dynamo",
        "status": "ok",
    }


@pytest.mark.parametrize(("estimate", "client", "transfer", "ttft"), [
    (100.0, None, 100.0, 130.0),
    (100.0, 140.0, 100.0, 140.0),
    (0.0, None, None, None),
    (0.0, 140.0, 110.0, 140.0),
    (None, 140.0, 110.0, 140.0),
])  # fmt: skip
def test_dynamo_under_pd(
    estimate: float | None, client: float | None, transfer: float | None, ttft: float | None
) -> None:
    timing = dict(DYNAMO["timing"])
    if estimate is not None:
        timing["kv_transfer_estimated_latency_ms"] = estimate
    workers = {"prefill_worker_id": 7, "decode_worker_id": 18_446_744_073_709_551_615}
    own = {} if client is None else {"ttft_ms": client}
    row = _one({"id": "a", **own, "nvext": {"timing": timing, "worker_id": workers}})
    assert row.get("kv_transfer_ms") == transfer
    assert row.get("ttft_ms") == ttft
    assert (row["prefill_worker"], row["worker"]) == ("7", "18446744073709551615")
    assert row.get("decode_ms") == (370.0 if estimate else None)


# --- SGLang -----------------------------------------------------------------------------------


def test_sglang_alone() -> None:
    assert _one({"meta_info": SGLANG, "stream": True}) == {
        "request_id": "r1",
        "start_unix_ns": NOON * NS,
        "streaming": 1,
        "ttft_ms": 1812.5,
        "ttft_kind": "server",
        "e2e_ms": 4000.0,
        "frontend_ms": 250.0,
        "queue_ms": 500.0,
        "prefill_ms": 1000.0,
        "decode_ms": 2187.5,
        "input_tokens": 40,
        "cached_tokens": 16,
        "output_tokens": 12,
        "tokens_source": "server",
        "preemptions": 0,
        "finish_reason": "length",
        "engine": "sglang",
        "status": "ok",
    }


def test_sglang_times_out_of_order_tell_no_phase() -> None:
    row = _one({"meta_info": SGLANG | {"forward_entry_time": NOON + 0.125}})
    assert not {"queue_ms", "prefill_ms", "decode_ms", "frontend_ms"} & row.keys()
    assert row["e2e_ms"] == 4000.0


@pytest.mark.trap("sglang", 12)
def test_sglang_first_token_that_is_the_end_is_none() -> None:
    """Trap 12: a decode server without streaming tells its total as the first token's time."""
    row = _one({"meta_info": SGLANG | {"first_token_latency": 4.0}, "stream": True})
    assert "ttft_ms" not in row
    assert "decode_ms" not in row


def test_sglang_without_metrics_knows_its_queue_time_only() -> None:
    little = {n: SGLANG[n] for n in ("request_received_ts", "e2e_latency", "queue_time")}
    assert _one({"meta_info": little})["queue_ms"] == 125.0


@pytest.mark.trap("sglang", 5)
def test_sglang_queue_time_of_a_retracted_request_holds_later_waits_too() -> None:
    little = {n: SGLANG[n] for n in ("request_received_ts", "e2e_latency", "queue_time")}
    row = _one({"meta_info": {**little, "num_retractions": 1}})
    assert row["preemptions"] == 1
    assert "queue_ms" not in row
    # the first forward is the first also then
    whole = _one({"meta_info": {**SGLANG, "num_retractions": 1, "queue_time": 1.5}})
    assert whole["queue_ms"] == 500.0


# --- TensorRT-LLM, as documented --------------------------------------------------------------


def test_tensorrt_llm_documented_one_server() -> None:
    data = json.dumps([{"request_id": 3, "perf_metrics": {"timing_metrics": TRT_ONE}}]).encode()
    assert looks_like_request_log("x", data) == "json"
    assert rows(read(data)) == [
        {
            "request_id": "3",
            "ttft_ms": 625.0,
            "ttft_kind": "server",
            "e2e_ms": 2125.0,
            "frontend_ms": 125.0,
            "queue_ms": 250.0,
            "prefill_ms": 250.0,
            "decode_ms": 1500.0,
            "engine": "tensorrt_llm",
            "status": "ok",
        }
    ]


def test_tensorrt_llm_documented_both_servers() -> None:
    assert _one(TRT_BOTH) == {
        "request_id": "77",
        "prefill_worker": "a:8001",
        "decode_worker": "b:8002",
        "worker": "b:8002",
        "ttft_ms": 1062.5,
        "ttft_kind": "server",
        "e2e_ms": 3000.0,
        "queue_ms": 125.0,
        "prefill_ms": 250.0,
        "kv_transfer_ms": 250.0,
        "decode_ms": 2000.0,
        # gen first_scheduled - arrival (437.5) holds the transfer: what is around it is left
        "note": "generation server's queue 187.5 ms, in no phase",
        "engine": "tensorrt_llm",
        "status": "ok",
    }


def test_tensorrt_llm_documented_zero_is_not_recorded() -> None:
    row = json.loads(json.dumps(TRT_BOTH))
    timing = row["gen_perf_metrics"]["perf_metrics"]["timing_metrics"]
    timing["kv_cache_transfer_start"] = timing["kv_cache_transfer_end"] = 0
    found = _one(row)
    assert "kv_transfer_ms" not in found
    assert "note" not in found
    row["ctx_perf_metrics"] = None  # a generation server alone
    assert "queue_ms" not in _one(row)


# --- TGI, as documented -----------------------------------------------------------------------


@pytest.mark.parametrize("upper", [False, True])
def test_tgi_documented_headers(upper: bool) -> None:
    headers = {n.title() if upper else n: v for n, v in TGI.items()}
    assert _one({"id": "a", "latency_ms": 1500, "response_headers": headers}) == {
        "request_id": "a",
        "e2e_ms": 1500.0,
        "frontend_ms": 2.0,
        "queue_ms": 300.0,
        "input_tokens": 55,
        "output_tokens": 20,
        "tokens_source": "server",
        "engine": "tgi",
        "status": "ok",
    }
    assert _one({"id": "a", "headers": headers})["e2e_ms"] == 1483.0


# --- all --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["soon", True, [1], -3, 1e300])
def test_a_field_that_cannot_be_read_refuses_its_row(cell: object) -> None:
    good = {"timings": LLAMA, "latency_ms": 600}
    batch = read(lines(good, {**good, "timings": LLAMA | {"prompt_ms": cell}}, good))
    assert batch.table.num_rows == 2
    assert [n for n, _ in refused(batch)] == [2]
    assert "log:2: timings.prompt_ms: " in batch.rejected[0].detail


@pytest.mark.parametrize("cell", [None, "", "n/a", float("nan")])
def test_an_empty_field_is_not_told(cell: object) -> None:
    row = _one({"timings": LLAMA | {"prompt_ms": cell}, "latency_ms": 600})
    assert "prefill_ms" not in row and "queue_ms" not in row


def test_rows_without_timings_are_what_they_were() -> None:
    first, second = rows(read(lines({"id": "a", "latency_ms": 5}, {"timings": LLAMA, "id": "b"})))
    assert first == {"request_id": "a", "e2e_ms": 5.0, "status": "ok"}
    assert second["prefill_ms"] == 100.0


def test_timings_first_seen_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_request_files, "BLOCK_ROWS", 2)
    early = {"id": "a", "latency_ms": 600, "headers_ms": 3}
    one, two, _ = batches(lines(early, early, {**early, "timings": LLAMA}, early))
    assert "headers_ms" in one.unmapped
    assert rows(two)[0]["prefill_ms"] == 100.0
    assert two.mapped["timings.prompt_ms"] == "prefill_ms"
    assert "timings.prompt_ms" not in two.unmapped


def test_no_two_systems_take_one_column() -> None:
    everything = {
        "timings": LLAMA,
        "nvext": DYNAMO,
        "meta_info": SGLANG,
        "headers": TGI,
        **OLLAMA,
        **TRT_BOTH,
        "perf_metrics": {"timing_metrics": TRT_ONE},
    }
    names = _request_files.flatten(everything)
    assert names is not None
    found = find_timings(names)
    assert [place.system for place in found] == list(SYSTEMS)
    columns = [column for place in found for column in place.columns.values()]
    assert len(columns) == len(set(columns))


@pytest.mark.parametrize("seed", range(60))
def test_mangled_timings_never_raise(seed: int) -> None:
    rng = random.Random(seed)
    whole: list[Row] = [
        {"timings": LLAMA},
        OLLAMA,
        {"nvext": DYNAMO},
        {"meta_info": SGLANG},
        TRT_BOTH,
        {"perf_metrics": {"timing_metrics": TRT_ONE}},
        {"headers": TGI},
    ]
    text = []
    for _ in range(40):
        row = json.loads(json.dumps(rng.choice(whole)))
        _mangle(row, rng)
        line = json.dumps(row).encode()
        text.append(line[: rng.randrange(len(line))] if rng.random() < 0.1 else line)
    try:
        found = batches(b"\n".join(text))
    except SourceError:
        return
    for batch in found:
        for row in batch.table.to_pylist():
            for name in ("queue_ms", "prefill_ms", "kv_transfer_ms", "decode_ms", "e2e_ms"):
                assert row[name] is None or 0 <= row[name] <= 1e12
        assert batch.table.num_rows + len(batch.rejected) == 40


_CELLS: tuple[object, ...] = (
    *(None, True, "", "x", "NaN", "12ms", -1, 0, 3.5, 1e308, 1 << 70),
    *([], {}, [1], {"a": 1}),
)


def _mangle(row: Row, rng: random.Random) -> None:
    for name in list(row):
        if isinstance(row[name], dict) and rng.random() < 0.9:
            _mangle(row[name], rng)
        elif rng.random() < 0.15:
            row[name] = rng.choice(_CELLS)
        elif rng.random() < 0.1:
            del row[name]
