"""Store, Snapshot and StoreReader: what lands, what a reader sees, what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from hypothesis import given
from hypothesis import strategies as st

from tracekit.errors import SourceError, UsageError
from tracekit.lake import _commit
from tracekit.lake._files import ROW_GROUP_ROWS, file_schema, write_file
from tracekit.lake.schema import TABLES
from tracekit.lake.store import FileInfo, Snapshot, Store, StoreReader, default_store_path

MakeRows = Callable[..., pa.Table]
Query = Callable[[Snapshot, str], list[tuple[Any, ...]]]
StartWorker = Callable[..., "subprocess.Popen[str]"]


def test_a_batch_of_several_dates_is_one_commit_and_reads_back_whole(
    store: Store, make_rows: MakeRows, query: Query
) -> None:
    rows = make_rows(
        "spans",
        3,
        name=["a", "b", "c"],
        start_unix_ns=[1, 2, 3],
        date=["2026-11-01", "2026-11-02", "2026-11-01"],
    )
    assert store.append("spans", rows) is True
    snapshot = store.snapshot("spans")
    assert [(f.date, f.rows) for f in snapshot.files] == [("2026-11-01", 2), ("2026-11-02", 1)]
    assert snapshot.version == 1  # version 0 made the table
    assert snapshot.rows == 3
    assert sorted(query(snapshot, "name, start_unix_ns, date, typeof(date)")) == [
        ("a", 1, "2026-11-01", "VARCHAR"),
        ("b", 2, "2026-11-02", "VARCHAR"),
        ("c", 3, "2026-11-01", "VARCHAR"),
    ]


@pytest.mark.parametrize("table", TABLES)
def test_every_table_round_trips_and_its_empty_scan_has_the_same_shape(
    table: str, store: Store, make_rows: MakeRows, query: Query
) -> None:
    shape = "* EXCLUDE (date), date"
    empty = store.snapshot(table)
    assert (empty.version, empty.files) == (-1, ())
    assert query(empty, "count(*)") == [(0,)]
    values: dict[str, Any] = {
        c.name: {"BIGINT": 2**62 + 1, "INTEGER": 7, "DOUBLE": 0.1, "VARCHAR": "한글 'q'"}[c.type]
        for c in TABLES[table].columns
        if c.name != "date"
    }
    store.append(table, make_rows(table, 1, **values))
    expected = tuple([*values.values(), "2026-11-01"])
    assert query(store.snapshot(table), shape) == [expected]


@pytest.mark.parametrize("table", TABLES)
def test_the_log_keeps_min_max_and_nulls_of_every_time_column(
    table: str, store: Store, make_rows: MakeRows
) -> None:
    # Delta's default keeps them for the first 32 columns only; ours come later.
    names = [
        c.name
        for c in TABLES[table].columns
        if c.name.endswith("_unix_ns") or c.name in ("revision", "supersedes_revision")
    ]
    big = 1_790_000_000_123_456_789  # more digits than a float keeps
    columns: dict[str, Any] = {n: [big + i, None, big - i] for i, n in enumerate(names)}
    store.append(table, make_rows(table, 3, **columns))
    _commit.checkpoint(store.table_path(table))  # statistics must survive one
    (file,) = store.snapshot(table).files
    assert file.stats == {n: (big - i, big + i) for i, n in enumerate(names)}
    assert file.nulls == dict.fromkeys(names, 1)
    assert file.size_bytes == Path(file.path).stat().st_size
    assert abs(file.written_unix_ns - time.time_ns()) < 60e9
    if table == "requests":
        assert {"ingested_unix_ns", "start_unix_ns", "settled_unix_ns", "revision"} <= set(names)


def test_files_are_zstd_with_bounded_row_groups(store: Store, make_rows: MakeRows) -> None:
    count = ROW_GROUP_ROWS + 10
    store.append("token_gaps", make_rows("token_gaps", count, gap_index=range(count)))
    (path,) = store.snapshot("token_gaps").paths
    meta = pq.read_metadata(path)
    groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
    assert [g.num_rows for g in groups] == [ROW_GROUP_ROWS, 10]
    assert {groups[0].column(i).compression for i in range(meta.num_columns)} == {"ZSTD"}
    assert pq.read_schema(path).equals(file_schema("token_gaps"))


def test_the_key_has_a_dictionary_where_it_repeats(store: Store, make_rows: MakeRows) -> None:
    def encodings(table: str, keys: list[str]) -> set[str]:
        store.append(table, make_rows(table, len(keys), request_key=keys))
        meta = pq.read_metadata(store.snapshot(table).paths[0])
        column = file_schema(table).get_field_index("request_key")
        return set(meta.row_group(meta.num_row_groups - 1).column(column).encodings)

    # as the phases of a request lie: seven rows of each key
    repeated = [f"{i // 7:032x}" for i in range(ROW_GROUP_ROWS * 2)]
    assert encodings("phases", repeated) == {"RLE", "PLAIN", "RLE_DICTIONARY"}
    assert encodings("requests", [f"{i:032x}" for i in range(10)]) == {"RLE", "PLAIN"}


def test_columns_come_in_any_order_and_are_cast(
    store: Store, make_rows: MakeRows, query: Query
) -> None:
    rows = make_rows("spans", 2, kind=[1, 2], name=["a", "b"])
    shuffled = rows.select(rows.column_names[::-1])
    at = shuffled.column_names.index("kind")
    wide = shuffled.set_column(at, "kind", pa.array([1, 2], pa.int64()))
    at = wide.column_names.index("name")
    store.append("spans", wide.set_column(at, "name", wide["name"].dictionary_encode()))
    assert sorted(query(store.snapshot("spans"), "kind, name")) == [(1, "a"), (2, "b")]


def test_rows_of_another_shape_are_refused_and_nothing_lands(
    store: Store, make_rows: MakeRows
) -> None:
    good = make_rows("spans", 1)
    at = good.column_names.index("kind")
    bad = {
        r"missing columns \['kind'\]": good.drop_columns(["kind"]),
        r"unknown \['mystery'\]": good.append_column("mystery", [["x"]]),
        "do not fit": good.set_column(at, "kind", pa.array([2**40], pa.int64())),
        "found None": make_rows("spans", 1, date=None),
        "found '2026-1-1'": make_rows("spans", 1, date="2026-1-1"),
        "found '2026-02-30'": make_rows("spans", 1, date="2026-02-30"),
        "found '../2026'": make_rows("spans", 1, date="../2026"),
    }
    for message, rows in bad.items():
        with pytest.raises(UsageError, match=message):
            store.append("spans", rows)
    with pytest.raises(UsageError, match="no table 'span'"):
        store.append("span", good)
    assert store.snapshot("spans").version == -1


# -- transactions --


def test_a_transaction_lands_once_and_older_ones_are_refused(
    store: Store, make_rows: MakeRows
) -> None:
    rows = make_rows("spans", 2)
    assert store.txn_version("spans", "spool") is None
    assert store.append("spans", rows, txn=("spool", 5)) is True
    assert store.append("spans", rows, txn=("spool", 5)) is False
    assert store.append("spans", rows, txn=("spool", 4)) is False
    assert store.append("spans", rows, txn=("other", 4)) is True
    assert store.append("log_records", make_rows("log_records", 1), txn=("spool", 5)) is True
    assert store.txn_version("spans", "spool") == 5
    assert store.snapshot("spans").rows == 4
    assert Store.open(store.path).append("spans", rows, txn=("spool", 6)) is True
    assert store.snapshot("spans").rows == 6


def test_no_rows_record_the_transaction_without_a_file(store: Store, make_rows: MakeRows) -> None:
    none = make_rows("spans", 0)
    assert store.append("spans", none) is True
    assert store.snapshot("spans").version == -1
    assert store.append("spans", none, txn=("spool", 1)) is True
    assert store.append("spans", none, txn=("spool", 1)) is False
    snapshot = store.snapshot("spans")
    assert (snapshot.version, snapshot.files) == (1, ())
    assert not list(store.table_path("spans").rglob("*.parquet"))


def test_transactions_outlive_checkpoints_and_log_clean_up(
    store: Store, make_rows: MakeRows
) -> None:
    for seq in range(1, 31):
        store.append("spans", make_rows("spans", 1), txn=("spool", seq))
    table_path = store.table_path("spans")
    log = table_path / "_delta_log"
    assert list(log.glob("*.checkpoint.parquet"))  # written by the appends themselves
    for entry in log.glob("*.json"):
        os.utime(entry, (0, 0))
    _commit.checkpoint(table_path)
    DeltaTable(table_path).cleanup_metadata()
    assert not (log / f"{1:020d}.json").exists()
    assert store.append("spans", make_rows("spans", 1), txn=("spool", 30)) is False
    assert store.snapshot("spans").rows == 30


def test_two_writers_that_both_found_the_transaction_absent_land_it_once(
    store: Store, make_rows: MakeRows
) -> None:
    path = store.table_path("spans")
    store.append("spans", make_rows("spans", 1))
    part = make_rows("spans", 1).drop_columns(["date"])
    handles = [_commit.create_table(path, "spans") for _ in range(2)]
    adds = [write_file(path, "spans", "2026-11-01", [part], data_change=True) for _ in range(2)]
    assert not any(_commit.has_landed(h, ("spool", 1)) for h in handles)
    landed = [
        _commit.commit_append(path, "spans", [add], ("spool", 1), handle=handle)
        for handle, add in zip(handles, adds, strict=True)
    ]
    assert landed == [True, False]
    assert store.snapshot("spans").rows == 2


def test_processes_racing_with_one_transaction_land_it_once(
    store: Store, start_worker: StartWorker, query: Query
) -> None:
    racers = [start_worker("racer", store.path, name) for name in ("a", "b")]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    rounds = range(1, 16)
    answers = []
    for number in rounds:  # the first also races to create the table
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(f"{number}\n")
            racer.stdin.flush()
        answers.append(sorted(r.stdout.readline().strip() for r in racers if r.stdout))
    assert answers == [["False", "True"]] * len(rounds)
    found = query(
        store.snapshot("token_gaps"), "revision, count(*), count(DISTINCT request_key) GROUP BY 1"
    )
    assert sorted(found) == [(number, 200, 1) for number in rounds]


# -- snapshots --

_BOUNDS = st.none() | st.integers(0, 30)


@given(
    files=st.lists(st.lists(st.none() | st.integers(0, 30), min_size=1, max_size=4), max_size=6),
    low=_BOUNDS,
    high=_BOUNDS,
)
def test_select_never_loses_a_row_of_the_window(
    files: list[list[int | None]], low: int | None, high: int | None
) -> None:
    infos = []
    for i, values in enumerate(files):
        known = [v for v in values if v is not None]
        bounds = (min(known), max(known)) if known else (None, None)
        nulls = len(values) - len(known)
        infos.append(FileInfo(str(i), "d", len(values), 1, {"t": bounds}, {"t": nulls}))
    selected = Snapshot("spans", 1, tuple(infos)).select("t", low, high)
    for i, values in enumerate(files):
        wanted = any(
            v is None or ((low is None or v >= low) and (high is None or v <= high)) for v in values
        )
        kept = str(i) in selected.paths
        assert kept or not wanted
        if kept and not wanted and low is not None and high is not None and low <= high:
            assert min(v for v in values if v is not None) < low  # it spans the window
            assert max(v for v in values if v is not None) > high


def test_select_keeps_files_without_statistics() -> None:
    bare = FileInfo("x", "d", 1, 1, {})
    snapshot = Snapshot("spans", 1, (bare,))
    assert snapshot.select("start_unix_ns", 5, 6) == snapshot


def test_a_reader_follows_appends_of_others_and_returns_the_same_object_when_idle(
    store: Store, make_rows: MakeRows
) -> None:
    reader = StoreReader(store)
    assert reader.snapshot("spans").version == -1
    for count in range(1, 100):  # past the point where the reader opens the table anew
        Store.open(store.path).append("spans", make_rows("spans", 1))
        snapshot = reader.snapshot("spans")
        assert (snapshot.version, snapshot.rows) == (count, count)
        assert reader.snapshot("spans") is snapshot


def test_a_reader_that_slept_through_log_clean_up_still_sees_everything(
    store: Store, make_rows: MakeRows, query: Query
) -> None:
    reader = StoreReader(store)
    store.append("spans", make_rows("spans", 1, name="first"))
    before = reader.snapshot("spans")
    for _ in range(45):
        store.append("spans", make_rows("spans", 1))
    log = store.table_path("spans") / "_delta_log"
    for entry in [*log.glob("*.json"), *log.glob("*.checkpoint.parquet")]:
        os.utime(entry, (0, 0))
    _commit.checkpoint(store.table_path("spans"))
    DeltaTable(store.table_path("spans")).cleanup_metadata()
    assert not (log / f"{before.version + 1:020d}.json").exists()
    store.append("spans", make_rows("spans", 1))
    assert reader.snapshot("spans").rows == 47
    assert query(before, "name") == [("first",)]


def test_a_reader_whose_handle_cannot_follow_opens_the_table_anew(
    store: Store, make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append("spans", make_rows("spans", 1))
    reader = StoreReader(store)
    assert reader.snapshot("spans").rows == 1
    store.append("spans", make_rows("spans", 1))

    def lost(_: DeltaTable) -> None:
        raise DeltaError("log entry not found")

    monkeypatch.setattr(DeltaTable, "update_incremental", lost)
    assert reader.snapshot("spans").rows == 2


def test_a_table_with_reader_features_is_refused(
    store: Store, make_rows: MakeRows, query: Query
) -> None:
    store.append("spans", make_rows("spans", 1))
    reader = StoreReader(store)
    reader.snapshot("spans")
    protocol = {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        }
    }
    log = store.table_path("spans") / "_delta_log"
    (log / f"{2:020d}.json").write_text(json.dumps(protocol) + "\n")
    for act in (store.snapshot, reader.snapshot, lambda t: store.append(t, make_rows(t, 1))):
        with pytest.raises(SourceError, match="deletionVectors"):
            act("spans")


def test_a_table_with_other_columns_is_refused(store: Store, make_rows: MakeRows) -> None:
    schema = TABLES["spans"].schema.remove(3).append(pa.field("new_column", pa.string()))
    path = store.table_path("spans")
    DeltaTable.create(path, Schema.from_arrow(schema), partition_by=["date"])
    append = partial(store.append, rows=make_rows("spans", 1))
    for act in (append, store.snapshot, StoreReader(store).snapshot):
        with pytest.raises(SourceError, match=r"missing \['name'\], unknown \['new_column'\]"):
            act("spans")


def test_an_unreadable_log_is_one_error_that_names_the_table(
    store: Store, make_rows: MakeRows
) -> None:
    store.append("spans", make_rows("spans", 1))
    entry = store.table_path("spans") / "_delta_log" / f"{1:020d}.json"
    entry.write_text('{"add": {"path": "date=2026')
    with pytest.raises(SourceError, match="spans"):
        store.snapshot("spans")


def test_a_commit_lost_with_the_power_is_a_commit_of_nothing(
    store: Store, make_rows: MakeRows
) -> None:
    # What a file system keeps of an entry that was linked but never synced: an empty file.
    store.append("spans", make_rows("spans", 1), txn=("spool", 1))
    (store.table_path("spans") / "_delta_log" / f"{2:020d}.json").write_text("")
    assert store.append("spans", make_rows("spans", 1), txn=("spool", 2)) is True
    assert store.snapshot("spans").rows == 2


def test_a_disk_that_refuses_the_file_raises_and_leaves_nothing(
    store: Store, make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append("spans", make_rows("spans", 1))

    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", no_space)
    with pytest.raises(OSError, match="No space left"):
        store.append("spans", make_rows("spans", 5))
    assert len(list(store.table_path("spans").rglob("*/*.parquet"))) == 1
    assert store.snapshot("spans").rows == 1


def test_a_disk_that_refuses_the_commit_leaves_no_file_behind(
    store: Store, make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append("spans", make_rows("spans", 1))

    def no_space(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_commit, "_commit", no_space)
        with pytest.raises(OSError, match="No space left"):
            store.append("spans", make_rows("spans", 5), txn=("spool", 1))
    assert len(list(store.table_path("spans").rglob("*/*.parquet"))) == 1
    assert store.append("spans", make_rows("spans", 5), txn=("spool", 1)) is True


def test_a_checkpoint_that_fails_does_not_fail_the_append(
    store: Store,
    make_rows: MakeRows,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def no_space(_: DeltaTable) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(DeltaTable, "create_checkpoint", no_space)
    for seq in range(1, 25):
        assert store.append("spans", make_rows("spans", 1), txn=("spool", seq)) is True
    assert store.snapshot("spans").rows == 24
    assert "no checkpoint written for spans" in caplog.text


def test_a_commit_is_synced_before_append_returns(
    store: Store, make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append("spans", make_rows("spans", 1))
    synced: set[str] = set()
    real = os.fsync

    def record(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", record)
    store.append("spans", make_rows("spans", 1, date="2026-11-05"))
    table = store.table_path("spans")
    (new,) = [p for p in store.snapshot("spans").paths if "2026-11-05" in p]
    log = table / "_delta_log"
    assert {new, str(Path(new).parent), str(log / f"{2:020d}.json"), str(log)} <= synced
    assert str(table) in synced  # the new partition's own entry


# -- opening --


def test_open_says_how_to_make_a_store_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"no tracekit store at {tmp_path}.*tracekit import"):
        Store.open(tmp_path)
    made = Store.open(tmp_path / "deep" / "store", create=True)
    assert Store.open(made.path).path == made.path
    assert Store.open(made.path, create=True).path == made.path


def test_open_refuses_to_make_a_store_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(UsageError, match=r"thesis\.txt"):
        Store.open(tmp_path, create=True)
    with pytest.raises(UsageError, match="is a file"):
        Store.open(tmp_path / "thesis.txt", create=True)
    with pytest.raises(UsageError, match="'%'"):
        Store.open(tmp_path / "a%20b", create=True)


def test_open_refuses_newer_and_broken_markers(store: Store) -> None:
    marker = store.path / "tracekit-store.json"
    marker.write_text('{"format": 99}')
    with pytest.raises(SourceError, match=r"format 99.*upgrade"):
        Store.open(store.path)
    marker.write_text("{")
    with pytest.raises(SourceError, match="not a tracekit store"):
        Store.open(store.path)


@pytest.mark.parametrize("name", ["with space", "ü한", "br[1]*", "x=1", "it's"])
def test_odd_store_paths_work(name: str, tmp_path: Path, make_rows: MakeRows, query: Query) -> None:
    store = Store.open(tmp_path / name, create=True)
    store.append("spans", make_rows("spans", 1, name="a"))
    snapshot = store.snapshot("spans")
    assert query(snapshot, "name, date") == [("a", "2026-11-01")]
    assert len(query(snapshot, "*")[0]) == len(TABLES["spans"].columns)


def test_the_default_store_path_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACEKIT_STORE", str(tmp_path / "here"))
    assert default_store_path() == tmp_path / "here"
    monkeypatch.delenv("TRACEKIT_STORE")
    assert default_store_path().name == "tracekit"
