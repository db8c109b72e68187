"""A server for tests of byte-level capture: it answers with given bytes, at given times."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

SSE = "text/event-stream"
JSON = "application/json"
NDJSON = "application/x-ndjson"


@dataclass
class Answer:
    """What a path answers: ``pieces`` are sent one by one; a number is a pause in seconds.

    None cuts the connection in the middle of the body.
    """

    pieces: Sequence[bytes | float | None]
    kind: str = SSE
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    #: seconds before the headers are sent
    wait_s: float = 0.0


class Server(ThreadingHTTPServer):
    """Answers of a path in turn; the last one stays."""

    daemon_threads = True
    answers: dict[str, list[Answer]]
    seen: list[tuple[str, dict[str, str], Any]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def on(self, path: str, *answers: Answer) -> None:
        self.answers[path] = list(answers)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server
    disable_nagle_algorithm: ClassVar[bool] = True

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        try:
            parsed = json.loads(body)
        except ValueError:
            parsed = body
        headers = {k.lower(): v for k, v in self.headers.items()}
        self.server.seen.append((path, headers, parsed))
        waiting = self.server.answers.get(path) or [Answer([b"{}"], JSON, 404)]
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        time.sleep(answer.wait_s)
        self.send_response(answer.status)
        self.send_header("content-type", answer.kind)
        self.send_header("transfer-encoding", "chunked")
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()
        try:
            for piece in answer.pieces:
                if piece is None:
                    self.close_connection = True
                    return
                if isinstance(piece, bytes):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.flush()
                else:
                    time.sleep(piece)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    do_GET = do_POST


@contextmanager
def serving() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), _Handler)
    server.answers, server.seen = {}, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sse(*data: Any, events: bool = False, done: bool = False) -> list[bytes]:
    """One server-sent event a piece; ``events``: with the event's name, as Anthropic sends it."""
    pieces = []
    for item in data:
        name = f"event: {item['type']}\n" if events else ""
        pieces.append(f"{name}data: {json.dumps(item)}\n\n".encode())
    return [*pieces, b"data: [DONE]\n\n"] if done else pieces


def chunk(content: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk of chat completions."""
    delta = {} if content is None else {"content": content}
    delta |= more.pop("delta", {})
    finish = more.pop("finish_reason", None)
    choices = [] if "usage" in more else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m-1",
        "choices": choices,
        **more,
    }


USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 4},
}

#: a role chunk, three tokens 20 ms apart, the end, usage
CHAT = sse(
    chunk("", delta={"role": "assistant"}),
    chunk("a"),
    chunk("b"),
    chunk("c"),
    chunk(finish_reason="stop"),
    chunk(usage=USAGE),
    done=True,
)


def paced(pieces: Sequence[bytes], pause_s: float = 0.02) -> list[bytes | float | None]:
    """A pause after every piece."""
    return [step for piece in pieces for step in (piece, pause_s)]


WHOLE_CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m-1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "abc"},
            "finish_reason": "stop",
        }
    ],
    "usage": USAGE,
}

MESSAGE_START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-1",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "cache_read_input_tokens": 2,
            "cache_creation_input_tokens": 0,
            "output_tokens": 1,
        },
    },
}


def delta(text: str, kind: str = "text_delta") -> dict[str, Any]:
    """A token of a message."""
    said = {"type": kind, "thinking" if kind == "thinking_delta" else "text": text}
    return {"type": "content_block_delta", "index": 0, "delta": said}


MESSAGES = sse(
    MESSAGE_START,
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    delta("a"),
    delta("b"),
    delta("c"),
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 3},
    },
    {"type": "message_stop"},
    events=True,
)
