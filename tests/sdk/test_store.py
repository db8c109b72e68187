"""``configure(store=...)``: spans in a local store, whole, once, and never to the app's harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

import tracekit
from tests.sdk._recorded import Recorder
from tracekit.errors import UsageError
from tracekit.ingest import span_exporter
from tracekit.ingest.span_exporter import StoreExporter
from tracekit.lake.store import Store
from tracekit.sdk import setup
from tracekit.sdk.faults import FAULTS

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(span_exporter, "_LAST_PAUSE_S", 0.0)
    monkeypatch.setattr(span_exporter, "_FIRST_RETRY_S", 0.0)
    monkeypatch.setattr(span_exporter, "_LAST_RETRY_S", 0.0)
    FAULTS.clear()
    yield
    FAULTS.clear()


def _script(tmp_path: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "app.py"
    path.write_text(textwrap.dedent(code))
    paths = os.pathsep.join(str(ROOT / p) for p in (".", "collectors", "dashboards"))
    return subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        timeout=120,
    )


def _rows(store: Store, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        duckdb.connect().sql(store.snapshot(table).scan_sql()).to_arrow_table().to_pylist()
    )
    return found


def _spans(recorder: Recorder, n: int) -> list[ReadableSpan]:
    recorder.exporter.clear()
    for _ in range(n):
        with tracekit.request("chat", model="m", headers=()) as r:
            with r.phase("prefill"):
                recorder.clock.go(3)
            r.token()
            recorder.clock.go(3)
            r.token()
    return list(recorder.spans())


APP = """
    import sys, time, tracekit
    tracekit.configure("app", store=sys.argv[1] if len(sys.argv) > 1 else {store!r})
    for _ in range(3):
        with tracekit.request("chat", model="m", input_tokens=7) as r:
            with r.phase("queue"):
                time.sleep(0.01)
            with r.phase("prefill"):
                time.sleep(0.02)
            for _ in range(3):
                r.token()
                time.sleep(0.001)
