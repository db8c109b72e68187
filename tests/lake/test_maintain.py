"""Compaction, vacuum, retention, info, export: what they change and what they must not."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.errors import SourceError, UsageError
from tracekit.lake import _commit, _rewrite, maintain
from tracekit.lake._files import ROW_GROUP_ROWS, write_file
from tracekit.lake.lock import exclusive
from tracekit.lake.schema import TABLES
from tracekit.lake.store import FileInfo, Snapshot, Store, StoreReader

MakeRows = Callable[..., pa.Table]
Query = Callable[[Snapshot, str], list[tuple[Any, ...]]]

_HOUR_NS = 3600 * 10**9


def _fill(store: Store, make_rows: MakeRows, files: int, rows: int = 3, **columns: Any) -> None:
    for i in range(files):
        store.append("spans", make_rows("spans", rows, name=f"n{i}", ingested_unix_ns=i, **columns))


# -- compaction --


def test_compaction_keeps_every_row_and_its_statistics(
    store: Store, make_rows: MakeRows, query: Query
) -> None:
    _fill(store, make_rows, 10, start_unix_ns=[5, None, 9])
    _fill(store, make_rows, 3, date="2026-11-02")
    before = store.snapshot("spans")
    wanted = sorted(query(before, "name, start_unix_ns, ingested_unix_ns, date"), key=str)
    (done,) = maintain.compact(store, max_small_files=4)
    after = store.snapshot("spans")
    assert (done.table, done.files_before, done.files_after) == ("spans", 13, 4)
    assert done.bytes_after < done.bytes_before
    assert [f.rows for f in after.files if f.date == "2026-11-01"] == [30]
    assert len([f for f in after.files if f.date == "2026-11-02"]) == 3  # few: left alone
    merged = after.files[0]
    assert merged.stats["ingested_unix_ns"] == (0, 9)
    assert merged.stats["start_unix_ns"] == (5, 9)
    assert merged.nulls["start_unix_ns"] == 10
    for snapshot in (after, before):  # and who holds the old snapshot still reads it
        found = query(snapshot, "name, start_unix_ns, ingested_unix_ns, date")
        assert sorted(found, key=str) == wanted
    order = pq.read_table(merged.path, columns=["ingested_unix_ns"])["ingested_unix_ns"]
    assert order.to_pylist() == sorted(order.to_pylist())  # in the order it came in
    assert maintain.compact(store, max_small_files=4) == []


def test_compaction_is_no_change_of_data_for_followers_of_the_log(
    store: Store, make_rows: MakeRows
) -> None:
    _fill(store, make_rows, 5)
    maintain.compact(store, max_small_files=2)
    log = store.table_path("spans") / "_delta_log" / f"{6:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    kinds = [k for action in actions for k in action if k in ("add", "remove")]
    assert sorted(kinds) == ["add"] + ["remove"] * 5
    for action in actions:
        for kind in ("add", "remove"):
            if kind in action:
                assert action[kind]["dataChange"] is False


def test_compacted_files_end_near_the_target_and_are_then_left_alone(
    store: Store, make_rows: MakeRows
) -> None:
    noise = [os.urandom(150).hex() for _ in range(100)]
    for _ in range(40):
        store.append("spans", make_rows("spans", 100, attributes=noise))
    size = store.snapshot("spans").files[0].size_bytes
    target = size * 10
    maintain.compact(store, target_bytes=target, max_small_files=4)
    sizes = [f.size_bytes for f in store.snapshot("spans").files]
    assert len(sizes) <= 8
    assert max(sizes) <= target
    assert maintain.compact(store, target_bytes=target, max_small_files=4) == []


@given(
    sizes=st.lists(st.integers(1, 60), max_size=60),
    limit=st.integers(1, 20),
    target=st.integers(40, 240),
)
def test_groups_hold_each_file_once_and_merge_mostly_new_bytes(
    sizes: list[int], limit: int, target: int
) -> None:
    files = [FileInfo(str(i), "d", 1, size, {}) for i, size in enumerate(sizes)]
    small = _rewrite.small_files(files, target)
    assert all(f.size_bytes < target / 4 for f in small)
    groups = list(_rewrite._groups(list(small), limit, target))
    members = [f.path for group in groups for f in group]
    assert len(members) == len(set(members))
    assert set(members) <= {f.path for f in small}
    if len(small) <= limit:
        assert not groups
    for group in groups:
        assert len(group) > 1
        assert sum(f.size_bytes for f in group) <= target
    if len(small) > max(limit, 2):
        assert groups  # a trigger always makes progress


def test_a_trickle_does_not_rewrite_the_big_file_each_time(
    store: Store, make_rows: MakeRows
) -> None:
    noise = [os.urandom(500).hex() for _ in range(300)]
    store.append("spans", make_rows("spans", 300, attributes=noise))
    (big,) = store.snapshot("spans").files
    _fill(store, make_rows, 6, rows=1)
    maintain.compact(store, max_small_files=4)
    paths = store.snapshot("spans").paths
    assert big.path in paths
    assert len(paths) == 2


def test_compaction_copies_whole_row_groups_and_joins_pieces(
    store: Store, make_rows: MakeRows
) -> None:
    counts = [ROW_GROUP_ROWS - 5, 7, ROW_GROUP_ROWS]
    start = 0
    for count in counts:
        rows = make_rows("token_gaps", count, gap_index=range(start, start + count), revision=1)
        store.append("token_gaps", rows)
        start += count
    files = store.snapshot("token_gaps").files
    assert _rewrite._replace(store, "token_gaps", "2026-11-01", files, keep_from=None)
    (path,) = store.snapshot("token_gaps").paths
    meta = pq.read_metadata(path)
    sizes = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
    assert sizes == [ROW_GROUP_ROWS, ROW_GROUP_ROWS, 2]
    found = pq.read_table(path, columns=["gap_index"])["gap_index"].to_pylist()
    assert sorted(found) == list(range(sum(counts)))


def test_quiet_partitions_are_tidied_sooner(store: Store, make_rows: MakeRows) -> None:
    _fill(store, make_rows, 12)
    snapshot = store.snapshot("spans")
    options: dict[str, int] = {"target_bytes": 1 << 20, "max_small_files": 64}
    now = time.time_ns()
    busy = _rewrite.compact_table(store, snapshot, now_unix_ns=now, **options)
    assert busy.files_after == 12
    quiet = _rewrite.compact_table(store, snapshot, now_unix_ns=now + 2 * _HOUR_NS, **options)
    assert quiet.files_after == 1


def test_two_rewriters_of_the_same_files_change_them_once(
    store: Store, make_rows: MakeRows
) -> None:
    # delta-rs itself would let both through, and every row would be there twice.
    _fill(store, make_rows, 4)
    snapshot = store.snapshot("spans")
    first, second = (
        _rewrite._replace(store, "spans", "2026-11-01", snapshot.files, keep_from=None)
        for _ in range(2)
    )
    assert first is not None
    assert second is None
    assert store.snapshot("spans").rows == 12


def test_a_rewriter_that_checked_before_another_committed_does_nothing(
    store: Store, make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(store, make_rows, 4)
    files = store.snapshot("spans").files
    real = _commit._commit

    def other_first(*args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(_commit, "_commit", real)
        assert _rewrite._replace(store, "spans", "2026-11-01", files, keep_from=None)
        real(*args, **kwargs)

    monkeypatch.setattr(_commit, "_commit", other_first)
    assert _rewrite._replace(store, "spans", "2026-11-01", files, keep_from=None) is None
    assert store.snapshot("spans").rows == 12


def test_a_rewrite_gets_through_between_appends(
    store: Store, make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(store, make_rows, 4)
    snapshot = store.snapshot("spans")
    real, busy = _commit._commit, [2]

    def append_first(*args: Any, **kwargs: Any) -> None:
        if kwargs.get("retries") == 0 and busy[0]:
            busy[0] -= 1
            _fill(store, make_rows, 1)
        real(*args, **kwargs)

    monkeypatch.setattr(_commit, "_commit", append_first)
    assert _rewrite._replace(store, "spans", "2026-11-01", snapshot.files, keep_from=None)
    assert busy == [0]
    assert sorted(f.rows for f in store.snapshot("spans").files) == [3, 3, 12]


def test_a_file_with_fewer_rows_than_the_log_says_stops_compaction(
    store: Store, make_rows: MakeRows
) -> None:
    _fill(store, make_rows, 3)
    before = store.snapshot("spans")
    pq.write_table(pq.read_table(before.paths[0]).slice(0, 1), before.paths[0])
    with pytest.raises(SourceError, match="7 rows where the log says 9"):
        maintain.compact(store, max_small_files=1)
    assert store.snapshot("spans") == before


# -- vacuum --


def test_vacuum_spares_replaced_files_for_the_retention_then_deletes_them(
    store: Store, make_rows: MakeRows, query: Query
) -> None:
    _fill(store, make_rows, 5)
    held = store.snapshot("spans")
    for path in held.paths:  # old files, freshly replaced: it is the replacement that counts
        os.utime(path, (0, 0))
    maintain.compact(store, max_small_files=1)
    assert maintain.vacuum(store) == []
    assert query(held, "count(*)") == [(15,)]
    live = store.snapshot("spans")
    deadline = time.monotonic() + 20
    while not (done := maintain.vacuum(store, retention_s=1)):
        assert time.monotonic() < deadline
    assert [(v.table, v.files) for v in done] == [("spans", 5)]
    assert done[0].size_bytes == sum(f.size_bytes for f in held.files)
    assert not any(Path(p).exists() for p in held.paths)
    assert query(live, "count(*)") == query(store.snapshot("spans"), "count(*)") == [(15,)]
    assert maintain.vacuum(store, retention_s=1) == []


def test_a_checkpoint_does_not_make_vacuum_forget_when_a_file_was_replaced(
    store: Store, make_rows: MakeRows, query: Query
) -> None:
    _fill(store, make_rows, 5)
    held = store.snapshot("spans")
    for path in held.paths:
        os.utime(path, (0, 0))
    maintain.compact(store, max_small_files=1)
    log = store.table_path("spans") / "_delta_log"
    for entry in log.glob("*.json"):
        os.utime(entry, (0, 0))
    _commit.checkpoint(store.table_path("spans"))
    assert maintain.vacuum(store) == []
    assert not (log / f"{0:020d}.json").exists()
    assert maintain.vacuum(store) == []
    assert query(held, "count(*)") == [(15,)]


def test_vacuum_deletes_what_a_killed_writer_left_once_it_is_old(
    store: Store, make_rows: MakeRows
) -> None:
    _fill(store, make_rows, 1)
    table_path = store.table_path("spans")
    part = make_rows("spans", 4).drop_columns(["date"])
    young, old = (
        table_path / write_file(table_path, "spans", "2026-11-03", [part], data_change=True).path
        for _ in range(2)
    )
    past = time.time() - 2 * 3600
    os.utime(old, (past, past))
    assert [v.files for v in maintain.vacuum(store, dry_run=True)] == [1]
    assert old.exists()
    size = old.stat().st_size
    assert maintain.vacuum(store) == [maintain.Vacuumed("spans", 1, size)]
    assert young.exists()
    assert not old.exists()
    assert store.snapshot("spans").rows == 3


def test_vacuum_cleans_the_log_and_the_table_still_opens(store: Store, make_rows: MakeRows) -> None:
    _fill(store, make_rows, 30)
    log = store.table_path("spans") / "_delta_log"
    for entry in log.iterdir():
        os.utime(entry, (0, 0))
    maintain.vacuum(store)
    assert len(list(log.glob("*.json"))) <= 12
    assert store.snapshot("spans").rows == 90
    assert store.append("spans", make_rows("spans", 1))
    assert store.snapshot("spans").rows == 91


def test_vacuum_refuses_to_keep_nothing(store: Store) -> None:
    with pytest.raises(UsageError, match="1 s at least"):
        maintain.vacuum(store, retention_s=0)
    with pytest.raises(UsageError, match="no table 'span'"):
        maintain.vacuum(store, tables=["span"])


# -- retention --


def test_retention_drops_rows_by_the_time_they_came_in(
    store: Store, make_rows: MakeRows, query: Query
) -> None:
    hours = [0, 1, 2, 10, 11]
    for hour in hours:  # rows that speak of all times, and came in at `hour`
        store.append(
            "spans",
            make_rows(
                "spans",
                2,
                start_unix_ns=[1, 10**18],
                ingested_unix_ns=hour * _HOUR_NS,
                date=["1970-01-01", "2001-09-09"],
            ),
        )
    held = store.snapshot("spans")
    (done,) = maintain.retain(store, 4 * _HOUR_NS, now_unix_ns=12 * _HOUR_NS)
    assert (done.table, done.rows_dropped, done.files_after) == ("spans", 6, 4)
    found = query(store.snapshot("spans"), "DISTINCT ingested_unix_ns // 3600000000000")
    assert sorted(found) == [(10,), (11,)]
    assert query(held, "count(*)") == [(10,)]
    assert maintain.retain(store, 4 * _HOUR_NS, now_unix_ns=12 * _HOUR_NS) == []


def test_retention_is_exact_inside_a_compacted_file(
    store: Store, make_rows: MakeRows, query: Query
) -> None:
    # Revision 1 and 9 of other requests share a file; revision 2 of request a is alone. Dropping
    # whole files only would take revision 2 and bring revision 1 back.
    for key, revision in (("a", 1), ("b", 9)):
        store.append("requests", make_rows("requests", 1, request_key=key, revision=revision))
    maintain.compact(store, max_small_files=1)
    store.append("requests", make_rows("requests", 1, request_key="a", revision=2))
    store.append("phases", make_rows("phases", 3, request_key="a", revision=[1, 2, 9]))
    done = maintain.retain(store, 2, now_unix_ns=5)  # a step of 1 ns: cutoff at 3
    assert [(d.table, d.rows_dropped) for d in done] == [("requests", 2), ("phases", 2)]
    assert query(store.snapshot("requests"), "request_key, revision") == [("b", 9)]
    assert query(store.snapshot("phases"), "revision") == [(9,)]


def test_retention_works_in_steps_and_never_early(store: Store, make_rows: MakeRows) -> None:
    day = 24 * _HOUR_NS
    store.append(
        "spans", make_rows("spans", 60, ingested_unix_ns=range(0, 60 * 60 * 10**9, 60 * 10**9))
    )
    assert maintain.retain(store, day, now_unix_ns=day + _HOUR_NS // 2) == []
    (done,) = maintain.retain(store, day, now_unix_ns=day + _HOUR_NS)
    assert done.rows_dropped == 60


def test_max_bytes_drops_the_oldest_of_all_tables_and_leaves_some_room(
    store: Store, make_rows: MakeRows, query: Query
) -> None:
    noise = [os.urandom(200).hex() for _ in range(100)]
    for i in range(10):
        store.append("spans", make_rows("spans", 100, attributes=noise, ingested_unix_ns=2 * i))
        logs = make_rows("log_records", 100, body=noise, ingested_unix_ns=2 * i + 1)
        store.append("log_records", logs)
    total = maintain.info(store).size_bytes
    assert maintain.retain(store, max_bytes=total) == []
    maintain.retain(store, max_bytes=total // 2)
    after = maintain.info(store)
    assert total * 0.35 < after.size_bytes <= total // 2 * 0.95
    spans = query(store.snapshot("spans"), "min(ingested_unix_ns)")[0][0]
    logs_left = query(store.snapshot("log_records"), "min(ingested_unix_ns)")[0][0]
    assert abs(spans - logs_left) == 1  # one cut through time, not one table emptied
    assert maintain.retain(store, max_bytes=total // 2) == []


@settings(max_examples=15, deadline=None)
@given(
    ages=st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4), min_size=1, max_size=4),
    cutoff=st.integers(0, 21),
    merge=st.booleans(),
)
def test_retention_leaves_exactly_the_rows_from_the_cutoff_on(
    ages: list[list[int]],
    cutoff: int,
    merge: bool,
    make_rows: MakeRows,
    query: Query,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    store = Store.open(tmp_path_factory.mktemp("s") / "store", create=True)
    for batch in ages:
        store.append("quarantine", make_rows("quarantine", len(batch), ingested_unix_ns=batch))
    if merge:
        maintain.compact(store, max_small_files=1)
    dropped = _rewrite.drop_before(store, store.snapshot("quarantine"), cutoff)
    left = sorted(row[0] for row in query(store.snapshot("quarantine"), "ingested_unix_ns"))
    assert left == sorted(a for batch in ages for a in batch if a >= cutoff)
    assert dropped.rows_dropped == sum(map(len, ages)) - len(left)


def test_appends_get_through_beside_retention(
    store: Store, make_rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(store, make_rows, 3)
    real = _commit.commit_append

    def retain_first(*args: Any, **kwargs: Any) -> bool:
        monkeypatch.setattr(_commit, "commit_append", real)
        maintain.retain(store, 1, now_unix_ns=_HOUR_NS)
        return real(*args, **kwargs)

    monkeypatch.setattr(_commit, "commit_append", retain_first)
    late = make_rows("spans", 1, ingested_unix_ns=2 * _HOUR_NS)
    assert store.append("spans", late, txn=("spool", 1)) is True
    assert store.snapshot("spans").rows == 1


# -- the pass --


def test_a_pass_does_all_of_it_and_shares_its_schedule(store: Store, make_rows: MakeRows) -> None:
    now = time.time_ns()
    for age_h in [30, *[0] * 6]:
        rows = make_rows("spans", 2, ingested_unix_ns=now - age_h * _HOUR_NS)
        store.append("spans", rows)
    reader = StoreReader(store)
    report = maintain.maintenance_pass(
        store, reader=reader, retain_ns=24 * _HOUR_NS, max_small_files=4
    )
    assert report.ran
    assert [(r.table, r.rows_dropped) for r in report.retained] == [("spans", 2)]
    assert [(r.table, r.files_after) for r in report.compacted] == [("spans", 1)]
    assert (store.path / ".vacuumed").exists()
    past = time.time() - 2 * 3600
    orphan = store.table_path("spans") / "date=2026-11-01" / "left.parquet"
    orphan.write_bytes(b"x")
    os.utime(orphan, (past, past))
    assert maintain.maintenance_pass(store, reader=reader).vacuumed == ()  # not its time yet
    os.utime(store.path / ".vacuumed", (past, past))
    assert maintain.maintenance_pass(store, reader=reader).vacuumed == (
        maintain.Vacuumed("spans", 1, 1),
    )
    with exclusive(store, ".maintain.lock", blocking=True):
        assert maintain.maintenance_pass(store) == maintain.MaintenanceReport(ran=False)


# -- info and export --


def test_info_counts_what_readers_see_and_what_the_disk_holds(
    store: Store, make_rows: MakeRows
) -> None:
    assert maintain.info(store).tables == ()
    _fill(store, make_rows, 3)
    store.append("spans", make_rows("spans", 1, date="2026-11-05"))
    store.append("requests", make_rows("requests", 2, revision=1))
    found = maintain.info(store)
    spans, requests = found.tables
    assert (spans.table, spans.kind, spans.rows, spans.files, spans.small_files) == (
        "spans",
        "raw",
        10,
        4,
        4,
    )
    assert (spans.version, spans.first_date, spans.last_date) == (4, "2026-11-01", "2026-11-05")
    live = sum(Path(p).stat().st_size for p in store.snapshot("spans").paths)
    assert spans.size_bytes == live < spans.disk_bytes
    assert (found.rows, found.files) == (12, 5)
    assert found.size_bytes == spans.size_bytes + requests.size_bytes
    before = found.disk_bytes
    maintain.compact(store, max_small_files=1)
    assert maintain.info(store).disk_bytes > before  # replaced files wait for vacuum
    as_json = json.loads(json.dumps(found.to_json()))
    assert as_json["tables"][0]["rows"] == 10


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_export_writes_each_table_whole(
    format: str, store: Store, make_rows: MakeRows, tmp_path: Path
) -> None:
    _fill(store, make_rows, 3, start_unix_ns=[2**53 + 1, None, 3])
    store.append("requests", make_rows("requests", 1, note='a "quoted", 비고', revision=1))
    dest = tmp_path / "out's"
    written = maintain.export(store, dest, format=format)
    assert [(w.table, w.rows) for w in written] == [("requests", 1), ("spans", 9)]
    assert sorted(p.name for p in dest.iterdir()) == [f"requests.{format}", f"spans.{format}"]
    if format == "parquet":
        table = pq.read_table(dest / "spans.parquet")
        assert table.schema.names == list(TABLES["spans"].column_names)
        assert sorted(table["start_unix_ns"].to_pylist(), key=str).count(2**53 + 1) == 3
    else:
        with (dest / "requests.csv").open(newline="") as file:
            (row,) = csv.DictReader(file)
        assert row["note"] == 'a "quoted", 비고'
        assert list(row) == list(TABLES["requests"].column_names)


def test_export_of_chosen_tables_and_its_refusals(
    store: Store, make_rows: MakeRows, tmp_path: Path
) -> None:
    _fill(store, make_rows, 1)
    written = maintain.export(store, tmp_path / "a", tables=["log_records"])
    assert [(w.table, w.rows) for w in written] == [("log_records", 0)]
    assert pq.read_schema(written[0].path).names == list(TABLES["log_records"].column_names)
    with pytest.raises(UsageError, match="not an empty directory"):
        maintain.export(store, tmp_path / "a")
    with pytest.raises(UsageError, match="no export format 'xlsx'"):
        maintain.export(store, tmp_path / "b", format="xlsx")
    with pytest.raises(UsageError, match="no table 'span'"):
        maintain.export(store, tmp_path / "b", tables=["span"])
    assert not (tmp_path / "b").exists()
