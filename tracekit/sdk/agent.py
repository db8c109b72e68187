"""The SDK at work in a process: what it was told, and the way of a call from start to span.

Owns the settings and the tracer. Instrumentations ask it for calls; it asks `emit` for spans.
"""

from __future__ import annotations

import contextvars
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from tracekit.sdk.call import Call
from tracekit.sdk.clock import Clock, SystemClock
from tracekit.sdk.emit import CLIENT, SCOPE, finish_span, start_span
from tracekit.sdk.faults import FAULTS, attempt
from tracekit.sdk.metrics import ClientMetrics
from tracekit.sdk.wire.facts import Asked, Wire

#: Keys by which OpenTelemetry's instrumentations say that nothing below is to be recorded.
_SUPPRESSED: Final = (
    "suppress_instrumentation",
    "suppress_language_model_instrumentation",
)

#: When the application meant to send its next call, where something held it back.
intended: Final = contextvars.ContextVar["Intended | None"]("tracekit_intended", default=None)
#: Whether a call is recorded already further out: a gateway library over a client library.
inside_call: Final = contextvars.ContextVar[bool]("tracekit_inside_call", default=False)


class Intended:
    """A time [unix ns] that is the intended start of one call: the first that asks for it."""

    __slots__ = ("_taken", "before", "owner", "unix_ns")

    def __init__(self, unix_ns: int, *, owner: object, before: Intended | None) -> None:
        self.unix_ns = unix_ns
        self.owner = owner
        #: what holds again when this one is left
        self.before = before
        self._taken = False

    def take(self) -> int | None:
        """The earliest of what was not taken yet, here and further out."""
        mine = None if self._taken else self.unix_ns
        self._taken = True
        outer = None if self.before is None else self.before.take()
        return outer if mine is None else mine if outer is None else min(mine, outer)


REQUEST_ID_HEADER: Final = "x-request-id"


@dataclass(frozen=True)
class Settings:
    """What the application chose."""

    #: send an `x-request-id` with calls that have none, so that servers' spans can be joined
    send_request_id: bool = True


class Agent:
    """Makes calls, and turns those that ended into spans."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        from tracekit import __version__

        self.settings = settings or Settings()
        self.clock: Clock = clock or SystemClock()
        # without a provider of its own it follows the process's, also one that is set later
        self.tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        self.metrics = ClientMetrics(meter_provider, scope=SCOPE, version=__version__)
        self.ended = 0

    def start(
        self,
        wire: Wire,
        body: Mapping[str, Any],
        *,
        provider: str,
        server: tuple[str, int | None] | None = None,
    ) -> Call | None:
        """A new call, its span open; None if nothing is to be recorded here."""
        try:
            if is_suppressed():
                return None
            call = self._new(wire, wire.ask(body), provider, server)
            call.intended_start_unix_ns = self.take_intended_start()
            start_span(self.tracer, call)
            return call
        except Exception as error:
            FAULTS.swallow("starting a call", error)
            return None

    def again(
        self,
        before: Call,
        context: Context,
        *,
        asked: Asked | None = None,
        provider: str | None = None,
        server: tuple[str, int | None] | None = None,
    ) -> Call | None:
        """The next attempt at a call that failed, in the ``context`` of the first.

        ``asked``, ``provider`` and ``server`` where it is made elsewhere than the one ``before``.
        """
        try:
            call = self._new(
                before.wire,
                asked or before.asked,
                provider or before.provider,
                server or before.server,
            )
            call.attempt = before.attempt + 1
            call.request_id = before.request_id
            start_span(self.tracer, call, context)
            return call
        except Exception as error:
            FAULTS.swallow("starting an attempt", error)
            return None

    def _new(
        self, wire: Wire, asked: Asked, provider: str | None, server: tuple[str, int | None] | None
    ) -> Call:
        call = Call(wire, asked, clock=self.clock, provider=provider, on_end=self.finish)
        call.server = server
        return call

    def send_with(self, call: Call, headers: Any) -> None:
        """Put the call's trace context and request id into the ``headers`` of its request."""
        attempt("sending trace context", self._inject, call, headers)

    def _inject(self, call: Call, headers: Any) -> None:
        carrier: dict[str, str] = {}
        propagate.inject(carrier, context=trace.set_span_in_context(call.span))
        for name, value in carrier.items():
            headers[name] = value
        given = headers.get(REQUEST_ID_HEADER)
        if given is None and self.settings.send_request_id:
            given = call.request_id or uuid.uuid4().hex
            headers[REQUEST_ID_HEADER] = given
        if given is not None:
            call.request_id = str(given)

    @staticmethod
    def take_intended_start() -> int | None:
        """When the application meant to send the call that starts now [unix ns], if it said so."""
        held = intended.get()
        return None if held is None else held.take()

    def finish(self, call: Call) -> None:
        """Write down a call that ended; not so one of the process that this was forked from."""
        if call.pid != os.getpid():
            return
        finish_span(self.tracer, call)
        if call.role == CLIENT:
            self.metrics.record(call)
        self.ended += 1


def is_suppressed() -> bool:
    """Whether something further out records this call, or wants nothing to be recorded."""
    if inside_call.get():
        return True
    current = otel_context.get_current()
    return any(current.get(key) for key in _SUPPRESSED)
