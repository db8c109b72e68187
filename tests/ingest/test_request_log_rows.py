"""What the rows of a request log say, who they are, and what of them is never stored."""

from __future__ import annotations

import json

import pytest

from tests.ingest._request_logs import (
    NOON,
    NS,
    lines,
    read,
    refused,
    rows,
)
from tracekit.chunks import Chunks, pack, unpack

# --- what rows say ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ({}, "ok"),
        ({"status": "Succeeded"}, "ok"),
        ({"http_status": 503}, "error"),
        # the code came with the headers, before the stream broke off
        ({"http_status": 200, "error": "boom"}, "error"),
        ({"http_status": 200, "error": "Request timed out."}, "timeout"),
        ({"http_status": 200, "error": None}, "ok"),
        ({"status": "Succeeded", "error": "boom"}, "ok"),
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
        # the code came with the headers: what came after them says how it ended
        ({"http_status": 200, "error": "KVTransferError"}, "error"),
        ({"http_status": "200", "error": "Request timed out."}, "timeout"),
        ({"status_code": 200, "finish_reason": "abort"}, "aborted"),
        ({"http_status": 200, "finish_reason": "error"}, "error"),
        ({"http_status": 200, "finish_reason": None, "streaming": True}, "aborted"),
        ({"http_status": 200, "finish_reason": "stop", "error": None}, "ok"),
        ({"http_status": 503, "finish_reason": "stop"}, "error"),
        ({"http_status": 200, "error": False}, "ok"),
        ({"http_status": 200, "error": 0}, "ok"),
        ({"http_status": 200, "error_code": 200}, "ok"),
        ({"error": "OK"}, "ok"),
        ({"error": True}, "error"),
        ({"error_code": 1}, "error"),
    ],
)
def test_status(row: dict[str, object], status: str) -> None:
    batch = read(lines({"id": "a", "ttft_ms": 1.0} | row))
    assert rows(batch)[0]["status"] == status
    assert any("unknown status words" in n for n in batch.notices) == ("odd word" in row.values())


def test_a_word_that_says_ok_beside_an_error_stays_and_is_told() -> None:
    batch = read(lines({"id": "a", "ttft_ms": 1.0, "status": "success", "error": "boom"}))
    assert (rows(batch)[0]["status"], rows(batch)[0]["error"]) == ("ok", "boom")
    assert "'error' says an error but the status ok; ok is kept: 1 row(s)" in batch.notices


@pytest.mark.parametrize("flag", ["cancelled_by_client", "is_cancelled", "canceled", "aborted"])
@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({}, "aborted"),
        ({"http_status": 200}, "aborted"),  # the headers' code, sent before the client left
        ({"http_status": 503}, "error"),
        ({"status": "timeout"}, "timeout"),
        ({"status": "success"}, "ok"),
    ],
)
def test_a_flag_says_that_the_client_cancelled(
    flag: str, given: dict[str, object], status: str
) -> None:
    batch = read(lines(*({"ttft_ms": 1, **given, flag: told} for told in (True, False, None))))
    cancelled, *others = (row["status"] for row in rows(batch))
    assert cancelled == status
    assert others == [row["status"] for row in rows(read(lines({"ttft_ms": 1, **given})))] * 2
    contradicts = [n for n in batch.notices if "cancelled but the status" in n]
    assert len(contradicts) == (status == "ok")


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


def test_token_counts_that_are_not_those_of_each_chunk_are_left_out() -> None:
    four = {"ttft_ms": 1, "chunk_offsets_ms": [1, 2, 3, 4]}
    batch = read(
        lines(
            # cut off: no output count, but the column is one of counts so far
            four | {"id": "cut", "chunk_tokens": [0, 1, 2, 3]},
            four | {"id": "so far", "chunk_tokens": [1, 2, 3, 4], "output_tokens": 4},
            four | {"id": "too many", "chunk_tokens": [1, 5, 2, 2], "output_tokens": 9},
            four | {"id": "each", "chunk_tokens": [0, 2, 2, 3], "output_tokens": 7},
            four | {"id": "some", "chunk_tokens": [1, 2, 2, 0], "output_tokens": 9},
            # what the empty first and last chunks make of one token a chunk
            four | {"id": "ones", "chunk_tokens": [1, 1, 1, 1], "output_tokens": 3},
            {"id": "packed", "chunk_times": pack([1, 2], [7, 9]), "output_tokens": 9},
        )
    )
    kept = {row["request_id"]: unpack(row["chunk_times"]) for row in rows(batch)}
    assert {name: stream.tokens for name, stream in kept.items()} == {
        "cut": [1, 1, 1, 1],
        "so far": [1, 1, 1, 1],
        "too many": [1, 1, 1, 1],
        "each": [0, 2, 2, 3],
        "some": [1, 2, 2, 0],
        "ones": [1, 1, 1, 1],
        "packed": [1, 1],
    }
    assert kept["so far"].offsets_us == [1000, 2000, 3000, 4000]
    so_far, too_many = (n for n in batch.notices if "left out" in n)
    assert "'chunk_tokens' counts the tokens so far" in so_far
    assert so_far.endswith("record what each chunk adds: 3 row(s)")
    assert "adds up to more than output_tokens" in too_many
    assert too_many.endswith(": 1 row(s)")


def test_counts_that_may_be_of_each_chunk_stay_without_an_output_count() -> None:
    batch = read(lines({"id": "a", "chunk_offsets_ms": [1, 2, 3], "chunk_tokens": [1, 2, 4]}))
    (row,) = rows(batch)
    assert unpack(row["chunk_times"]).tokens == [1, 2, 4]
    assert not any("left out" in n for n in batch.notices)


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
