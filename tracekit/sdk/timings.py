"""What providers tell of a call's phases in usage, bodies and headers, as phases on its timeline.

They tell durations of their own clock. What they tell of the time before the first token ends with
the one that the caller saw; what lies before it is on the way or not told. All of it is
``reported``. Owns where in a response the timings stand and where on the timeline they go; what
their fields mean is `tracekit.response_timings`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tracekit.response_timings import dynamo, llama_cpp, managed, ollama, sglang, tgi
from tracekit.response_timings.system import MS_PER, Lifted, System, plain
from tracekit.response_timings.system import Call as Seen
from tracekit.sdk.call import OK, Call
from tracekit.sdk.wire.facts import get

_MS: Final = 1e6
#: The provider's clock and ours may differ by this much over a call before it is not believed.
_ROOM_MS: Final = 50.0

#: What is larger is neither a duration nor a count nor a time.
_LARGEST: Final = 1e19

#: Where timings stand in a response -> whose they may be.
_PLACES: Final[Mapping[str, tuple[System, ...]]] = {
    "usage": (managed.GROQ,),
    "x_groq": (managed.GROQ,),
    "time_info": (managed.CEREBRAS,),
    "metrics": (managed.VLLM, managed.BEDROCK),
    "stats": (managed.NIM,),
    "timings": (llama_cpp.SYSTEM,),
    "perf_metrics": (managed.FIREWORKS,),
    "nvext": (dynamo.SYSTEM,),
    "meta_info": (sglang.SYSTEM,),
    "ollama": (ollama.SYSTEM,),
    "amazon-bedrock-invocationMetrics": (managed.BEDROCK,),
}
#: A header that is there wherever these tell timings in headers; whose they are, how all of them
#: begin, and what is cut off.
_HEADERS: Final = (
    ("openai-processing-ms", managed.OPENAI, "openai-", ""),
    ("fireworks-prompt-tokens", managed.FIREWORKS, "fireworks-", "fireworks-"),
    ("x-inference-time", tgi.SYSTEM, "x-", ""),
)

#: Phases before the first token, from the last to the first.
_BEFORE: Final[tuple[str, ...]] = ("kv_transfer", "queue_or_prefill", "prefill", "queue")
#: What is told and is no phase, or one that was seen better: an attribute.
_MEASURES: Final = ("route", "frontend", "decode", "decode_wait", "processing", "ttft", "e2e")
_COUNTS: Final = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens")


@dataclass
class Told:
    """What a provider told: durations [ms] by phase or measure, counts, and the workers."""

    label: str
    ms: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    worker: str | None = None
    prefill_worker: str | None = None


def reported_phases(call: Call) -> Iterator[tuple[str, int, int, str]]:
    """(phase, start [unix ns], end [unix ns], how it is known) of what the provider told.

    Adds what it told beside phases to the call: measures as attributes, counts that were missing.
    """
    if call.end_ns is None or not (call.answer.timings or call.headers):
        return
    told = told_by(call)
    if told is None:
        return
    e2e_ms = (call.end_ns - call.start_ns) / _MS
    phases: dict[str, float] = {
        name: told.ms[name] for name in (*_BEFORE, "decode") if name in told.ms
    }
    if sum(phases.values()) > e2e_ms + _ROOM_MS or told.ms.get("ttft", 0) > e2e_ms + _ROOM_MS:
        return  # more than the call had: not of this call, or of another unit
    for name in _MEASURES:
        if name in told.ms:
            call.extra[f"tracekit.reported.{name}_ms"] = told.ms[name]
    if told.worker is not None and told.prefill_worker in (None, told.worker):
        call.extra["tracekit.worker"] = told.worker
    if call.status == OK:
        for name, count in told.counts.items():
            if getattr(call.answer, name) is None:
                setattr(call.answer, name, count)
    yield from _placed(call, told, phases)


def _placed(
    call: Call, told: Told, phases: Mapping[str, float]
) -> Iterator[tuple[str, int, int, str]]:
    """Phases one after the other, up to the first token and on from it."""
    assert call.end_ns is not None
    decode_ms = phases.get("decode")
    if call.first_content is not None:
        first_ns = call.times_ns[call.first_content]
    elif not call.asked.streaming and decode_ms is not None:
        # the whole answer came at once: its decode ended then
        first_ns = call.end_ns - round(decode_ms * _MS)
    else:
        return
    before_ms = sum(ms for name, ms in phases.items() if name != "decode")
    if (first_ns - call.start_ns) / _MS < before_ms - _ROOM_MS:
        return
    at = max(first_ns, call.start_ns)
    for name in _BEFORE:
        if name in phases:
            end, at = at, max(at - round(phases[name] * _MS), call.start_ns)
            yield name, call.unix(at), call.unix(end), "reported"
    if call.first_content is None and decode_ms is not None:
        yield "decode", call.unix(max(first_ns, call.start_ns)), call.unix(call.end_ns), "reported"


def told_by(call: Call) -> Told | None:
    """What the provider told of ``call``, by whose fields are there; None if nothing is known."""
    for system, part in _parts(call):
        flat = _flat(part)
        if system is llama_cpp.SYSTEM:
            # it sends a stream's headers when it begins the prompt
            if call.headers_ns is not None:
                flat["headers_after"] = (call.headers_ns - call.start_ns) / _MS
            flat["n"] = call.asked.choices
        fields = {
            name: value
            for name, kind in system.fields.items()
            if (value := _value(flat.get(name), kind)) is not None
        }
        if not system.marked(fields):
            continue
        told = Told(system.label)
        for lifted in system.lift(fields, _seen(call)):
            if isinstance(lifted, Lifted):
                _take(told, lifted)
        if told.ms or told.counts:
            return told
    return None


def _parts(call: Call) -> Iterator[tuple[System, Any]]:
    for name, part in call.answer.timings.items():
        for system in _PLACES.get(name, ()):
            yield system, get(part, "usage") if name == "x_groq" else part
    for sign, system, beginning, cut in _HEADERS:
        if call.headers.get(sign) is not None:
            yield (
                system,
                {
                    name.lower().removeprefix(cut): value
                    for name, value in call.headers.items()
                    if name.lower().startswith(beginning)
                },
            )


def _take(told: Told, lifted: Lifted) -> None:
    target, value = lifted.target, lifted.value
    if value is None:
        return
    name = target.removesuffix("_ms")
    if target.endswith("_ms") and (name in _BEFORE or name in _MEASURES):
        told.ms[name] = float(value)
    elif target in _COUNTS:
        told.counts[target] = int(value)
    elif target == "worker":
        told.worker = str(value)
    elif target == "prefill_worker":
        told.prefill_worker = str(value)


def _seen(call: Call) -> Seen:
    first = None if call.first_content is None else call.times_ns[call.first_content]
    end_ns = call.end_ns or call.start_ns
    return Seen(
        streaming=call.asked.streaming,
        ttft_ms=None if first is None else (first - call.start_ns) / _MS,
        e2e_ms=(end_ns - call.start_ns) / _MS,
        start_unix_ns=call.start_unix_ns,
        output_tokens=call.answer.output_tokens,
        choices=call.asked.choices,
        failed=call.status != OK,
    )


def _flat(part: Any, before: str = "", depth: int = 3) -> dict[str, Any]:
    """Fields of a dict or a client library's object by their path, as `plain` writes it."""
    if not isinstance(part, Mapping):
        extra = getattr(part, "__pydantic_extra__", None)
        part = {**getattr(part, "__dict__", {}), **(extra or {})}
    found: dict[str, Any] = {}
    for key, value in part.items():
        name = f"{before}_{plain(str(key))}".strip("_")
        if isinstance(value, Mapping) or hasattr(value, "__pydantic_fields_set__"):
            if depth:
                found |= _flat(value, name, depth - 1)
        else:
            found[name] = value
    return found


def _value(value: Any, kind: str) -> float | int | str | None:
    """``value`` as `System.fields` says; None if it is none. Headers are text."""
    if kind == "text":
        return str(value) if isinstance(value, str | int) and value != "" else None
    if isinstance(value, bool):
        return int(value) if kind == "flag" else None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    # also false for what is no number of its kind
    if not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        return None
    if kind in MS_PER:
        return float(value) * MS_PER[kind]
    if kind == "count":
        return int(value) if value == int(value) else None
    if kind == "time":
        return _unix_ns(value)
    return None


def _unix_ns(value: float) -> int:
    """[unix ns] of a time in s, ms, us or ns since 1970, by its size."""
    for unit_ns in (10**9, 10**6, 10**3):
        if value < 1e11 * (10**9 // unit_ns):
            # whole seconds apart: a float has no room for ns
            whole = int(value)
            return whole * unit_ns + round((value - whole) * unit_ns)
    return int(value)
