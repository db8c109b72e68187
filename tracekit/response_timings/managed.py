"""Managed APIs (and servers that tell timings as they do): which fields of a response tell what.

* Groq and Cerebras: seconds; prompt is the prefill, completion the decode. Groq's ``total_time``
  leaves the queue out, so that it is no total; Cerebras' is one, and more than its parts.
* Fireworks: the same names in ``perf_metrics`` of the last chunk and, with ``fireworks-`` before
  them, as headers; text. Their unit is not documented: seconds, as its own client takes them. Where
  the wait for generation lies to the first token is not documented either: it is a measure.
* vLLM (``--enable-per-request-metrics``): its ``time_to_first_token_ms`` counts from the moment the
  request was scheduled, so that it is the prefill; all is null with n > 1.
* NIM: ``generation_time_in_ms`` is all of the processing, the time to the first token a part of it.
* OpenAI: ``openai-processing-ms`` is the server's time until its headers: all of a whole response,
  of a stream about when it began. It tells no phase.
* Bedrock: ``latencyMs`` and ``invocationLatency`` are totals, ``firstByteLatency`` is the server's
  time to the first token; nothing tells the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tracekit.response_timings.system import Call, Fields, Lifted, System, apart


def _told(targets: Mapping[str, str]) -> Callable[[Fields, Call], Iterator[Lifted]]:
    """Fields that are one of our columns each."""

    def lift(fields: Fields, call: Call) -> Iterator[Lifted]:
        for name, target in targets.items():
            if name in fields:
                yield Lifted(target, fields[name])

    return lift


def _system(
    label: str, engine: str | None, fields: Mapping[str, str], mark: str, targets: Mapping[str, str]
) -> System:
    return System(
        label=label,
        engine=engine,
        fields=fields,
        marks=tuple(frozenset(one.split()) for one in mark.split(" or ")),
        direct=targets,
        lift=_told(targets),
    )


_PARTS: Final = {
    "queue_time": "queue_ms",
    "prompt_time": "prefill_ms",
    "completion_time": "decode_ms",
}
_PARTS_UNITS: Final = {"queue_time": "s", "prompt_time": "s", "completion_time": "s"}

GROQ: Final = _system("Groq", None, _PARTS_UNITS, "prompt_time completion_time", _PARTS)

CEREBRAS: Final = _system(
    "Cerebras",
    None,
    {**_PARTS_UNITS, "total_time": "s"},
    "prompt_time completion_time",
    {**_PARTS, "total_time": "e2e_ms"},
)

VLLM: Final = _system(
    "vLLM",
    "vllm",
    {"queue_time_ms": "ms", "time_to_first_token_ms": "ms", "generation_time_ms": "ms"},
    "time_to_first_token_ms generation_time_ms",
    {
        "queue_time_ms": "queue_ms",
        "time_to_first_token_ms": "prefill_ms",
        "generation_time_ms": "decode_ms",
    },
)

OPENAI: Final = _system(
    "OpenAI",
    None,
    {"openai_processing_ms": "ms"},
    "openai_processing_ms",
    {"openai_processing_ms": "processing_ms"},
)

BEDROCK: Final = _system(
    "Bedrock",
    None,
    {
        "latencyms": "ms",
        "invocationlatency": "ms",
        "firstbytelatency": "ms",
        "inputtokencount": "count",
        "outputtokencount": "count",
        "cachereadinputtokencount": "count",
        "cachewriteinputtokencount": "count",
    },
    "latencyms or invocationlatency",
    {
        "latencyms": "e2e_ms",
        "invocationlatency": "e2e_ms",
        "firstbytelatency": "ttft_ms",
        # input leaves out what came from the cache, as Anthropic's does: it is no prompt's length
        "outputtokencount": "output_tokens",
        "cachereadinputtokencount": "cached_tokens",
        "cachewriteinputtokencount": "cache_write_tokens",
    },
)

_NIM_FIRST: Final = "response_tokens_time_to_first_token_in_ms"


def _lift_nim(fields: Fields, call: Call) -> Iterator[Lifted]:
    if "time_in_queue_in_ms" in fields:
        yield Lifted("queue_ms", fields["time_in_queue_in_ms"])
    first, total = fields.get(_NIM_FIRST), fields.get("generation_time_in_ms")
    if first is None or total is None:
        return
    yield Lifted("prefill_ms", first)
    yield Lifted("decode_ms", apart(float(total), float(first)), "generation less first token")
    for name, target in _NIM_COUNTS.items():
        if name in fields:
            yield Lifted(target, fields[name])


_NIM_COUNTS: Final = {
    "llm_input_token_length": "input_tokens",
    "llm_output_token_length": "output_tokens",
}

NIM: Final = System(
    label="NIM",
    engine="nim",
    fields={
        "time_in_queue_in_ms": "ms",
        "generation_time_in_ms": "ms",
        _NIM_FIRST: "ms",
        "llm_input_token_length": "count",
        "llm_output_token_length": "count",
    },
    marks=(frozenset(("generation_time_in_ms",)),),
    direct={"time_in_queue_in_ms": "queue_ms", _NIM_FIRST: "prefill_ms", **_NIM_COUNTS},
    lift=_lift_nim,
)

_FIREWORKS: Final = {
    "tokenizer_duration": "frontend_ms",
    "prefill_duration": "prefill_ms",
    "generation_queue_duration": "decode_wait_ms",
    "generation_duration": "decode_ms",
    "server_time_to_first_token": "ttft_ms",
    "server_processing_time": "e2e_ms",
    "prompt_tokens": "input_tokens",
    "cached_prompt_tokens": "cached_tokens",
}
_FIREWORKS_QUEUES: Final = ("tokenizer_queue_duration", "prefill_queue_duration")


def _lift_fireworks(fields: Fields, call: Call) -> Iterator[Lifted]:
    queues = [float(fields[name]) for name in _FIREWORKS_QUEUES if name in fields]
    if queues:
        yield Lifted("queue_ms", sum(queues), "the queues of tokenizer and prefill")
    yield from _told(_FIREWORKS)(fields, call)


FIREWORKS: Final = System(
    label="Fireworks",
    engine=None,
    fields={
        **{name: "s" for name in (*_FIREWORKS_QUEUES, *_FIREWORKS) if not name.endswith("_tokens")},
        "prompt_tokens": "count",
        "cached_prompt_tokens": "count",
    },
    marks=(
        frozenset(("server_time_to_first_token",)),
        frozenset(("server_processing_time",)),
        frozenset(("prefill_duration",)),
    ),
    direct=_FIREWORKS,
    lift=_lift_fireworks,
)
