"""What every command owes: help, exit codes, one clear line for an error, quick start-up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import typer
from deltalake.exceptions import DeltaError
from typer.main import get_command

from tests.cli.conftest import Run, RunProcess, process_environment
from tracekit.cli import _group
from tracekit.cli._app import app
from tracekit.errors import SourceError, UsageError

COMMANDS = [
    "demo",
    "collect",
    "import",
    "join",
    "requests",
    "show",
    "table",
    "diagnose",
    "verdicts",
    "compare",
    "sql",
    "dashboard",
    "doctor",
    "store",
]


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, sub in getattr(command, "commands", {}).items():
        yield (*path, name), sub
        yield from _commands(sub, (*path, name))


ALL = dict(_commands(get_command(app)))


def test_help_lists_every_command(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    listed = re.findall(r"^  ([a-z]+)  ", result.output.split("Commands:")[1], re.MULTILINE)
    assert listed == COMMANDS


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_and_option_has_help(path: tuple[str, ...]) -> None:
    command = ALL[path]
    assert command.help, path
    assert "..." not in command.get_short_help_str(60), "the first line is too long for --help"
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{path}: {parameter.name} has no help text"


@pytest.mark.parametrize("path", [p for p in ALL if p not in {("demo",), ("store",)}], ids=" ".join)
def test_every_command_takes_store_after_its_name(path: tuple[str, ...]) -> None:
    (option,) = [p for p in ALL[path].params if p.name == "store"]
    assert option.opts == ["--store"]
    assert option.envvar == "TRACEKIT_STORE"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("diagnose", "--format", "yaml"), "'yaml' is none of 'text', 'json', 'md'"),
        (("verdicts", "--format", "yaml"), "'yaml' is none of 'table', 'json'"),
        (("table", "--last", "abc"), "it must be a whole number, not 'abc'"),
        (("table", "--last", "0"), "it must be 1 or more, not '0'"),
        (("doctor", "--wait", "x"), "it must be a number, not 'x'"),
        (("doctor", "--grpc-port", "70000"), "it must be 65,535 or less, not '70000'"),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(
    run: Run, arguments: tuple[str, ...], said: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    text = " ".join(result.output.split())
    assert f"Invalid value for '{arguments[1]}': {said}" in text
    assert "Value error" not in text and "Input should" not in text


def test_demo_never_takes_the_store_of_the_environment() -> None:
    (option,) = [p for p in ALL[("demo",)].params if p.name == "store"]
    assert option.envvar is None


@pytest.mark.parametrize(
    "path",
    [p for p in ALL if p not in {("dashboard",), ("store",)}],
    ids=" ".join,
)
def test_every_command_with_output_has_json(path: tuple[str, ...]) -> None:
    assert any("--json" in p.opts for p in ALL[path].params)


def test_missing_store_is_one_line_and_exit_2(run_process: RunProcess, tmp_path: Path) -> None:
    done = run_process("requests", "--store", tmp_path / "nowhere")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path / "nowhere") in done.stderr
    assert "tracekit import" in done.stderr


def test_unknown_option_and_command_exit_2(run: Run) -> None:
    assert run("requests", "--nope").exit_code == 2
    assert run("nope").exit_code == 2


def test_file_of_nothing_known_exits_3(run_process: RunProcess, tmp_path: Path) -> None:
    (tmp_path / "noise.bin").write_bytes(bytes(range(256)) * 8)
    done = run_process("import", tmp_path / "noise.bin", "--store", tmp_path / "store")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "noise.bin" in done.stderr and "tried" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UsageError("wrong\noption"), 2, "wrong option"),
        (SourceError("bad", where="file:3", how="mend it"), 3, "bad; at file:3; mend it"),
        (PermissionError(13, "Permission denied", "/x"), 3, "Permission denied: /x"),
        (OSError(28, "No space left on device"), 3, "free some space"),
        (ModuleNotFoundError("no", name="grpc._x"), 2, "pip install 'tracekit-llm[collect]'"),
        (duckdb.IOException("IO Error: file\nis gone"), 3, "IO Error: file is gone"),
        (DeltaError("log is broken"), 3, "log is broken"),
        (ZeroDivisionError("by zero"), 70, "internal error: ZeroDivisionError"),
    ],
)
def test_errors_become_one_line_and_a_code(
    error: Exception,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("TRACEKIT_DEBUG", raising=False)
    failing = typer.Typer(cls=_group.Group)

    @failing.command()
    def fail() -> None:
        raise error

    @failing.command()
    def other() -> None:
        pass

    with pytest.raises(SystemExit) as ended:
        get_command(failing)(["fail"])
    assert ended.value.code == code
    stderr = capfd.readouterr().err
    assert words in stderr and stderr.count("\n") == 1
    assert "Traceback" not in stderr


def test_debug_shows_the_traceback(run_process: RunProcess, tmp_path: Path) -> None:
    done = run_process("requests", "--store", tmp_path / "nowhere", TRACEKIT_DEBUG="1")
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [("requests", "--json"), ("sql", "select 1 as n", "--json")],
    ids=["while writing", "at the last flush"],
)
def test_closed_pipe_ends_quietly(arguments: tuple[str, ...], store: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "tracekit", *arguments],
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            # buffered, as in a shell: then the last flush is the first write
            env=process_environment(store, PYTHONUNBUFFERED=""),
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_output_in_a_pipe_has_no_colour_and_stays_narrow(run_process: RunProcess) -> None:
    done = run_process("show", "slow-queue", COLUMNS="60")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 60


def test_text_that_the_terminal_cannot_show_is_escaped(
    run_process: RunProcess, tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    log.write_text("request,input_tokens,output_tokens,TTFT,total_latency\n요청,10,20,0.1,1.2\n")
    store = tmp_path / "store"
    assert run_process("import", log, "--store", store).returncode == 0
    done = run_process("requests", "--store", store, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert "\\uc694\\uccad" in done.stdout


def test_import_of_the_package_stays_light() -> None:
    """Neither ``import tracekit`` nor ``tracekit --help`` may load the analysis."""
    code = textwrap.dedent(
        """
        import sys
        import tracekit.cli
        assert "typer" not in sys.modules
        from tracekit.cli._app import run
        try:
            run(["--help"])
        except SystemExit:
            pass
        heavy = {"duckdb", "polars", "pyarrow", "deltalake", "numpy", "scipy", "rich", "grpc",
                 "streamlit", "orjson", "google.protobuf", "pandas"}
        loaded = sorted(heavy & set(sys.modules))
        assert not loaded, loaded
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=process_environment(Path("unused")),
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [("diagnose",), ("diagnose", "--slo", "ttft=1s", "--explain"), ("show", "slow-queue")],
    ids=" ".join,
)
def test_pandas_is_not_imported(arguments: tuple[str, ...], store: Path) -> None:
    """PyArrow would, at the first array it makes of a list: 0.3 s of a command that needs none."""
    pytest.importorskip("pandas")
    code = textwrap.dedent(
        """
        import sys
        from tracekit.cli import main
        try:
            main(sys.argv[1:])
        except SystemExit as ended:
            assert not ended.code, ended.code
        assert "pyarrow" in sys.modules
        assert "pandas" not in sys.modules
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=process_environment(store),
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("requests", "--last", "9" * 30),
        ("requests", "--since", "9" * 400 + "d"),
        ("table", "--last", "9" * 30),
        ("verdicts", "--last", "9" * 30),
        ("diagnose", "--slo", f"ttft={'9' * 400}s"),
        ("store", "vacuum", "--retention", "9" * 400 + "d"),
        ("doctor", "--wait", "nan"),
        ("doctor", "--wait", "inf"),
        ("doctor", "--http-port", "-1"),
        *(("sql", "select 1", "--time-limit", t) for t in ("nan", "inf", "-inf", "-1", "1e300")),
    ],
    ids=lambda a: " ".join(a)[:40],
)
def test_numbers_that_cannot_be_meant_exit_2(arguments: tuple[str, ...], run: Run) -> None:
    assert run(*arguments).exit_code == 2


def test_base_install_says_what_to_install() -> None:
    """With only the base package there is no typer: one line, exit 2."""
    code = textwrap.dedent(
        """
        import sys
        sys.modules["typer"] = None  # as if it were not installed
        from tracekit.cli import main
        main(["diagnose"])
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=process_environment(Path("unused")),
    )
    assert done.returncode == 2
    assert done.stderr == "tracekit: this needs typer: pip install 'tracekit-llm[analysis]'\n"


def test_version(run: Run) -> None:
    from tracekit import __version__

    assert run("--version").output == f"tracekit {__version__}\n"


def test_store_info_json(run: Run) -> None:
    info = json.loads(run("store", "info", "--json").output)
    rows = {t["table"]: t["rows"] for t in info["tables"]}
    assert rows["spans"] == 120
    assert rows["requests"] == 60
