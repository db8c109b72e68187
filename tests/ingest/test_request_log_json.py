"""Request logs as JSON, JSON lines and Parquet."""

from __future__ import annotations

import datetime as dt
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.ingest._request_logs import (
    NOON,
    NS,
    batches,
    lines,
    parquet,
    read,
    refused,
    rows,
)
from tracekit.chunks import pack
from tracekit.errors import SourceError
from tracekit.ingest import _request_files
from tracekit.ingest.request_log import looks_like_request_log

# --- JSON -------------------------------------------------------------------------------------


def test_json_lines_with_an_apis_usage_object() -> None:
    data = lines(
        {
            "timestamp": "2026-11-29T12:00:00.25Z",
            "model": "m",
            "latency_ms": 1200,
            "usage": {
                "prompt_tokens": 100,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 64},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            "region": "eu",
        }
    )
    assert looks_like_request_log("x.jsonl", data) == "jsonl"
    assert rows(read(data)) == [
        {
            "start_unix_ns": NOON * NS + NS // 4,
            "model": "m",
            "e2e_ms": 1200.0,
            "input_tokens": 100,
            "output_tokens": 5,
            "cached_tokens": 64,
            "reasoning_tokens": 2,
            "status": "ok",
            "extra": '{"region":"eu"}',
        }
    ]


def test_cached_tokens_that_come_on_top() -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 7}
    batch = read(lines({"id": "a", "usage": usage}))
    (row,) = rows(batch)
    assert (row["input_tokens"], row["cached_tokens"], row["cache_write_tokens"]) == (97, 80, 7)
    assert any("input_tokens is their sum" in notice for notice in batch.notices)


def test_broken_lines_do_not_stop_the_good_ones() -> None:
    data = b"\n".join(
        [
            b'\xef\xbb\xbf{"id": "a", "ttft_ms": 1}',
            b"",
            b'{"id": "b", "ttft_ms": 1, "prompt": "my secret',
            b"[1, 2]",
            b"null",
            b'{"id": "c", "ttft_ms": NaN, "e2e_ms": 5}',
            b'{"id": "d", "ttft_ms": 1e999}',
            b'{"id": "\xff", "ttft_ms": 1}',
            b"[" * 100_000,
            b'{"id": "e", "ttft_ms": 4}',
        ]
    )
    batch = read(data)
    assert batch.table.column("request_id").to_pylist() == ["a", "c", "\ufffd", "e"]
    assert refused(batch) == [
        (3, "broken_json"),
        (4, "not_an_object"),
        (5, "not_an_object"),
        (7, "not_a_number"),
        (9, "broken_json"),
    ]
    assert not any("secret" in r.detail + r.payload for r in batch.rejected)
    assert batch.rejected[0].payload == "{}"


@pytest.mark.parametrize("indent", [None, 2])
def test_one_json_array(indent: int | None) -> None:
    items = [{"id": f"r{i}", "ttft_ms": i + 1, "note": "x" * 100} for i in range(2000)]
    items[7]["ttft_ms"] = -1
    data = json.dumps([*items, 5], indent=indent).encode()
    assert looks_like_request_log("x.json", data[:65536]) == "json"
    batch = read(data)
    assert batch.table.num_rows == 1999
    assert refused(batch) == [(8, "negative"), (2001, "not_an_object")]
    assert batch.table.column("source_row").to_pylist()[-1] == 2000


@pytest.mark.parametrize(
    ("data", "taken", "reasons"),
    [
        (
            b'[{"id": "a", "ttft_ms": 1}, {"id": oops}, {"id": "c", "ttft_ms": 1}]',
            1,
            ["broken_json"],
        ),
        (b'[{"id": "a", "ttft_ms": 1}, {"id": "b"', 1, ["broken_json"]),
        (b'[{"id": "a", "ttft_ms": 1}', 1, ["broken_json"]),
        (b'[{"id": "a", "ttft_ms": 1}] {"more": 1}', 1, ["broken_json"]),
        (b'[{"id": "a", "ttft_ms": 1}]  \n', 1, []),
    ],
)
def test_broken_arrays(data: bytes, taken: int, reasons: list[str]) -> None:
    batch = read(data)
    assert batch.table.num_rows == taken
    assert [reason for _, reason in refused(batch)] == reasons


def test_elements_are_counted_once_wherever_the_file_is_cut_for_reading() -> None:
    data = json.dumps([{"ttft_ms": 5}, *[1234567890123456789] * 9000, {"ttft_ms": 6}])
    batch = read(data)
    assert (batch.table.num_rows, len(batch.rejected)) == (2, 9000)
    assert batch.table.column("source_row").to_pylist() == [1, 9002]


