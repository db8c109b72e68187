"""What goes wrong inside the SDK never reaches the application, and is counted."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

import tracekit
from tests.sdk._calls import APIS, Api, Clients
from tracekit.sdk.emit import start_span
from tracekit.sdk.faults import FAULTS
from tracekit.testing import Script, capture, chunks_of


class Broken(Exception):
    """Ours, on purpose."""


def _break(monkeypatch: pytest.MonkeyPatch, place: str, api: Api) -> None:
    """Make what is at ``place`` raise."""

    def broken(*_args: Any, **_kwargs: Any) -> Any:
        raise Broken(place)

    wire = {
        "chat": "tracekit.sdk.wire.chat.ChatCompletions",
        "completions": "tracekit.sdk.wire.chat.Completions",
        "responses": "tracekit.sdk.wire.responses.Responses",
        "messages": "tracekit.sdk.wire.messages.Messages",
    }[api.name]
    where = {
        "ask": f"{wire}.ask",
        "brings": f"{wire}.brings",
        "read": f"{wire}.read",
        "start": "tracekit.sdk.agent.start_span",
        "finish": "tracekit.sdk.agent.finish_span",
        "attributes": "tracekit.sdk.emit._attributes",
        "pack": "tracekit.sdk.emit.pack",
        "phases": "tracekit.sdk.emit.reported_phases",
        "inject": "tracekit.sdk.agent.propagate.inject",
        "headers": "tracekit.sdk.call.Call.got_headers",
    }[place]
    monkeypatch.setattr(where, broken)


PLACES = [
    "ask",
    "brings",
    "read",
    "start",
    "finish",
    "attributes",
    "pack",
    "phases",
    "inject",
    "headers",
]


@pytest.fixture(autouse=True)
def _clean() -> Any:
    FAULTS.clear()
    yield
    FAULTS.clear()


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("place", PLACES)
def test_the_application_sees_nothing_of_it(
    clients: Clients,
    monkeypatch: pytest.MonkeyPatch,
    api: Api,
    is_async: bool,
    streaming: bool,
    place: str,
) -> None:
    model = clients.server.script("m", Script(chunks=5))
    usual = clients.call(api, model, is_async=is_async, streaming=streaming)
    with capture():
        _break(monkeypatch, place, api)
        watched = clients.call(api, model, is_async=is_async, streaming=streaming)
        monkeypatch.undo()
    assert len(watched) == len(usual)
    assert [type(chunk) for chunk in watched] == [type(chunk) for chunk in usual]
    assert len(clients.server.records()) == 2
    # whole responses have no chunks to look at or to pack
    idle = not streaming and place in ("brings", "pack")
    counts = tracekit.faults()
    assert (counts == {}) if idle else all(name.endswith(": Broken") for name in counts)
    assert bool(counts) != idle


@pytest.mark.parametrize("place", ["headers", "finish", "read", "again"])
def test_errors_of_the_server_stay_what_they_are(
    clients: Clients, monkeypatch: pytest.MonkeyPatch, api: Api, is_async: bool, place: str
) -> None:
    model = clients.server.script("m", Script(status=429, retry_after_s=0.01))
    options = {"max_retries": 1}
    with capture():
        if place == "again":
            monkeypatch.setattr("tracekit.sdk.agent.start_span", _only_once(start_span))
        else:
            _break(monkeypatch, place, api)
        with pytest.raises(Exception, match="429") as raised:
            clients.call(api, model, is_async=is_async, client_options=options)
        monkeypatch.undo()
    assert type(raised.value).__name__ == "RateLimitError"
    assert len(clients.server.records()) == 2


def _only_once(function: Any) -> Any:
    done: list[int] = []

    def once(*args: Any, **kwargs: Any) -> Any:
        if done:
            raise Broken("again")
        done.append(1)
        return function(*args, **kwargs)

    return once


def test_a_fault_is_logged_once_and_counted_often(
    clients: Clients, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with capture(), caplog.at_level(logging.WARNING, "tracekit"):
        _break(monkeypatch, "attributes", APIS["chat"])
        for _ in range(5):
            clients.call(APIS["chat"], "m")
        monkeypatch.undo()
    assert list(tracekit.faults().values()) == [5]
    assert len([one for one in caplog.records if one.name == "tracekit"]) == 1


class _Failing(SpanExporter):
    def export(self, spans: Any) -> Any:
        raise Broken("export")


def test_an_exporter_that_raises_is_no_trouble(clients: Clients, api: Api) -> None:
    with capture() as spans:
        spans.provider.add_span_processor(SimpleSpanProcessor(_Failing()))
        assert clients.call(api, "m")
        assert len(spans.calls) == 1


def test_a_stream_without_end_stays_in_bounds(
    clients: Clients, monkeypatch: pytest.MonkeyPatch, api: Api, is_async: bool
) -> None:
    for module in ("tracekit.sdk.call", "tracekit.sdk.streams"):
        monkeypatch.setattr(f"{module}.CHUNKS_MAX", 50)
    with capture() as spans:
        clients.call(
            api, clients.server.script("m", Script(chunks=200, gap_ms=0)), is_async=is_async
        )
    (span,) = spans.calls
    facts = dict(span.attributes or {})
    kept = len(chunks_of(span).offsets_us)
    assert 40 <= kept <= 51
    dropped = facts["tracekit.chunks_dropped"]
    assert isinstance(dropped, int)
    # what closes a stream may count too, where chunks tell no type
    assert 200 <= kept + dropped <= 204
    assert facts["tracekit.status"] == "ok"
    assert facts["gen_ai.response.finish_reasons"] == (api.stopped,)
    assert tracekit.faults() == {}


def test_many_kinds_of_faults_do_not_fill_the_memory() -> None:
    for number in range(1_000):
        FAULTS.swallow(f"place {number}", Broken())
    counts = tracekit.faults()
    assert len(counts) <= 101
    assert sum(counts.values()) == 1_000
