"""NVIDIA Dynamo: ``nvext.timing`` and ``nvext.worker_id`` of a response's last chunk.

``prefill_time_ms`` holds the engine's queue, so it is queue_or_prefill; ``prefill_wait_time_ms`` is
the time in frontend and router. Under P/D ``ttft_ms`` is the prefill worker's token and not the
client's: what lies between is the transfer (with the decode worker's queue and first step).
``kv_transfer_estimated_latency_ms`` says how much that was; 0 stands for unknown (bootstrap).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tracekit.response_timings.system import Call, Fields, Lifted, System, apart

_ESTIMATE: Final = "timing_kv_transfer_estimated_latency_ms"


def _lift(fields: Fields, call: Call) -> Iterator[Lifted]:
    prefiller = fields.get("worker_id_prefill_worker_id")
    decoder = fields.get("worker_id_decode_worker_id")
    apart_workers = prefiller is not None and decoder is not None and prefiller != decoder
    pd = _ESTIMATE in fields or apart_workers
    if (worker := decoder or (None if pd else prefiller)) is not None:
        yield Lifted("worker", worker)
    if pd:
        yield Lifted("prefill_worker", prefiller)
        yield Lifted("decode_worker", decoder)
    if (at := fields.get("timing_request_received_ms")) is not None:
        yield Lifted("start_unix_ns", at)
    if (wait := fields.get("timing_prefill_wait_time_ms")) is not None:
        yield Lifted("route_ms", wait)
    if (prefill := fields.get("timing_prefill_time_ms")) is not None:
        yield Lifted("queue_or_prefill_ms", prefill)
    told = fields.get("timing_ttft_ms")
    total = fields.get("timing_total_time_ms")
    first = None if told is None else float(told)
    if pd:
        estimate = float(fields.get(_ESTIMATE, 0.0))
        if estimate > 0:
            yield Lifted("kv_transfer_ms", estimate)
        elif (between := apart(call.ttft_ms, first)) is not None:
            yield Lifted("kv_transfer_ms", between, "TTFT - nvext.timing.ttft_ms, an upper bound")
        first = None if first is None or estimate <= 0 else first + estimate
    if first is not None:
        yield Lifted("ttft_ms", first)
    if total is not None:
        yield Lifted("e2e_ms", float(total))
        decode = apart(float(total), first)
        yield Lifted("decode_ms", decode, "total_time_ms less the first token's")


SYSTEM: Final = System(
    label="Dynamo",
    engine="dynamo",
    fields={
        "timing_request_received_ms": "time",
        "timing_prefill_wait_time_ms": "ms",
        "timing_prefill_time_ms": "ms",
        "timing_ttft_ms": "ms",
        "timing_total_time_ms": "ms",
        _ESTIMATE: "ms",
        "worker_id_prefill_worker_id": "text",
        "worker_id_decode_worker_id": "text",
    },
    marks=(
        frozenset(("timing_prefill_wait_time_ms",)),
        frozenset(("timing_request_received_ms", "timing_ttft_ms", "timing_total_time_ms")),
    ),
    direct={
        "timing_request_received_ms": "start_unix_ns",
        "timing_prefill_wait_time_ms": "route_ms",
        "timing_prefill_time_ms": "queue_or_prefill_ms",
        "timing_ttft_ms": "ttft_ms",
        "timing_total_time_ms": "e2e_ms",
        _ESTIMATE: "kv_transfer_ms",
        "worker_id_prefill_worker_id": "prefill_worker",
        "worker_id_decode_worker_id": "worker",
    },
    lift=_lift,
)
