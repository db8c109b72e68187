"""llama.cpp server: the ``timings`` of a response (no timings: errors, calls the client left).

``prompt_ms`` runs from the slot's first batch to the first token and holds whatever else those
batches did; ``predicted_ms`` runs from the first to the last token. No field tells the queue.
A streamed answer sends its headers when the slot begins the prompt (as of build 11549; older ones
may not): headers less send is the queue, unless the rest of the TTFT contradicts it.
With n > 1 all of it is about one choice. ``created`` is when the answer was made, in whole seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tracekit.response_timings.system import (
    Call,
    Fields,
    Lifted,
    Remark,
    System,
    Told,
    Unset,
    apart,
)

#: [ms] the headers tell the slot's start as exactly as TTFT and prompt_ms do, but for stalls.
_HEADERS_OFF_MS: Final = 50.0
_LATE: Final = "TTFT - prompt_ms"
_REST: Final = "total - prompt_ms - predicted_ms"


def _lift(fields: Fields, call: Call) -> Iterator[Told]:
    choices = call.choices or int(fields.get("n", 1))
    prompt = _ms(fields, "prompt_ms")
    predicted = _ms(fields, "predicted_ms")
    predicted_n = fields.get("predicted_n")
    if prompt is not None:
        yield Lifted("prefill_ms", prompt)
    if "cache_n" in fields and "prompt_n" in fields:
        yield Lifted("cached_tokens", fields["cache_n"])
        yield Lifted(
            "input_tokens", int(fields["cache_n"]) + int(fields["prompt_n"]), "cache_n + prompt_n"
        )
    if choices > 1:
        yield Lifted("choices", choices)
        if call.output_tokens is not None and call.output_tokens == predicted_n:
            # usage and timings are both of one choice
            yield Unset("output_tokens", f"of one choice only where n is {choices}")
        predicted = None
    else:
        if predicted_n is not None:
            yield Lifted("output_tokens", predicted_n)
        if predicted is not None:
            # one token is the first and the last: what is written then is a filler of 0.001
            predicted = 0.0 if predicted_n == 1 else predicted
            yield Lifted("decode_ms", predicted)
    yield from _queue(fields, call, prompt, predicted)
    if "created" in fields and call.start_unix_ns is None:
        yield Remark("`created` is when an answer was made, no start: not used")


def _queue(
    fields: Fields, call: Call, prompt: float | None, predicted: float | None
) -> Iterator[Lifted]:
    if call.failed:
        return
    # what is not prompt or output by either; a client's own stalls make both too high, so that the
    # lower is nearer
    told = {_REST: apart(call.e2e_ms, prompt, predicted)}
    if call.streaming is not False:
        told[_LATE] = apart(call.ttft_ms, prompt)
    bounds = {how: ms for how, ms in told.items() if ms is not None}
    how = min(bounds, key=bounds.__getitem__, default=None)
    headers = _headers_ms(fields, call) if call.streaming else None
    if headers is not None and (how is None or abs(headers - bounds[how]) <= _HEADERS_OFF_MS):
        yield Lifted("queue_ms", headers, "headers - send (a stream's come as its slot begins)")
    elif how is not None:
        yield Lifted("queue_ms", bounds[how], how)


def _headers_ms(fields: Fields, call: Call) -> float | None:
    after = _ms(fields, "headers_after")
    at = fields.get("headers_at")
    if after is None and at is not None and call.start_unix_ns is not None:
        after = (int(at) - call.start_unix_ns) / 1e6
    return after if after is not None and after >= 0 else None


def _ms(fields: Fields, name: str) -> float | None:
    value = fields.get(name)
    return None if value is None else float(value)


SYSTEM: Final = System(
    label="llama.cpp",
    engine="llama.cpp",
    fields={
        "cache_n": "count",
        "prompt_n": "count",
        "prompt_ms": "ms",
        "predicted_n": "count",
        "predicted_ms": "ms",
        "headers_at": "time",
        "headers_after": "ms",
        "server": "text",
        "n": "count",
        "created": "time",
        "object": "text",
    },
    marks=(frozenset(("prompt_ms", "predicted_ms")),),
    direct={
        "cache_n": "cached_tokens",
        "prompt_ms": "prefill_ms",
        "predicted_n": "output_tokens",
        "predicted_ms": "decode_ms",
    },
    lift=_lift,
    made=frozenset(("prompt_n", "headers_at", "headers_after")),
    beside={
        "headers_at": ("headers_unix_ns", "headers_unix", "headers_at", "response_headers_unix_ns"),
        "headers_after": ("headers_ms", "time_to_headers_ms", "response_headers_ms"),
        "server": ("response_headers_server", "headers_server", "server_header"),
        "n": ("n", "num_choices", "request_n"),
        "created": ("created",),
        "object": ("object",),
    },
    # a response as a whole has both
    only_with={"created": "object"},
    knows=lambda fields: fields.get("server") == "llama.cpp",
)
