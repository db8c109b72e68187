"""Beside what the application has already: its provider, its context, other instrumentations."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import SpanKind

import tracekit
from tests.sdk._calls import APIS, Api, Clients
from tests.sdk._facts import only, told
from tracekit.testing import Captured, CountingIds, FakeServer, Script, capture

ROOT = Path(__file__).parents[2]


def test_calls_are_children_of_the_current_span(
    clients: Clients, spans: Captured, api: Api, is_async: bool
) -> None:
    with spans.provider.get_tracer("app").start_as_current_span("turn") as turn:
        clients.call(api, "m", is_async=is_async)
        # and no span of ours is left current
        assert trace.get_current_span() is turn
    _, span, _ = only(spans, clients.server)
    assert span.parent is not None
    assert span.parent.span_id == turn.get_span_context().span_id


def test_baggage_and_state_of_the_trace_go_along(clients: Clients, spans: Captured) -> None:
    from opentelemetry import baggage

    token = otel_context.attach(baggage.set_baggage("tenant", "a"))
    try:
        clients.call(APIS["chat"], "m")
    finally:
        otel_context.detach(token)
    (record,) = clients.server.records()
    assert record.headers["baggage"] == "tenant=a"


def test_calls_at_once_do_not_mix(clients: Clients, spans: Captured, api: Api) -> None:
    client = clients.of(api, True)
    for number in range(20):
        clients.server.script(f"m{number}", Script(chunks=number + 1))

    async def one(number: int) -> None:
        async for _chunk in await api.create(client, model=f"m{number}", stream=True):
            pass

    async def run() -> None:
        await asyncio.gather(*(one(number) for number in range(20)))

    clients.run(run())
    truth = {record.span_id: record for record in clients.server.records()}
    assert len(spans.calls) == len(truth) == 20
    for span in spans.calls:
        context = span.get_span_context()
        assert context is not None
        record = truth.pop(context.span_id)
        assert told(span)["gen_ai.request.model"] == record.model
        assert told(span)["tracekit.request_id"] == record.request_id
    assert truth == {}


@contextlib.contextmanager
def _key(name: str) -> Iterator[None]:
    token = otel_context.attach(otel_context.set_value(name, True))
    try:
        yield
    finally:
        otel_context.detach(token)


@pytest.mark.parametrize(
    "suppress",
    [
        suppress_instrumentation,
        functools.partial(_key, "suppress_instrumentation"),
        functools.partial(_key, "suppress_language_model_instrumentation"),
    ],
    ids=["utils", "plain", "language_model"],
)
def test_what_is_suppressed_is_left_alone(
    clients: Clients, spans: Captured, api: Api, is_async: bool, suppress: Any
) -> None:
    with suppress():
        assert clients.call(api, "m", is_async=is_async)
    (record,) = clients.server.records()
    assert (record.traceparent, record.request_id) == (None, None)
    assert len(spans) == 0


def test_a_request_id_of_the_application_is_kept(
    clients: Clients, spans: Captured, api: Api, is_async: bool
) -> None:
    clients.call(api, "m", is_async=is_async, extra_headers={"X-Request-ID": "mine-1"})
    facts, _, record = only(spans, clients.server)
    assert record.request_id == facts["tracekit.request_id"] == "mine-1"


def test_no_request_id_is_sent_where_none_is_wanted(clients: Clients, api: Api) -> None:
    with capture(send_request_id=False) as spans:
        clients.call(api, "m")
    (record,) = clients.server.records()
    assert record.request_id is None
    assert "tracekit.request_id" not in told(spans.call())


def _methods() -> dict[tuple[str, str], Any]:
    """Everything that classes of the client libraries hold."""
    found = {}
    for package in ("openai", "anthropic", "httpx2"):
        for part in ("_base_client", "_client", "_streaming", "_response", "_models"):
            try:
                module = importlib.import_module(f"{package}.{part}")
            except ImportError:
                continue
            for kind in vars(module).values():
                if isinstance(kind, type) and kind.__module__.startswith(package):
                    for name, value in vars(kind).items():
                        if callable(value):
                            found[(kind.__qualname__ + "@" + kind.__module__, name)] = value
    return found


def test_turning_it_off_leaves_everything_as_it_was(clients: Clients) -> None:
    before = _methods()
    with capture():
        during = _methods()
        assert any(during[key] is not before[key] for key in before)
        with capture(["openai"]):
            pass
    after = _methods()
    assert after.keys() == before.keys()
    assert [key for key in before if after[key] is not before[key]] == []


def test_turning_it_on_twice_watches_once(clients: Clients, spans: Captured, api: Api) -> None:
    tracekit.instrument()
    tracekit.instrument(["openai"])
    clients.call(api, "m")
    only(spans, clients.server)


def _wrap(tracer: Any, package: str) -> Any:
    """Another instrumentation: a wrapper of the clients' `request` that makes a span. Its undo."""
    kind = importlib.import_module(f"{package}._base_client").SyncAPIClient
    inner = kind.request

    def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        with tracer.start_as_current_span(
            "chat m",
            kind=SpanKind.CLIENT,
            attributes={"gen_ai.operation.name": "chat", "gen_ai.system": package},
        ):
            return inner(self, *args, **kwargs)

    kind.request = request
    return lambda: setattr(kind, "request", inner)


