"""OTLP/HTTP and the receiver's own pages (``/healthz``, ``/status``), a raw ASGI app in uvicorn.

Owns the HTTP server and how refusals look there. The event loop only moves bytes; unpacking and
decoding run in worker threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import uvicorn

from tracekit.errors import SourceError, TracekitError
from tracekit_collectors import answers, bodies
from tracekit_collectors.config import CollectConfig
from tracekit_collectors.intake import InFlight, Intake, Refused
from tracekit_collectors.sockets import listen
from tracekit_collectors.stats import Stats

_LOG = logging.getLogger("tracekit.collect")

_SIGNAL_OF_PATH: Final = {"/v1/traces": "traces", "/v1/metrics": "metrics", "/v1/logs": "logs"}
_PAGES: Final = ("/", "/healthz", "/status")
_WORKERS: Final = 16
#: A sender gets this long to deliver one body.
_BODY_TIMEOUT_S: Final = 30.0
#: How long requests that were cut off may take to end.
_CUT_OFF_S: Final = 1.0
#: A refused body is still read (and dropped) up to this size, so that the sender, busy writing,
#: gets to see the answer instead of a broken connection.
_DRAIN_BYTES: Final = 64 << 20

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True)
class _Answer:
    status: int
    media_type: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    #: The body was not read to its end, so the connection cannot be used again.
    close: bool = False


class _Gone(Exception):
    """The sender went away before its body was complete."""


class _Body:
    """The body of one request as it arrives."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.complete = False

    async def next(self) -> bytes:
        message = await self._receive()
        if message["type"] != "http.request":
            raise _Gone
        self.complete = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    async def drain(self) -> None:
        """Read and drop the rest, within bounds."""
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                while not self.complete and size <= _DRAIN_BYTES:
                    size += len(await self.next())


