"""``tracekit.request``: requests that an application tells of itself, phase by phase.

For authors of engines, gateways and clients that no instrumentation knows::

    with tracekit.request("chat", model="m", headers=headers, input_tokens=812) as r:
        with r.phase("queue"):
            slot = await scheduler.admit(prompt)
        with r.phase("prefill"):
            slot.prefill()
        for token in slot:
            r.token()
        r.set(finish_reason="stop")

Owns a request's life; what may be said of it is `told`'s, how spans look `emit`'s. A mistake in
what is said (a phase that does not exist, a count that is none) is counted in `tracekit.faults()`
and left out; it never reaches the application.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from types import TracebackType
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace

from tracekit.names import PROVENANCES
from tracekit.sdk.agent import REQUEST_ID_HEADER, Agent, inside_call, is_suppressed
from tracekit.sdk.call import ABORTED, CHUNKS_MAX, ERROR, OK, Call, ending_of
from tracekit.sdk.emit import CLIENT, start_span
from tracekit.sdk.faults import FAULTS, attempt
from tracekit.sdk.phase import Phase
from tracekit.sdk.told import (
    OWN,
    PHASES_MAX,
    ROLES,
    STATUSES,
    TOLD_PHASES,
    known,
    lower_headers,
    take_fact,
)
from tracekit.sdk.wire.facts import Asked, text, whole_number

_current: Final = contextvars.ContextVar["Request | None"]("tracekit_request", default=None)


class Request:
    """One request while it runs. Use it with ``with`` or ``async with``, or `start` and `end`.

    Its methods may be called from any thread or task, never raise, and do nothing once it ended.
    """

    def __init__(
        self,
        operation: str,
        *,
        role: str,
        model: str | None,
        provider: str | None,
        streaming: bool | None,
        headers: Mapping[str, str] | Iterable[tuple[Any, Any]] | None,
        request_id: str | None,
        start_unix_ns: int | None,
        facts: Mapping[str, Any],
        agent: Agent | None = None,
    ) -> None:
        self._operation = operation
        self._role = role
        self._model = model
        self._provider = provider
        self._streaming = streaming
        self._headers = headers
        self._request_id = request_id
        self._start_unix_ns = start_unix_ns
        self._facts = facts
        self._agent = agent
        self._call: Call | None = None
        self._lock = threading.Lock()
        self._tokens: list[int | tuple[int, int, bool]] = []
        self._past: tuple[int, int, int] | None = None
        self._phases: list[tuple[str, int, int, str]] = []
        self._open: list[Phase] = []
        self._dropped_phases = 0
        self._uncounted = False
        self._entered: list[contextvars.Token[Any]] = []

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> Request:
        """The request is here. ``with`` does it; without, call `end` too."""
        attempt("starting a request", self._start)
        return self

    def _start(self) -> None:
        if self._call is not None:
            return
        agent = self._agent
        if agent is None:
            from tracekit.sdk.setup import agent as the_agent

            agent = self._agent = the_agent()
        role = self._role
        if role not in ROLES:
            known = ", ".join(ROLES)
            FAULTS.swallow("telling a role", ValueError(f"{role!r} is none of {known}"))
            role = self._role = "engine"
        # who serves requests records them, however the client's call was recorded in this process
        if (
            is_suppressed()
            if role == CLIENT
            else otel_context.get_current().get("suppress_instrumentation")
        ):
            return
        carried = lower_headers(self._headers)
        asked = Asked(str(self._operation), text(self._model), bool(self._streaming))
        call = Call(
            OWN,
            asked,
            clock=agent.clock,
            provider=text(self._provider),
            on_end=self._finish,
            role=role,
        )
        if (began := whole_number(self._start_unix_ns)) is not None:
            call.start_ns -= call.start_unix_ns - began
            call.start_unix_ns = began
        call.request_id = text(self._request_id) or carried.get(REQUEST_ID_HEADER)
        context = None
        if carried and not trace.get_current_span().get_span_context().is_valid:
            context = propagate.extract(carried)
        if role == CLIENT:
            call.intended_start_unix_ns = agent.take_intended_start()
        start_span(agent.tracer, call, context)
        self._call = call
        self.__dict__["token"] = self._token_of(call)
        self.set(**self._facts)

    def _token_of(self, call: Call) -> Callable[..., None]:
        """`token` of a request that runs: once a token, so that it looks nothing up."""
        now, tokens, most, more = call.clock.perf_ns, self._tokens, CHUNKS_MAX, self._add_past
        append = tokens.append  # atomic: no lock

        def token(n: int = 1, *, visible: bool = True) -> None:
            if len(tokens) < most:
                # one visible token, as nearly all are, is its time alone: a tuple takes as long
                # as all the rest, and is the garbage collector's
                append(now() if n == 1 and visible else (now(), n, visible))
            else:
                more(now(), n)

        return token

    def _add_past(self, now: int, n: int) -> None:
        with self._lock:
            past = self._past or (0, 0, 0)
            self._past = (now, past[1] + n, past[2] + 1)

    def end(self, status: str = OK, error: BaseException | str | None = None) -> None:
        """The request is over: ``status`` is ok, error, aborted or timeout."""
        call = self._call
        if call is None:
            return
        if status not in STATUSES:
            FAULTS.swallow("telling an end", ValueError(f"{status!r} is no status"))
            status = ERROR
        call.end(status, error)

    def abort(self, why: str = "aborted") -> None:
        """The caller went away, or the request was given up: it ends here, and not well."""
        self.end(ABORTED, why)

    @property
    def ended(self) -> bool:
        """Whether it is over (or was never recorded)."""
        return self._call is None or self._call.ended

    def __enter__(self) -> Request:
        self.start()
        self.attach()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.detach()
        if error is None:
            self.end()
        else:
            self.end(ending_of(error), error)

    async def __aenter__(self) -> Request:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def attach(self) -> None:
        """Make it the current request of this thread or task, and its span the current one."""
        attempt("entering a request", self._attach_all)

    def _attach_all(self) -> None:
        self._entered.append(_current.set(self))
        if self._call is None:
            return
        held: Any = otel_context.attach(trace.set_span_in_context(self._call.span))
        self._entered.append(held)
        if self._role == CLIENT:
            self._entered.append(inside_call.set(True))

    def detach(self) -> None:
        """Undo `attach`."""
        while self._entered:
            token = self._entered.pop()
            try:
                token.var.reset(token)
            except (AttributeError, ValueError, RuntimeError):
                # left in another task than entered: its context is gone with the first
                pass

    # -- what happens to it --------------------------------------------------------------------

    def phase(self, name: str) -> Phase:
        """``with r.phase("prefill"):`` measures one phase (or ``async with``, or start and stop).

        Phases are queue, prefill (or queue_or_prefill, where nothing tells them apart),
        kv_transfer and decode, or a part of one (``prefill.wait``, ``decode.preempted``, ... as in
        `tracekit.names.SUB_PHASES`); of a name that is none, a fault is counted and nothing
        recorded. Several of one name are its parts. Without a
        ``decode`` of its own it is from the first token to the last.
        """
        return Phase(self, name)

    def phase_at(
        self, name: str, start_unix_ns: int, end_unix_ns: int, *, source: str = "measured"
    ) -> None:
        """A phase that is over, from ``start_unix_ns`` to ``end_unix_ns`` [unix ns].

        ``source`` says how it is known: measured, reported (durations that were placed), inferred.
        """
        attempt("telling a phase", self._phase_at, name, start_unix_ns, end_unix_ns, source)

    def _phase_at(self, name: str, start_unix_ns: int, end_unix_ns: int, source: str) -> None:
        call = self._call
        if call is None:
            return
        if source not in PROVENANCES:
            raise ValueError(f"source {source!r} is none of {', '.join(PROVENANCES)}")
        if end_unix_ns < start_unix_ns:
            raise ValueError(f"phase {name!r} ends before it starts")
        zero = call.start_ns - call.start_unix_ns
        self.add_phase(name, start_unix_ns + zero, end_unix_ns + zero, source)

    def add_phase(self, name: str, start_ns: int, end_ns: int, source: str) -> None:
        """A phase [perf ns] that is over; ValueError for a name that is none."""
        if name not in TOLD_PHASES:
            raise ValueError(f"{name!r} is no phase; one of {', '.join(sorted(TOLD_PHASES))}")
        with self._lock:
            if self.ended:
                return
            if len(self._phases) >= PHASES_MAX:
                self._dropped_phases += 1
                return
            self._phases.append((name, start_ns, end_ns, source))

    def opened(self, phase: Phase) -> int | None:
        """``phase`` begins; when [perf ns], None if there is nothing to be told any more."""
        call = self._call
        if call is None:
            return None
        now = call.clock.perf_ns()
        with self._lock:
            self._open.append(phase)
        return now

    def closed(self, phase: Phase) -> int | None:
        """``phase`` is over; when [perf ns], None if it was before, or the request's end came."""
        call = self._call
        if call is None:
            return None
        now = call.clock.perf_ns()
        with self._lock:
            if phase not in self._open:
                return None
            self._open.remove(phase)
        return now

    def token(self, n: int = 1, *, visible: bool = True) -> None:
        """``n`` tokens were made, or came, just now; ``visible`` if they are part of the answer.

        Reasoning and tool calls are not ``visible``. Tokens made together are one call with their
        number: the times are those of chunks.
        """
        # a request that runs has a quicker one of its own: `_start` puts it in this place

    def chunk(self, *, visible: bool = True) -> None:
        """A chunk came just now, and how many tokens it brought is not known."""
        self._uncounted = True
        self.token(1, visible=visible)

    def set(self, **facts: Any) -> None:
        """What is known of it by now: counts, ids and words, None for what is not.

        input_tokens (cached ones included), output_tokens (reasoning included; without it the sum
        of what `token` told), cached_tokens, cache_write_tokens, reasoning_tokens, kv_bytes (KV
        cache moved), preemptions, finish_reason, response_id, response_model, request_id, worker,
        engine (its name), route, tenant, pair_id (what prefill and decode server share). A name or
        value that is none is counted as a fault and left out.
        """
        call = self._call
        if call is None or call.ended:
            return
        for name, value in facts.items():
            if value is not None:
                attempt("telling a fact", take_fact, call, name, value)

    def headers(self, headers: Any = None) -> Any:
        """``headers`` (a new dict without) with what an onward call carries of this request.

        That is the trace context and ``x-request-id``, so that servers' spans can be joined.
        """
        into = {} if headers is None else headers
        if self._call is not None and self._agent is not None:
            self._agent.send_with(self._call, into)
        return into

    # -- the end -------------------------------------------------------------------------------

    def _finish(self, call: Call) -> None:
        """Put what was told where `emit` finds it."""
        with self._lock:
            phases, self._phases = self._phases, []
            still_open, self._open = self._open, []
            told = self._tokens
        self.__dict__.pop("token", None)
        end_ns = call.end_ns or call.start_ns
        for phase in still_open:
            if phase.start_ns is not None:
                phases.append((phase.name, phase.start_ns, max(end_ns, phase.start_ns), "measured"))
        call.phases = phases
        if self._dropped_phases:
            call.extra["tracekit.phases_dropped"] = self._dropped_phases
        # told by several threads, they may be out of order; what came after the end is not of it
        each = ((t, 1, True) if isinstance(t, int) else t for t in told)
        tokens = sorted((t for t in each if t[0] <= end_ns), key=itemgetter(0))
        if self._past is not None:
            at_ns, n, chunks = self._past
            tokens.append((at_ns, n, True))
            call.dropped = chunks - 1
        if tokens:
            attempt("reading tokens", self._take_tokens, call, tokens)
        assert self._agent is not None
        self._agent.finish(call)

    def _take_tokens(self, call: Call, tokens: list[tuple[int, int, bool]]) -> None:
        counts = [known(whole_number(n), "n") for _, n, _ in tokens]
        call.times_ns = [at for at, _, _ in tokens]
        call.first_content = 0
        call.first_answer = next((i for i, t in enumerate(tokens) if t[2]), None)
        if self._uncounted:
            return
        call.chunk_tokens = counts
        if call.answer.output_tokens is None and self._role != CLIENT:
            # who makes the tokens knows their number; a client sees chunks
            call.answer.output_tokens = sum(counts)


def request(
    operation: str = "chat",
    *,
    role: str = "engine",
    model: str | None = None,
    provider: str | None = None,
    streaming: bool | None = None,
    headers: Mapping[str, str] | Iterable[tuple[Any, Any]] | None = None,
    request_id: str | None = None,
    start_unix_ns: int | None = None,
    **facts: Any,
) -> Request:
    """A request that this code serves, passes on or makes: ``with tracekit.request(...) as r:``.

    ``operation`` is chat, text_completion or generate_content. ``role`` is what this code is to
    the request: engine (or prefill_engine, decode_engine), gateway, router, client. ``headers`` are
    those the request came with: they hold the caller's trace (used where no span is current) and
    ``x-request-id`` (used without a ``request_id``). ``start_unix_ns`` [unix ns] is when it came,
    if that was before now. ``facts`` are as in `Request.set`. With role client, calls of watched
    client libraries inside are not recorded a second time.
    """
    return Request(
        operation,
        role=role,
        model=model,
        provider=provider,
        streaming=streaming,
        headers=headers,
        request_id=request_id,
        start_unix_ns=start_unix_ns,
        facts=facts,
    )


def current_request() -> Request:
    """The request around this code; one that records nothing where there is none."""
    found = _current.get()
    return request() if found is None else found
