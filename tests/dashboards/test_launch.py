"""The process that serves the app: its address, its port, its end."""

from __future__ import annotations

import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tracekit.errors import UsageError
from tracekit_dashboards import launch
from tracekit_dashboards.settings import STORE_VARIABLE, TOKEN_VARIABLE

Serve = Callable[[Path], tuple[subprocess.Popen[str], str]]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_told_to_end(
    shapes: dict[str, Path], serve: Serve, end: signal.Signals
) -> None:
    process, url = serve(shapes["one"])
    with urllib.request.urlopen(f"{url}/_stcore/health", timeout=10) as answer:
        assert answer.status == 200
    process.send_signal(end)
    assert process.wait(30) == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/_stcore/health", timeout=10)


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port}"):
            launch.run(tmp_path, port=port)


def test_other_addresses_need_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=TOKEN_VARIABLE):
        launch.run(tmp_path, "0.0.0.0", 0)


def test_an_address_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot listen"):
        launch.run(tmp_path, "no such host", 0, token="x")


def test_the_child_gets_the_store_the_token_and_no_foreign_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMLIT_SERVER_ADDRESS", "0.0.0.0")
    monkeypatch.setenv(TOKEN_VARIABLE, "inherited")
    monkeypatch.chdir(tmp_path)
    environment = launch._environment(Path("store"), None)
    assert environment[STORE_VARIABLE] == str(tmp_path / "store")
    assert TOKEN_VARIABLE not in environment
    assert not [name for name in environment if name.startswith("STREAMLIT_")]
    assert launch._environment(Path("store"), "t")[TOKEN_VARIABLE] == "t"
    command = launch._command("127.0.0.1", 8501)
    # a secret on a command line can be read by everyone on the machine
    open_to_all = launch._command("0.0.0.0", 8501)
    assert not any("inherited" in part for part in open_to_all)
    assert "--server.allowedHosts" in command and "--server.allowedHosts" not in open_to_all
    assert open_to_all[open_to_all.index("--client.showErrorDetails") + 1] == "type"
    assert command[command.index("--browser.gatherUsageStats") + 1] == "false"
    assert command[command.index("--server.address") + 1] == "127.0.0.1"
