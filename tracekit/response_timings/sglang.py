"""SGLang: ``meta_info`` of its native ``/generate`` (timings need ``--enable-metrics``).

A message lies in the scheduler's socket while a batch runs, which ``queue_time`` leaves out: the
queue is from the end of the dispatch to the first forward. ``forward_entry_time`` and
``prefill_finished_time`` are of the first forward, also after a retraction, whose waiting is in
decode. A decode server of a P/D pair tells its own times only; where they are not in order, or
the "first token" is the end, no phase is taken from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tracekit.response_timings.system import Call, Fields, Lifted, System

_ORDER: Final = (
    "request_received_ts",
    "api_server_dispatch_finish_ts",
    "forward_entry_time",
    "prefill_finished_time",
    "request_finished_ts",
)


def _lift(fields: Fields, call: Call) -> Iterator[Lifted]:
    for name, target in _DIRECT.items():
        if name in fields:
            yield Lifted(target, fields[name])
    first = fields.get("first_token_latency")
    e2e = fields.get("e2e_latency")
    tokens = int(fields.get("completion_tokens", 0))
    if first is not None and e2e is not None and tokens > 1 and float(first) >= 0.99 * float(e2e):
        first = None
    if first is not None and call.streaming:
        yield Lifted("ttft_ms", float(first))
    at = {name: int(fields[name]) for name in _ORDER if name in fields}
    if any(later < earlier for earlier, later in pairwise(at.values())):
        return
    received, dispatched, entered, prefilled, finished = (at.get(name) for name in _ORDER)
    if received is not None and dispatched is not None:
        yield Lifted("frontend_ms", (dispatched - received) / 1e6, "dispatch - received")
    if dispatched is not None and entered is not None:
        yield Lifted("queue_ms", (entered - dispatched) / 1e6, "forward_entry - dispatch_finish")
    elif "queue_time" in fields and not fields.get("num_retractions"):
        # after a retraction it is the sum of all waits, of which later ones are in decode
        yield Lifted("queue_ms", fields["queue_time"])
    if entered is not None and prefilled is not None:
        yield Lifted("prefill_ms", (prefilled - entered) / 1e6, "prefill_finished - forward_entry")
    if received is not None and finished is not None and first is not None:
        decode = (finished - received) / 1e6 - float(first)
        if decode >= 0:
            yield Lifted("decode_ms", decode, "request_finished less the first token's time")


_DIRECT: Final = {
    "id": "request_id",
    "request_received_ts": "start_unix_ns",
    "e2e_latency": "e2e_ms",
    "prompt_tokens": "input_tokens",
    "cached_tokens": "cached_tokens",
    "completion_tokens": "output_tokens",
    "num_retractions": "preemptions",
    "finish_reason_type": "finish_reason",
}

SYSTEM: Final = System(
    label="SGLang",
    engine="sglang",
    fields={
        "id": "text",
        "request_received_ts": "time",
        "api_server_dispatch_finish_ts": "time",
        "forward_entry_time": "time",
        "prefill_finished_time": "time",
        "request_finished_ts": "time",
        "queue_time": "s",
        "first_token_latency": "s",
        "e2e_latency": "s",
        "prompt_tokens": "count",
        "cached_tokens": "count",
        "completion_tokens": "count",
        "num_retractions": "count",
        "finish_reason_type": "text",
    },
    marks=(
        frozenset(("forward_entry_time", "e2e_latency")),
        frozenset(("request_received_ts", "e2e_latency")),
    ),
    direct={**_DIRECT, "first_token_latency": "ttft_ms", "queue_time": "queue_ms"},
    lift=_lift,
    made=frozenset(_ORDER),
)
