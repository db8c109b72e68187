"""Files that hold request logs: what is one, how it is read, and the recorded ones."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa
import pytest

from tests.ingest._request_logs import (
    DATA,
    NOW,
    NS,
    batches,
    lines,
    parquet,
    read,
    rows,
)
from tracekit.chunks import unpack
from tracekit.errors import SourceError, UsageError
from tracekit.ingest import request_log
from tracekit.ingest.request_log import LogBatch, looks_like_request_log, read_request_log

# --- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\0\1\2",
        b"id,name,price\n1,a,2\n",
        b"hello world",
        b'{"resourceSpans": []}\n',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}',
        b"[]",
        b"[1, 2, 3]",
        b'{"a": 1}\n{"b": 2}\n',
        b"PK\x03\x04",
        b"# HELP x\n# TYPE x counter\nx 1\n",
    ],
)
def test_what_is_no_request_log(head: bytes) -> None:
    assert looks_like_request_log("x", head) is None
    with pytest.raises(SourceError):
        batches(head)


def test_a_foreign_table_is_known_by_its_mapping() -> None:
    text = b"a,b\n10,0.5\n"
    assert looks_like_request_log("x", text) is None
    mapping = {"a": "input_tokens", "b": "ttft_ms:s"}
    assert looks_like_request_log("x", text, mapping=mapping) == "csv"
    assert rows(read(text, mapping=mapping)) == [
        {"input_tokens": 10, "ttft_ms": 500.0, "status": "ok"}
    ]


def test_heads_cut_anywhere() -> None:
    long = lines({"id": "a", "note": "x" * 100_000, "ttft_ms": 5})
    assert looks_like_request_log("x", long[:65536]) is None
    assert (
        looks_like_request_log("x", lines({"ttft_ms": 5, "note": "x" * 100_000})[:65536]) == "jsonl"
    )
    array = json.dumps([{"ttft_ms": 5}] * 9000).encode()
    assert looks_like_request_log("x", array[:65536]) == "json"


def test_what_an_unknown_table_is_told() -> None:
    with pytest.raises(SourceError, match=r"no column .* is known in the header 'a,b'.*--map"):
        batches("a,b\n1,2\n")
    with pytest.raises(SourceError, match="the file is empty; at log"):
        batches("")


def test_a_bad_rule_is_told_at_once() -> None:
    with pytest.raises(UsageError):
        read_request_log("x", io.BytesIO(b""), mapping={"a": "odd"}, now_unix_ns=NOW)


def test_a_header_alone_is_an_empty_log() -> None:
    batch = read("request_id,ttft_ms\n")
    assert batch.table.num_rows == 0 and batch.mapped


class Pipe(io.RawIOBase):
    """A stream that cannot seek, and hands out little at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def read(self, size: int = -1) -> bytes:
        return self._data.read(min(size, 1000) if size >= 0 else 1000)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet"])
def test_streams_that_cannot_seek(kind: str) -> None:
    items = [{"id": f"r{i}", "ttft_ms": float(i + 1)} for i in range(500)]
    forms: dict[str, bytes | str] = {
        "csv": "id,ttft_ms\n" + "".join(f"{i['id']},{i['ttft_ms']}\n" for i in items),
        "jsonl": lines(*items),
        "json": json.dumps(items),
        "parquet": parquet(
            id=pa.array([i["id"] for i in items]), ttft_ms=pa.array([i["ttft_ms"] for i in items])
        ),
    }
    data = forms[kind]
    data = data.encode() if isinstance(data, str) else data
    (batch,) = batches(cast(BinaryIO, Pipe(data)))
    assert batch.table.equals(read(data).table)


def test_the_file_stays_open_and_is_read_from_where_it_stands() -> None:
    file = io.BytesIO(b"junkid,ttft_ms\na,1\n")
    file.seek(4)
    (batch,) = batches(file)
    assert batch.table.num_rows == 1
    assert not file.closed and file.seek(0) == 0


def test_large_files_come_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    text = "id,TTFT\n" + "".join(f"r{i},0.{i % 9 + 1}\n" for i in range(25_000))
    text += "late,-1\n"
    data = text.encode()
    reader = read_request_log("x", io.BytesIO(data), now_unix_ns=NOW, progress=seen.append)
    found = list(reader)
    assert [b.table.num_rows for b in found] == [10_000, 10_000, 5_000]
    assert seen == sorted(seen) and seen[-1] == len(data)
    assert [len(b.notices) for b in found] == [1, 0, 0], "decided once, told once"
    assert found[2].rejected_rows == (25_002,)
    assert found[2].table.column("source_row").to_pylist()[-1] == 25_001
    assert request_log.BLOCK_ROWS == 10_000


