"""TensorRT-LLM: rows of ``/perf_metrics`` (``return_perf_metrics: true``), one server's or both.

Times are seconds of a clock without a date, which the disaggregation server shifts to its own; 0
stands for not recorded. The generation server's waiting contains the transfer, so that its queue is
what is left around it. A transfer's start is before it has a buffer, so it holds that wait too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tracekit.response_timings.system import Call, Fields, Lifted, System

_TIMES: Final = (
    "arrival_time",
    "first_scheduled_time",
    "first_token_time",
    "last_token_time",
    "server_arrival_time",
    "kv_cache_transfer_start",
    "kv_cache_transfer_end",
)
_CTX: Final = "ctx_perf_metrics_perf_metrics_timing_metrics_"
_GEN: Final = "gen_perf_metrics_perf_metrics_timing_metrics_"
_ONE: Final = "timing_metrics_"


def _between(fields: Fields, start: str, end: str) -> float | None:
    """[ms] from one time to another; None if one is unknown or they are out of order."""
    if start not in fields or end not in fields:
        return None
    ms = float(fields[end]) - float(fields[start])
    return ms if ms >= 0 else None


def _told(fields: Fields, target: str, start: str, end: str) -> Iterator[Lifted]:
    ms = _between(fields, start, end)
    if ms is not None:
        how = f"{_last(end)} - {_last(start)}"
        yield Lifted(target, ms, how)


def _last(name: str) -> str:
    for prefix, side in ((_CTX, "ctx "), (_GEN, "gen "), (_ONE, "")):
        if name.startswith(prefix):
            return side + name.removeprefix(prefix)
    return name


def _lift_one(fields: Fields, call: Call) -> Iterator[Lifted]:
    arrival = _ONE + "arrival_time"
    received = _ONE + "server_arrival_time"
    begin = received if _between(fields, received, arrival) is not None else arrival
    yield from _told(fields, "queue_ms", arrival, _ONE + "first_scheduled_time")
    yield from _told(fields, "prefill_ms", _ONE + "first_scheduled_time", _ONE + "first_token_time")
    yield from _told(fields, "decode_ms", _ONE + "first_token_time", _ONE + "last_token_time")
    yield from _told(fields, "frontend_ms", received, arrival)
    yield from _told(fields, "ttft_ms", begin, _ONE + "first_token_time")
    yield from _told(fields, "e2e_ms", begin, _ONE + "last_token_time")


def _lift_both(fields: Fields, call: Call) -> Iterator[Lifted]:
    for name in ("disagg_request_id", "ctx_perf_metrics_ctx_request_id"):
        if name in fields:
            yield Lifted("request_id", fields[name])
            break
    if "ctx_server" in fields:
        yield Lifted("prefill_worker", fields["ctx_server"])
    if "gen_server" in fields:
        yield Lifted("worker", fields["gen_server"])
        yield Lifted("decode_worker", fields["gen_server"])
    begin = next(
        (n for n in ("disagg_server_arrival_time", _CTX + "arrival_time") if n in fields), ""
    )
    yield from _told(fields, "queue_ms", _CTX + "arrival_time", _CTX + "first_scheduled_time")
    yield from _told(fields, "prefill_ms", _CTX + "first_scheduled_time", _CTX + "first_token_time")
    yield from _told(
        fields, "kv_transfer_ms", _GEN + "kv_cache_transfer_start", _GEN + "kv_cache_transfer_end"
    )
    yield from _told(fields, "decode_ms", _GEN + "first_token_time", _GEN + "last_token_time")
    first = "disagg_server_first_token_time"
    yield from _told(fields, "ttft_ms", begin, first if first in fields else _GEN + _TIMES[2])
    yield from _told(fields, "e2e_ms", begin, _GEN + "last_token_time")
    # the log has one place for a queue, before prefill: the generation server's goes to the note
    before = _between(fields, _GEN + "arrival_time", _GEN + "kv_cache_transfer_start")
    after = _between(fields, _GEN + "kv_cache_transfer_end", _GEN + "first_scheduled_time")
    if before is not None and after is not None:
        yield Lifted("note", f"generation server's queue {before + after:.1f} ms, in no phase")


def _fields(prefix: str) -> dict[str, str]:
    return {prefix + name: "clock_s" for name in _TIMES}


ONE: Final = System(
    label="TensorRT-LLM",
    engine="tensorrt_llm",
    fields=_fields(_ONE),
    marks=(frozenset((_ONE + "arrival_time", _ONE + "first_scheduled_time")),),
    direct={},
    lift=_lift_one,
    made=frozenset(_fields(_ONE)),
    not_under=("ctx_perf_metrics_perf_metrics", "gen_perf_metrics_perf_metrics"),
)

BOTH: Final = System(
    label="TensorRT-LLM (disaggregated)",
    engine="tensorrt_llm",
    fields={
        **_fields(_CTX),
        **_fields(_GEN),
        "disagg_server_arrival_time": "clock_s",
        "disagg_server_first_token_time": "clock_s",
        "ctx_server": "text",
        "gen_server": "text",
        "disagg_request_id": "text",
        "ctx_perf_metrics_ctx_request_id": "text",
    },
    marks=(
        frozenset((_CTX + "arrival_time", _CTX + "first_scheduled_time")),
        frozenset((_GEN + "arrival_time", _GEN + "first_scheduled_time")),
    ),
    direct={"ctx_server": "prefill_worker", "gen_server": "worker"},
    lift=_lift_both,
    made=frozenset(
        (
            *_fields(_CTX),
            *_fields(_GEN),
            "disagg_server_arrival_time",
            "disagg_server_first_token_time",
            "disagg_request_id",
            "ctx_perf_metrics_ctx_request_id",
        )
    ),
)
