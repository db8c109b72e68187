"""The fake server itself: HTTP/1.1 on one event loop, and when each part of an answer is sent.

`FakeServer` starts it, in a process of its own or in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from tracekit.testing.formats import (
    CONTENT,
    REASONING,
    TOOL,
    Chat,
    Counts,
    Ending,
    Event,
    Format,
    Messages,
    Responses,
)
from tracekit.testing.script import SCRIPT_HEADER, Record, Script, Sent
from tracekit.testing.told import TOLD, Fields, Times

#: Where the scripts are put and the records are read; no API has such a path.
CONTROL: Final = "/_fake"

_HEADERS_MAX: Final = 64 * 1024
_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests"}


class _Gone(Exception):
    """The client closed the connection."""


class _Cut(Exception):
    """The script wants the connection closed."""


class Server:
    """Scripts by model, and records of all requests. Everything runs on one event loop."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.records: list[Record] = []
        self.uses: Counter[str] = Counter()
        self.open = 0
        self.idle = asyncio.Event()
        self.idle.set()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """All requests of one connection, one after another."""
        line = _Connection(reader, writer)
        try:
            while await self._one(line):
                pass
        except (_Gone, _Cut, ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass  # the server stops
        finally:
            line.stop()
            writer.close()
            # the server may stop while this waits
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _one(self, line: _Connection) -> bool:
        request = await line.request()
        if request is None:
            return False
        method, path, headers, body, arrival_unix_ns = request
        if path.startswith(CONTROL):
            await line.whole(200, {}, await self._control(method, path, body))
            return True
        record = Record(len(self.records), path, arrival_unix_ns, headers)
        self.records.append(record)
        self.open += 1
        self.idle.clear()
        try:
            await _Answer(self, line, record).give(body)
        except _Cut:
            raise
        except (_Gone, ConnectionError):
            record.outcome = "client_left"
            raise _Gone from None
        finally:
            record.end_unix_ns = time.time_ns()
            self.open -= 1
            if not self.open:
                self.idle.set()
        return True

    async def _control(self, method: str, path: str, body: bytes) -> Any:
        name, _, query = path.removeprefix(CONTROL).partition("?")
        if name == "/scripts" and method == "POST":
            for model, given in json.loads(body).items():
                self.scripts[model] = Script(**given)
                self.uses[model] = 0
        elif name == "/records":
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.idle.wait(), float(query or 0))
            return [record.to_dict() for record in self.records]
        elif name == "/clear":
            self.records.clear()
            self.uses.clear()
            if json.loads(body)["scripts"]:
                self.scripts.clear()
        return None

    def script(self, model: str, headers: dict[str, str]) -> Script:
        """What is to be done with a request; ValueError or TypeError if its header is no script."""
        given = headers.get(SCRIPT_HEADER)
        script = Script.from_json(given) if given else self.scripts.get(model, Script())
        key = given or model
        self.uses[key] += 1
        if script.fail_first is not None and self.uses[key] > script.fail_first:
            return script.healed()
        return script


