"""Request logs as delimited text, the article's table first."""

from __future__ import annotations

import json

import pytest

from tests.ingest._request_logs import (
    DATA,
    batches,
    read,
    refused,
    rows,
)
from tracekit.errors import UsageError
from tracekit.ingest.request_log import looks_like_request_log

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
        "f,,,,,,\n"
        "rc=0\n"
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
        (12, "nothing_known"),
        (13, "nothing_known"),
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
