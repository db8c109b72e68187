"""Rows that are stamped and not yet committed are known to whoever settles."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tracekit.lake.schema import TABLES
from tracekit.lake.stamping import WATERMARK_APP, oldest_stamp_unix_ns, stamping
from tracekit.lake.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def _left(store: Store) -> list[str]:
    return os.listdir(store.path / ".stamping")


def test_nothing_is_on_its_way_in_a_new_store(store: Store) -> None:
    assert oldest_stamp_unix_ns(store) is None


def test_a_stamp_is_named_while_its_rows_are_on_their_way(store: Store) -> None:
    before = time.time_ns()
    with stamping(store) as first:
        assert before <= first <= time.time_ns()
        with stamping(store) as second:
            oldest = oldest_stamp_unix_ns(store)
            assert oldest is not None and oldest <= first <= second
            # near the truth, or the watermark would stand still
            assert oldest >= before - 3_000_000_000
    assert oldest_stamp_unix_ns(store) is None
    assert _left(store) == []


def test_a_commit_that_fails_holds_nothing_up(store: Store) -> None:
    with pytest.raises(OSError, match="full"), stamping(store):
        raise OSError("full")
    assert oldest_stamp_unix_ns(store) is None


def test_a_killed_writer_holds_nothing_up(store: Store) -> None:
    code = (
        "import sys, time; from tracekit.lake.store import Store; "
        "from tracekit.lake.stamping import stamping\n"
        "with stamping(Store.open(sys.argv[1])):\n print('in', flush=True); time.sleep(60)"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(store.path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None and writer.stdout.readline() == "in\n"
    assert oldest_stamp_unix_ns(store) is not None
    writer.kill()
    writer.wait()
    writer.stdout.close()
    assert oldest_stamp_unix_ns(store) is None
    assert _left(store) == []


def test_a_clock_set_back_stamps_no_row_before_the_watermark(store: Store) -> None:
    ahead = time.time_ns() + 3_600_000_000_000
    empty: pa.Table = TABLES["requests"].schema.empty_table()
    store.append("requests", empty, txn=(WATERMARK_APP, ahead))
    with stamping(store) as now_unix_ns:
        assert now_unix_ns >= ahead
