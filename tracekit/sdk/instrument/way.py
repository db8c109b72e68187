"""A request on its way: one call after another, where attempts at it fail.

Whoever watches further out (a client library, a gateway library) puts its way here; whoever is
further in (the client library beneath, the HTTP client) tells it of attempts. Owns that.
"""

from __future__ import annotations

import contextvars
import sys
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from tracekit.sdk.agent import Agent
from tracekit.sdk.call import ERROR, Call, ending_of

#: The request that is on its way in this thread or task.
current: Final = contextvars.ContextVar["Way | None"]("tracekit_way", default=None)


class Way:
    """A request on its way: its call changes with every attempt."""

    #: whether the HTTP client underneath is to tell of attempts: nobody in between sees them all
    takes_http = False

    __slots__ = ("_failed_ns", "_token", "agent", "call", "context", "is_over", "request", "sent")

    def __init__(self, agent: Agent, call: Call) -> None:
        self.agent = agent
        self.call: Call | None = call
        self.context = otel_context.get_current()
        self.sent = 0
        #: what was sent last: two layers see the same
        self.request: Any = None
        #: the caller has its answer: what is sent in its context now is something else
        self.is_over = False
        self._failed_ns: int | None = None
        self._token: Any = None

    def enter(self) -> None:
        """Make the call's span the current one: what HTTP clients record goes below it."""
        if self.call is not None:
            self._token = otel_context.attach(self._inside(self.call))

    def leave(self) -> None:
        """The opposite, in the same thread or task."""
        token, self._token = self._token, None
        if token is not None:
            otel_context.detach(token)

    def _inside(self, call: Call) -> Context:
        return trace.set_span_in_context(call.span, self.context)

    def prepare(self, request: Any) -> bool:
        """An attempt is about to be sent; False if that is known already, or is none of it."""
        call = self.call
        if call is None or self.is_over or request is self.request:
            return False
        self.request = request
        if self.sent:
            if not call.ended:
                failed = "retried" if call.http_status is None else str(call.http_status)
                call.end(ERROR, failed, at_ns=self._failed_ns)
            self._failed_ns = None
            self.call = call = self.agent.again(call, self.context)
            if call is None:
                return False
            if self._token is not None:
                # leaving goes back to what was before the first
                otel_context.attach(self._inside(call))
        self.sent += 1
        self.agent.send_with(call, request.headers)
        return True

    def failed(self, response: Any) -> None:
        """An attempt failed (None: no response came), and another will follow after a while."""
        call = self.call
        if call is None or call.ended:
            return
        if response is None:
            # what went wrong is being handled while the client waits
            error = sys.exc_info()[1]
            if error is None:
                call.end(ERROR, "connection")
            else:
                call.end(ending_of(error), error)
            return
        call.got_headers(response.status_code, response.headers)
        call.end(ERROR, str(response.status_code))

    def seen(self, response: Any) -> None:
        """An attempt got this response, or none; whoever is between knows what follows from it."""
        call = self.call
        if call is None or call.ended or self.is_over:
            return
        if response is not None:
            call.got_headers(response.status_code, response.headers)
        if response is None or response.status_code >= 400:
            self._failed_ns = call.clock.perf_ns()

    def answered(self, response: Any) -> None:
        """The response that counts is there: its headers, or, without streaming, all of it."""
        if self.call is not None and not self.is_over:
            self.call.got_headers(response.status_code, response.headers)
