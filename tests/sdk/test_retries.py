"""Attempts at one call: each is a span, and they belong together."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from tests.sdk._calls import Api, Clients
from tests.sdk._facts import end_ns, named, start_ns, told
from tracekit.testing import Captured, Script

RETRIES: dict[str, Any] = {"client_options": {"max_retries": 2}}


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("status", [429, 500])
def test_the_last_of_three_attempts_goes_well(
    clients: Clients, spans: Captured, api: Api, is_async: bool, streaming: bool, status: int
) -> None:
    model = clients.server.script("m", Script(status=status, retry_after_s=0.05, fail_first=2))
    clients.call(api, model, is_async=is_async, streaming=streaming, **RETRIES)
    records = clients.server.records()
    calls = sorted(spans.calls, key=start_ns)
    assert len(calls) == len(records) == 3
    for number, (span, record) in enumerate(zip(calls, records, strict=True), 1):
        named(span, record)
        facts = told(span)
        assert facts["tracekit.attempt"] == number
        assert facts["tracekit.status"] == ("ok" if number == 3 else "error")
        assert facts["http.response.status_code"] == (200 if number == 3 else status)
        assert facts["gen_ai.request.model"] == "m"
        assert ("gen_ai.response.id" in facts) == (number == 3)
    assert told(calls[0])["error.type"] == told(calls[1])["error.type"] == str(status)
    # one request id, one parent or none, three spans one after another
    assert len({told(span)["tracekit.request_id"] for span in calls}) == 1
    assert {span.parent for span in calls} == {None}
    assert end_ns(calls[0]) <= start_ns(calls[1]) <= end_ns(calls[1]) <= start_ns(calls[2])
    # the client waits between its attempts, and that is in none of them
    assert start_ns(calls[1]) - end_ns(calls[0]) >= 45e6


def test_attempts_are_children_of_what_was_current(
    clients: Clients, spans: Captured, api: Api, is_async: bool
) -> None:
    model = clients.server.script("m", Script(status=500, retry_after_s=0.01, fail_first=1))
    with spans.provider.get_tracer("app").start_as_current_span("turn") as turn:
        clients.call(api, model, is_async=is_async, **RETRIES)
    calls = spans.calls
    assert len(calls) == 2
    assert {call.parent.span_id for call in calls if call.parent} == {
        turn.get_span_context().span_id
    }
    assert {record.trace_id for record in clients.server.records()} == {
        turn.get_span_context().trace_id
    }


def test_when_all_attempts_fail_the_last_has_the_error(
    clients: Clients, spans: Captured, api: Api, is_async: bool
) -> None:
    model = clients.server.script("m", Script(status=429, retry_after_s=0.01))
    with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)):
        clients.call(api, model, is_async=is_async, **RETRIES)
    calls = sorted(spans.calls, key=start_ns)
    assert [told(c)["tracekit.status"] for c in calls] == ["error"] * 3
    assert [told(c)["error.type"] for c in calls] == [
        "429",
        "429",
        f"{api.provider}.RateLimitError",
    ]
    assert len(clients.server.records()) == 3


def test_a_dropped_connection_is_tried_again(
    clients: Clients, spans: Captured, api: Api, is_async: bool
) -> None:
    model = clients.server.script("m", Script(drop=True, fail_first=1))
    clients.call(api, model, is_async=is_async, **RETRIES)
    first, second = sorted(spans.calls, key=start_ns)
    assert told(first)["tracekit.status"] == "error"
    assert told(first)["error.type"].rpartition(".")[2] in (
        "RemoteProtocolError",
        "APIConnectionError",
    )
    assert told(second)["tracekit.status"] == "ok"
    assert told(second)["tracekit.attempt"] == 2


def test_an_attempt_that_timed_out_says_so(
    clients: Clients, spans: Captured, api: Api, is_async: bool
) -> None:
    model = clients.server.script("m", Script(headers_ms=20_000))
    with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
        clients.call(
            api, model, is_async=is_async, client_options={"max_retries": 1, "timeout": 0.15}
        )
    first, second = sorted(spans.calls, key=start_ns)
    assert told(first)["tracekit.status"] == told(second)["tracekit.status"] == "timeout"


def test_what_cannot_be_retried_is_one_attempt(clients: Clients, spans: Captured, api: Api) -> None:
    model = clients.server.script("m", Script(status=400))
    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)):
        clients.call(api, model, **RETRIES)
    assert told(spans.call())["tracekit.attempt"] == 1


def test_a_stream_that_breaks_is_not_retried(
    clients: Clients, spans: Captured, api: Api, is_async: bool
) -> None:
    model = clients.server.script("m", Script(cut_after=3))
    try:
        clients.call(api, model, is_async=is_async, **RETRIES)
    except Exception:
        pass
    assert told(spans.call())["tracekit.status"] == "error"
    assert len(clients.server.records()) == 1
