"""Rows, stores and helper processes for the lake's tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import tracekit
from tracekit.lake.schema import TABLES
from tracekit.lake.store import Snapshot, Store

WORKER = Path(__file__).with_name("worker.py")

MakeRows = Callable[..., pa.Table]
Query = Callable[[Snapshot, str], list[tuple[Any, ...]]]
StartWorker = Callable[..., "subprocess.Popen[str]"]


def _make_rows(table: str, count: int, /, **columns: Any) -> pa.Table:
    """``count`` rows of a table: NULL everywhere but in ``columns`` (a value, or one a row)."""
    columns.setdefault("date", "2026-11-01")
    data = {}
    for field in TABLES[table].schema:
        value = columns.get(field.name)
        values = list(value) if isinstance(value, list | range) else [value] * count
        data[field.name] = pa.array(values, field.type)
    return pa.table(data)


@pytest.fixture(scope="session")
def make_rows() -> MakeRows:
    return _make_rows


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


@pytest.fixture(scope="session")
def query() -> Iterator[Query]:
    """Run ``SELECT <text> FROM <the snapshot>`` in DuckDB."""
    with duckdb.connect() as con:

        def run(snapshot: Snapshot, text: str) -> list[tuple[Any, ...]]:
            head, _, tail = text.partition(" GROUP ")
            group = f" GROUP {tail}" if tail else ""
            return con.execute(f"SELECT {head} FROM ({snapshot.scan_sql()}){group}").fetchall()

        yield run


@pytest.fixture
def start_worker() -> Iterator[StartWorker]:
    """Start ``worker.py ROLE ARGS...`` as a process of its own; killed when the test ends."""
    started: list[subprocess.Popen[str]] = []
    root = str(Path(tracekit.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}

    def start(role: str, *args: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(WORKER), role, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
