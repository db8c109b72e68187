"""Watching the bytes of an HTTP response: for calls that no client library turns into objects.

Every piece's arrival is stamped as it passes, and the piece is kept; only at the end (or when much
is kept) are they read, so that the facts of the call are the same as those of the chunks that a
client library would have made of them. A caller may read a body in any of its library's ways, or
leave it; it is told apart here how it ended.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

from tracekit.sdk.call import ABORTED, CHUNKS_MAX, ERROR, OK, Call, ending_of
from tracekit.sdk.faults import attempt
from tracekit.sdk.wire.sse import DONE, Cutter, fields

#: Bytes that are kept of a stream before they are read, and its times alone are kept.
_FOLD_AT: Final = 1 << 20
#: A whole body, or one event, that is longer is not read at all.
_WHOLE_MAX: Final = 16 << 20
#: A body that grows to more than this when it is decompressed is not read.
_DECODED_MAX: Final = 64 << 20

_SSE: Final = "sse"
_LINES: Final = "lines"
_WHOLE: Final = "whole"


class Body:
    """The body of one response, as it passes; it ends its call, exactly once."""

    def __init__(self, call: Call, headers: Mapping[str, str], library: str) -> None:
        """``library``: the package of the response, whose decoders undo a compression."""
        self.call = call
        #: what passed and was not read yet, and when each of it came [perf ns]
        self.pieces: list[bytes] = []
        self.times: list[int] = []
        self._type = headers.get("content-type", "")
        encoding = headers.get("content-encoding", "")
        self._format: str | None = None
        self._cutter = Cutter(lines=False)
        self._kinds = frozenset(kind.encode() for kind in call.wire.typed or ())
        self._last: deque[bytes] = deque(maxlen=3)
        self._looking = True
        self._newest_ns: int | None = None
        self._whole: list[bytes] = []
        #: the body says itself that it is complete
        self._complete = False
        #: too long, or in a compression that is not known: that it ended is all that is known
        self._unreadable = False
        self._decode: _Decoder | None = None
        if encoding not in ("", "identity"):
            self._decode = attempt("undoing a compression", _Decoder, library, encoding)
            self._unreadable = self._decode is None
        # never released: who takes it ends the call, also where garbage is collected meanwhile
        self._ending = threading.Lock()

    def fold(self) -> None:
        """Much is kept: read it now, and keep the times only."""
        attempt("reading a body", self._read, False)

    def known(self, content: bytes) -> None:
        """The body was read already, and nobody saw its pieces arrive."""
        self._decode = None
        self.pieces.append(content)
        self.times.append(0)
        attempt("reading a body", self._read, True)
        call = self.call
        call.times_ns.clear()
        call.dropped, call.first_content, call.first_answer = 0, None, None
        self._end(OK, None, None)

    def finished(self, error: BaseException | None = None) -> None:
        """There is no more of it: all was read, or reading it failed."""
        if not self._ending.acquire(blocking=False):
            return
        now = self.call.clock.perf_ns()
        attempt("reading a body", self._read, True)
        if error is None:
            self._end(OK, None, now)
        else:
            self._end(ending_of(error), error, now)

    def closed(self) -> None:
        """The caller wants no more of it. That is no abort if the answer was over."""
        self._left(self.call.clock.perf_ns())

    def left(self) -> None:
        """Nobody has it any more: collected as garbage, which may be long after its last piece."""
        self._left(self.times[-1] if self.times else self._newest_ns or self.call.headers_ns)

    def _left(self, at_ns: int | None) -> None:
        if not self._ending.acquire(blocking=False):
            return
        attempt("reading a body", self._read, True)
        if self._complete:
            self._end(OK, None, at_ns)
        else:
            self._end(ABORTED, "GeneratorExit", at_ns)

    def _end(self, status: str, error: BaseException | str | None, at_ns: int | None) -> None:
        call = self.call
        if (call.http_status or 0) >= 400 and status in (OK, ABORTED):
            status, error = ERROR, str(call.http_status)
        self._whole.clear()
        self._last.clear()
        call.end(status, error, at_ns=at_ns)

    def _read(self, last: bool) -> None:
        """Read what is kept, and forget it; ``last``: there will be no more."""
        pieces, times = self.pieces[:], self.times[:]
        self.pieces.clear()
        self.times.clear()
        if times:
            self._newest_ns = times[-1]
        if self._unreadable:
            return
        try:
            if self._decode is not None:
                pieces = [self._decode(piece) for piece in pieces]
            if self._format is None:
                self._format = self._what(pieces)
                self._cutter = Cutter(lines=self._format == _LINES)
            if self._format == _WHOLE:
                self._read_whole(pieces, last)
            else:
                self._read_events(pieces, times, last)
        except Exception:
            self._unreadable = True
            raise

    def _what(self, pieces: list[bytes]) -> str:
        """The body's format: what it says it is, or how it begins."""
        if "event-stream" in self._type:
            return _SSE
        if "ndjson" in self._type or "jsonl" in self._type:
            return _LINES
        if b"".join(pieces[:16]).lstrip()[:1] not in (b"{", b"["):
            return _SSE
        if not self.call.asked.streaming:
            return _WHOLE
        # asked for a stream, and answered with JSON: lines of it, or one object over many lines
        first = b"".join(pieces).lstrip().partition(b"\n")[0]
        return _LINES if _parsed(first) is not None else _WHOLE

    def _read_whole(self, pieces: list[bytes], last: bool) -> None:
        self._whole += pieces
        if sum(map(len, self._whole)) > _WHOLE_MAX:
            self._unreadable = True
            self._whole.clear()
        elif last and (parsed := _parsed(b"".join(self._whole))) is not None:
            self._complete = True
            self.call.wire.read(parsed, self.call.answer)

    def _read_events(self, pieces: list[bytes], times: list[int], last: bool) -> None:
        see = self._see_line if self._format == _LINES else self._see
        cutter = self._cutter
        kinds, stamp, keep = self._kinds, self._stamp, self._last.append
        for block, at in cutter.cut(pieces, times):
            # nearly every event of a long stream: one more token
            if self._looking:
                see(block, at)
            elif kinds and block.startswith(b"event:"):
                if block[6 : block.find(b"\n")].strip() in kinds:
                    stamp(at)
                else:
                    see(block, at)
            elif not kinds and block.startswith(b"data:") and not block.endswith(DONE):
                stamp(at)
                keep(block)
            else:
                see(block, at)
        if last:
            if (rest := cutter.rest.strip()) and self._newest_ns is not None:
                see(rest, self._newest_ns)
            chunks = (_parsed(data.removeprefix(b"data:")) for data in self._last)
            self.call.tail.extend(chunk for chunk in chunks if chunk is not None)
        elif len(cutter.rest) > _WHOLE_MAX:
            self._unreadable = True

    def _see(self, block: bytes, at: int) -> None:
        """An event of a stream: the same that `streams` does with a chunk."""
        event, data = fields(block)
        if not data:
            return
        if data == DONE:
            self._complete = True
            return
        if self._kinds:
            self._see_typed(event, data, at)
        else:
            self._see_line(data, at)

    def _see_line(self, data: bytes, at: int) -> None:
        """A chunk of a format whose chunks tell no type."""
        call = self.call
        if not self._looking:
            self._stamp(at)
        elif (chunk := _parsed(data)) is not None:
            call.times_ns.append(at)
            self._looking = not call.look(chunk)
        else:
            return
        self._last.append(data)

    def _see_typed(self, event: bytes | None, data: bytes, at: int) -> None:
        call = self.call
        chunk = None
        if event is None:
            chunk = _parsed(data)
            event = str(chunk.get("type")).encode() if chunk is not None else b""
        brings = event in self._kinds
        if brings:
            self._stamp(at)
        else:
            self._last.append(data)
        if self._looking:
            chunk = _parsed(data) if chunk is None else chunk
            if chunk is not None and call.look(chunk) and brings:
                self._looking = False

    def _stamp(self, at: int) -> None:
        call = self.call
        if len(call.times_ns) < CHUNKS_MAX:
            call.times_ns.append(at)
        else:
            call.dropped += 1