class HttpServer:
    """The HTTP side of one receiver. ``port`` is set once it is bound."""

    def __init__(
        self,
        config: CollectConfig,
        intake: Intake,
        stats: Stats,
        *,
        status: Callable[[], dict[str, Any]],
        grpc_port: int,
    ) -> None:
        """Bind the port (UsageError if that fails); serve after :meth:`start`."""
        self._config = config
        self._intake = intake
        self._stats = stats
        self._status = status
        self._grpc_port = grpc_port
        self._socket: socket.socket = listen(config.host, config.http_port, option="--http-port")
        self.host = config.host
        self.port = int(self._socket.getsockname()[1])
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="otlp-http")
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                interface="asgi3",
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                # Longer than senders pause between batches, or they would meet closed doors.
                timeout_keep_alive=75,
                # Requests in flight are cut off by `stop`; this only catches what it overlooks.
                timeout_graceful_shutdown=math.ceil(config.grace_s + _CUT_OFF_S),
                ssl_certfile=config.tls_cert,
                ssl_keyfile=config.tls_key,
            )
        )
        self._thread = threading.Thread(target=self._serve, name="otlp-http", daemon=True)
        #: Requests in flight; changed in the event loop only.
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._asked_at_s: float | None = None

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def start(self) -> None:
        """Serve; returns once requests are answered."""
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise TracekitError("the HTTP server did not start; its log says why")
            time.sleep(0.005)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def ask_to_stop(self) -> None:
        """Take no more requests from now on."""
        if self._asked_at_s is None:
            self._asked_at_s = time.monotonic()
        self._server.should_exit = True

    def stop(self, *, grace_s: float) -> None:
        """Take no more requests, let those in flight finish (``grace_s`` from the asking)."""
        self.ask_to_stop()
        assert self._asked_at_s is not None
        if self._thread.ident is not None:
            self._thread.join(max(0.0, self._asked_at_s + grace_s - time.monotonic()))
        if self._thread.is_alive():
            _LOG.warning(
                "OTLP/HTTP: still in flight after %g s and cut off: %d; what was not acknowledged "
                "its sender sends again",
                grace_s,
                self._cut_off(),
            )
            self._thread.join(_CUT_OFF_S)
        self._socket.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _cut_off(self) -> int:
        tasks = list(self._in_flight)
        for task in tasks:
            with contextlib.suppress(RuntimeError):  # the loop has just ended, and they with it
                task.get_loop().call_soon_threadsafe(task.cancel)
        return len(tasks)

    # -- one request -----------------------------------------------------------------------

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        task = asyncio.current_task()
        assert task is not None
        self._in_flight.add(task)
        try:
            answer = await self._answer(scope, receive)
        except _Gone:
            return
        except asyncio.CancelledError:
            # By `stop`, at the end of the process. Senders come again after a 503.
            answer = _Answer(503, "text/plain", b"the receiver is stopping\n", close=True)
        finally:
            self._in_flight.discard(task)
        headers = [
            (b"content-type", answer.media_type.encode()),
            (b"content-length", str(len(answer.body)).encode()),
            *answer.headers,
        ]
        if answer.close:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> _Answer:
        method, path = scope["method"], scope["path"]
        body = _Body(receive)
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        encoding = bodies.encoding_of(_text(headers, "content-type"))
        try:
            if method == "PRI":
                return self._grpc_came_here()
            if path in _PAGES:
                if method not in ("GET", "HEAD"):
                    raise self._wrong_method(method, path, post=False)
                return self._page(path, headers)
            if path not in _SIGNAL_OF_PATH:
                raise self._intake.refuse_kind(
                    "path",
                    f"nothing is at {path[:200]!r}: OTLP/HTTP goes to POST "
                    f"{', '.join(_SIGNAL_OF_PATH)}, state is at GET /status",
                    http_status=404,
                )
            if method != "POST":
                raise self._wrong_method(method, path, post=True)
            return await self._export(_SIGNAL_OF_PATH[path], encoding, headers, body)
        except Refused as refused:
            await body.drain()
            return _refusal(refused, encoding, path, close=not body.complete)

    async def _export(
        self, signal: str, encoding: str | None, headers: dict[str, bytes], body: _Body
    ) -> _Answer:
        self._intake.check_token(headers.get("authorization"))
        if encoding is None:
            raise self._intake.refuse_kind(
                "content_type",
                f"content-type {_text(headers, 'content-type')[:100]!r} is not OTLP: send "
                "application/x-protobuf or application/json",
                http_status=415,
            )
        content_encoding = _text(headers, "content-encoding").strip().lower()
        if content_encoding not in ("", "identity", "gzip"):
            raise self._intake.refuse_kind(
                "content_encoding",
                f"content-encoding {content_encoding[:100]!r} is not known here: send gzip or none",
                http_status=415,
            )
        with self._intake.in_flight() as account:
            data = await self._read(body, account, _text(headers, "content-length"))
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, self._accept, signal, encoding, content_encoding, data, account
            )

    async def _read(self, body: _Body, account: InFlight, length: str) -> bytes:
        limit = self._config.max_body_bytes
        if length.isdecimal() and int(length) > limit:
            raise self._intake.refuse_oversize("body")
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                while not body.complete:
                    part = await body.next()
                    size += len(part)
                    if size > limit:
                        raise self._intake.refuse_oversize("body")
                    account.take(len(part))
                    parts.append(part)
        except TimeoutError:
            raise self._intake.refuse_kind(
                "slow_body",
                f"the body did not arrive within {_BODY_TIMEOUT_S:.0f} s",
                http_status=408,
            ) from None
        return b"".join(parts)

    def _accept(
        self, signal: str, encoding: str, content_encoding: str, data: bytes, account: InFlight
    ) -> _Answer:
        if content_encoding == "gzip":
            try:
                data = bodies.gunzip(data, max_bytes=self._config.max_body_bytes)
            except bodies.TooLarge:
                raise self._intake.refuse_oversize("unpacked body") from None
            except SourceError as error:
                raise self._intake.refuse_body(str(error)) from error
            account.take(len(data))
        accepted = self._intake.accept(signal, encoding=encoding, origin="otlp_http", body=data)
        success = answers.success_json if encoding == "json" else answers.success_protobuf
        out = success(signal, rejected=accepted.rejected, message=accepted.message)
        return _Answer(200, bodies.MEDIA_TYPE[encoding], out)

    # -- everything that is not an export --------------------------------------------------

    def _page(self, path: str, headers: dict[str, bytes]) -> _Answer:
        if path == "/status":
            self._intake.check_token(headers.get("authorization"))
            return _Answer(200, "application/json", json.dumps(self._status()).encode())
        return _Answer(
            200,
            "text/plain; charset=utf-8",
            f"tracekit collect is up: POST OTLP to {', '.join(_SIGNAL_OF_PATH)} here, or OTLP/gRPC "
            f"to port {self._grpc_port}; state at /status\n".encode(),
        )

    def _wrong_method(self, method: str, path: str, *, post: bool) -> Refused:
        allowed = "POST" if post else "GET"
        return self._intake.refuse_kind(
            "method", f"{method[:20]} {path} is not possible: use {allowed}", http_status=405
        )

    def _grpc_came_here(self) -> _Answer:
        text = (
            f"a gRPC sender came to the HTTP port {self.port}: OTLP/gRPC is on port "
            f"{self._grpc_port} (or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf)"
        )
        if self._stats.hint(text):
            _LOG.warning("%s", text)
        return _Answer(400, "text/plain; charset=utf-8", text.encode() + b"\n", close=True)


def _refusal(refused: Refused, encoding: str | None, path: str, *, close: bool) -> _Answer:
    """A refusal in the request's encoding (a ``Status``, as OTLP asks), else as plain text."""
    headers: list[tuple[bytes, bytes]] = []
    if refused.retry_after_s is not None:
        headers.append((b"retry-after", str(refused.retry_after_s).encode()))
    if refused.http_status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refused.http_status == 405:
        headers.append((b"allow", b"POST" if path in _SIGNAL_OF_PATH else b"GET, HEAD"))
    if refused.http_status == 415:
        headers.append((b"accept", b"application/x-protobuf, application/json"))
        headers.append((b"accept-encoding", b"gzip"))
    if encoding == "json":
        body = answers.error_json(refused.grpc_code, refused.message)
    elif encoding == "protobuf":
        body = answers.error_protobuf(refused.grpc_code, refused.message)
    else:
        body = refused.message.encode() + b"\n"
    media_type = bodies.MEDIA_TYPE.get(encoding or "", "text/plain; charset=utf-8")
    return _Answer(refused.http_status, media_type, body, tuple(headers), close)


def _text(headers: dict[str, bytes], name: str) -> str:
    return headers.get(name, b"").decode("latin-1")
