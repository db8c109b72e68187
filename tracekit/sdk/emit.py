"""A call's span, from its start to its children: names and attributes of what left the SDK.

Owns the form (GenAI conventions, and ``tracekit.*`` where they have no word); measures nothing.
The span is open while the call runs, for its id goes to the server; all else is written at its end.
"""

from __future__ import annotations

import os
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from tracekit.chunks import pack
from tracekit.sdk.call import ABORTED, ERROR, OK, TIMEOUT, Call
from tracekit.sdk.faults import attempt
from tracekit.sdk.timings import reported_phases

SCOPE: Final = "tracekit.sdk"
CLIENT: Final = "client"

_US: Final = 1_000
_S: Final = 1_000_000_000


def start_span(tracer: Tracer, call: Call, context: Context | None = None) -> None:
    """Open the call's span, as the child of what is current (or of ``context``)."""
    asked = call.asked
    attributes: dict[str, Any] = {"gen_ai.operation.name": asked.operation}
    if call.provider is not None:
        attributes["gen_ai.provider.name"] = call.provider
        if wants_old_names():
            attributes["gen_ai.system"] = call.provider
    if call.role != CLIENT:
        attributes["tracekit.role"] = call.role
    if asked.model is not None:
        attributes["gen_ai.request.model"] = asked.model
    if asked.streaming:
        attributes["gen_ai.request.stream"] = True
    for name, value in (
        ("gen_ai.request.max_tokens", asked.max_tokens),
        ("gen_ai.request.choice.count", asked.choices if asked.choices != 1 else None),
        ("gen_ai.request.temperature", asked.temperature),
        ("gen_ai.request.top_p", asked.top_p),
    ):
        if value is not None:
            attributes[name] = value
    if call.server is not None:
        attributes["server.address"] = call.server[0]
        if call.server[1] is not None:
            attributes["server.port"] = call.server[1]
    call.span = tracer.start_span(
        f"{asked.operation} {asked.model}" if asked.model else asked.operation,
        context=context,
        kind=SpanKind.CLIENT if call.role == CLIENT else SpanKind.SERVER,
        attributes=attributes,
        start_time=call.start_unix_ns,
    )


def wants_old_names() -> bool:
    """Whether names of before the conventions' opt-in are wanted beside the newest."""
    wanted = os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "")
    return "gen_ai_latest_experimental" not in wanted


def finish_span(tracer: Tracer, call: Call) -> None:
    """Write down what the call was, and close its span."""
    span: Span = call.span
    if call.end_ns is None:
        return
    end_unix_ns = call.unix(call.end_ns)
    if span.is_recording():
        # first: providers tell counts beside times
        reported = attempt("reading timings", list, reported_phases(call)) or []
        span.set_attributes(_attributes(call))
        if call.first_content is not None:
            at = call.unix(call.times_ns[call.first_content])
            span.add_event("first_token", timestamp=at)
        if call.status != OK:
            # an aborted call is no error of the server; its span says that it did not end well
            span.set_status(Status(StatusCode.ERROR, call.status))
        _children(tracer, call, span, reported)
    span.end(end_unix_ns)


def _attributes(call: Call) -> dict[str, Any]:
    answer = call.answer
    found: dict[str, Any] = dict(call.extra)
    for name, value in (
        ("gen_ai.response.id", answer.response_id),
        ("gen_ai.response.model", answer.model),
        ("gen_ai.response.finish_reasons", answer.finish_reasons or None),
        ("gen_ai.usage.input_tokens", answer.input_tokens),
        ("gen_ai.usage.output_tokens", answer.output_tokens),
        ("gen_ai.usage.cache_read.input_tokens", answer.cached_tokens),
        ("gen_ai.usage.cache_creation.input_tokens", answer.cache_write_tokens),
        ("gen_ai.usage.reasoning.output_tokens", answer.reasoning_tokens),
        ("http.response.status_code", call.http_status),
        ("tracekit.request_id", call.request_id),
        ("tracekit.intended_start_unix_ns", call.intended_start_unix_ns),
        ("tracekit.attempt", call.attempt),
    ):
        if value is not None:
            found[name] = value
    if call.headers_ns is not None:
        found["tracekit.time_to_headers_ms"] = (call.headers_ns - call.start_ns) / 1e6
    if call.role == CLIENT:
        first_ns = call.first_ns
        if first_ns is None and call.times_ns:
            first_ns = call.times_ns[0]
        if first_ns is not None:
            found["gen_ai.response.time_to_first_chunk"] = (first_ns - call.start_ns) / _S
    if call.times_ns and (call.role != CLIENT or _knows_last(call)):
        found["tracekit.time_to_last_token_ms"] = (call.times_ns[-1] - call.start_ns) / 1e6
    chunks = _packed(call)
    if chunks is not None:
        found["tracekit.chunks"] = chunks
    if call.first_answer is not None and call.first_answer != call.first_content:
        answer_ns = call.times_ns[call.first_answer] - call.start_ns
        found["tracekit.time_to_first_answer_ms"] = answer_ns / 1e6
    if call.dropped:
        found["tracekit.chunks_dropped"] = call.dropped
    if call.status == ABORTED:
        found["error.type"] = call.error or "aborted"
        found["tracekit.status"] = ABORTED
    elif call.status in (ERROR, TIMEOUT):
        found["error.type"] = call.error or "_OTHER"
        found["tracekit.status"] = call.status
    else:
        found["tracekit.status"] = OK
    return found


def _knows_last(call: Call) -> bool:
    """Whether the last time that was kept is the last token's."""
    return call.first_content is not None and not call.dropped


def _packed(call: Call) -> str | None:
    """Arrivals of the chunks that brought tokens, from the call's start."""
    if call.first_content is None:
        return None
    start = call.start_ns
    offsets = [(at - start) // _US for at in call.times_ns[call.first_content :]]
    return pack(offsets, call.chunk_tokens)


def _children(
    tracer: Tracer, call: Call, span: Span, reported: list[tuple[str, int, int, str]]
) -> None:
    """Phases that were told or that the provider reported, and decode as it was seen."""
    phases = [(name, call.unix(a), call.unix(b), how) for name, a, b, how in call.phases]
    phases += reported
    # what serves requests knows a decode of one token too: it took no time
    least = 2 if call.role == CLIENT else 1
    if (
        call.first_content is not None
        and len(call.times_ns) >= call.first_content + least
        and not any(name == "decode" for name, *_ in phases)
    ):
        first, last = call.times_ns[call.first_content], call.times_ns[-1]
        phases.append(("decode", call.unix(first), call.unix(last), "measured"))
    if not phases:
        return
    context = trace.set_span_in_context(span, Context())
    worker = call.extra.get("tracekit.worker")
    for name, start_unix_ns, stop_unix_ns, source in phases:
        attributes = {"tracekit.phase": name, "tracekit.phase.source": source}
        if worker is not None:
            attributes["tracekit.worker"] = worker
        child = tracer.start_span(
            name,
            context=context,
            attributes=attributes,
            start_time=start_unix_ns,
        )
        child.end(stop_unix_ns)
