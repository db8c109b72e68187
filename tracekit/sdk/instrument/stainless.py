"""Client libraries made by one generator (openai, anthropic, groq, cerebras, ...): watching calls.

All of them send every request through ``SyncAPIClient.request`` and its async twin, call
``_build_request`` for every attempt (before it is signed), ``_sleep_for_retry`` between them, and
``_process_response`` with the one that counts; streams keep their chunks in ``_iterator``. These
names are the same in releases of several years; one that lacks some is watched with less.

Owns these hooks. What a request means is for `wire`.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tracekit.sdk.agent import inside_call
from tracekit.sdk.bodies import watch_response
from tracekit.sdk.call import ABORTED, Call, ending_of
from tracekit.sdk.faults import FAULTS, attempt
from tracekit.sdk.instrument.hooks import Hooks
from tracekit.sdk.instrument.way import Way, current
from tracekit.sdk.streams import watch, watch_async
from tracekit.sdk.wire.facts import Wire


class Library(Hooks):
    """Hooks of one library. ``wires`` are its paths' ends and what is spoken there."""

    def __init__(self, package: str, wires: Mapping[str, Wire], provider: str) -> None:
        super().__init__()
        self.package = package
        self.wires = dict(wires)
        self.provider = provider

    def hook(self) -> None:
        base = importlib.import_module(f"{self.package}._base_client")
        for name in ("SyncAPIClient", "AsyncAPIClient"):
            client = getattr(base, name)
            is_async = name == "AsyncAPIClient"
            self._replace(client, "request", self._request_async if is_async else self._request)
            self._replace(client, "_build_request", _build)
            self._replace(client, "_sleep_for_retry", _sleep_async if is_async else _sleep)
            self._replace(client, "_process_response", _process_async if is_async else _process)
        # a client may trace itself, once a call and not an attempt: ours is what the server is told
        self._replace(base, "remove_trace_headers", _unless_ours)
        self._replace(base, "inject_trace_headers", _unless_ours)

    def _start(self, client: Any, options: Any) -> Way | None:
        agent = self._agent
        if agent is None:
            return None
        try:
            wire = self.wires.get(_path(str(options.url)))
            if wire is None or str(options.method).lower() != "post":
                return None
            body = options.json_data
            if not isinstance(body, Mapping):
                return None
            call = agent.start(wire, body, provider=self.provider, server=_server(client))
            return None if call is None else Way(agent, call)
        except Exception as error:
            FAULTS.swallow("reading a request", error)
            return None

    def _request(self, original: Any) -> Any:
        def request(client: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
            way = self._start(client, options)
            if way is None:
                with _within(current.get()):
                    return original(client, cast_to, options, *args, **kwargs)
            token, inside = current.set(way), inside_call.set(True)
            attempt("making a span current", way.enter)
            try:
                response = original(client, cast_to, options, *args, **kwargs)
            except BaseException as error:
                _raised(way, error)
                raise
            finally:
                attempt("leaving a span", way.leave)
                inside_call.reset(inside)
                current.reset(token)
            return _returned(way, response)

        return request

    def _request_async(self, original: Any) -> Any:
        async def request(
            client: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any
        ) -> Any:
            way = self._start(client, options)
            if way is None:
                with _within(current.get()):
                    return await original(client, cast_to, options, *args, **kwargs)
            token, inside = current.set(way), inside_call.set(True)
            attempt("making a span current", way.enter)
            try:
                response = await original(client, cast_to, options, *args, **kwargs)
            except BaseException as error:
                _raised(way, error)
                raise
            finally:
                attempt("leaving a span", way.leave)
                inside_call.reset(inside)
                current.reset(token)
            return _returned(way, response)

        return request


@contextmanager
def _within(way: Way | None) -> Iterator[None]:
    """Tell the way that this client is part of, if it is part of one, when it gives up."""
    try:
        yield
    except Exception as error:
        if way is not None:
            attempt("seeing an attempt", way.seen, getattr(error, "response", None))
        raise


def _path(url: str) -> str:
    """``/chat/completions`` of ``/chat/completions`` and of ``/v1/chat/completions?beta=true``."""
    return url.partition("?")[0].rstrip("/").rpartition("/v1")[2]


def _server(client: Any) -> tuple[str, int | None] | None:
    url = client.base_url
    return (str(url.host), url.port) if getattr(url, "host", None) else None


def _raised(way: Way, error: BaseException) -> None:
    call = way.call
    if call is None:
        return
    response = getattr(error, "response", None)
    if response is not None and call.headers_ns is None:
        attempt("reading an error", call.got_headers, response.status_code, response.headers)
    call.end(ending_of(error), error)


def _returned(way: Way, response: Any) -> Any:
    """What the caller gets: the same object, watched if it is a stream."""
    call = way.call
    if call is None or call.ended:
        return response
    try:
        if _watch_stream(call, response):
            return response
        # a raw response: whichever way it is read, its bytes pass
        http = getattr(response, "http_response", response)
        if hasattr(http, "iter_raw") and hasattr(http, "is_closed"):
            watch_response(call, http)
            return response
        call.wire.read(response, call.answer)
    except Exception as error:
        FAULTS.swallow("reading a response", error)
    call.end()
    return response


def _watch_stream(call: Call, stream: Any) -> bool:
    """Watch the chunks of a client library's stream; False if it is none."""
    inner = getattr(stream, "_iterator", None)
    if inner is None:
        return False
    if hasattr(inner, "__anext__"):
        stream._iterator = watch_async(call, inner)
    elif hasattr(inner, "__next__"):
        stream._iterator = watch(call, inner)
    else:
        return False
    is_async = hasattr(inner, "__anext__")
    _end_on_close(call, stream, "close", is_async, lambda: True)
    # helpers built on streams close the response; so does the stream itself, at its end
    response = getattr(stream, "response", None)
    closing = "aclose" if is_async else "close"
    if hasattr(inner, "gi_frame") or hasattr(inner, "ag_frame"):
        reader = weakref.ref(inner)
        _end_on_close(call, response, closing, is_async, lambda: _waits(reader()))
    # a stream that nobody began to read has no generator to be told of its end
    weakref.finalize(stream, call.left)
    return True


def _waits(generator: Any) -> bool:
    """Whether a generator waits for its caller to read on: it neither runs nor is over."""
    kind = "ag" if hasattr(generator, "ag_frame") else "gi"
    is_open = getattr(generator, f"{kind}_frame", None) is not None
    return is_open and not getattr(generator, f"{kind}_running")


def _end_on_close(
    call: Call, held: Any, name: str, is_async: bool, is_end: Callable[[], bool]
) -> None:
    """Calling ``name`` of ``held`` ends the call if ``is_end``, however long ``held`` lives on."""
    kind = type(held)
    close = getattr(kind, name, None)
    if close is None:
        return
    weak = weakref.ref(held)

    def ending() -> None:
        if is_end():
            call.end(ABORTED, "GeneratorExit")

    if is_async:

        async def closing_async() -> None:
            ending()
            if (still := weak()) is not None:
                await close(still)

        setattr(held, name, closing_async)
    else:

        def closing() -> None:
            ending()
            if (still := weak()) is not None:
                close(still)

        setattr(held, name, closing)


def _unless_ours(original: Any) -> Any:
    def headers(*args: Any, **kwargs: Any) -> Any:
        way = current.get()
        if way is None or way.call is None:
            return original(*args, **kwargs)
        return None

    return headers


def _build(original: Any) -> Any:
    def build(client: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(client, *args, **kwargs)
        if (way := current.get()) is not None:
            attempt("preparing a request", way.prepare, request)
        return request

    return build


def _sleep(original: Any) -> Any:
    def sleep(client: Any, *args: Any, **kwargs: Any) -> Any:
        if (way := current.get()) is not None:
            attempt("seeing a retry", way.failed, kwargs.get("response"))
        return original(client, *args, **kwargs)

    return sleep


def _sleep_async(original: Any) -> Any:
    async def sleep(client: Any, *args: Any, **kwargs: Any) -> Any:
        if (way := current.get()) is not None:
            attempt("seeing a retry", way.failed, kwargs.get("response"))
        return await original(client, *args, **kwargs)

    return sleep


def _process(original: Any) -> Any:
    def process(client: Any, *args: Any, **kwargs: Any) -> Any:
        way, response = current.get(), kwargs.get("response")
        if way is not None and response is not None:
            attempt("seeing a response", way.answered, response)
        return original(client, *args, **kwargs)

    return process


def _process_async(original: Any) -> Any:
    async def process(client: Any, *args: Any, **kwargs: Any) -> Any:
        way, response = current.get(), kwargs.get("response")
        if way is not None and response is not None:
            attempt("seeing a response", way.answered, response)
        return await original(client, *args, **kwargs)

    return process
