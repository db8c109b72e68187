"""``@tracekit.traced``: every call of a function is one request.

For functions, coroutines, generators and async generators. Owns how their ends and their yields
become those of a `Request`; generators keep everything they have: send, throw, close, a return
value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import Any, TypeVar

from tracekit.sdk.call import ending_of
from tracekit.sdk.faults import FAULTS, attempt
from tracekit.sdk.request import Request, request

_F = TypeVar("_F", bound=Callable[..., Any])


def traced(
    operation: str = "chat",
    *,
    tokens: Callable[[Any], int] | None = None,
    facts: Callable[..., Mapping[str, Any]] | None = None,
    **told: Any,
) -> Callable[[_F], _F]:
    """Each call of the function is a request: ``@tracekit.traced("chat", model="m")``.

    ``told`` is what `tracekit.request` takes. ``facts`` is called with the function's arguments
    and returns more of it, by name: ``facts=lambda prompt: {"input_tokens": len(prompt)}``. Every
    yield of a generator is a chunk; how many tokens it brings says ``tokens`` (called with what
    was yielded; 0: none). Without it the number of tokens is not known. Inside the function
    `tracekit.current_request` is the request. A generator that is closed, or left and collected,
    was aborted.
    """

    def decorate(function: _F) -> _F:
        def begin(args: Any, kwargs: Any) -> Request:
            more = attempt("telling facts", facts, *args, **kwargs) if facts is not None else None
            return attempt("starting a request", _made, operation, told, more) or request()

        wrapped: Callable[..., Any]
        if inspect.isasyncgenfunction(function):

            def wrapped(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
                return _watch_async(lambda: begin(args, kwargs), function(*args, **kwargs), tokens)

        elif inspect.isgeneratorfunction(function):

            def wrapped(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
                return _watch(lambda: begin(args, kwargs), function(*args, **kwargs), tokens)

        elif inspect.iscoroutinefunction(function):

            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                async with begin(args, kwargs):
                    return await function(*args, **kwargs)

        else:

            def wrapped(*args: Any, **kwargs: Any) -> Any:
                with begin(args, kwargs):
                    return function(*args, **kwargs)

        return functools.wraps(function)(wrapped)  # type: ignore[return-value]

    return decorate


def _made(operation: str, told: Mapping[str, Any], more: Mapping[str, Any] | None) -> Request:
    return request(operation, **{**told, **(more or {})})


def _chunk(of: Request, item: Any, tokens: Callable[[Any], int] | None) -> None:
    try:
        if tokens is None:
            of.chunk()
        elif (n := tokens(item)) > 0:
            of.token(n)
    except Exception as error:
        FAULTS.swallow("counting tokens", error)


def _watch(
    begin: Callable[[], Request],
    inner: Generator[Any, Any, Any],
    tokens: Callable[[Any], int] | None,
) -> Generator[Any, Any, Any]:
    """The generator, watched; its request is the current one only while it runs itself."""
    of = begin().start()
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        of.attach()
        try:
            item = inner.send(sent) if thrown is None else inner.throw(thrown)
        except StopIteration as stop:
            of.end()
            return stop.value
        except BaseException as error:
            of.end(ending_of(error), error)
            raise
        finally:
            of.detach()
        _chunk(of, item, tokens)
        try:
            sent, thrown = (yield item), None
        except GeneratorExit as gone:
            _closed(of, inner.close, gone)
            raise
        except BaseException as error:
            sent, thrown = None, error


def _closed(of: Request, close: Callable[[], Any], gone: BaseException) -> None:
    of.attach()
    try:
        close()
    finally:
        of.detach()
        of.end(ending_of(gone), gone)


async def _watch_async(
    begin: Callable[[], Request],
    inner: AsyncGenerator[Any, Any],
    tokens: Callable[[Any], int] | None,
) -> AsyncGenerator[Any, Any]:
    of = begin().start()
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        of.attach()
        try:
            item = await (inner.asend(sent) if thrown is None else inner.athrow(thrown))
        except StopAsyncIteration:
            of.end()
            return
        except BaseException as error:
            of.end(ending_of(error), error)
            raise
        finally:
            of.detach()
        _chunk(of, item, tokens)
        try:
            sent, thrown = (yield item), None
        except GeneratorExit as gone:
            of.attach()
            try:
                await inner.aclose()
            finally:
                of.detach()
                of.end(ending_of(gone), gone)
            raise
        except BaseException as error:
            sent, thrown = None, error
