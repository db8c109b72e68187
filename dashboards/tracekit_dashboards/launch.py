"""Starts the dashboard: Streamlit in a process of its own, told everything it needs.

Owns the address, the port and the life of that process. Streamlit is not imported here: the
command line stays quick, and the app's threads never share a process with the caller's.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from tracekit.errors import SourceError, UsageError
from tracekit_dashboards.settings import STORE_VARIABLE, TOKEN_VARIABLE, is_loopback

_APP: Final = Path(__file__).with_name("app.py")
_START_S: Final = 60.0
_STOP_S: Final = 10.0
_ASKED_TO_END: Final = (0, -signal.SIGTERM, -signal.SIGINT)
_LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]", "::1")

#: Nothing leaves the machine, no file is watched, nobody is asked for an e-mail address; the rest
#: is what the app takes for granted about its looks.
_OPTIONS: Final = {
    "browser.gatherUsageStats": "false",
    "client.showErrorLinks": "false",
    "client.toolbarMode": "viewer",
    "global.developmentMode": "false",
    "logger.hideWelcomeMessage": "true",
    "logger.level": "warning",
    "runner.magicEnabled": "false",
    "server.fileWatcherType": "none",
    "server.headless": "true",
    "server.showEmailPrompt": "false",
    "theme.dark.primaryColor": "#3B7DC0",
    "theme.light.primaryColor": "#2F6FB0",
}


def run(
    store: Path,
    address: str = "127.0.0.1",
    port: int = 8501,
    open_browser: bool = False,
    *,
    token: str | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serve the dashboard of ``store`` until it ends or is interrupted; its exit code.

    ``port`` 0 takes a free one. ``on_ready`` gets the URL once the app answers (default: print
    it). An ``address`` that other machines can reach needs a ``token`` (TRACEKIT_DASHBOARD_TOKEN
    if not given), which readers must show. UsageError for an address that cannot be listened on,
    SourceError if the app does not start, ModuleNotFoundError without the extra ``dashboard``.
    """
    for module in ("streamlit", "altair"):
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    token = token or os.environ.get(TOKEN_VARIABLE) or None
    if token is None and not is_loopback(address):
        raise UsageError(
            f"{address} is reachable from other machines: set {TOKEN_VARIABLE} to a secret that "
            "readers must show, or listen on 127.0.0.1"
        )
    port = _free_port(address, port)
    url = _url(address, port)
    with _child(_command(address, port), _environment(store, token)) as child:
        _wait_until_up(child, address, port)
        (on_ready or _print_url)(url)
        if open_browser and _has_screen():
            webbrowser.open(url)
        code = child.wait()
        return 0 if code in _ASKED_TO_END else code
    return 0  # interrupted


def _command(address: str, port: int) -> list[str]:
    options = dict(_OPTIONS) | {"server.address": address, "server.port": str(port)}
    command = [sys.executable, "-m", "streamlit", "run", str(_APP)]
    command += [part for name, value in options.items() for part in (f"--{name}", value)]
    if is_loopback(address):
        # a page of another site must not reach the app through a name that points here
        command += [part for host in _LOOPBACK_HOSTS for part in ("--server.allowedHosts", host)]
    else:
        # a traceback names paths of this machine
        command += ["--client.showErrorDetails", "type"]
    return command


def _environment(store: Path, token: str | None) -> dict[str, str]:
    environment = dict(os.environ)
    # a reader's own Streamlit settings would change what this app is
    for name in [n for n in environment if n.startswith("STREAMLIT_")]:
        del environment[name]
    environment[STORE_VARIABLE] = str(Path(store).absolute())
    environment.pop(TOKEN_VARIABLE, None)
    if token is not None:
        environment[TOKEN_VARIABLE] = token
    return environment


def _free_port(address: str, port: int) -> int:
    """``port``, or a free one for 0; UsageError if the address or port cannot be had."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            address.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            return int(probe.getsockname()[1])
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"cannot listen on {address} port {port}: {reason}; take another port (0 is a free one)"
        ) from None


def _url(address: str, port: int) -> str:
    host = f"[{address}]" if ":" in address and not address.startswith("[") else address
    return f"http://{host}:{port}"


def _has_screen() -> bool:
    """Whether a browser would be a window; one in the terminal would take the terminal over."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _print_url(url: str) -> None:
    print(f"dashboard: {url} (Ctrl-C ends it)", flush=True)


@contextmanager
def _child(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The process; ended with this one, whether by Ctrl-C, by SIGTERM or by an error."""
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)

    def end(_signal: int, _frame: FrameType | None) -> None:
        child.terminate()

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, end) if main else None
    try:
        yield child
    except KeyboardInterrupt:
        pass  # the terminal told the child too
    finally:
        _end(child)
        if main:
            signal.signal(signal.SIGTERM, before)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _wait_until_up(child: subprocess.Popen[bytes], address: str, port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        try:
            code = child.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            if _answers(address, port):
                return
        else:
            raise SourceError(
                f"the dashboard ended at once (exit code {code})", how="its message is above"
            )
    raise SourceError(f"the dashboard did not answer within {_START_S:.0f} s")


def _answers(address: str, port: int) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.strip("[]"), address.strip("[]"))
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", "/_stcore/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
