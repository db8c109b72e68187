"""Hugging Face TGI: the headers of a reply that was not streamed, in whole ms.

``x-inference-time`` is prefill and decode together; nothing in a reply splits it, so that both stay
unknown, and its ``x-time-per-token`` (over prefill too) is no time per output token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tracekit.response_timings.system import Call, Fields, Lifted, System

_DIRECT: Final = {
    "x_validation_time": "frontend_ms",
    "x_queue_time": "queue_ms",
    "x_total_time": "e2e_ms",
    "x_prompt_tokens": "input_tokens",
    "x_generated_tokens": "output_tokens",
}


def _lift(fields: Fields, call: Call) -> Iterator[Lifted]:
    for name, target in _DIRECT.items():
        if name in fields:
            yield Lifted(target, fields[name])


SYSTEM: Final = System(
    label="TGI",
    engine="tgi",
    fields={
        "x_validation_time": "ms",
        "x_queue_time": "ms",
        "x_inference_time": "ms",
        "x_total_time": "ms",
        "x_compute_time": "s",
        "x_time_per_token": "ms",
        "x_prompt_tokens": "count",
        "x_generated_tokens": "count",
    },
    marks=(frozenset(("x_queue_time", "x_inference_time")),),
    direct=_DIRECT,
    lift=_lift,
)