# --- recorded requests ------------------------------------------------------------------------


def recorded(path: Path) -> list[LogBatch]:
    with gzip.open(path) as file:
        return list(read_request_log(path.name, cast(BinaryIO, file), now_unix_ns=NOW + NS * 86400))


@pytest.mark.parametrize(
    ("scenario", "count", "first"),
    [
        ("long-prompt", 72, (1795982418950863781, 42.403, 76)),
        ("queue", 120, (1795982549809306289, 181.761, 96)),
        ("prefix-cache", 80, None),
        ("pd-nixl", 60, (1795982938190453639, 445.056, 20)),
    ],
)
def test_the_bundled_logs(scenario: str, count: int, first: tuple[int, float, int] | None) -> None:
    demo = Path(request_log.__file__).parent.parent / "demo_data"
    (batch,) = recorded(demo / f"{scenario}.requests.jsonl.gz")
    found = rows(batch)
    assert len(found) == count and not batch.rejected and not batch.notices and not batch.unmapped
    if first is not None:
        row = found[0]
        assert (row["start_unix_ns"], row["ttft_ms"], row["output_tokens"]) == first
    for row in found:
        assert row["status"] == "ok" and row["ttft_kind"] == "first_content"
        times = unpack(row["chunk_times"])
        assert sum(times.tokens) == row["output_tokens"]
        assert times.offsets_us[0] == round(row["ttft_ms"] * 1000)
        assert times.offsets_us[-1] == round(row["e2e_ms"] * 1000)
        assert row["start_unix_ns"] + row["e2e_ms"] * 1e6 <= row["end_unix_ns"] + 1000
        assert len(row["trace_id"]) == 32
    if scenario == "prefix-cache":
        hits = [r for r in found if r.get("cached_tokens")]
        assert len(hits) == 39 and {r["route"] for r in hits} == {"prefix-cache/shared-system"}


def test_the_bundle_is_small_and_complete() -> None:
    demo = Path(request_log.__file__).parent.parent / "demo_data"
    files = sorted(path.name for path in demo.iterdir() if path.name.endswith(".gz"))
    scenarios = ("long-prompt", "pd-nixl", "prefix-cache", "queue")
    assert files == sorted(
        f"{s}.{kind}.gz" for s in scenarios for kind in ("otlp.pb", "requests.jsonl")
    )
    assert sum((demo / name).stat().st_size for name in files) < 1_000_000


def test_the_recorded_edge_cases() -> None:
    (batch,) = recorded(DATA / "vllm" / "edge.requests.jsonl.gz")
    found = {row["request_id"]: row for row in rows(batch)}
    assert len(found) == 27 and not batch.rejected
    by_status: dict[str, int] = {}
    for row in found.values():
        by_status[row["status"]] = by_status.get(row["status"], 0) + 1
    assert by_status == {"ok": 17, "aborted": 8, "error": 2}
    assert found["edge-0023"]["error"] == "HTTP 400" and "ttft_ms" not in found["edge-0023"]
    assert "trace_id" not in found["edge-0019"]
    # n = 3: 24 chunks of one token each, whichever choice they belong to.
    assert unpack(found["edge-0025"]["chunk_times"]).tokens == [1] * 24
    assert found["edge-0025"]["output_tokens"] == 24
    (baseline,) = recorded(DATA / "vllm" / "baseline.requests.jsonl.gz")
    assert baseline.table.num_rows == 48


def test_chunk_offsets_count_from_the_sending_and_ttft_from_the_intended_start() -> None:
    rows = (
        b'{"request_id": "a", "start_unix_ns": 1795990002000000000,'
        b' "intended_start_unix_ns": 1795990000000000000, "chunk_offsets_ms": [300, 400]}\n'
        b'{"request_id": "b", "start_unix_ns": 1795990002000000000, "client_wait_ms": 500,'
        b' "chunk_offsets_ms": [300, 400]}\n'
        b'{"request_id": "c", "start_unix_ns": 1795990002000000000,'
        b' "chunk_offsets_ms": [300, 400]}\n'
    )
    batches = list(read_request_log("log.jsonl", io.BytesIO(rows), now_unix_ns=NOW))
    table = pa.concat_tables([b.table for b in batches])
    assert table["ttft_ms"].to_pylist() == [2300.0, 800.0, 300.0]
    assert table["e2e_ms"].to_pylist() == [2400.0, 900.0, 400.0]
