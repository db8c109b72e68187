"""``demo`` and ``dashboard``: the first thing a person runs."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import Run, RunProcess, process_environment
from tracekit_dashboards import launch


def test_demo_without_a_terminal_prints_the_answer_and_ends(run_process: RunProcess) -> None:
    done = run_process("demo")
    assert done.returncode == 0, done.stderr
    assert "rows of bundled recordings" in done.stderr
    assert "the dashboard is not started" in done.stderr
    assert "window    the whole store" in done.stdout
    sentence = done.stdout.split("\n\n")[0]
    assert re.search(r"\d+ %", sentence) and sentence.rstrip().endswith("."), sentence
    assert "1. " in done.stdout


def test_demo_json_is_the_diagnosis(run_process: RunProcess) -> None:
    done = run_process("demo", "--json", "--no-dashboard")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"].startswith("tracekit.diagnosis/")
    assert document["findings"] and document["requests"]["total"] > 300


def test_demo_leaves_nothing_behind(run_process: RunProcess, tmp_path: Path) -> None:
    done = run_process("demo", "--no-dashboard", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("tracekit-demo-*")) == []


def test_demo_into_a_store_can_be_looked_at_later(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert run("demo", "--no-dashboard", "--store", store).exit_code == 0
    first = len(run("requests", "--json", "--store", store).stdout.splitlines())
    assert first > 300
    again = run("demo", "--no-dashboard", "--store", store)
    assert "were there already" in again.stderr
    assert len(run("requests", "--json", "--store", store).stdout.splitlines()) == first


def test_demo_in_a_terminal_starts_the_dashboard_until_interrupted(tmp_path: Path) -> None:
    store = tmp_path / "store"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tracekit", "demo", "--port", "0", "--store", str(store)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # no browser: the one it would open belongs to whoever runs the tests
        env=process_environment(store, BROWSER="true", TERM="dumb"),
    )
    os.close(theirs)
    try:
        text = _read_until(ours, "Ctrl-C ends it)", process)
        found = re.search(r"http://127\.0\.0\.1:\d+", text)
        assert found is not None, text
        with urllib.request.urlopen(f"{found.group()}/_stcore/health", timeout=30) as answer:
            assert answer.read() == b"ok"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
        assert process.wait(60) == 0, _drain(ours)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(ours)


def test_dashboard_command_passes_its_options_on(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Path, str, int, bool, str | None]] = []

    def take(store: Path, address: str, port: int, open_browser: bool, *, token: str | None) -> int:
        calls.append((store, address, port, open_browser, token))
        return 0

    monkeypatch.setattr(launch, "run", take)
    assert run("dashboard").exit_code == 0
    more = ("--address", "::1", "--port", 0, "--no-browser", "--token", "t")
    assert run("dashboard", *more).exit_code == 0
    assert calls == [(store, "127.0.0.1", 8501, True, None), (store, "::1", 0, False, "t")]


def test_dashboard_wants_a_store_and_a_token(run: Run, tmp_path: Path) -> None:
    assert run("dashboard", "--store", tmp_path / "nowhere").exit_code == 2
    assert run("dashboard", "--host", "0.0.0.0", "--no-browser").exit_code == 2


def _read_until(fd: int, words: str, process: subprocess.Popen[bytes]) -> str:
    text = ""
    deadline = time.monotonic() + 120
    while words not in text.replace("\r\n", "\n").replace("\n", " "):
        assert time.monotonic() < deadline, text
        assert process.poll() is None, text
        if select.select([fd], [], [], 0.2)[0]:
            text += os.read(fd, 65_536).decode(errors="replace")
    return text


def _drain(fd: int) -> str:
    text = b""
    while select.select([fd], [], [], 0)[0]:
        try:
            text += os.read(fd, 65_536)
        except OSError:
            break
    return text.decode(errors="replace")
