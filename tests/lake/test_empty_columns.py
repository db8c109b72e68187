"""A column that is NULL in every row of large files is not read: its footer says so."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from tests.lake.conftest import MakeRows, Query
from tracekit.lake import store as store_module
from tracekit.lake._files import without_values
from tracekit.lake.store import Store


@pytest.fixture
def two_files(tmp_path: Path, make_rows: MakeRows) -> Store:
    """Two files of three rows: ``kv_bytes`` in neither, ``preemptions`` only in the second."""
    store = Store.open(tmp_path / "store", create=True)
    store.append("requests", make_rows("requests", 3, request_key="a"))
    store.append("requests", make_rows("requests", 3, request_key="b", preemptions=2))
    return store


def test_a_footer_tells_which_columns_hold_nothing(two_files: Store) -> None:
    first, second = (f.path for f in two_files.snapshot("requests").files)
    assert {"kv_bytes", "preemptions"} <= without_values(first)
    assert "kv_bytes" in without_values(second) and "preemptions" not in without_values(second)
    assert "request_key" not in without_values(first)


def test_only_what_no_file_holds_is_not_read(
    two_files: Store, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = two_files.snapshot("requests")
    seen = "count(*), count(kv_bytes), sum(preemptions), count(request_key)"
    plain, sql = query(snapshot, seen), snapshot.scan_sql()
    assert '"kv_bytes", ' in sql  # a footer costs more than a few rows
    monkeypatch.setattr(store_module, "_FOOTER_ROWS", 1)
    assert 'AS "kv_bytes"' in snapshot.scan_sql() and 'AS "preemptions"' not in snapshot.scan_sql()
    assert query(snapshot, seen) == plain == [(6, 0, 6, 6)]


def test_a_file_that_is_gone_is_missed_by_who_reads_it(
    two_files: Store, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever held a snapshot too long catches DuckDB's error, as ever."""
    monkeypatch.setattr(store_module, "_FOOTER_ROWS", 1)
    snapshot = two_files.snapshot("requests")
    Path(snapshot.paths[0]).unlink()
    with pytest.raises(duckdb.IOException):
        query(snapshot, "count(*)")