"""


def test_right_after_a_script_ends_its_requests_are_there(tmp_path: Path) -> None:
    where = str(tmp_path / "store")
    done = _script(tmp_path, APP.format(store=where))
    assert (done.returncode, done.stderr) == (0, "")
    store = Store.open(where)
    # settled, not only in the tail that a reader would make of raw rows
    requests = _rows(store, "requests")
    assert len(requests) == 3
    for row in requests:
        assert row["queue_ms"] >= 10 and row["prefill_ms"] >= 20
        assert (row["output_tokens"], row["input_tokens"]) == (3, 7)
    assert {row["origin"] for row in _rows(store, "spans")} == {"sdk"}
    again = _script(tmp_path, APP.format(store=where))
    assert again.returncode == 0
    assert len(_rows(store, "requests")) == 6
    told = _script(
        tmp_path,
        f"""
        import sys
        from tracekit.cli import main
        sys.argv = ["tracekit", "requests", "--store", {where!r}, "--json"]
        sys.exit(main())
        """,
    )
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert len(lines) == 6, told.stderr


def test_a_batch_that_landed_is_not_written_twice(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path / "store", create=True)
    exporter = StoreExporter(store, settle=False)
    real = Store.append
    failing = [True]

    def landed_without_a_word(self: Store, table: str, rows: Any, **more: Any) -> bool:
        said = real(self, table, rows, **more)
        if failing:
            failing.pop()
            raise OSError("the answer was lost")
        return said

    monkeypatch.setattr(Store, "append", landed_without_a_word)
    assert exporter.export(_spans(recorder, 2)) is SpanExportResult.FAILURE
    assert exporter.export(_spans(recorder, 1)) is SpanExportResult.SUCCESS
    assert len(_rows(store, "spans")) == 9
    assert tracekit.faults() == {"writing spans to the store: OSError": 1}


def test_a_store_that_is_gone_costs_only_the_spans(tmp_path: Path, recorder: Recorder) -> None:
    folder = tmp_path / "store"
    exporter = StoreExporter(Store.open(folder, create=True))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("a file")
    for _ in range(3):
        assert exporter.export(_spans(recorder, 2)) is SpanExportResult.FAILURE
    assert exporter.force_flush() is False
    exporter.shutdown()
    exporter.shutdown()
    faults = tracekit.faults()
    assert faults.pop("storing spans: LostError") == 1
    assert sum(faults.values()) == 3 + 1 + 3
    assert exporter.export(_spans(recorder, 1)) is SpanExportResult.FAILURE


def test_a_store_that_comes_back_gets_all_of_it(tmp_path: Path, recorder: Recorder) -> None:
    folder = tmp_path / "store"
    store = Store.open(folder, create=True)
    exporter = StoreExporter(store)
    folder.rename(tmp_path / "away")
    folder.write_text("a file")
    assert exporter.export(_spans(recorder, 2)) is SpanExportResult.FAILURE
    folder.unlink()
    (tmp_path / "away").rename(folder)
    assert exporter.export(_spans(recorder, 2)) is SpanExportResult.SUCCESS
    exporter.shutdown()
    assert len(_rows(store, "requests")) == 4


def test_what_waits_is_bounded(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_exporter, "WAITING_MAX", 7)
    folder = tmp_path / "store"
    exporter = StoreExporter(Store.open(folder, create=True))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("a file")
    for _ in range(4):
        exporter.export(_spans(recorder, 1))
    assert sum(d.table.num_rows for _, d in exporter._waiting) == 6
    assert tracekit.faults()["storing spans: LostError"] == 2


def test_a_store_somebody_settles_is_left_to_them(tmp_path: Path, recorder: Recorder) -> None:
    from tracekit.lake.lock import settle_lock

    store = Store.open(tmp_path / "store", create=True)
    exporter = StoreExporter(store)
    with settle_lock(store, blocking=True):
        exporter.export(_spans(recorder, 1))
        exporter.shutdown()
    assert len(_rows(store, "spans")) == 3
    assert not tracekit.faults()


def test_the_child_of_a_fork(tmp_path: Path) -> None:
    code = """
        import os, sys, time, tracekit
        tracekit.configure("app", store={store!r})
        def call():
            with tracekit.request("chat", model="m") as r:
                r.token()
        {before}
        pid = os.fork()
        call()
        from opentelemetry import trace
        if pid == 0:
            trace.get_tracer_provider().shutdown()
            sys.stdout.write(repr(sorted(tracekit.faults())))
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    """
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    fresh = _script(tmp_path, code.format(store=first, before=""))
    assert (fresh.returncode, fresh.stdout) == (0, "[]"), fresh.stderr
    assert len(_rows(Store.open(first), "requests")) == 2
    # who wrote before cannot have children that do: it says so, and no more
    before = "call(); trace = __import__('opentelemetry.trace').trace; "
    before += "trace.get_tracer_provider().force_flush()"
    late = _script(tmp_path, code.format(store=second, before=before))
    assert late.returncode == 0, late.stderr
    assert "ForkedError" in late.stdout and "panicked" not in late.stderr
    assert "spawn or forkserver" in late.stderr
    assert len(_rows(Store.open(second), "requests")) == 2


def test_without_the_extra_configure_says_what_to_install(tmp_path: Path) -> None:
    done = _script(
        tmp_path,
        """
        import sys
        class Block:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {"deltalake", "duckdb", "pyarrow", "orjson", "numpy"}:
                    raise ModuleNotFoundError(name, name=name)
        sys.meta_path.insert(0, Block())
        import tracekit
        from tracekit.errors import UsageError
        try:
            tracekit.configure(store="s")
        except UsageError as error:
            print(error)
        with tracekit.request("chat"):
            pass
        """,
        OTEL_TRACES_EXPORTER="none",
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'tracekit-llm[analysis]'" in done.stdout


@pytest.mark.parametrize("where", ["a%20b", "file", "file/below", "full"])
def test_what_can_be_no_store_is_told_at_once(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_text("x")
    monkeypatch.setattr(setup, "_agent", None)
    with pytest.raises(UsageError):
        tracekit.configure(store=tmp_path / where)
    assert setup._agent is None


def test_an_applications_provider_gets_the_store_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "_agent", None)
    provider = TracerProvider(shutdown_on_exit=False)
    tracekit.configure(tracer_provider=provider, store=tmp_path / "store")
    with tracekit.request("chat", model="m") as r:
        r.token()
    provider.shutdown()
    assert len(_rows(Store.open(tmp_path / "store"), "requests")) == 1
