"""The command line under test: in this process by CliRunner, and as a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.cli import traffic
from tracekit.cli._app import app
from tracekit.lake.store import Store

Run = Callable[..., Result]
RunProcess = Callable[..., "subprocess.CompletedProcess[str]"]

_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the traffic of `tests.cli.traffic`, imported once. Never write to it."""
    folder = tmp_path_factory.mktemp("cli")
    path = folder / "store"
    file = traffic.write(folder / "traffic.jsonl")
    result = CliRunner().invoke(app, ["import", str(file), "--store", str(path)])
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds nothing."""
    path = tmp_path_factory.mktemp("empty") / "store"
    Store.open(path, create=True)
    return path


@pytest.fixture
def run(store: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process; without ``--store`` it reads the fixture's store."""
    monkeypatch.setenv("TRACEKIT_STORE", str(store))
    monkeypatch.setenv("COLUMNS", "120")

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(a) for a in arguments])

    return invoke


@pytest.fixture
def run_process(store: Path) -> RunProcess:
    """Run a command as a process of its own, as a shell would."""

    def start(
        *arguments: object, stdin: str = "", timeout_s: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tracekit", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=process_environment(store, **environment),
        )

    return start


def process_environment(store: Path, **more: str) -> dict[str, str]:
    """The environment of a child process: this checkout's packages, the fixture's store."""
    paths = [_REPOSITORY, _REPOSITORY / "collectors", _REPOSITORY / "dashboards"]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "TRACEKIT_STORE": str(store),
        "COLUMNS": "120",
        **more,
    }
