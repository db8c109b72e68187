"""Who may look: loopback needs nothing, every other address a token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit import config
from streamlit.testing.v1 import AppTest

from tracekit_dashboards import texts
from tracekit_dashboards.settings import TOKEN_VARIABLE, is_loopback

OpenApp = Callable[..., AppTest]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.1", "localhost", "::1", "[::1]"])
def test_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "example.org", "", "127.0.0.1.x"])
def test_not_loopback(address: str) -> None:
    assert not is_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0", None])
def test_no_address_without_a_token(
    shapes: dict[str, Path],
    open_app: OpenApp,
    monkeypatch: pytest.MonkeyPatch,
    address: str | None,
) -> None:
    config.set_option("server.address", address)
    app = open_app(shapes["one"])
    assert [e.value for e in app.error] == [texts.NO_TOKEN_SET]
    assert not app.metric


def test_the_token_opens(
    shapes: dict[str, Path], open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "geheim-비밀")
    app = open_app(shapes["one"])
    assert not app.metric
    assert [s.value for s in app.subheader] == [texts.TOKEN_TITLE]
    send = [b.label for b in app.button].index(texts.TOKEN_SEND)
    app.text_input[0].set_value("geheim")
    app.button[send].click().run()
    assert [e.value for e in app.error] == [texts.TOKEN_WRONG]
    assert not app.metric
    app.text_input[0].set_value("geheim-비밀")
    app.button[send].click().run()
    assert app.metric
    # and stays open
    assert app.run().metric


def test_a_link_with_the_token_loses_it(
    shapes: dict[str, Path], open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
    app = open_app(shapes["one"], token="s3cret")
    assert app.metric
    assert "token" not in app.query_params
    app = open_app(shapes["one"], token="wrong")
    assert not app.metric
    assert [e.value for e in app.error] == [texts.TOKEN_WRONG]
    assert "token" not in app.query_params
