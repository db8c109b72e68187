"""Processes that fork: a child's calls are its own, and its parent's stay its parent's."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.sdk._calls import APIS, Clients
from tests.sdk._facts import only, told
from tracekit.testing import Captured, Script


def _in_child(work: Callable[[], Any]) -> Any:
    """What ``work`` returns in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            os.write(writing, json.dumps(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return json.loads(answer)


def _call_anew(clients: Clients, model: str) -> int:
    """With a client of the child's own, for connections must not be shared."""
    create: Any = APIS["chat"].create
    with openai.OpenAI(base_url=clients.server.openai_url, api_key="none") as client:
        return len(list(create(client, model=model, stream=True)))


def test_a_childs_call_is_its_own_span(clients: Clients, spans: Captured) -> None:
    clients.call(APIS["chat"], "before")

    def work() -> list[Any]:
        spans.clear()
        _call_anew(clients, "child")
        (span,) = spans.calls
        context = span.get_span_context()
        assert context is not None
        return [told(span)["tracekit.status"], context.trace_id, context.span_id]

    status, trace_id, span_id = _in_child(work)
    clients.call(APIS["chat"], "after")
    assert [told(s)["gen_ai.request.model"] for s in spans.calls] == ["before", "after"]
    records = {record.model: record for record in clients.server.records()}
    assert status == "ok"
    assert (records["child"].trace_id, records["child"].span_id) == (trace_id, span_id)
    assert len({record.span_id for record in records.values()}) == 3
    assert len({record.request_id for record in records.values()}) == 3


@pytest.mark.parametrize("how", ["dropped", "closed"])
def test_a_child_does_not_end_a_stream_of_its_parent(
    clients: Clients, spans: Captured, how: str
) -> None:
    model = clients.server.script("m", Script(chunks=30, gap_ms=5))
    held = [APIS["chat"].create(clients.of(APIS["chat"], False), model=model, stream=True)]
    next(iter(held[0]))

    def work() -> int:
        stream = held.pop()
        if how == "closed":
            stream._iterator.close()
        del stream
        gc.collect()
        return len(spans.calls)

    assert _in_child(work) == 0
    for _chunk in held[0]:
        pass
    held[0].close()
    facts, _, _ = only(spans, clients.server)
    assert facts["tracekit.status"] == "ok"