def test_columns_that_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_request_files, "BLOCK_ROWS", 2)
    one, two, three, end = batches(
        lines(
            {"id": "a", "ttft_ms": 1},
            {"id": "b", "ttft_ms": 2},
            {"id": "c", "output_tokens": 7, "latency": 0.5, "request_id": "other"},
            {"id": "d", "output_tokens": 8, "prompt": "secret"},
            {"id": "e", "queue": 30, "ttft_ms": 3},
            {"id": "f", "queue": 40, "ttft_ms": 4, "answer": "secret", "request": "secret"},
        )
    )
    assert one.mapped == {"id": "request_id", "ttft_ms": "ttft_ms:ms"} and not one.notices
    # New columns are mapped on the rows they come with, unless their place is taken ...
    assert two.mapped == one.mapped | {"output_tokens": "output_tokens", "latency": "e2e_ms:s"}
    assert [r.get("e2e_ms") for r in rows(two)] == [500.0, None]
    assert rows(two)[0]["extra"] == '{"request_id":"other"}'
    assert any("others took their place: request_id" in notice for notice in two.notices)
    assert any("not stored" in notice and "prompt" in notice for notice in two.notices)
    # ... or their unit is unclear: rows have gone out, so that nobody can be asked any more.
    assert [r["extra"] for r in rows(three)] == ['{"queue":30}', '{"queue":40}']
    assert three.mapped == two.mapped
    assert "first seen late stay unmapped: queue; say which: --map queue=" in three.notices[0]
    assert end.table.num_rows == 0


def test_a_rule_for_a_column_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_request_files, "BLOCK_ROWS", 1)
    data = lines({"id": "a", "ttft_ms": 1}, {"id": "b", "lat": 30})
    one, two, _ = batches(data, mapping={"lat": "e2e_ms:s"})
    assert one.notices == (
        "log has no column 'lat' (--map) in its first rows; they have: id, ttft_ms",
    )
    assert rows(two)[0]["e2e_ms"] == 30_000.0


# --- Parquet ----------------------------------------------------------------------------------


def test_parquet() -> None:
    moment = dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC)
    data = parquet(
        request_id=pa.array(["a", "b"]).dictionary_encode(),
        start=pa.array([NOON * NS + 7, None], pa.timestamp("ns", tz="Asia/Seoul")),
        end=pa.array([moment.replace(second=1)] * 2, pa.timestamp("us")),
        latency=pa.array([dt.timedelta(seconds=1)] * 2, pa.duration("ns")),
        usage=pa.array([{"prompt_tokens": 5}, {"prompt_tokens": None}]),
        chunk_offsets_ms=pa.array([[1.0, 2.5], None]),
        messages=pa.array([["hello"], ["you"]]),
    )
    assert looks_like_request_log("x", data[:100]) == "parquet"
    batch = read(data)
    one, two = rows(batch)
    assert one == {
        "request_id": "a",
        "start_unix_ns": NOON * NS + 7,
        "end_unix_ns": (NOON + 1) * NS,
        "e2e_ms": 1000.0,
        "input_tokens": 5,
        "chunk_times": pack([1000, 2500]),
        "ttft_ms": 1.0,
        "ttft_kind": "first_chunk",
        "streaming": 1,
        "status": "ok",
    }
    assert two == {
        "request_id": "b",
        "end_unix_ns": (NOON + 1) * NS,
        "e2e_ms": 1000.0,
        "status": "ok",
    }
    assert "times without a zone are taken as UTC: end" in batch.notices
    assert any("not stored" in n and "messages" in n for n in batch.notices)
    assert batch.table.column("source_row").to_pylist() == [1, 2]


def test_a_table_goes_out_and_in_again_unchanged() -> None:
    """What an export of ``request_log`` holds can be imported: same columns, same values."""
    first = read(
        lines(
            {"request_id": "a", "start_unix_ns": NOON * NS + 1, "ttft_ms": 3.25, "e2e_ms": 9.5}
            | {"chunk_offsets_ms": [3.25, 9.5], "prefix_hashes": ["x", 7], "kv_bytes": 8}
            | {"prefix_block_tokens": 16, "streaming": 1, "attempt": 2, "status": "aborted"}
        )
    ).table
    buffer = io.BytesIO()
    pq.write_table(first.drop_columns(["extra"]), buffer)
    second = read(buffer.getvalue()).table
    same = [n for n in first.schema.names if not n.startswith("source_") and n != "extra"]
    assert second.select(same).to_pylist() == first.select(same).to_pylist()


@pytest.mark.parametrize("cut", [8, 100, 400])
def test_a_cut_parquet_file(cut: int) -> None:
    data = parquet(request_id=pa.array(["a"] * 100), ttft_ms=pa.array([1.0] * 100))
    with pytest.raises(SourceError, match=r"not a readable Parquet file.*at log"):
        batches(data[:cut])


@pytest.mark.parametrize("text", ['{"text": "secret"}', '[{"content": "secret"}]', "['secret']"])
def test_objects_and_lists_in_a_text_are_not_kept(text: str) -> None:
    """SGLang's exporter writes a request with its prompt so, in a column of any name."""
    call = {"request_id": "a", "e2e_ms": 5, "ttft_ms": 2, "params": text, "region": "[eu] west"}
    batch = read(lines(call, call | {"e2e_ms": -1}))
    assert json.loads(rows(batch)[0]["extra"]) == {"region": "[eu] west"}
    assert any("JSON in text are not kept: params" in notice for notice in batch.notices)
    (refusal,) = batch.rejected
    assert "secret" not in refusal.payload
