"""Files into the store: what is taken, refused and recognised as there already."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
import zstandard

from tracekit.errors import SourceError, UsageError
from tracekit.ingest import _import_file, _request_files
from tracekit.ingest.importer import Progress, import_paths
from tracekit.ingest.summary import ImportSummary
from tracekit.lake.store import Store
from tracekit.report import import_text
from tracekit.report.console import make_console

DATA = Path(__file__).parents[1] / "data" / "vllm"
NOW = 1_795_990_000_000_000_000
START = 1_795_982_589_773_017_088
CSV = (
    "request_id,start_unix_ns,input_tokens,output_tokens,ttft_ms,e2e_ms\n"
    f"a,{START},100,10,50,500\n"
    f"b,{START + 10**9},200,10,80,600\n"
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def run(store: Store, *paths: Path | str, **options: Any) -> ImportSummary:
    given = {"settle": False, "now_unix_ns": NOW} | options
    return import_paths(store, [str(p) for p in paths], **given)


def count(store: Store, table: str, what: str = "count(*)") -> Any:
    scan = store.snapshot(table).scan_sql()
    with duckdb.connect() as connection:
        row = connection.execute(f"SELECT {what} FROM ({scan})").fetchone()
        assert row is not None
        return row[0]


def line(number: int, *, count: int = 1, **fields: Any) -> bytes:
    """One export request with ``count`` spans of trace ``number``."""
    spans = [
        {
            "traceId": f"{number:032x}",
            "spanId": f"{span + 1:016x}",
            "name": "chat",
            "startTimeUnixNano": START + number * 10**6 + span,
            "endTimeUnixNano": START + number * 10**6 + 10**9,
        }
        | fields
        for span in range(count)
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()


def lines(path: Path, *of: bytes) -> Path:
    path.write_bytes(b"\n".join(of) + b"\n")
    return path


def test_both_encodings_of_a_recording_are_one_import(store: Store) -> None:
    summary = run(store, *sorted(DATA.glob("*.otlp.*.gz")))
    by_name = {Path(f.path).name: f for f in summary.files}
    assert {n: (f.format, f.taken, f.duplicates) for n, f in by_name.items()} == {
        "baseline.otlp.jsonl.gz": ("otlp-jsonl", 96, 0),
        "baseline.otlp.pb.gz": ("otlp-protobuf-delimited", 0, 96),
        "edge.otlp.jsonl.gz": ("otlp-jsonl", 49, 0),
        "edge.otlp.pb.gz": ("otlp-protobuf-delimited", 0, 49),
        "pd-nixl.otlp.jsonl.gz": ("otlp-jsonl", 360, 0),
        "pd-nixl.otlp.pb.gz": ("otlp-protobuf-delimited", 0, 360),
        "startup-base.otlp.jsonl.gz": ("otlp-jsonl", 11, 0),
        "startup-base.otlp.pb.gz": ("otlp-protobuf-delimited", 0, 11),
    }
    assert (summary.taken, summary.duplicates, summary.refused_count) == (516, 516, 0)
    assert count(store, "spans") == 516
    assert count(store, "spans", "count(DISTINCT (trace_id, span_id))") == 516
    assert count(store, "spans", "list(DISTINCT origin)") == ["import"]
    assert count(store, "spans", "list(DISTINCT date)") == ["2026-11-29"]


def test_importing_again_changes_nothing(store: Store) -> None:
    run(store, DATA / "edge.otlp.jsonl.gz")
    version = store.snapshot("spans").version
    again = run(store, DATA / "edge.otlp.jsonl.gz", DATA / "edge.otlp.pb.gz")
    assert (again.taken, again.duplicates) == (0, 98)
    assert store.snapshot("spans").version == version


def test_what_ends_up_in_the_store_is_what_was_sent(store: Store, tmp_path: Path) -> None:
    run(store, lines(tmp_path / "a", line(1, count=3), line(2)))
    scan = store.snapshot("spans").scan_sql()
    with duckdb.connect() as connection:
        rows = connection.execute(
            f"SELECT trace_id, span_id, start_unix_ns, ingested_unix_ns FROM ({scan}) ORDER BY 3"
        ).fetchall()
    assert rows == [
        (f"{t:032x}", f"{s + 1:016x}", START + t * 10**6 + s, NOW)
        for t, s in ((1, 0), (1, 1), (1, 2), (2, 0))
    ]


def test_a_bad_line_never_stops_the_good_ones(store: Store, tmp_path: Path) -> None:
    path = lines(
        tmp_path / "mixed.jsonl",
        line(1),
        b'{"resourceSpans": [',
        line(2, count=2, endTimeUnixNano="5"),
        b'{"something": "else"}',
        line(3),
        line(4, spanId="short"),
        line(5),
    )
    summary = run(store, path)
    assert (summary.taken, summary.refused_count) == (3, 5)
    (file,) = summary.files
    refused = {r.reason: r for r in file.refused}
    assert refused["end_before_start"].where == f"{path}:3, ..."
    assert refused["end_before_start"].count == 2
    assert refused["bad_span_id"].where == f"{path}:6"
    assert refused["undecodable"].where == f"{path}:2, {path}:4"
    assert "not JSON" in refused["undecodable"].detail
    assert count(store, "quarantine") == 5
    scan = store.snapshot("quarantine").scan_sql()
    with duckdb.connect() as connection:
        places = connection.execute(
            f"SELECT source_row, reason, source_file FROM ({scan}) ORDER BY ALL"
        ).fetchall()
    assert places == [
        (2, "undecodable", str(path)),
        (3, "end_before_start", str(path)),
        (3, "end_before_start", str(path)),
        (4, "undecodable", str(path)),
        (6, "bad_span_id", str(path)),
    ]
    run(store, path)
    assert count(store, "quarantine") == 5  # refused once, however often it is imported


def test_repetitions_in_one_file_are_duplicates(store: Store, tmp_path: Path) -> None:
    summary = run(store, lines(tmp_path / "a", line(1), line(2), line(1), line(1, count=2)))
    assert (summary.taken, summary.duplicates) == (3, 2)


def test_identity_is_more_than_the_ids(store: Store, tmp_path: Path) -> None:
    # Workers with one seed make the same ids: their process tells them apart.
    def worker(pid: int) -> bytes:
        document = json.loads(line(1))
        document["resourceSpans"][0]["resource"] = {
            "attributes": [{"key": "process.pid", "value": {"intValue": str(pid)}}]
        }
        return json.dumps(document).encode()

    summary = run(store, lines(tmp_path / "a", worker(1), worker(2), worker(1), line(1)))
    assert (summary.taken, summary.duplicates) == (3, 1)
    assert run(store, tmp_path / "a").duplicates == 4


def test_batches_are_bounded_and_order_is_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_import_file, "BATCH_ROWS", 100)
    path = lines(tmp_path / "a", *(line(n, count=30) for n in range(1, 21)))
    summary = run(store, path)
    assert summary.taken == 600
    snapshot = store.snapshot("spans")
    assert sorted(f.rows for f in snapshot.files) == [120] * 5
    assert run(store, path).duplicates == 600


def test_an_import_that_was_killed_goes_on_where_it_stopped(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_import_file, "BATCH_ROWS", 100)
    path = lines(tmp_path / "a", *(line(n, count=50) for n in range(1, 11)))
    real = Store.append
    commits = []

    def dies_at_the_third(self: Store, table: str, rows: Any, **options: Any) -> bool:
        commits.append(table)
        if len(commits) == 3:
            raise KeyboardInterrupt
        return real(self, table, rows, **options)

    monkeypatch.setattr(Store, "append", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        run(store, path)
    monkeypatch.setattr(Store, "append", real)
    assert count(store, "spans") == 200
    again = run(store, path)
    assert (again.taken, again.duplicates) == (300, 200)
    assert count(store, "spans", "count(DISTINCT (trace_id, span_id))") == 500


def test_another_import_of_the_same_file_at_the_same_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both look before either has written: the transaction lets only one of them write.
    path = lines(tmp_path / "a", line(1, count=5))
    real = Store.append
    once: list[Callable[[], Any]] = [lambda: run(store, path)]

    def other_is_first(self: Store, table: str, rows: Any, **options: Any) -> bool:
        if once:
            assert once.pop()().taken == 5
        return real(self, table, rows, **options)

    monkeypatch.setattr(Store, "append", other_is_first)
    summary = run(store, path)
    assert (summary.taken, summary.duplicates) == (0, 5)
    assert count(store, "spans") == 5


def test_rows_that_aged_out_can_be_imported_again(store: Store, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    path = lines(tmp_path / "a", line(1, count=5))
    run(store, path)
    DeltaTable(str(store.table_path("spans"))).delete()
    assert count(store, "spans") == 0
    assert run(store, path).taken == 5
    assert count(store, "spans") == 5
    assert run(store, path).duplicates == 5


@pytest.mark.parametrize("how", ["plain", "gzip", "zstd"])
def test_standard_input(
    how: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = line(1, count=4)
    compress: dict[str, Callable[[bytes], bytes]] = {
        "plain": bytes,
        "gzip": gzip.compress,
        "zstd": zstandard.compress,
    }
    packed = compress[how](data)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
    (file,) = run(store, "-").files
    assert (file.path, file.format, file.taken) == ("standard input", "otlp-jsonl", 4)


def test_an_empty_file_is_said_to_be_empty(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    notes: list[str] = []
    (file,) = run(store, tmp_path / "a", note=notes.append).files
    assert (file.format, file.taken, file.notices) == ("empty", 0, ("the file is empty",))
    assert notes == [f"{tmp_path / 'a'}: the file is empty"]


def test_an_unknown_file_stops_none_beside_it(store: Store, tmp_path: Path) -> None:
    good, more = lines(tmp_path / "good.jsonl", line(1)), lines(tmp_path / "more.jsonl", line(2))
    bad, worse = tmp_path / "notes.txt", tmp_path / "worse.txt"
    bad.write_text("just words\n")
    worse.write_text("just words\n")
    told: list[ImportSummary] = []
    with pytest.raises(
        SourceError, match=r"notes\.txt.*tried.*\(1 row of the other files taken\)$"
    ):
        run(store, bad, good, done=told.append)
    assert [(f.format, f.taken) for f in told[0].files] == [("unknown", 0), ("otlp-jsonl", 1)]
    assert "nothing known" in told[0].files[0].notices[0]
    again = (
        r"notes.*; 1 more could not be used \(1 row of the other files taken, 1 there already\)$"
    )
    with pytest.raises(SourceError, match=again):
        run(store, good, bad, more, worse)
    assert store.snapshot("spans").version != -1


def test_unknown_files_alone_leave_nothing_behind(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("just words\n")

    def never() -> Store:
        raise AssertionError("opened")

    with pytest.raises(SourceError, match=r"a\.txt"):
        import_paths(never, [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])


def test_unknown_files_in_a_folder_are_passed_over(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    lines(folder / "a.jsonl", line(1))
    (folder / "README").write_text("just words\n")
    notes: list[str] = []
    summary = run(store, folder, note=notes.append)
    assert summary.taken == 1
    assert [f.format for f in summary.files] == ["unknown", "otlp-jsonl"]
    assert len(notes) == 1 and "README" in notes[0]
    (folder / "a.jsonl").unlink()
    with pytest.raises(SourceError, match="README"):
        run(store, folder)
    (folder / "README").unlink()
    with pytest.raises(SourceError, match="no files"):
        run(store, folder)


def test_the_caller_may_name_the_format(store: Store, tmp_path: Path) -> None:
    # Ten bad lines first, so that nothing at the beginning tells the format.
    path = lines(tmp_path / "a", *[b"garbage"] * 10, line(1))
    assert run(store, path, source="otlp-jsonl").taken == 1
    with pytest.raises(UsageError, match="otlp-protobuf-delimited"):
        run(store, path, source="otlp")


def test_a_file_name_that_is_not_unicode(store: Store, tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"\xff.jsonl")
    with open(path, "wb") as file:
        file.write(line(1) + b"\nbad\n")
    (summary,) = run(store, os.fsdecode(path)).files
    assert (summary.taken, summary.refused_count) == (1, 1)
    assert summary.path.endswith("\ufffd.jsonl")


def test_a_named_pipe_is_read_as_it_comes(store: Store, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(gzip.compress(line(1, count=3))))
    writer.start()
    assert run(store, pipe).taken == 3
    writer.join()


def test_all_signals_in_one_file(store: Store, tmp_path: Path) -> None:
    point = {"timeUnixNano": str(START), "asInt": "5"}
    metric = {"name": "m", "gauge": {"dataPoints": [point, point]}}
    record = {"timeUnixNano": str(START), "body": {"stringValue": "hi"}}
    timeless = {"body": {"stringValue": "hi"}}
    path = lines(
        tmp_path / "a",
        line(1),
        json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode(),
        json.dumps(
            {"resourceLogs": [{"scopeLogs": [{"logRecords": [record, timeless, timeless]}]}]}
        ).encode(),
    )
    (file,) = run(store, path).files
    assert file.tables == {"spans": 1, "metric_samples": 1, "log_records": 3}
    assert file.duplicates == 1  # the same point twice; records without a time are not told apart
    again = run(store, path)
    assert (again.taken, again.duplicates) == (0, 6)
    assert count(store, "log_records") == 3


def test_request_logs(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(CSV)
    (file,) = run(store, path).files
    assert (file.format, file.taken, file.tables) == ("csv", 2, {"request_log": 2})
    assert file.mapped["ttft_ms"].startswith("ttft_ms")
    assert count(store, "request_log", "sum(input_tokens)") == 300
    assert count(store, "request_log", "list(DISTINCT date)") == ["2026-11-29"]
    packed = tmp_path / "again.csv.gz"
    packed.write_bytes(gzip.compress(CSV.encode()))
    again = run(store, path, packed)
    assert (again.taken, again.duplicates) == (0, 4)


def test_request_log_rows_without_a_start_are_recognised_too(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("input_tokens,output_tokens,ttft_ms\n10,20,30\n10,20,30\n")
    assert run(store, path).taken == 2
    # On another day: such rows are filed under the day they came in.
    again = run(store, path, now_unix_ns=NOW + 3 * 86_400 * 10**9)
    assert (again.taken, again.duplicates) == (0, 2)


def test_a_row_with_other_values_is_no_duplicate(store: Store, tmp_path: Path) -> None:
    first = tmp_path / "first.csv"
    first.write_text(CSV)
    edited = tmp_path / "edited.csv"
    edited.write_text(CSV.replace(",80,600", ",90,600"))
    run(store, first)
    summary = run(store, edited)
    assert (summary.taken, summary.duplicates, summary.differing) == (0, 1, 1)
    (file,) = summary.files
    assert file.to_json()["differing_example"] == {
        "file": str(edited),
        "row": 3,
        "fields": ["ttft_ms"],
    }
    assert count(store, "request_log", "max(ttft_ms)") == 80, "the first is kept"
    text = " ".join(_said(summary).split())
    assert "1 row differs from what is stored under the same id and start" in text
    assert f"{edited}:3, ttft_ms" in text
    assert "1 duplicate, 1 with other values than stored" in text
    # what differs within one file, and in another batch of it, counts as well
    again = run(store, first)
    assert (again.taken, again.duplicates, again.differing) == (0, 2, 0)


def test_another_unit_is_no_other_value(store: Store, tmp_path: Path) -> None:
    for name, ttft in (("ttft_ms", "67.1"), ("ttft_s", "0.0671")):
        path = tmp_path / f"{name}.csv"
        path.write_text(f"request_id,start_unix_ns,{name},e2e_ms\na,{START},{ttft},600\n")
        summary = run(store, path)
    assert (summary.taken, summary.duplicates, summary.differing) == (0, 1, 0)


def test_rows_that_differ_within_one_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "twice.csv"
    row = f"c,{START},100,10,50,500\n"
    path.write_text(CSV + row + row + row.replace(",50,", ",51,") + CSV.splitlines()[1] + "\n")
    for batch_rows in (10_000, 1):
        monkeypatch.setattr(_request_files, "BLOCK_ROWS", batch_rows)
        fresh = Store.open(tmp_path / f"store-{batch_rows}", create=True)
        summary = run(fresh, path)
        assert (summary.taken, summary.duplicates, summary.differing) == (3, 2, 1)
        assert summary.files[0].differs is not None and summary.files[0].differs.row == 6


def _said(summary: ImportSummary) -> str:
    stream = io.StringIO()
    make_console(stream, width=400).print(import_text.render(summary))
    return stream.getvalue()


def test_progress_counts_every_byte_once(store: Store, tmp_path: Path) -> None:
    a = lines(tmp_path / "a", *(line(n, count=50) for n in range(1, 51)))
    b = tmp_path / "b.csv"
    b.write_text(CSV)
    c = tmp_path / "c.gz"
    c.write_bytes(gzip.compress(line(999)))
    total = sum(p.stat().st_size for p in (a, b, c))
    seen: list[Progress] = []
    run(store, a, b, c, progress=seen.append)
    assert {p.bytes_total for p in seen} == {total}
    done = [p.bytes_done for p in seen]
    assert done == sorted(done) and done[-1] == total
    assert seen[-1].rows == 50 * 50 + 2 + 1


def test_text_is_kept_only_if_asked_for(store: Store, tmp_path: Path) -> None:
    secret = [{"key": "gen_ai.prompt", "value": {"stringValue": "secret"}}]
    run(store, lines(tmp_path / "a", line(1, attributes=secret)))
    assert count(store, "spans", "any_value(attributes)") == "{}"
    other = Store.open(tmp_path / "other", create=True)
    run(other, tmp_path / "a", keep_text=True)
    assert "secret" in count(other, "spans", "any_value(attributes)")


def test_the_derived_tables_are_settled_once_at_the_end(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit.analysis import settle

    calls: list[tuple[Store, int]] = []
    monkeypatch.setattr(
        settle, "settle_after_import", lambda s: calls.append((s, count(s, "spans")))
    )
    path = lines(tmp_path / "a", line(1), line(2))
    run(store, path, settle=False)
    assert calls == []
    run(store, path, settle=True)
    assert calls == [(store, 2)]


def test_the_summary_as_json(store: Store, tmp_path: Path) -> None:
    path = lines(tmp_path / "a", line(1), b"bad")
    summary = json.loads(json.dumps(run(store, path).to_json()))
    assert summary == {
        "taken": 1,
        "refused": 1,
        "duplicates": 0,
        "differing": 0,
        "files": [
            {
                "path": str(path),
                "format": "otlp-jsonl",
                "taken": 1,
                "refused": 1,
                "duplicates": 0,
                "differing": 0,
                "differing_example": None,
                "tables": {"spans": 1},
                "mapped": {},
                "unmapped": [],
                "notices": [],
                "refusals": [
                    {
                        "reason": "undecodable",
                        "where": f"{path}:2",
                        "count": 1,
                        "detail": summary["files"][0]["refusals"][0]["detail"],
                    }
                ],
            }
        ],
    }
