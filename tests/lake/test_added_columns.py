"""Tables of an older version lack columns that were added since: they read as NULL."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.lake.conftest import MakeRows, Query
from tracekit.lake import maintain, schema
from tracekit.lake.schema import TABLES
from tracekit.lake.store import Snapshot, Store, StoreReader

ADDED = "double_prefill_ms"


@pytest.fixture(params=[1, 2])
def old_store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    make_rows: MakeRows,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A store whose `requests` was written before `ADDED` was thought of: two files."""
    now = TABLES["requests"]
    then: int = request.param
    old_columns = tuple(c for c in now.columns if c.name not in now.added_after(then))
    added = {
        table: {c: since for c, since in columns.items() if since <= then}
        for table, columns in schema._ADDED.items()
    }
    old = schema.Table(now.name, now.kind, now.doc, old_columns)
    with monkeypatch.context() as patch:
        patch.setitem(schema.TABLES, "requests", old)
        patch.setattr(schema, "_ADDED", added)
        _forget_shapes()
        store = Store.open(tmp_path / "store", create=True)
        for number in range(2):
            store.append("requests", make_rows("requests", 3, revision=number))
        (path, _) = store.snapshot("requests").paths
    _forget_shapes()
    assert ADDED not in pq.read_schema(path).names
    return store.path


def _forget_shapes() -> None:
    from tracekit.lake import _files

    for cached in (_files.stats_columns, _files.file_schema, _files._writer_options):
        cached.cache_clear()


def _seen(snapshot: Snapshot, query: Query) -> list[tuple[object, ...]]:
    return sorted(
        query(snapshot, f"revision, {ADDED}, count(*) GROUP BY revision, {ADDED}"), key=str
    )


OLD = [(0, None, 3), (1, None, 3)]


def test_they_are_read_as_they_are(old_store: Path, query: Query) -> None:
    store = Store.open(old_store)
    for snapshot in (store.snapshot("requests"), StoreReader(store).snapshot("requests")):
        assert _seen(snapshot, query) == OLD
        assert query(snapshot, "* EXCLUDE (date), date")[0][-1] == "2026-11-01"
    # reading changes nothing
    assert store.snapshot("requests").version == 2


def test_new_rows_beside_old_ones(old_store: Path, make_rows: MakeRows, query: Query) -> None:
    store = Store.open(old_store)
    reader = StoreReader(store)
    assert _seen(reader.snapshot("requests"), query) == OLD
    rows = make_rows("requests", 2, revision=2, **{ADDED: 7.5})
    assert store.append("requests", rows, txn=("app", 1))
    assert not store.append("requests", rows, txn=("app", 1))
    assert _seen(store.snapshot("requests"), query) == [*OLD, (2, 7.5, 2)]
    assert _seen(reader.snapshot("requests"), query) == [*OLD, (2, 7.5, 2)]
    # other readers of the table see the column, and it needs no newer protocol
    handle = DeltaTable(store.table_path("requests"))
    assert ADDED in pa.schema(handle.schema().to_arrow()).names
    assert handle.protocol().min_reader_version == 1
    # the columns are added once, whoever comes next
    version = handle.version()
    Store.open(old_store).append("requests", rows, txn=("app", 2))
    assert store.snapshot("requests").version == version + 1


def test_compaction_and_retention_before_and_after(
    old_store: Path, make_rows: MakeRows, query: Query
) -> None:
    store = Store.open(old_store)
    assert maintain.compact(store, max_small_files=1)
    assert _seen(store.snapshot("requests"), query) == OLD
    store.append("requests", make_rows("requests", 2, revision=2, **{ADDED: 7.5}))
    assert _seen(store.snapshot("requests"), query) == [*OLD, (2, 7.5, 2)]
    maintain.compact(store, max_small_files=1)
    (file,) = store.snapshot("requests").files
    assert file.lacks == frozenset()
    assert _seen(store.snapshot("requests"), query) == [*OLD, (2, 7.5, 2)]


def test_files_that_another_tool_compacted(
    old_store: Path, make_rows: MakeRows, query: Query
) -> None:
    store = Store.open(old_store)
    handle = DeltaTable(store.table_path("requests"))
    handle.optimize.compact()
    assert _seen(store.snapshot("requests"), query) == OLD
    store.append("requests", make_rows("requests", 2, revision=2, **{ADDED: 7.5}))
    assert _seen(store.snapshot("requests"), query) == [*OLD, (2, 7.5, 2)]
    DeltaTable(store.table_path("requests")).optimize.compact()
    assert len(store.snapshot("requests").files) == 1
    assert _seen(store.snapshot("requests"), query) == [*OLD, (2, 7.5, 2)]
