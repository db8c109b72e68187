"""Watching a stream: every chunk's arrival is stamped as it passes, and nothing else happens to it.

These run once a chunk of every stream of the application: what is not needed then is left for the
end. Three kinds of loop: chunks that tell their type, of which only those that bring tokens count;
others, which are looked at until the answer has begun; and those of several choices, each of which
ends where it likes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from tracekit.sdk.call import CHUNKS_MAX, ERROR, Call, ending_of


def watch(call: Call, chunks: Iterator[Any]) -> Iterator[Any]:
    """``chunks``, watched for ``call``, which ends with them."""
    if call.wire.typed is not None:
        return _typed(call, chunks)
    return (_plain if (call.asked.choices or 1) == 1 else _many)(call, chunks)


def watch_async(call: Call, chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """``chunks``, watched for ``call``, which ends with them."""
    if call.wire.typed is not None:
        return _typed_async(call, chunks)
    return (_plain_async if (call.asked.choices or 1) == 1 else _many_async)(call, chunks)


def _over(call: Call) -> None:
    """The stream came to its end by itself."""
    if call.tail or call.times_ns:
        call.end()
    else:
        call.end(ERROR, "empty_stream")


def _broken(call: Call, error: BaseException) -> None:
    if isinstance(error, GeneratorExit):
        call.left()
    else:
        call.end(ending_of(error), error)


def _full(call: Call) -> None:
    """No more times are kept: count the newest."""
    call.times_ns.pop()
    call.dropped += 1


def _plain(call: Call, chunks: Iterator[Any]) -> Iterator[Any]:
    now, times, keep = call.clock.perf_ns, call.times_ns, call.tail.append
    stamp = times.append
    looking = True
    try:
        for chunk in chunks:
            stamp(now())
            keep(chunk)
            if looking:
                looking = not call.look(chunk)
            elif len(times) > CHUNKS_MAX:
                _full(call)
            yield chunk
    except BaseException as error:
        _broken(call, error)
        raise
    _over(call)


def _typed(call: Call, chunks: Iterator[Any]) -> Iterator[Any]:
    now, times, keep = call.clock.perf_ns, call.times_ns, call.tail.append
    stamp = times.append
    kinds = call.wire.typed or frozenset()
    looking = True
    try:
        for chunk in chunks:
            if getattr(chunk, "type", None) in kinds:
                stamp(now())
                if looking:
                    looking = not call.look(chunk)
                elif len(times) > CHUNKS_MAX:
                    _full(call)
            else:
                keep(chunk)
                if looking:
                    if call.first_ns is None:
                        call.first_ns = now()
                    call.look(chunk)
            yield chunk
    except BaseException as error:
        _broken(call, error)
        raise
    _over(call)


def _many(call: Call, chunks: Iterator[Any]) -> Iterator[Any]:
    now, times, keep = call.clock.perf_ns, call.times_ns, call.tail.append
    looking = True
    try:
        for chunk in chunks:
            times.append(now())
            keep(chunk)
            call.read(chunk)
            if looking:
                looking = not call.look(chunk)
            if len(times) > CHUNKS_MAX:
                _full(call)
            yield chunk
    except BaseException as error:
        _broken(call, error)
        raise
    _over(call)


async def _plain_async(call: Call, chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
    now, times, keep = call.clock.perf_ns, call.times_ns, call.tail.append
    stamp = times.append
    looking = True
    try:
        async for chunk in chunks:
            stamp(now())
            keep(chunk)
            if looking:
                looking = not call.look(chunk)
            elif len(times) > CHUNKS_MAX:
                _full(call)
            yield chunk
    except BaseException as error:
        _broken(call, error)
        raise
    _over(call)


async def _typed_async(call: Call, chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
    now, times, keep = call.clock.perf_ns, call.times_ns, call.tail.append
    stamp = times.append
    kinds = call.wire.typed or frozenset()
    looking = True
    try:
        async for chunk in chunks:
            if getattr(chunk, "type", None) in kinds:
                stamp(now())
                if looking:
                    looking = not call.look(chunk)
                elif len(times) > CHUNKS_MAX:
                    _full(call)
            else:
                keep(chunk)
                if looking:
                    if call.first_ns is None:
                        call.first_ns = now()
                    call.look(chunk)
            yield chunk
    except BaseException as error:
        _broken(call, error)
        raise
    _over(call)


async def _many_async(call: Call, chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
    now, times, keep = call.clock.perf_ns, call.times_ns, call.tail.append
    looking = True
    try:
        async for chunk in chunks:
            times.append(now())
            keep(chunk)
            call.read(chunk)
            if looking:
                looking = not call.look(chunk)
            if len(times) > CHUNKS_MAX:
                _full(call)
            yield chunk
    except BaseException as error:
        _broken(call, error)
        raise
    _over(call)