class _Connection:
    """Reading requests and writing answers, while looking whether the client is still there."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        #: the next byte: of the next request, or none if the client has left
        self._next = asyncio.ensure_future(reader.read(1))

    def stop(self) -> None:
        self._next.cancel()

    async def request(self) -> tuple[str, str, dict[str, str], bytes, int] | None:
        """Method, path, headers (names in lower case), body and arrival; None at the end."""
        first = await self._next
        if not first:
            return None
        arrival_unix_ns = time.time_ns()
        head = first + await self.reader.readuntil(b"\r\n\r\n")
        start, *lines = head[:_HEADERS_MAX].decode("latin-1").split("\r\n")
        method, path, _ = start.split(" ", 2)
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        self._next = asyncio.ensure_future(self.reader.read(1))
        return method, path, headers, body, arrival_unix_ns

    async def wait(self, ms: float | None) -> None:
        """Wait, for ever if None; `_Gone` as soon as the client leaves."""
        if ms is not None and ms <= 0:
            await asyncio.sleep(0)
        elif self._next.done() and ms is not None:
            # the next request is here already
            await asyncio.sleep(ms / 1e3)
        else:
            await asyncio.wait({self._next}, timeout=None if ms is None else ms / 1e3)
        if self._next.done() and (self._next.exception() or not self._next.result()):
            raise _Gone

    def write(self, data: bytes) -> int:
        """Send at once; when [unix ns]."""
        at = time.time_ns()
        self.writer.write(data)
        return at

    def head(self, status: int, headers: dict[str, str]) -> int:
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Scripted')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return self.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def whole(self, status: int, headers: dict[str, str], body: Any) -> int:
        data = json.dumps(body).encode()
        told = {"content-type": "application/json", "content-length": str(len(data))}
        at = self.head(status, headers | told)
        self.write(data)
        await self.writer.drain()
        return at

    def chunk(self, data: bytes) -> int:
        """A part of a stream; an empty one ends it."""
        return self.write(b"%x\r\n%s\r\n" % (len(data), data))


class _Answer:
    """One request's answer, as its script says."""

    def __init__(self, server: Server, line: _Connection, record: Record) -> None:
        self.server = server
        self.line = line
        self.record = record
        self.script = Script()
        self.received_ns = time.perf_counter_ns()
        self.first_ns: int | None = None
        self.with_tokens = 0
        self.opened = False

    async def give(self, body: bytes) -> None:
        record = self.record
        try:
            asked = json.loads(body)
            record.model = str(asked.get("model", ""))
            self.script = self.server.script(record.model, record.headers)
        except (ValueError, TypeError, AttributeError) as error:
            record.status, record.outcome = 400, "error"
            await self.line.whole(400, {}, {"error": {"message": f"fake server: {error}"}})
            return
        record.streaming = asked.get("stream") is True
        form = self._format(asked)
        if form is None:
            record.status, record.outcome = 404, "error"
            await self.line.whole(404, {}, {"error": {"message": f"no such path: {record.path}"}})
            return
        await self.line.wait(self.script.headers_ms)
        if self.script.drop:
            record.outcome = "dropped"
            raise _Cut
        if self.script.status != 200:
            await self._refuse(form)
        elif record.streaming:
            await self._stream(form, asked)
        else:
            await self._whole(form)

    def _format(self, asked: dict[str, Any]) -> Format | None:
        record, script = self.record, self.script
        path = record.path.partition("?")[0]
        model = str(record.model)
        name = f"{record.number:08x}"
        record.prompt_tokens = script.prompt_tokens
        record.cached_tokens = script.cached_tokens
        if path.endswith("/chat/completions") or path.endswith("/completions"):
            plain = not path.endswith("/chat/completions")
            record.choices = int(asked.get("n") or 1)
            record.response_id = f"cmpl-{name}" if plain else f"chatcmpl-{name}"
            return Chat(record.response_id, model, record.choices, plain=plain)
        if path.endswith("/responses"):
            record.response_id = f"resp_{name}"
            return Responses(record.response_id, model)
        if path.endswith("/messages"):
            record.response_id = f"msg_{name}"
            return Messages(record.response_id, model, self._counts())
        return None

    def _counts(self) -> Counts:
        record, script = self.record, self.script
        return Counts(
            script.prompt_tokens,
            script.cached_tokens,
            script.cache_write_tokens,
            record.output_tokens,
            record.reasoning_tokens,
        )

    def _headers(self) -> dict[str, str]:
        own = {"x-request-id": f"req_{self.record.number:08x}"}
        own["request-id"] = own["x-request-id"]
        return own | dict(self.script.extra_headers)

    async def _refuse(self, form: Format) -> None:
        record, script = self.record, self.script
        headers = self._headers()
        if script.retry_after_s is not None:
            headers["retry-after"] = f"{script.retry_after_s:g}"
        record.status, record.outcome = script.status, "error"
        body = form.error_body(script.status)
        record.headers_sent_unix_ns = await self.line.whole(script.status, headers, body)

    # ---- when ------------------------------------------------------------------------------

    async def _before_first(self) -> None:
        """Queue and prefill, and how long they really were."""
        start = time.perf_counter_ns()
        await self._wait(self.script.queue_ms)
        scheduled = time.perf_counter_ns()
        await self._wait(self.script.prefill_ms)
        self.first_ns = time.perf_counter_ns()
        self.record.queue_ms = (scheduled - start) / 1e6
        self.record.prefill_ms = (self.first_ns - scheduled) / 1e6

    async def _wait(self, ms: float) -> None:
        every = self.script.keep_alive_ms
        if every is None or not self.record.streaming:
            await self.line.wait(ms)
            return
        until = time.perf_counter() + ms / 1e3
        while (left := (until - time.perf_counter()) * 1e3) > every:
            await self.line.wait(every)
            self._sent("comment", self._form.comment())
        await self.line.wait(max(left, 0))

    def _steps(self) -> Iterator[tuple[str, str, int, int]]:
        """(kind, text, tokens, choice) of every chunk that brings tokens, in order."""
        script, number = self.script, 0
        for kind, chunks in (
            (REASONING, script.reasoning_chunks),
            (TOOL, script.tool_chunks),
            (CONTENT, script.chunks),
        ):
            for i in range(chunks):
                tokens = script.tokens(number)
                for choice in range(self.record.choices):
                    text = _arguments(i, chunks) if kind == TOOL else "word " * tokens
                    yield kind, text, tokens, choice
                number += 1

    def _count(self, kind: str, tokens: int) -> None:
        self.record.output_tokens += tokens
        if kind == REASONING:
            self.record.reasoning_tokens += tokens

    def _told(self) -> Fields:
        if self.script.timings is None:
            return Fields({}, {}, {})
        first = self.first_ns or time.perf_counter_ns()
        times = Times(
            self.record.queue_ms or 0.0,
            self.record.prefill_ms or 0.0,
            (time.perf_counter_ns() - first) / 1e6,
            self.record.arrival_unix_ns / 1e6,
        )
        return TOLD[self.script.timings](times)

    def _ending(self, *, with_counts: bool, told: Fields) -> Ending:
        return Ending(
            self.script.finish_reason,
            self._counts() if with_counts else None,
            self.script.tool_chunks > 0,
            told.body | dict(self.script.extra),
            told.usage,
        )

    # ---- whole -----------------------------------------------------------------------------

    async def _whole(self, form: Format) -> None:
        record, script = self.record, self.script
        await self._before_first()
        texts: dict[str, str] = {}
        for number, (kind, text, tokens, choice) in enumerate(self._steps()):
            if choice == 0:
                if number:
                    await self.line.wait(script.gap(number))
                texts[kind] = texts.get(kind, "") + text
            self._count(kind, tokens)
        if script.cut_after is not None:
            record.outcome = "cut"
            raise _Cut
        if script.hang_after is not None:
            await self.line.wait(None)
        told = self._told()
        body = form.whole(
            {} if script.empty else texts,
            0 if script.empty else record.choices,
            self._ending(with_counts=script.usage != "never", told=told),
        )
        record.status = 200
        at = await self.line.whole(200, self._headers() | told.headers, body)
        record.headers_sent_unix_ns = at
        record.sent.append(Sent(at, "body", record.output_tokens))

    # ---- stream ----------------------------------------------------------------------------

    async def _stream(self, form: Format, asked: dict[str, Any]) -> None:
        record, script = self.record, self.script
        self._form = form
        if script.early_opening or script.keep_alive_ms is not None:
            self._open()
        if script.early_opening and not script.empty:
            self._events(form.opening())
        await self._before_first()
        self._open()
        if script.empty:
            await self._close(form)
            return
        if not script.early_opening:
            self._events(form.opening())
        at_every = script.usage == "every"
        for kind, text, tokens, choice in self._steps():
            await self._maybe_fail(form)
            if choice == 0 and self.with_tokens:
                await self._wait(script.gap(self.with_tokens))
            self._count(kind, tokens)
            counts = self._counts() if at_every else None
            self._events(form.token(kind, text, choice, counts), tokens)
            self.with_tokens += choice == record.choices - 1
            await self.line.writer.drain()
        await self._maybe_fail(form)
        options = asked.get("stream_options") or {}
        with_counts = script.usage in ("always", "every") or (
            script.usage == "asked"
            and (not isinstance(form, Chat) or options.get("include_usage") is True)
        )
        self._events(form.closing(self._ending(with_counts=with_counts, told=self._told())))
        await self._close(form)

    def _open(self) -> None:
        if self.opened:
            return
        self.opened = True
        headers = self._headers() | {
            "content-type": "text/event-stream",
            "transfer-encoding": "chunked",
        }
        self.record.status = 200
        self.record.headers_sent_unix_ns = self.line.head(200, headers)

    async def _maybe_fail(self, form: Format) -> None:
        """What the script wants to happen after so many chunks with tokens."""
        script, so_far = self.script, self.with_tokens
        if script.cut_after == so_far:
            self.record.outcome = "cut"
            # what was written must leave before the connection does
            await self.line.writer.drain()
            raise _Cut
        if script.error_after == so_far:
            self._events([form.error_event()])
            self.record.outcome = "stream_error"
            self.line.chunk(b"")
            await self.line.writer.drain()
            raise _Cut
        if script.hang_after == so_far:
            await self.line.wait(None)

    async def _close(self, form: Format) -> None:
        if form.done is not None:
            self._sent("done", form.done)
        self.line.chunk(b"")
        await self.line.writer.drain()

    def _events(self, events: list[Event], tokens: int = 0) -> None:
        for event in events:
            brings = event.kind in (CONTENT, REASONING, TOOL)
            at = self._sent(event.kind, event.encode(), tokens if brings else 0)
            if brings and self.record.first_token_unix_ns is None:
                self.record.first_token_unix_ns = at

    def _sent(self, kind: str, data: bytes, tokens: int = 0) -> int:
        at = self.line.chunk(data)
        self.record.sent.append(Sent(at, kind, tokens))
        return at


def _arguments(number: int, of: int) -> str:
    """Part ``number`` of a tool call's arguments, which together are JSON."""
    return ('{"q": "' if number == 0 else "word ") + ('"}' if number == of - 1 else "")


async def serve(ready: Callable[[int], None], until: asyncio.Event, port: int = 0) -> None:
    """Serve on the loopback address till ``until`` is set; ``ready`` is told the port."""
    server = Server()
    listening = await asyncio.start_server(server.connection, "127.0.0.1", port)
    async with listening:
        ready(listening.sockets[0].getsockname()[1])
        await until.wait()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
