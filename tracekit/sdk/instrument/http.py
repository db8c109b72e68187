"""Plain HTTP clients, httpx and httpx2: watching the LLM calls among their requests.

Both send every request through ``Client.send`` and its async twin. A call is told by its path and
body; all other requests are passed on as they are. Calls that a client library makes are that
library's to record.

Owns these hooks. What a path means is for `paths`, what passes as a body for `bodies`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import context as otel_context

from tracekit.sdk.agent import is_suppressed
from tracekit.sdk.bodies import watch_response
from tracekit.sdk.call import Call, ending_of
from tracekit.sdk.faults import FAULTS, attempt
from tracekit.sdk.instrument.hooks import Hooks
from tracekit.sdk.instrument.paths import may_be_call, what_is_called
from tracekit.sdk.instrument.way import Way, current

#: Key by which instrumentations say that HTTP requests below them are told of already.
_SUPPRESS_HTTP: Final = "suppress_http_instrumentation"


class HttpClients(Hooks):
    """Hooks of one of the packages."""

    def __init__(self, package: str) -> None:
        super().__init__()
        self.package = package

    def hook(self) -> None:
        module = importlib.import_module(self.package)
        self._replace(module.Client, "send", self._send)
        self._replace(module.AsyncClient, "send", self._send_async)

    def _start(self, request: Any) -> Call | Way | None:
        """The call that ``request`` makes, or the way it is an attempt of; None for others."""
        agent = self._agent
        if agent is None:
            return None
        try:
            if request.method != "POST" or not may_be_call(request.url.raw_path):
                return None
            if (way := current.get()) is not None:
                return way if way.takes_http and way.prepare(request) else None
            if is_suppressed() or otel_context.get_value(_SUPPRESS_HTTP):
                return None
            body = _body(request)
            if body is None:
                return None
            url = request.url
            found = what_is_called(url.host, url.path, body)
            if found is None:
                return None
            wire, body, provider = found
            call = agent.start(wire, body, provider=provider, server=(url.host, url.port))
            if call is not None:
                agent.send_with(call, request.headers)
            return call
        except Exception as error:
            FAULTS.swallow("reading a request", error)
            return None

    def _send(self, original: Any) -> Any:
        def send(client: Any, request: Any, **kwargs: Any) -> Any:
            call = self._start(request)
            if call is None:
                return original(client, request, **kwargs)
            if isinstance(call, Way):
                with _attempt(call) as seen:
                    seen.append(original(client, request, **kwargs))
                return seen[0]
            # as the library does it, so that the pieces are seen as they come
            is_stream = kwargs.pop("stream", False)
            try:
                response = original(client, request, stream=True, **kwargs)
            except BaseException as error:
                call.end(ending_of(error), error)
                raise
            _answered(call, response)
            if not is_stream:
                try:
                    response.read()
                except BaseException as error:
                    call.end(ending_of(error), error)
                    response.close()
                    raise
                call.end()
            return response

        return send

    def _send_async(self, original: Any) -> Any:
        async def send(client: Any, request: Any, **kwargs: Any) -> Any:
            call = self._start(request)
            if call is None:
                return await original(client, request, **kwargs)
            if isinstance(call, Way):
                with _attempt(call) as seen:
                    seen.append(await original(client, request, **kwargs))
                return seen[0]
            is_stream = kwargs.pop("stream", False)
            try:
                response = await original(client, request, stream=True, **kwargs)
            except BaseException as error:
                call.end(ending_of(error), error)
                raise
            _answered(call, response)
            if not is_stream:
                try:
                    await response.aread()
                except BaseException as error:
                    call.end(ending_of(error), error)
                    await response.aclose()
                    raise
                call.end()
            return response

        return send


@contextmanager
def _attempt(way: Way) -> Iterator[list[Any]]:
    """Tell ``way`` of what comes of an attempt, which is put into the list."""
    got: list[Any] = []
    try:
        yield got
    finally:
        attempt("seeing an attempt", way.seen, got[0] if got else None)


def _body(request: Any) -> Mapping[str, Any] | None:
    """The request's body, if it is JSON that is there already: a stream is not touched."""
    content = getattr(request, "_content", None)
    if not isinstance(content, bytes) or content.lstrip()[:1] != b"{":
        return None
    try:
        body = json.loads(content)
    except ValueError:
        return None
    return body if isinstance(body, Mapping) else None


def _answered(call: Call, response: Any) -> None:
    try:
        call.got_headers(response.status_code, response.headers)
        watch_response(call, response)
    except Exception as error:
        FAULTS.swallow("watching a response", error)
        call.end()
