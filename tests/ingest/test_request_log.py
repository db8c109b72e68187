"""Request logs end to end: bytes in, rows of ``request_log`` and refusals out."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracekit.chunks import Chunks, pack, unpack
from tracekit.errors import SourceError, UsageError
from tracekit.ingest import _request_files, request_log
from tracekit.ingest.batch import unstamped_schema
from tracekit.ingest.request_log import LogBatch, looks_like_request_log, read_request_log

DATA = Path(__file__).parent.parent / "data"
NS = 10**9
#: 2026-11-29T12:00:00Z.
NOON = 1_795_953_600
NOW = (NOON + 3600) * NS


def batches(
    data: bytes | str | BinaryIO, name: str = "log", mapping: Mapping[str, str] | None = None
) -> list[LogBatch]:
    if isinstance(data, str):
        data = data.encode()
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    return list(read_request_log(name, file, mapping=mapping, now_unix_ns=NOW))


def read(
    data: bytes | str, name: str = "log", mapping: Mapping[str, str] | None = None
) -> LogBatch:
    """The one batch of a small file."""
    (batch,) = batches(data, name, mapping)
    assert batch.table.schema == unstamped_schema("request_log")
    assert len(batch.rejected) == len(batch.rejected_rows)
    return batch


def rows(batch: LogBatch) -> list[dict[str, Any]]:
    """Rows without empty columns and without where they came from."""
    return [
        {k: v for k, v in row.items() if v is not None and not k.startswith(("source", "log_"))}
        for row in batch.table.to_pylist()
    ]


def refused(batch: LogBatch) -> list[tuple[int, str]]:
    return [(n, r.reason) for n, r in zip(batch.rejected_rows, batch.rejected, strict=True)]


def lines(*items: object) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


# --- the article's table ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["article_table", "article_table_long_output", "article_table_neither"]
)
def test_the_articles_table_imports_as_it_stands(name: str) -> None:
    data = (DATA / f"{name}.csv").read_bytes()
    assert looks_like_request_log(name, data) == "csv"
    batch = read(data)
    assert batch.table.num_rows == 20 and not batch.rejected and not batch.unmapped
    assert batch.mapped == {
        "request": "request_id",
        "input_tokens": "input_tokens",
        "output_tokens": "output_tokens",
        "TTFT": "ttft_ms:s",
        "total_latency": "e2e_ms:s",
        "tokens/sec": "tokens_per_s",
        "비고": "note",
    }
    assert len(batch.notices) == 2 and all("read as s" in notice for notice in batch.notices)


def test_values_of_the_articles_table() -> None:
    batch = read((DATA / "article_table.csv").read_bytes())
    (row,) = (r for r in rows(batch) if r["request_id"] == "긴 문서 요약")
    # 긴 문서 요약,12000,800,5.14,24.36,32.8,RAG 문서 포함
    assert row == {
        "request_id": "긴 문서 요약",
        "input_tokens": 12000,
        "output_tokens": 800,
        "ttft_ms": 5140.0,
        "e2e_ms": 24360.0,
        "tokens_per_s": 32.8,
        "note": "RAG 문서 포함",
        "status": "ok",
    }
    sources = batch.table.select(["source_row", "log_key"]).to_pylist()
    assert [s["source_row"] for s in sources] == list(range(2, 22)), "lines; the header is line 1"
    # Requests share names (짧은 질문, twice): a name without a start is no identity.
    assert len({s["log_key"] for s in sources}) == 20


def test_the_articles_empty_form() -> None:
    """Only the sizes are filled in yet, tabs between them as in the article."""
    batch = read(
        "request\tinput_tokens\toutput_tokens\tTTFT\ttotal_latency\ttokens/sec\t비고\n"
        "예: 긴 문서 요약\t12000\t800\t\t\t\tRAG 문서 포함\n"
        "예: 짧은 질문\t400\t120\t\t\t\t일반 채팅\n"
    )
    assert [(r["input_tokens"], r["output_tokens"], r["note"]) for r in rows(batch)] == [
        (12000, 800, "RAG 문서 포함"),
        (400, 120, "일반 채팅"),
    ]
    assert not batch.rejected and not batch.notices


def test_a_form_with_a_name_and_a_unit_that_cannot_be_told() -> None:
    text = "request,TTFT\na,30\nb,45\n"
    with pytest.raises(UsageError, match="--map TTFT=ttft_ms:s or --map TTFT=ttft_ms:ms"):
        batches(text)
    assert rows(read(text, mapping={"TTFT": "ttft_ms:s"}))[0]["ttft_ms"] == 30_000.0


# --- delimited text ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"request_id,ttft_ms,note\na,1.5,x\n",
        b"\xef\xbb\xbfrequest_id,ttft_ms,note\r\na,1.5,x\r\n",
        b"request_id\tttft_ms\tnote\na\t1.5\tx",
        b"request_id;ttft_ms;note\na;1,5;x\n",
        b"sep=;\r\nrequest_id;ttft_ms;note\r\na;1,5;x\r\n",
        b"# my log\n\nrequest_id,ttft_ms,note\n\na,1.5,x\n,,\n",
        b'"request_id","ttft_ms","note"\n"a","1.5","x"\n',
        "request_id,ttft_ms,note\na,1.5,x\n".encode("utf-16"),
        b"request_id,ttft_ms,note\ra,1.5,x\r",
    ],
)
def test_dialects(data: bytes) -> None:
    assert looks_like_request_log("log", data) == "csv"
    assert rows(read(data)) == [{"request_id": "a", "ttft_ms": 1.5, "note": "x", "status": "ok"}]


def test_korean_windows_text() -> None:
    batch = read("요청,입력토큰,TTFT(초),비고\n긴 문서,12000,4.2,RAG 문서 포함\n".encode("cp949"))
    assert rows(batch) == [
        {
            "request_id": "긴 문서",
            "input_tokens": 12000,
            "ttft_ms": 4200.0,
            "note": "RAG 문서 포함",
            "status": "ok",
        }
    ]
    assert batch.notices == ("the text is not UTF-8; read as CP949 (Korean Windows)",)


def test_quotes_delimiters_and_lines_inside_a_field() -> None:
    batch = read('request_id,ttft_ms,note\na,1,"x, ""y""\nz"\nb,2,\n')
    assert [(r["request_id"], r.get("note")) for r in rows(batch)] == [
        ("a", 'x, "y"\nz'),
        ("b", None),
    ]
    assert batch.table.column("source_row").to_pylist() == [2, 4]


def test_a_quote_that_never_ends_takes_no_other_row_with_it() -> None:
    text = 'request_id,ttft_ms,note\na,1,5" disk\nb,2,"no end\n' + "".join(
        f"c{i},3,x\n" for i in range(100)
    )
    batch = read(text)
    assert batch.table.num_rows == 102 and not batch.rejected
    assert rows(batch)[0]["note"] == '5" disk'
    text = 'request_id,ttft_ms,note\na,1,"x,y\nb,2,z\n'
    assert refused(read(text)) == [(2, "too_many_fields")]
    assert read(text).table.column("request_id").to_pylist() == ["b"]


def test_bad_rows_are_refused_with_place_field_and_reason_and_no_others() -> None:
    batch = read(
        "request_id,input_tokens,ttft_ms,e2e_ms,start,end,note\n"
        "good,10,1,2,,,\n"
        "negative,-4,1,2,,,\n"
        "word,ten,1,2,,,\n"
        "half,1.5,1,2,,,\n"
        "order,10,90,20,,,\n"
        "ends first,10,1,2,2026-11-29T12:00:00Z,2026-11-29T11:00:00Z,\n"
        "no time,10,1,2,soon,,\n"
        "two too many,10,1,2,,,a,b\n"
        "good too,10,1,2,,,\n"
        ",,,,,,only a note\n"
    )
    assert batch.table.column("request_id").to_pylist() == ["good", "good too"]
    assert refused(batch) == [
        (3, "negative"),
        (4, "not_a_number"),
        (5, "not_whole"),
        (6, "ttft_over_e2e"),
        (7, "end_before_start"),
        (8, "not_a_time"),
        (9, "too_many_fields"),
        (11, "nothing_known"),
    ]
    first = batch.rejected[0]
    assert first.signal == "request_log"
    assert first.detail == "log:3: input_tokens: '-4' is negative"
    assert json.loads(first.payload) == {
        "request_id": "negative",
        "input_tokens": "-4",
        "ttft_ms": "1",
        "e2e_ms": "2",
    }
    assert batch.rejected[3].detail == "log:6: TTFT of 90 ms is longer than the total of 20 ms"


def test_rounding_is_no_reason_to_refuse_a_row() -> None:
    assert not read("id,TTFT (s),latency (s)\na,1.25,1.25\nb,1.254,1.25\n").rejected


def test_short_rows_are_filled_up() -> None:
    assert rows(read("id,ttft_ms,note,x\na,1\n")) == [
        {"request_id": "a", "ttft_ms": 1.0, "status": "ok"}
    ]


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
            {"id": "e", "queue": 30},
            {"id": "f", "queue": 40, "answer": "secret", "request": "secret"},
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


def parquet(**columns: pa.Array) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


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


# --- what rows say ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ({}, "ok"),
        ({"status": "Succeeded"}, "ok"),
        ({"http_status": 503}, "error"),
        ({"success": False}, "error"),
        ({"success": "true"}, "ok"),
        ({"success": 0}, "error"),
        ({"error": "RateLimitError"}, "error"),
        ({"error": ""}, "ok"),
        ({"error": "Request timed out."}, "timeout"),
        ({"error": "client disconnected"}, "aborted"),
        ({"status": "odd word"}, "ok"),
        ({"status": "odd word", "error": "boom"}, "error"),
        ({"finish_reason": "stop"}, "ok"),
        ({"finish_reason": ["length", "stop"]}, "ok"),
        ({"finish_reason": "abort"}, "aborted"),
        # A stream that ended with neither a reason nor a count was given up by the client.
        ({"finish_reason": None, "streaming": True}, "aborted"),
        ({"finish_reason": None, "streaming": True, "output_tokens": 3}, "ok"),
        ({"streaming": True}, "ok"),
    ],
)
def test_status(row: dict[str, object], status: str) -> None:
    batch = read(lines({"id": "a", "ttft_ms": 1.0} | row))
    assert rows(batch)[0]["status"] == status
    assert any("unknown status words" in n for n in batch.notices) == ("odd word" in row.values())


def test_chunk_times_are_packed_and_give_what_the_row_leaves_out() -> None:
    batch = read(
        lines(
            {"id": "a", "chunk_offsets_ms": [80, 90.5, 101.25], "chunk_tokens": [1, 2, 1]},
            # A role chunk without a token comes first.
            {"id": "b", "chunk_offsets_ms": [5, 185], "chunk_tokens": [0, 1]},
            {"id": "c", "chunk_offsets_ms": [5, 9], "ttft_ms": 4, "ttft_kind": "server"},
            {"id": "d", "chunk_offsets_ms": [], "ttft_ms": 4, "streaming": 0},
            {"id": "e", "chunk_offsets_ms": "[1, 2]"},
            {"id": "f", "chunk_times": pack([7000, 9000])},
        )
    )
    a, b, c, d, e, f = rows(batch)
    assert unpack(a["chunk_times"]) == Chunks([80_000, 90_500, 101_250], [1, 2, 1])
    assert (a["ttft_ms"], a["ttft_kind"], a["e2e_ms"], a["streaming"]) == (
        80.0,
        "first_chunk",
        101.25,
        1,
    )
    assert (b["ttft_ms"], b["ttft_kind"]) == (185.0, "first_content")
    assert (c["ttft_ms"], c["ttft_kind"], c["e2e_ms"]) == (4.0, "server", 9.0)
    assert d == {"request_id": "d", "ttft_ms": 4.0, "streaming": 0, "status": "ok"}
    assert unpack(e["chunk_times"]) == Chunks([1000, 2000], [1, 1])
    assert (f["ttft_ms"], f["e2e_ms"]) == (7.0, 9.0)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"chunk_offsets_ms": [2, 1]}, "not_in_order"),
        ({"chunk_offsets_ms": [-1, 1]}, "out_of_range"),
        ({"chunk_offsets_ms": [1, "x"]}, "not_a_number"),
        ({"chunk_offsets_ms": [True]}, "not_a_number"),
        ({"chunk_offsets_ms": 5}, "not_a_list"),
        ({"chunk_offsets_ms": "[1,"}, "not_a_list"),
        ({"chunk_offsets_ms": [1, 2], "chunk_tokens": [1]}, "chunks_differ"),
        ({"chunk_offsets_ms": [1], "chunk_tokens": [1.5]}, "not_whole"),
        ({"chunk_offsets_ms": [1], "chunk_tokens": [-1]}, "not_whole"),
        ({"chunk_times": "1:nonsense"}, "bad_chunk_times"),
        ({"prefix_hashes": {"a": 1}, "ttft_kind": "odd"}, "unknown_ttft_kind"),
        ({"prefix_hashes": [[1]]}, "not_a_hash"),
        ({"prefix_hashes": "x"}, "not_a_list"),
        ({"attempt": 1 << 40}, "out_of_range"),
    ],
)
def test_bad_lists(row: dict[str, object], reason: str) -> None:
    batch = read(lines({"id": "good", "ttft_ms": 1}, {"id": "bad", "ttft_ms": 1} | row))
    assert refused(batch) == [(2, reason)]
    assert batch.table.column("request_id").to_pylist() == ["good"]


def test_kinds_of_ttft_are_not_made_up() -> None:
    assert "ttft_kind" not in rows(read("id,ttft_ms\na,5\n"))[0]
    assert rows(read("id,ttft_ms,ttft_kind\na,5,Server\n"))[0]["ttft_kind"] == "server"


def test_zeros_for_missing() -> None:
    batch = read("id,ttft_ms,e2e_ms,queue_ms,output_tokens,status\na,0,0,0,0,failed\n")
    assert rows(batch) == [
        {"request_id": "a", "queue_ms": 0.0, "output_tokens": 0, "status": "error"}
    ]
    assert "0 in ttft_ms is taken as missing: 1 row(s)" in batch.notices


def test_ttft_of_a_call_that_does_not_stream() -> None:
    batch = read("id,ttft_ms,e2e_ms,stream\na,500,500,false\nb,100,500,false\nc,500,500,true\n")
    assert [r.get("ttft_ms") for r in rows(batch)] == [None, 100.0, 500.0]
    assert any("without streaming" in notice for notice in batch.notices)


@pytest.mark.parametrize(
    ("text", "expected", "notice"),
    [
        # As the article means it: 100 tokens in 4 s.
        ("100,1,4,25", (4000.0, 25.0, None), None),
        # Over the 3 s after the first token.
        ("100,1,4,33.3", (4000.0, 25.0, 33.3), "over the time after the first token"),
        ("100,1,4,99", (4000.0, 25.0, 99.0), "is not output tokens / total in many rows"),
        # No total: from the rate.
        ("100,1,,25", (4000.0, 25.0, None), "the file has no total; taken as"),
        # ... which cannot be over the total, as TTFT alone is longer: 9 s + 4 s.
        ("100,9,,25", (13000.0, 100 / 13, 25.0), "total = TTFT + output tokens / that"),
    ],
)
def test_tokens_per_second(
    text: str, expected: tuple[float, float, float | None], notice: str | None
) -> None:
    header = "output_tokens,TTFT (s),latency (s),tokens/sec\n"
    batch = read(header + f"{text}\n" * 10)
    for row in rows(batch):
        original = json.loads(row["extra"])["tokens/sec"] if "extra" in row else None
        found = (row["e2e_ms"], row["tokens_per_s"], original)
        assert found[:2] == pytest.approx(expected[:2], rel=1e-12)
        assert found[2] == expected[2]
    assert [notice is not None and notice in n for n in batch.notices[:1]] == (
        [] if notice is None else [True]
    )


def test_tokens_per_second_with_the_prompt() -> None:
    batch = read("input_tokens,output_tokens,latency (s),tokens/sec\n" + "900,100,4,250\n" * 5)
    assert rows(batch)[0]["tokens_per_s"] == 25.0
    assert any("counts prompt tokens too" in notice for notice in batch.notices)


def test_times_that_are_no_unix_times_leave_the_row_without_a_clock() -> None:
    batch = read(f"id,start_time,ttft_ms\na,12.5,1\nb,13.5,1\nc,{NOON}.5,1\n")
    assert [r.get("start_unix_ns") for r in rows(batch)] == [None, None, NOON * NS + NS // 2]
    (notice,) = batch.notices
    assert notice.startswith("'start_time' holds numbers that are no unix times")
    assert "2 row(s) are kept without that time" in notice
    # `start` alone may mean anything: only points in time make it one.
    batch = read("id,start,ttft_ms\na,12.5,1\n")
    assert batch.unmapped == ("start",) and "'start' is not used" in batch.notices[0]


def test_times_without_a_zone_and_in_the_future() -> None:
    batch = read("id,start_time,ttft_ms\na,2026-11-29 12:00:00,1\nb,2027-01-01T00:00:00Z,1\n")
    assert rows(batch)[0]["start_unix_ns"] == NOON * NS
    assert "times without a zone are taken as UTC: start_time" in batch.notices
    assert any("more than a day from now" in notice for notice in batch.notices)


def test_trace_ids() -> None:
    hexes = "0af7651916cd43dd8448eb211c80319c"
    batch = read(
        lines(
            {"ttft_ms": 1, "trace_id": hexes.upper()},
            {"ttft_ms": 1, "trace_id": f"00-{hexes}-b7ad6b7169203331-01"},
            {"ttft_ms": 1, "trace_id": "0af76519-16cd-43dd-8448-eb211c80319c"},
            {"ttft_ms": 1, "trace_id": "0" * 32},
            {"ttft_ms": 1, "trace_id": 17},
        )
    )
    assert batch.table.column("trace_id").to_pylist() == [hexes, hexes, hexes, None, None]
    assert any("not 32 hex digits is left out: 2 row(s)" in n for n in batch.notices)


# --- identity ---------------------------------------------------------------------------------


def test_identity_is_id_and_start_else_content_and_row() -> None:
    text = f"request_id,start_unix_ns,ttft_ms\na,{NOON * NS},1\na,{NOON * NS + 1},1\na,,1\n,,1\n"
    keys = read(text).table.column("log_key").to_pylist()
    assert keys[:2] == [f"a@{NOON * NS}", f"a@{NOON * NS + 1}"]
    assert [key.rpartition(":")[2] for key in keys[2:]] == ["4", "5"]
    assert read(text, name="another name").table.column("log_key").to_pylist() == keys
    assert read(text + "\n").table.column("log_key").to_pylist()[2:] != keys[2:]


def test_a_name_is_no_identity_even_with_a_start() -> None:
    text = f"request,start_unix_ns,ttft_ms\nchat,{NOON * NS},1\nchat,{NOON * NS},2\n"
    assert len(set(read(text).table.column("log_key").to_pylist())) == 2


# --- privacy ----------------------------------------------------------------------------------


def test_prompts_and_answers_are_not_stored() -> None:
    secret = "the secret of my life " * 3
    item = {
        "id": "a",
        "ttft_ms": 1,
        "prompt": secret,
        "messages": [{"role": "user", "content": secret}],
        "response": {"choices": [{"text": secret}], "id": "x"},
        "request": secret * 10,
        "odd_column": secret * 10,
        "things": [secret],
        "input": secret,
    }
    batch = read(lines(item, item | {"ttft_ms": -1}, item | {"ttft_ms": secret}))
    stored = json.dumps(batch.table.to_pylist()) + repr(batch.rejected) + repr(batch.notices)
    assert "secret" not in stored
    assert batch.table.num_rows == 1 and len(batch.rejected) == 2
    told = " ".join(batch.notices)
    for name in ("prompt", "messages", "odd_column", "things"):
        assert name in told
    kept = rows(read(lines(item), mapping={"prompt": "note"}))
    assert kept[0]["note"] == secret.strip(), "asked for"


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
