"""Request logs as people keep them: titles above, totals below, columns twice, other lines."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracekit.errors import SourceError, UsageError
from tracekit.ingest import _request_files
from tracekit.ingest.importer import import_paths
from tracekit.ingest.request_log import LogBatch, looks_like_request_log, read_request_log
from tracekit.ingest.summary import FileSummary
from tracekit.lake.store import Store

NOON = 1_795_953_600
NOW = (NOON + 3600) * 10**9
OTLP = gzip.decompress(
    (Path(__file__).parents[1] / "data" / "vllm" / "edge.otlp.jsonl.gz").read_bytes()
).splitlines()[:3]


def batches(data: bytes | str, mapping: Mapping[str, str] | None = None) -> list[LogBatch]:
    data = data.encode() if isinstance(data, str) else data
    return list(read_request_log("log", io.BytesIO(data), mapping=mapping, now_unix_ns=NOW))


def read(data: bytes | str, mapping: Mapping[str, str] | None = None) -> LogBatch:
    (batch,) = batches(data, mapping)
    return batch


def ids(*found: LogBatch) -> list[str | None]:
    return [i for batch in found for i in batch.table.column("request_id").to_pylist()]


def refused(*found: LogBatch) -> list[tuple[int, str]]:
    return [
        (n, r.reason)
        for batch in found
        for n, r in zip(batch.rejected_rows, batch.rejected, strict=True)
    ]


# -- above the table ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("above", "line"),
    [
        ("", 1),
        ("\n\n", 3),
        ("LLM 응답 시간 측정 (2026-11)\n", 2),
        ("Latency of our chat model, measured by Kim\n\nNovember 2026;v2\n,,,\n", 5),
        ("Latency,,,\n", 2),
        ("report\t\t\t\n", 2),
        ('"A title, quoted"\n', 2),
    ],
)
def test_text_above_the_header_is_skipped_and_told(above: str, line: int) -> None:
    text = above + "request_id,model,ttft_ms,e2e_ms\na,m,400,3200\nb,m,500,3000\n"
    assert looks_like_request_log("log", text.encode()) == "csv"
    batch = read(text)
    assert ids(batch) == ["a", "b"] and not batch.rejected
    assert batch.table.column("source_row").to_pylist() == [line + 1, line + 2]
    told = [n for n in batch.notices if n.startswith(f"the header is line {line};")]
    assert len(told) == bool(above.strip())


def test_the_first_line_that_can_be_the_header_is() -> None:
    first = "request_id,ttft_ms,note\n"
    batch = read(first + "model,5,latency\nttft,6,x\n")
    assert ids(batch) == ["model", "ttft"] and batch.notices == ()


@pytest.mark.parametrize(
    "text",
    [
        "foo,bar\nrequest,latency\nx,good\n",  # no number below: prose
        "foo,bar\nrequest,latency,x\ny,5\n",  # not as wide as what follows
        "foo,bar\nx,latency\ny,5\n",  # one known name is chance
        "foo,bar\nrequest,latency\n",  # nothing follows
        "foo,bar\n" + "x,y\n" * 12 + "request,latency\ny,5\n",  # far below
        "The phases are\n\n- route, prefill, decode,\n- queue, decode, and some words, 5\n",
    ],
)
def test_what_is_not_surely_a_header_is_none(text: str) -> None:
    assert looks_like_request_log("log", text.encode()) is None
    with pytest.raises(SourceError, match="no column of a request log is known in the header"):
        batches(text)


# -- below the table ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "below",
    [
        ["합계,9,1400,9.2"],
        ["Total,9,1400,9.2", "Average,3,700,3.1"],
        ["평균:,3,700,3.1"],
        ["p95 (ms),3,700,3.1", "Max,4,800,3.9", "50%,3,700,3.1"],
        ["Grand Total,9,1400,9.2", ",,,", "measured on 8 GPUs by Kim"],
        ["전체 평균,3,700,3.1", "표준편차,1,2,3"],
    ],
)
def test_totals_below_the_table_are_no_requests(below: list[str]) -> None:
    table = "request,input_tokens,output_tokens,total_latency\n" + "".join(
        f"{name},3,700,3.1\n" for name in ("a", "b", "total")
    )
    # "total" is not at the end: a request may be called so.
    table += "c,4,800,3.9\n"
    batch = read(table + "\n".join(below) + "\n")
    assert ids(batch) == ["a", "b", "total", "c"]
    lines = [i for i, text in enumerate(below, 6) if text.strip(",")]
    assert refused(batch) == [(line, "summary_row") for line in lines]


def test_a_total_does_not_decide_units_or_rates() -> None:
    rows = "".join(f"r{i},100,{i % 3 + 1}.5\n" for i in range(2))
    batch = read("request,output_tokens,latency\n" + rows + "sum,30000,4000000\n평균,1,0.00001\n")
    assert batch.mapped["latency"] == "e2e_ms:s"
    assert refused(batch) == [(4, "summary_row"), (5, "summary_row")]


def test_a_row_with_a_start_is_a_request_whatever_its_name() -> None:
    batch = read(f"request,start,ttft_ms\na,{NOON},5\ntotal,{NOON},6\n")
    assert ids(batch) == ["a", "total"] and not batch.rejected


def test_totals_in_other_formats_and_over_the_edge_of_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_request_files, "BLOCK_ROWS", 2)
    rows: list[dict[str, Any]] = [
        {"request": name, "ttft_ms": 5} for name in ("a", "b", "c", "Total", "Average", "Max")
    ]
    found = batches(b"".join(json.dumps(r).encode() + b"\n" for r in rows))
    assert ids(*found) == ["a", "b", "c"]
    assert refused(*found) == [(n, "summary_row") for n in (4, 5, 6)]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    assert ids(*batches(sink.getvalue())) == ["a", "b", "c"]


# -- columns twice -----------------------------------------------------------------------------

TWICE = "request_id,latency,ttft_ms,latency\na,3.2,400,4.2\nb,3.0,500,3.0\n"


def test_two_columns_of_one_name_that_differ_are_asked_about() -> None:
    with pytest.raises(UsageError) as caught:
        batches(TWICE)
    text = str(caught.value)
    assert "log: columns 2 and 4 are both 'latency' and differ" in text
    assert "--map latency=e2e_ms or --map 'latency#4=e2e_ms'" in text


@pytest.mark.parametrize(("name", "total"), [("latency", 3200.0), ("latency#4", 4200.0)])
def test_the_map_says_which_of_two_columns(name: str, total: float) -> None:
    batch = read(TWICE, {name: "e2e_ms:s"})
    assert batch.table.column("e2e_ms").to_pylist()[0] == total
    assert len(batch.unmapped) == 1


def test_two_columns_that_hold_the_same_are_told() -> None:
    batch = read("id,latency_ms,x,latency_ms,x\na,32,1,32,2\n")
    assert batch.table.column("e2e_ms").to_pylist() == [32.0]
    assert json.loads(batch.table.column("extra").to_pylist()[0]) == {
        "latency_ms#4": "32",
        "x": "1",
        "x#5": "2",
    }
    assert batch.notices == (
        "columns 2 and 4 are both 'latency_ms' and hold the same; the first is taken",
        "further columns of one name go by their number: x#5",
    )
    prompts = read("id,ttft_ms,prompt,prompt\na,5,my secret,my other secret\n")
    assert "secret" not in json.dumps(prompts.table.to_pylist())


def test_columns_twice_in_parquet() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table([["a"], [5], [6]], names=["id", "ttft_ms", "ttft_ms"]), sink)
    with pytest.raises(UsageError, match="columns 2 and 3 are both 'ttft_ms' and differ"):
        batches(sink.getvalue())


# -- lines of another kind ---------------------------------------------------------------------


def imported(tmp_path: Path, lines: list[bytes], **options: Any) -> FileSummary:
    path = tmp_path / "mixed"
    path.write_bytes(b"\n".join(lines) + b"\n")
    store = Store.open(tmp_path / "store", create=True)
    (file,) = import_paths(store, [str(path)], settle=False, now_unix_ns=NOW, **options).files
    return file


ROWS = [b'{"request_id": "%d", "start": %d, "ttft_ms": 5}' % (i, NOON) for i in range(4)]


def test_rows_among_otlp_are_counted_and_can_be_taken(tmp_path: Path) -> None:
    mixed = [OTLP[0], ROWS[0], OTLP[1], *ROWS[1:], b'{"other": 1}', OTLP[2]]
    spans = imported(tmp_path, mixed)
    assert (spans.format, list(spans.tables)) == ("otlp-jsonl", ["spans"])
    assert {r.reason: r.count for r in spans.refused} == {
        "request_log_in_otlp": 4,
        "undecodable": 1,
    }
    assert "--source jsonl" in spans.refused[0].detail
    rows = imported(tmp_path, mixed, source="jsonl")
    assert rows.tables == {"request_log": 4}
    assert {r.reason: r.count for r in rows.refused}["otlp_in_request_log"] == 3


def test_otlp_among_rows_is_counted_and_can_be_taken(tmp_path: Path) -> None:
    # So late that the beginning of the file does not show it.
    mixed = [*ROWS, b" " * (1 << 20), *OTLP]
    rows = imported(tmp_path, mixed)
    assert (rows.format, rows.tables) == ("jsonl", {"request_log": 4})
    (refusal,) = rows.refused
    assert (refusal.reason, refusal.count) == ("otlp_in_request_log", 3)
    assert "--source otlp-jsonl" in refusal.detail
    assert list(imported(tmp_path, mixed, source="otlp-jsonl").tables) == ["spans"]


def test_a_format_that_is_given_is_believed(tmp_path: Path) -> None:
    # The first lines show nothing of a request log.
    rows = imported(tmp_path, [*OTLP * 30, *ROWS], source="jsonl")
    assert rows.tables == {"request_log": 4} and rows.refused_count == 90


def test_a_map_that_no_file_can_use_is_told(tmp_path: Path) -> None:
    file = imported(tmp_path, OTLP, mapping={"latency": "e2e_ms:s"})
    assert file.notices == ("--map is for request logs; there is none here, so it did nothing",)
    with pytest.raises(UsageError, match="no column 'nothing'"):
        imported(tmp_path, OTLP, mapping={"latency": "nothing"})


# -- times under other names -------------------------------------------------------------------


def test_chunk_times_since_1970_count_from_the_start() -> None:
    start = NOON * 10**9 + 123_456_789
    row = {
        "request_id": "a",
        "send_time_unix_ns": start,
        "chunk_times_unix_ns": [start + 50_000_000, start + 70_000_000, start + 90_000_000],
        "ct": 3,
    }
    plain = read(json.dumps(row | {"output_tokens": 3}).encode())
    assert plain.mapped["send_time_unix_ns"] == "start_unix_ns:ns"
    (hint,) = (n for n in plain.notices if n.startswith("times under names"))
    assert "--map chunk_times_unix_ns=chunk_offsets_ms:ns" in hint
    data = json.dumps(row).encode() + b"\n"
    data += json.dumps(row | {"send_time_unix_ns": None}).encode() + b"\n"
    data += json.dumps(row | {"send_time_unix_ns": start + 10**9}).encode()
    batch = read(data, {"chunk_times_unix_ns": "chunk_offsets_ms:ns"})
    assert batch.table.column("ttft_ms").to_pylist() == [50.0]
    assert batch.table.column("e2e_ms").to_pylist() == [90.0]
    assert refused(batch) == [(2, "no_start"), (3, "chunk_before_start")]


def test_a_rule_for_no_column_of_json_is_a_mistake() -> None:
    data = b'{"id": "a", "ttft_ms": 1, "sent_on": 5}\n'
    with pytest.raises(
        UsageError, match=r"did you mean 'sent_on'.* its columns: sent_on, id, ttft"
    ):
        batches(data, {"sent_onn": "start_unix_ns"})
