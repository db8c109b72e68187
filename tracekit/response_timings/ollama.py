"""Ollama: the final object of its native API (``/api/generate``, ``/api/chat``), durations in ns.

``load_duration`` is loading the model and waiting for the scheduler that does it, so it is part of
the queue, and the row's note says how much. What is left of ``total_duration`` beside prompt and
output has no field: the queue is an upper bound. Fields that would be 0 are left out, so that after
a full cache hit prompt and queue cannot be told apart. ``created_at`` is when the object was made:
the end of the call.
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
    apart,
)

#: [ms] no engine decodes a token in less: such durations are not in ns.
_FASTEST_TOKEN_MS: Final = 0.01


def _lift(fields: Fields, call: Call) -> Iterator[Told]:
    for name, target in _COUNTS.items():
        if name in fields:
            yield Lifted(target, fields[name])
    if "done_reason" in fields:
        yield Lifted("finish_reason", fields["done_reason"])
    total = float(fields["total_duration"])
    decode = float(fields["eval_duration"])
    tokens = int(fields.get("eval_count", 0))
    if tokens > 1 and decode < (tokens - 1) * _FASTEST_TOKEN_MS:
        yield Remark("durations that are not in ns, as Ollama writes them, are not used")
        return
    yield Lifted("e2e_ms", total)
    yield Lifted("decode_ms", decode)
    prompt = fields.get("prompt_eval_duration")
    if prompt is None:
        yield Lifted(
            "queue_or_prefill_ms",
            apart(total, decode),
            "total_duration - eval_duration (no prompt_eval_duration: all of it was cached)",
        )
    else:
        yield Lifted("prefill_ms", float(prompt))
        yield Lifted(
            "queue_ms",
            apart(total, float(prompt), decode),
            "total_duration - prompt_eval_duration - eval_duration, an upper bound",
        )
    if load := fields.get("load_duration"):
        yield Lifted("note", f"load_duration {float(load):.0f} ms, part of the queue")
    if fields.get("done") == 1 and "created_at" in fields:
        start = int(fields["created_at"]) - round(total * 1e6)
        yield Lifted("start_unix_ns", start, "created_at (when the answer was made) less the total")


_COUNTS: Final = {
    "prompt_eval_count": "input_tokens",
    "prompt_eval_cached_count": "cached_tokens",
    "eval_count": "output_tokens",
}

SYSTEM: Final = System(
    label="Ollama",
    engine="ollama",
    fields={
        "total_duration": "ns",
        "load_duration": "ns",
        "prompt_eval_count": "count",
        "prompt_eval_cached_count": "count",
        "prompt_eval_duration": "ns",
        "eval_count": "count",
        "eval_duration": "ns",
        "created_at": "time",
        "done": "flag",
        "done_reason": "text",
    },
    marks=(frozenset(("total_duration", "eval_duration")),),
    direct={
        **_COUNTS,
        "total_duration": "e2e_ms",
        "prompt_eval_duration": "prefill_ms",
        "eval_duration": "decode_ms",
        "done_reason": "finish_reason",
    },
    lift=_lift,
    made=frozenset(("created_at",)),
    only_with={"created_at": "done", "done_reason": "done"},
)