@pytest.mark.parametrize("outside", [True, False], ids=["outside", "inside"])
def test_another_instrumentation_makes_its_span_and_we_ours(
    clients: Clients, api: Api, outside: bool
) -> None:
    with contextlib.ExitStack() as stack:
        if not outside:  # it was there first
            first = stack.enter_context(capture([]))
            stack.callback(_wrap(first.provider.get_tracer("other"), api.provider))
        spans = stack.enter_context(capture())
        if outside:
            stack.callback(_wrap(spans.provider.get_tracer("other"), api.provider))
        clients.call(api, clients.server.script("m", Script(chunks=5)))
        ours = [s for s in spans if s.instrumentation_scope.name == "tracekit.sdk"]  # type: ignore[union-attr]
        (call,) = [s for s in ours if s.kind is SpanKind.CLIENT]
        (record,) = clients.server.records()
        assert record.span_id == call.get_span_context().span_id  # type: ignore[union-attr]
        if outside:
            (theirs,) = [s for s in spans if s.instrumentation_scope.name == "other"]  # type: ignore[union-attr]
            assert call.parent is not None
            assert call.parent.span_id == theirs.get_span_context().span_id  # type: ignore[union-attr]


def test_one_that_came_later_stays_when_we_go(clients: Clients) -> None:
    kind = importlib.import_module("openai._base_client").SyncAPIClient
    original = kind.request
    with capture() as spans:
        undo = _wrap(spans.provider.get_tracer("other"), "openai")
        theirs = kind.request
    try:
        # theirs calls what is left of ours, which does nothing any more
        assert kind.request is theirs
        clients.call(APIS["chat"], "m")
        (record,) = clients.server.records()
        assert record.traceparent is None
        assert spans.calls == []
    finally:
        undo()
        kind.request = original


APPLICATION = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import tracekit

exporter = InMemorySpanExporter()
def own():
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider

if sys.argv[2] == "before":
    provider = own()
    tracekit.configure("ignored")
    assert trace.get_tracer_provider() is provider
elif sys.argv[2] == "given":
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracekit.configure(tracer_provider=provider)
names = tracekit.instrument()
import openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
for chunk in client.chat.completions.create(model="m", messages=[], stream=True):
    pass
spans = [span.name for span in exporter.get_finished_spans() if span.kind.name == "CLIENT"]
provider = trace.get_tracer_provider()
processors = 0
if sys.argv[2] == "before":
    processors = len(provider._active_span_processor._span_processors)
print(json.dumps([names, spans, processors]))
"""


@pytest.mark.parametrize("when", ["before", "given"])
def test_the_provider_of_the_application_is_used(server: FakeServer, when: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", APPLICATION, server.openai_url, when],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names, calls, processors = json.loads(done.stdout)
    assert {"openai", "anthropic"} <= set(names)
    assert calls == ["chat m"]
    # nothing was added to what the application set up
    assert processors == (1 if when == "before" else 0)
    assert done.stderr == ""


def test_ids_can_be_the_same_in_every_run(clients: Clients) -> None:
    ids = []
    for _ in range(2):
        with capture(id_generator=CountingIds(seed=7)) as spans:
            clients.call(APIS["chat"], clients.server.script("m", Script(chunks=1)))
        ids.append([(s.context.trace_id, s.context.span_id) for s in spans.calls])
    assert ids[0] == ids[1] == [(7 << 64 | 1, 7 << 32 | 1)]
