"""A fake server for all tests here, clients of it, and the spans of one test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.sdk._calls import APIS, Api, Clients
from tests.sdk._recorded import Recorder, recording
from tracekit.sdk.faults import FAULTS
from tracekit.testing import Captured, FakeServer, capture


@pytest.fixture(scope="session")
def running() -> Iterator[Clients]:
    """A server in its own process, and clients that have loaded all they load at first use."""
    with FakeServer() as server, asyncio.Runner() as loop:
        clients = Clients(server, loop)
        for api in APIS.values():
            for is_async in (False, True):
                clients.call(api, "warm", is_async=is_async)
                clients.call(api, "warm", is_async=is_async, streaming=False)
        yield clients
        clients.close()


@pytest.fixture
def clients(running: Clients) -> Clients:
    running.server.clear(scripts=True)
    return running


@pytest.fixture
def server(clients: Clients) -> FakeServer:
    return clients.server


@pytest.fixture
def spans() -> Iterator[Captured]:
    """Everything is watched; nothing may have gone wrong inside."""
    FAULTS.clear()
    with capture() as captured:
        yield captured
    assert FAULTS.counts() == {}


@pytest.fixture(params=APIS.values(), ids=lambda api: api.name)
def api(request: pytest.FixtureRequest) -> Api:
    found: Api = request.param
    return found


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with recording() as found:
        yield found
