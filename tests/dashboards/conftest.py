"""Stores of several shapes, and the app run on them without a browser."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import streamlit as st
from streamlit import config
from streamlit.testing.v1 import AppTest

import tracekit
from tracekit.analysis.session import Session
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store
from tracekit_dashboards import settings
from tracekit_dashboards.settings import STORE_VARIABLE, TOKEN_VARIABLE

DEMO = Path(tracekit.__file__).parent / "demo_data"
DATA = Path(__file__).parent.parent / "data"
APP = Path(settings.__file__).with_name("app.py")

OpenApp = Callable[..., AppTest]
Query = Callable[[str], pl.DataFrame]


@pytest.fixture(scope="session")
def demo_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled recordings, as `tracekit demo` imports them."""
    path = tmp_path_factory.mktemp("demo") / "store"
    import_paths(Store.open(path, create=True), [str(DEMO)])
    return path


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small stores, by what is in them."""
    root = tmp_path_factory.mktemp("shapes")
    Store.open(root / "empty", create=True)
    sources = {
        "article": [DATA / "article_table.csv"],
        "one": [_one_request(root)],
        "client_only": [_client_spans(root)],
        "pd_only": [DATA / "vllm" / "pd-nixl.otlp.jsonl.gz"],
        "edge": [DATA / "vllm" / "edge.otlp.jsonl.gz", DATA / "vllm" / "edge.requests.jsonl.gz"],
        "no_requests": [DATA / "vllm" / "startup-base.otlp.jsonl.gz"],
    }
    for name, paths in sources.items():
        import_paths(Store.open(root / name, create=True), [str(path) for path in paths])
    return {name: root / name for name in ("empty", *sources)}


@pytest.fixture
def open_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenApp]:
    """``open_app(store, page, **query parameters)``: the app after its first run there."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    address = config.get_option("server.address")
    config.set_option("server.address", "127.0.0.1")

    def run(store: Path, page: str = "diagnosis", **params: str) -> AppTest:
        monkeypatch.setenv(STORE_VARIABLE, str(store))
        app = AppTest.from_file(APP, default_timeout=120)
        for name, value in params.items():
            app.query_params[name] = value
        if page != "diagnosis":
            app.switch_page(f"app_pages/{page}.py")
        return app.run()

    yield run
    config.set_option("server.address", address)


@pytest.fixture(scope="session", autouse=True)
def _close_hubs() -> Iterator[None]:
    """The stores stay open from test to test, as they do from run to run."""
    yield
    st.cache_resource.clear()


@pytest.fixture
def serve() -> Iterator[Callable[[Path], tuple[subprocess.Popen[str], str]]]:
    """``serve(store)``: a process that serves the dashboard, and its URL once it answers."""
    code = (
        # a shell's background job, as a CI may be, ignores Ctrl-C, and so do its children
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "import sys; from pathlib import Path; from tracekit_dashboards.launch import run; "
        "sys.exit(run(Path(sys.argv[1]), port=0))"
    )
    started: list[subprocess.Popen[str]] = []

    def start(store: Path) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(store)],
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
        )
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("dashboard: http://127.0.0.1:"), line
        return process, line.split()[1]

    yield start
    for process in started:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def query(demo_store: Path) -> Iterator[Query]:
    """SQL on the demo store, in a session of the test's own."""
    with Session.open(demo_store) as session:
        yield session.frame


def _one_request(root: Path) -> Path:
    """A single row, with names that Markdown would take for its own."""
    path = root / "one.csv"
    path.write_text(
        "request_id,start_unix_ns,input_tokens,output_tokens,ttft_ms,e2e_ms,model\n"
        "a*b_$c$[d](e),1795982418950825860,100,50,321.5,1234.5,m_1_*x*\n"
    )
    return path


def _client_spans(root: Path) -> Path:
    """What the load client alone sent."""
    lines = []
    with gzip.open(DATA / "vllm" / "baseline.otlp.jsonl.gz", "rt") as file:
        for line in file:
            message = json.loads(line)
            kept = [r for r in message["resourceSpans"] if _service(r) == "load-client"]
            if kept:
                lines.append(json.dumps({"resourceSpans": kept}))
    path = root / "client.otlp.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def _service(resource_spans: dict[str, Any]) -> str:
    attributes = resource_spans["resource"]["attributes"]
    names = [a["value"]["stringValue"] for a in attributes if a["key"] == "service.name"]
    return str(names[0])
