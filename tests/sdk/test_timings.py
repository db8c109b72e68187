"""What providers tell of their own times, as phases on the timeline of the call as it was seen.

``recorded`` responses come from captures of real servers; ``documented`` ones are built from what
the provider's documentation or client library says of the fields. Expected values are by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tests.sdk._recorded import Recorder, attributes, recording
from tracekit.sdk.call import Call
from tracekit.sdk.streams import watch
from tracekit.sdk.wire.chat import ChatCompletions

Phases = list[tuple[str, float, float]]


def _chunk(text: str = "x", **more: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": {"content": text}}], **more}


def _begin(recorder: Recorder, *, streaming: bool = True, **body: Any) -> Call:
    call = recorder.agent.start(
        ChatCompletions(), {"model": "m", "stream": streaming, **body}, provider="x"
    )
    assert call is not None
    return call


def _stream(
    recorder: Recorder,
    timings: Mapping[str, Any],
    *,
    headers_ms: float | None = None,
    first_ms: float = 300,
    last_ms: float = 500,
    headers: Mapping[str, str] | None = None,
    **body: Any,
) -> None:
    """First token after ``first_ms``, the last after ``last_ms``; ``timings`` in the last chunk."""
    clock = recorder.clock
    call = _begin(recorder, **body)

    def chunks() -> Iterator[dict[str, Any]]:
        clock.ms = first_ms
        yield _chunk()
        clock.ms = last_ms
        yield _chunk()
        yield {"id": "c1", "choices": [], **timings}

    if headers_ms is not None:
        clock.ms = headers_ms
    call.got_headers(200, headers or {})
    list(watch(call, chunks()))


def _whole(
    recorder: Recorder,
    response: Mapping[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    ms: float = 500,
    **body: Any,
) -> None:
    call = _begin(recorder, streaming=False, **body)
    recorder.clock.ms = ms
    call.got_headers(200, headers or {})
    call.wire.read({"id": "c1", **response}, call.answer)
    call.end()


def _reported(recorder: Recorder) -> Phases:
    assert not tracekit.faults()
    found = [p for p in recorder.phases() if p[3] == "reported"]
    return sorted(
        [(name, round(a, 3), round(b, 3)) for name, a, b, _ in found], key=lambda p: (p[1], p[2])
    )


def _measures(recorder: Recorder) -> dict[str, Any]:
    before = "tracekit.reported."
    found = attributes(recorder.the_span())
    return {k.removeprefix(before): v for k, v in found.items() if k.startswith(before)}


GROQ = {"queue_time": 0.05, "prompt_time": 0.1, "completion_time": 0.18, "total_time": 0.28}


@pytest.mark.parametrize("place", ["usage", "x_groq"])
def test_groq_documented(recorder: Recorder, place: str) -> None:
    part = {"prompt_tokens": 10, "completion_tokens": 3, **GROQ}
    _stream(recorder, {"usage": part} if place == "usage" else {"x_groq": {"usage": part}})
    # seconds; the queue is not in total_time, which is no total
    assert _reported(recorder) == [("queue", 150, 200), ("prefill", 200, 300)]
    assert _measures(recorder) == {"decode_ms": pytest.approx(180)}


def test_groq_documented_without_streaming(recorder: Recorder) -> None:
    _whole(recorder, {"usage": {"prompt_tokens": 10, "completion_tokens": 3, **GROQ}})
    assert _reported(recorder) == [
        ("queue", 170, 220),
        ("prefill", 220, 320),
        ("decode", 320, 500),
    ]


def test_cerebras_documented(recorder: Recorder) -> None:
    told = {"queue_time": 0.02, "prompt_time": 0.05, "completion_time": 0.15, "total_time": 0.25}
    _stream(recorder, {"time_info": told})
    assert _reported(recorder) == [("queue", 230, 250), ("prefill", 250, 300)]
    assert _measures(recorder) == {"decode_ms": pytest.approx(150), "e2e_ms": pytest.approx(250)}


def test_vllm_documented_first_token_counts_from_scheduled(recorder: Recorder) -> None:
    told = {"queue_time_ms": 80.0, "time_to_first_token_ms": 120.0, "generation_time_ms": 190.0}
    _stream(recorder, {"metrics": told | {"mean_itl_ms": 9.5}})
    assert _reported(recorder) == [("queue", 100, 180), ("prefill", 180, 300)]


def test_vllm_documented_tells_nothing_of_several_choices(recorder: Recorder) -> None:
    told = dict.fromkeys(("queue_time_ms", "time_to_first_token_ms", "generation_time_ms"))
    _stream(recorder, {"metrics": told}, n=3)
    assert _reported(recorder) == []
    assert _measures(recorder) == {}


def test_nim_documented_generation_is_all_of_the_processing(recorder: Recorder) -> None:
    told = {
        "time_in_queue_in_ms": 40.0,
        "generation_time_in_ms": 300.0,
        "response_tokens": {"time_to_first_token_in_ms": 110.0},
        "llm_input_token_length": 64,
        "llm_output_token_length": 12,
    }
    _stream(recorder, {"stats": told})
    assert _reported(recorder) == [("queue", 150, 190), ("prefill", 190, 300)]
    assert _measures(recorder) == {"decode_ms": 190}
    found = attributes(recorder.the_span())
    assert found["gen_ai.usage.input_tokens"] == 64
    assert found["gen_ai.usage.output_tokens"] == 12


FIREWORKS = {
    "prompt-tokens": "210",
    "cached-prompt-tokens": "128",
    "server-time-to-first-token": "0.26",
    "server-processing-time": "0.47",
    "tokenizer-queue-duration": "0.01",
    "tokenizer-duration": "0.005",
    "prefill-queue-duration": "0.06",
    "prefill-duration": "0.15",
    "generation-queue-duration": "0.02",
    "generation-duration": "0.2",
}


def _fireworks(recorder: Recorder) -> None:
    assert _measures(recorder) == {
        "decode_ms": pytest.approx(200),
        "decode_wait_ms": pytest.approx(20),
        "frontend_ms": pytest.approx(5),
        "ttft_ms": pytest.approx(260),
        "e2e_ms": pytest.approx(470),
    }
    found = attributes(recorder.the_span())
    assert found["gen_ai.usage.input_tokens"] == 210
    assert found["gen_ai.usage.cache_read.input_tokens"] == 128


def test_fireworks_documented_in_the_last_chunk(recorder: Recorder) -> None:
    _stream(recorder, {"perf_metrics": FIREWORKS})
    assert _reported(recorder) == [("queue", 80, 150), ("prefill", 150, 300)]
    _fireworks(recorder)


def test_fireworks_documented_in_headers(recorder: Recorder) -> None:
    headers = {f"fireworks-{name}": value for name, value in FIREWORKS.items()}
    _whole(recorder, {}, headers=headers)
    assert _reported(recorder) == [("queue", 80, 150), ("prefill", 150, 300), ("decode", 300, 500)]
    _fireworks(recorder)


def test_ollama_documented_is_in_nanoseconds(recorder: Recorder) -> None:
    call = _begin(recorder, streaming=False)
    recorder.clock.ms = 1000
    call.answer.timings["ollama"] = {
        "total_duration": 950_000_000,
        "load_duration": 200_000_000,
        "prompt_eval_count": 11,
        "prompt_eval_cached_count": 8,
        "prompt_eval_duration": 100_000_000,
        "eval_count": 18,
        "eval_duration": 600_000_000,
        "done": True,
    }
    call.end()
    # loading and waiting are what is neither prompt nor answer
    assert _reported(recorder) == [
        ("queue", 50, 300),
        ("prefill", 300, 400),
        ("decode", 400, 1000),
    ]
    found = attributes(recorder.the_span())
    assert found["gen_ai.usage.cache_read.input_tokens"] == 8


def test_llama_cpp_recorded(recorder: Recorder) -> None:
    # tests/data/llama_cpp, baseline-001: sent at 0, headers 128.546, first chunk 183.876 ms
    told = {
        "cache_n": 0,
        "prompt_n": 13,
        "prompt_ms": 55.033,
        "predicted_n": 21,
        "predicted_ms": 354.366,
    }
    _stream(recorder, {"timings": told}, headers_ms=128.546, first_ms=183.876, last_ms=538.521)
    # the headers came when the slot began: until then it had waited
    assert _reported(recorder) == [
        ("queue", round(183.876 - 55.033 - 128.546, 3), 128.843),
        ("prefill", 128.843, 183.876),
    ]
    assert attributes(recorder.the_span())["gen_ai.usage.input_tokens"] == 13


def test_dynamo_recorded(recorder: Recorder) -> None:
    # tests/data/dynamo, overload_engine_queue-0003
    told = {
        "worker_id": {
            "prefill_worker_id": 1876404235627228244,
            "decode_worker_id": 1876404235627228244,
        },
        "timing": {
            "request_received_ms": 1795982798161,
            "prefill_wait_time_ms": 1.329399,
            "prefill_time_ms": 61.547594,
            "ttft_ms": 62.876993,
            "total_time_ms": 154.443633,
            "kv_hit_rate": 0.0,
            "router_queue_depth": 0,
        },
    }
    _stream(recorder, {"nvext": told}, first_ms=64.636, last_ms=156.245)
    # what it calls prefill holds the engine's queue
    assert _reported(recorder) == [("queue_or_prefill", 3.088, 64.636)]
    assert _measures(recorder) == {
        "route_ms": 1.329399,
        "ttft_ms": 62.876993,
        "e2e_ms": 154.443633,
        "decode_ms": pytest.approx(91.56664),
    }
    (record,) = recorder.records()
    assert record["queue_or_prefill_ms"] == pytest.approx(61.547594, abs=1e-3)
    assert record["queue_ms"] is None and record["prefill_ms"] is None
    assert record["worker"] == "1876404235627228244"


def test_dynamo_recorded_with_a_transfer(recorder: Recorder) -> None:
    # tests/data/dynamo, pd_slow_kv-0000
    told = {
        "timing": {
            "request_received_ms": 1795982737336,
            "prefill_wait_time_ms": 2.680047,
            "prefill_time_ms": 25.570979,
            "ttft_ms": 28.251026,
            "total_time_ms": 398.194452,
            "kv_transfer_estimated_latency_ms": 168.571914,
        }
    }
    _stream(recorder, {"nvext": told}, first_ms=205.687, last_ms=406.375)
    assert _reported(recorder) == [
        ("queue_or_prefill", 11.544, 37.115),
        ("kv_transfer", 37.115, 205.687),
    ]


def test_sglang_documented(recorder: Recorder) -> None:
    at = 1_795_982_400.0
    told = {
        "request_received_ts": at + 0.01,
        "api_server_dispatch_finish_ts": at + 0.02,
        "forward_entry_time": at + 0.12,
        "prefill_finished_time": at + 0.28,
        "request_finished_ts": at + 0.49,
        "first_token_latency": 0.28,
        "e2e_latency": 0.48,
        "completion_tokens": 12,
        "prompt_tokens": 40,
    }
    _stream(recorder, {"meta_info": told})
    phases = _reported(recorder)
    assert [p[0] for p in phases] == ["queue", "prefill"]
    assert phases[0][2] - phases[0][1] == pytest.approx(100, abs=0.01)
    assert phases[1][2] - phases[1][1] == pytest.approx(160, abs=0.01)


def test_tgi_documented_headers_of_a_whole_reply(recorder: Recorder) -> None:
    headers = {
        "x-queue-time": "12",
        "x-inference-time": "300",
        "x-validation-time": "3",
        "x-total-time": "320",
        "x-request-id": "r1",
    }
    _whole(recorder, {}, headers=headers)
    # when in the call its queue was, nothing tells
    assert _reported(recorder) == []
    assert _measures(recorder) == {"frontend_ms": 3, "e2e_ms": 320}


@pytest.mark.parametrize("streaming", [True, False])
def test_openai_documented_processing_is_a_measure(recorder: Recorder, streaming: bool) -> None:
    headers = {"openai-processing-ms": "123", "x-request-id": "req_1"}
    if streaming:
        _stream(recorder, {}, headers=headers)
    else:
        _whole(recorder, {}, headers=headers)
    assert _reported(recorder) == []
    assert _measures(recorder) == {"processing_ms": 123}


@pytest.mark.parametrize(
    ("place", "told", "measures"),
    [
        ("metrics", {"latencyMs": 412}, {"e2e_ms": 412}),
        (
            "amazon-bedrock-invocationMetrics",
            {
                "inputTokenCount": 20,
                "outputTokenCount": 5,
                "invocationLatency": 480,
                "firstByteLatency": 290,
                "cacheReadInputTokenCount": 7,
            },
            {"e2e_ms": 480, "ttft_ms": 290},
        ),
    ],
)
def test_bedrock_documented_tells_no_phase(
    recorder: Recorder, place: str, told: dict[str, Any], measures: dict[str, float]
) -> None:
    call = _begin(recorder, streaming=False)
    recorder.clock.ms = 500
    call.answer.timings[place] = told
    call.end()
    assert _reported(recorder) == []
    assert _measures(recorder) == measures
    # its input leaves out what came from the cache: that is no prompt's length
    assert "gen_ai.usage.input_tokens" not in attributes(recorder.the_span())


def test_objects_of_client_libraries_are_read_like_dicts(recorder: Recorder) -> None:
    from openai.types.chat import ChatCompletionChunk

    told = {"queue_time_ms": 80.0, "time_to_first_token_ms": 120.0, "generation_time_ms": 190.0}
    last = ChatCompletionChunk.model_validate(
        {
            "id": "c1",
            "created": 1,
            "model": "m",
            "object": "chat.completion.chunk",
            "choices": [],
            "nvext": {"timing": {"prefill_wait_time_ms": 1.0, "prefill_time_ms": 100.0}},
        }
    )
    call = _begin(recorder)
    recorder.clock.ms = 300
    call.times_ns.append(recorder.clock.perf_ns())
    call.look(_chunk())
    call.tail.append(last)
    call.end()
    assert _reported(recorder) == [("queue_or_prefill", 200, 300)]
    recorder.exporter.clear()
    _stream(recorder, {"metrics": SimpleNamespace(**told)}, first_ms=700, last_ms=900)
    assert [p[0] for p in _reported(recorder)] == ["queue", "prefill"]


@pytest.mark.parametrize(
    "told",
    [
        # milliseconds taken for seconds, and a first token long before the prefill can have been
        {"time_info": {"queue_time": 50, "prompt_time": 100, "completion_time": 180}},
        {"time_info": {"queue_time": 0.2, "prompt_time": 0.2, "completion_time": 0.02}},
        {"metrics": {"queue_time_ms": 8e4, "time_to_first_token_ms": 1, "generation_time_ms": 1}},
        {"perf_metrics": {"prefill-duration": "150", "generation-duration": "200"}},
    ],
)
def test_more_than_the_call_had_is_not_believed(recorder: Recorder, told: dict[str, Any]) -> None:
    _stream(recorder, told)
    assert _reported(recorder) == []


def test_a_servers_own_counts_go_before_what_timings_tell(recorder: Recorder) -> None:
    told = {"cache_n": 0, "prompt_n": 13, "prompt_ms": 55.0, "predicted_n": 21, "predicted_ms": 99}
    _stream(recorder, {"timings": told, "usage": {"prompt_tokens": 14, "completion_tokens": 22}})
    found = attributes(recorder.the_span())
    assert found["gen_ai.usage.input_tokens"] == 14
    assert found["gen_ai.usage.output_tokens"] == 22


_WHERE = "usage x_groq time_info metrics stats timings perf_metrics nvext meta_info ollama".split()
_NAMES = (
    "queue_time prompt_time completion_time queue_time_ms timing prompt_ms time_to_first_token_ms "
    "generation_time_ms prefill_time_ms ttft_ms predicted_ms prefill_wait_time_ms worker_id usage "
    "prefill-duration generation-duration total_duration eval_duration prompt_eval_duration "
    "latencyMs forward_entry_time e2e_latency generation_time_in_ms"
).split()
_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(_NAMES),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(
    place=st.sampled_from(_WHERE),
    part=_ANY,
    streaming=st.booleans(),
)
def test_whatever_stands_there_the_span_is_whole(place: str, part: Any, streaming: bool) -> None:
    with recording() as recorder:
        call = _begin(recorder, streaming=streaming)
        recorder.clock.ms = 300
        if streaming:
            call.times_ns.append(recorder.clock.perf_ns())
            call.look(_chunk())
        recorder.clock.ms = 500
        call.answer.timings[place] = part
        call.end()
        assert not tracekit.faults()
        recorder.the_span()
        for _, start, end, _ in recorder.phases():
            assert 0 <= start <= end <= 500
        for value in _measures(recorder).values():
            assert math.isfinite(value) and value >= 0