def _parsed(data: bytes) -> dict[str, Any] | None:
    """The object that ``data`` is in JSON; None if it is none."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class _Decoder:
    """Undoes a body's compression, piece by piece, with the decoders of the HTTP library."""

    def __init__(self, library: str, encoding: str) -> None:
        known = importlib.import_module(f"{library}._decoders").SUPPORTED_DECODERS
        names = [name.strip().lower() for name in encoding.split(",")]
        self._steps = [known[name]() for name in reversed(names)]
        self._room = _DECODED_MAX

    def __call__(self, piece: bytes) -> bytes:
        for step in self._steps:
            told = step.decode(piece)
            piece = told if isinstance(told, bytes) else b"".join(told)
        self._room -= len(piece)
        if self._room < 0:
            raise ValueError("a body that grows too much")
        return piece


def watch_response(call: Call, response: Any) -> None:
    """Watch what is read of an httpx ``response``, whose end ends ``call``.

    ``response`` is one of httpx's or httpx2's, sync or async; nothing that it does changes.
    """
    library = next(
        (
            cls.__module__.partition(".")[0]
            for cls in type(response).__mro__
            if cls.__name__ == "Response"
        ),
        "httpx",
    )
    body = Body(call, response.headers, library)
    if response.is_closed:
        body.known(response.content)
        return
    response.stream = _watched(type(response.stream))(response.stream, body)


