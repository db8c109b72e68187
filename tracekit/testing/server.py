"""Starting a fake LLM server, telling it what to do, and asking it what it did."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import json
import os
import queue
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any

from tracekit.testing.script import Record, Script
from tracekit.testing.serve import CONTROL, serve

_START_S = 30.0


class FakeServer:
    """An LLM server on this machine that does what it is told and writes down what it did.

    Speaks OpenAI's chat completions, completions and responses (`openai_url`) and Anthropic's
    messages (`url`). What it does with a request is its model's `Script`, or the one in its header
    ``x-fake-script``; without any it answers eight tokens. ::

        with FakeServer() as server:
            server.script("slow", Script(queue_ms=200, chunks=3))
            client = openai.OpenAI(base_url=server.openai_url, api_key="none")
            ...
            (record,) = server.records()

    It runs in a process of its own, so that its times are not those of a busy interpreter;
    ``in_thread`` runs it here, which starts at once.
    """

    def __init__(self, *, in_thread: bool = False) -> None:
        self.in_thread = in_thread
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self._stop_thread: Any = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Base URL of the Anthropic client."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai_url(self) -> str:
        """Base URL of the OpenAI client, and of all that are compatible."""
        return f"{self.url}/v1"

    def start(self) -> FakeServer:
        """RuntimeError if it does not come up."""
        if self.port:
            return self
        if self.in_thread:
            self._start_thread()
        else:
            self._start_process()
        return self

    def _start_process(self) -> None:
        # the same modules as here, also where they are found by this process's own path only
        env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tracekit.testing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fake server ended with {self._process.wait()}")
        self.port = int(line)

    def _start_thread(self) -> None:
        ready: queue.SimpleQueue[int] = queue.SimpleQueue()

        async def run() -> None:
            until = asyncio.Event()
            loop = asyncio.get_running_loop()
            self._stop_thread = lambda: loop.call_soon_threadsafe(until.set)
            await serve(ready.put, until)

        self._thread = threading.Thread(
            target=lambda: asyncio.run(run()), name="fake-server", daemon=True
        )
        self._thread.start()
        try:
            self.port = ready.get(timeout=_START_S)
        except queue.Empty:
            raise RuntimeError("the fake server did not start") from None

    def stop(self) -> None:
        """End it; open connections are closed."""
        if self._process is not None:
            process, self._process = self._process, None
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._thread is not None:
            thread, self._thread = self._thread, None
            self._stop_thread()
            thread.join(5)
        self.port = 0

    def script(self, model: str, script: Script) -> str:
        """Do this with requests for ``model`` from now on; its name, to pass to the client."""
        given = {field.name: getattr(script, field.name) for field in dataclasses.fields(script)}
        self._ask("POST", "/scripts", {model: given})
        return model

    def records(self, *, wait_s: float = 5.0) -> list[Record]:
        """All requests in order of arrival, when none runs any more, or after ``wait_s``."""
        found = self._ask("GET", f"/records?{wait_s}")
        return [Record.from_dict(one) for one in found]

    def clear(self, *, scripts: bool = False) -> None:
        """Forget the records, and how often scripts were used; with ``scripts`` these too."""
        self._ask("POST", "/clear", {"scripts": scripts})

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_START_S)
        try:
            line.request(method, CONTROL + path, json.dumps(body, default=list))
            return json.loads(line.getresponse().read())
        finally:
            line.close()

    def __enter__(self) -> FakeServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
