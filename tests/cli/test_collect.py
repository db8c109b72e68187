"""``collect`` from the command line: every field has its option, and the process ends well."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.cli import traffic
from tests.cli.conftest import Run, process_environment
from tracekit.cli._app import app
from tracekit_collectors import collect as collect_module
from tracekit_collectors.config import CollectConfig

#: Fields whose option has another name, because it takes a duration.
_RENAMED = {"retain_ns": "--retain"}


def test_every_field_of_the_configuration_has_an_option() -> None:
    command: Any = get_command(app)
    options = {o for p in command.commands["collect"].params for o in p.opts}
    fields = [f.name for f in dataclasses.fields(CollectConfig)]
    wanted = {_RENAMED.get(name, "--" + name.replace("_", "-")) for name in fields}
    assert wanted | {"--json"} == options


def test_options_reach_the_configuration_and_defaults_agree(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[CollectConfig] = []

    def take(config: CollectConfig, *, as_json: bool) -> int:
        assert not as_json
        seen.append(config)
        return 0

    monkeypatch.setattr(collect_module, "run", take)
    assert run("collect", "--store", tmp_path / "s").exit_code == 0
    assert seen.pop() == CollectConfig(store=tmp_path / "s"), "the defaults are the receiver's"

    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("")
    result = run(
        *("collect", "--store", tmp_path / "s", "--host", "0.0.0.0", "--grpc-port", 1),
        *("--http-port", 2, "--token", "t", "--ready-file", tmp_path / "ready"),
        *("--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem"),
        *("--retain", "14d", "--max-bytes", "20GB", "--keep-text", "--quiet-s", 1.5),
        *("--settle-interval-s", 2, "--flush-interval-s", 0.5, "--flush-rows", 10),
        *("--max-body-bytes", "1MiB", "--max-in-flight-bytes", "2MiB"),
        *("--max-spool-bytes", "3MiB", "--max-buffer-rows", 4, "--max-buffer-bytes", "5000"),
        *("--retry-after-s", 6, "--maintenance-interval-s", 7, "--shutdown-s", 8),
    )
    assert result.exit_code == 0, result.output
    assert seen.pop() == CollectConfig(
        store=tmp_path / "s",
        host="0.0.0.0",
        grpc_port=1,
        http_port=2,
        token="t",
        tls_cert=tmp_path / "cert.pem",
        tls_key=tmp_path / "key.pem",
        ready_file=tmp_path / "ready",
        keep_text=True,
        flush_interval_s=0.5,
        flush_rows=10,
        max_body_bytes=1 << 20,
        max_in_flight_bytes=2 << 20,
        max_spool_bytes=3 << 20,
        max_buffer_rows=4,
        max_buffer_bytes=5000,
        retry_after_s=6,
        retain_ns=14 * 86_400 * 1_000_000_000,
        max_bytes=20 * 10**9,
        maintenance_interval_s=7,
        quiet_s=1.5,
        settle_interval_s=2,
        shutdown_s=8,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--host", "0.0.0.0"),
        ("--grpc-port", "70000"),
        ("--max-bytes", "lots"),
        ("--max-body-bytes", "1GiB"),
        ("--retain", "long"),
        ("--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.pem"),
        ("--flush-interval-s", "0"),
        ("--shutdown-s", "nan"),
        ("--quiet-s", "inf"),
        ("--max-spool-bytes", "9" * 400),
        ("--max-bytes", "0"),
        ("--retain", "0s"),
        ("--retain", "9" * 400 + "d"),
    ],
)
def test_what_cannot_work_exits_2(
    arguments: tuple[str, ...], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRACEKIT_TOKEN", raising=False)
    result = run("collect", "--store", tmp_path / "s", *arguments)
    assert result.exit_code == 2, result.output
    assert not (tmp_path / "s").exists(), "nothing is made for a configuration that is refused"


def test_process_receives_settles_and_ends_on_sigterm(run: Run, tmp_path: Path) -> None:
    """Spans sent to the process are requests for the next command, and SIGTERM exits 0.

    With --json its output is where it listens, and at the end what came in.
    """
    ready_file, store = tmp_path / "ready.json", tmp_path / "store"
    arguments = ("--grpc-port", "0", "--http-port", "0", "--ready-file", ready_file)
    process = subprocess.Popen(
        [sys.executable, "-m", "tracekit", "collect", "--json", "--store", store, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=process_environment(store),
    )
    try:
        deadline = time.monotonic() + 60
        while not ready_file.exists() and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        ready = json.loads(ready_file.read_text())
        for line in traffic.write(tmp_path / "t.jsonl", last=3).read_text().splitlines():
            request = urllib.request.Request(
                f"http://127.0.0.1:{ready['http']['port']}/v1/traces",
                data=line.encode(),
                headers={"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, stderr
    first, last = map(json.loads, stdout.splitlines())
    assert first == ready
    traces = last["signals"]["traces"]
    assert (traces["requests"], traces["accepted"]) == (3, last["lake"]["rows"])
    assert traces["accepted"] == sum(s["traces"] for s in last["services"].values())
    assert last["journal"]["spool_pending"] == 0
    assert not ready_file.exists()
    rows = [json.loads(x) for x in run("requests", "--json", "--store", store).stdout.splitlines()]
    assert [r["request_id"] for r in rows] == [f"chatcmpl-req-00{n}" for n in (2, 1, 0)]