#: Applications have a few classes of streams; one that makes them anew must not fill the memory.
_CLASSES_MAX: Final = 64
#: Classes of streams -> those of watched ones.
_CLASSES: Final[dict[type, Any]] = {}


def _watched(kind: type) -> Any:
    """A class of watched streams that passes for what ``kind`` is: httpx asks for the class."""
    if (known := _CLASSES.get(kind)) is not None:
        return known
    bases = {cls.__name__: cls for cls in kind.__mro__}
    # what is both is read, and closed, as its response is
    own = [
        (ours, bases[name])
        for ours, name in ((_Sync, "SyncByteStream"), (_Async, "AsyncByteStream"))
        if name in bases
    ]
    if not own:
        raise TypeError(f"{kind.__name__} is no byte stream")
    made = type("WatchedStream", (*(ours for ours, _ in own), *(theirs for _, theirs in own)), {})
    if len(_CLASSES) < _CLASSES_MAX:
        _CLASSES[kind] = made
    return made


class _Watched:
    """A stream of bytes that is watched on its way."""

    def __init__(self, inner: Any, body: Body) -> None:
        self._inner = inner
        self._body = body

    def __getattr__(self, name: str) -> Any:
        if name in ("_inner", "_body"):  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __del__(self) -> None:
        if (body := self.__dict__.get("_body")) is not None:
            attempt("leaving a body", body.left)


class _Sync(_Watched):
    def __iter__(self) -> Iterator[bytes]:
        return _pass(self._inner, self._body)

    def close(self) -> None:
        attempt("closing a body", self._body.closed)
        self._inner.close()


class _Async(_Watched):
    def __aiter__(self) -> AsyncIterator[bytes]:
        return _pass_async(self._inner, self._body)

    async def aclose(self) -> None:
        attempt("closing a body", self._body.closed)
        await self._inner.aclose()


def _pass(inner: Any, body: Body) -> Iterator[bytes]:
    now, stamp, keep = body.call.clock.perf_ns, body.times.append, body.pieces.append
    room = _FOLD_AT
    try:
        for piece in inner:
            stamp(now())
            keep(piece)
            room -= len(piece)
            if room < 0:
                room = _FOLD_AT
                body.fold()
            yield piece
    except GeneratorExit:
        attempt("leaving a body", body.left)
        raise
    except BaseException as error:
        attempt("ending a body", body.finished, error)
        raise
    attempt("ending a body", body.finished)


async def _pass_async(inner: Any, body: Body) -> AsyncIterator[bytes]:
    now, stamp, keep = body.call.clock.perf_ns, body.times.append, body.pieces.append
    room = _FOLD_AT
    stream = inner.__aiter__()
    try:
        async for piece in stream:
            stamp(now())
            keep(piece)
            room -= len(piece)
            if room < 0:
                room = _FOLD_AT
                body.fold()
            yield piece
    except GeneratorExit:
        attempt("leaving a body", body.left)
        raise
    except BaseException as error:
        attempt("ending a body", body.finished, error)
        raise
    finally:
        # as httpx does it, so that what holds the connection is told at once
        if (close := getattr(stream, "aclose", None)) is not None:
            await close()
    attempt("ending a body", body.finished)
