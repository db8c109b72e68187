"""The ten-minute table: marks by its own medians, rank correlations, one honest sentence."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from tests.analysis import factory
from tracekit.analysis.ten_minute import (
    SCHEMA,
    TenMinuteTable,
    rank_correlation,
    ten_minute_connection,
)
from tracekit.lake.schema import TABLES

_DATA = Path(__file__).parents[1] / "data"


def _connect(rows: list[dict[str, Any]], *, order: bool = False) -> duckdb.DuckDBPyConnection:
    """A store of these request rows; `order` = they came from a sheet, in this order."""
    con = duckdb.connect()
    requests, legs, log = [], [], []
    for i, row in enumerate(rows, start=1):
        # keys without order, as the store makes them
        key = f"{(i * 7_919) % 10_007:05d}"
        requests.append({"request_key": key, "revision": 1, "ingested_unix_ns": 5, **row})
        if order:
            log.append({"log_key": f"file:{i}", "source_row": i})
            leg = con.sql(f"select substr(md5('file:{i}'), 1, 24)").fetchall()[0][0]
            legs.append({"request_key": key, "leg_id": leg, "source": "request_log"})
    for name, values in (("window_requests", requests), ("legs", legs), ("request_log", log)):
        schema = TABLES["requests" if name == "window_requests" else name].schema
        full = [{f.name: v.get(f.name) for f in schema} for v in values]
        con.register("incoming", pa.Table.from_pylist(full, schema=schema))
        con.execute(f"create table {name} as select * from incoming")
        con.unregister("incoming")
    return con


def _sheet(name: str) -> TenMinuteTable:
    """The article's sheet: seven columns, no clock."""
    with (_DATA / name).open(encoding="utf-8") as file:
        rows = [
            {
                "request_id": r["request"],
                "input_tokens": int(r["input_tokens"]),
                "output_tokens": int(r["output_tokens"]),
                "ttft_ms": float(r["TTFT"]) * 1e3,
                "e2e_ms": float(r["total_latency"]) * 1e3,
                "tokens_per_s": float(r["tokens/sec"]),
                "note": r["비고"] or None,
                "status": "ok",
                "has_clock": 0,
            }
            for r in csv.DictReader(file)
        ]
    return ten_minute_connection(_connect(rows, order=True))


def test_long_documents_make_the_first_token_late() -> None:
    table = _sheet("article_table.csv")
    assert [r.request for r in table.rows[:3]] == ["요약", "코드 설명", "문장 교정"], (
        "the file's order"
    )
    by_input, by_output, _ = table.findings
    assert by_input.answer == "yes" and by_input.n == 20
    assert by_input.correlation == pytest.approx(0.988, abs=0.01)
    assert by_output.answer == "yes"
    assert table.sentence.startswith("Long input makes the first token late")
    assert "prefix caching" in table.sentence and "reranking" in table.sentence
    assert "n = 20" in table.sentence
    assert "cache hit" in table.sentence and "queue wait" in table.sentence
    assert table.missing == ("cached_tokens", "queue_ms")
    # TTFT median 0.88 s and 34.75 tokens/s, read off the sheet
    marked = {r.request for r in table.rows if r.long_ttft}
    assert "계약서 검토" in marked and "긴 문서 요약" in marked and "코드 설명" not in marked
    slow = [r for r in table.rows if r.low_tokens_per_s]
    assert {r.request for r in slow} == {"논문 질의", "정책 문서 질의", "계약서 검토"}
    assert all(r.low_only_by_ttft for r in slow)
    assert table.rules == (
        "long TTFT: over 2 x the table's median of 880 ms",
        "low tokens/s: under 0.5 x the table's median of 34.8 tokens/s",
    )


def test_long_answers_make_the_time() -> None:
    table = _sheet("article_table_long_output.csv")
    assert table.sentence.startswith("The first token is fast, long answers make the time")
    assert "output length" in table.sentence
    assert "prefix caching" not in table.sentence
    assert table.findings[0].answer == "not_shown"
    assert table.findings[2].answer == "yes", "tokens get slower in long answers"


def test_neither_is_an_answer() -> None:
    table = _sheet("article_table_neither.csv")
    assert table.sentence.startswith("Neither input length nor output length explains")
    assert "5 requests with long TTFT" in table.sentence
    assert "record queue wait and cache hits" in table.sentence
    for word in ("prefix caching", "limit output"):
        assert word not in table.sentence


def _like(queues: Sequence[float | None], **fixed: Any) -> TenMinuteTable:
    """Twelve alike but the last three, whose first token comes late; the queue of each [ms]."""
    rows = [
        {
            **row,
            "input_tokens": 100 + (7 * i) % 12,
            "output_tokens": 50 + (5 * i) % 12,
            "ttft_ms": 100.0 if i < 9 else 1_000.0,
            "queue_ms": queues[i],
        }
        for i, row in enumerate(_rows(12, **fixed))
    ]
    return ten_minute_connection(_connect(rows))


def test_a_queue_that_is_recorded_is_said_and_not_asked_for() -> None:
    queues = [10.0] * 9 + [800.0, 900.0, 700.0]
    told = _like(queues, cached_tokens=0)
    assert told.missing == ()
    start = "Neither input length nor output length explains these times (n = 12): "
    assert told.sentence == (
        f"{start}3 requests with long TTFT, 0 with low tokens/s; "
        "80 % of the long TTFTs is wait in the queue; "
        "see what queue wait and cache hits explain (`tracekit diagnose`) before changing prompts "
        "or outputs."
    )
    # one of the two is recorded
    assert "; record cache hits of the marked ones before" in _like(queues).sentence
    assert "; record queue wait of the marked" in _like([None] * 12, cached_tokens=0).sentence
    # of a queue that is known of a router only, and not apart from the prefill, it is not said
    merged = _like(queues, cached_tokens=0, queue_or_prefill_ms=90.0)
    assert merged.missing == ("queue_ms",)
    assert "; record queue wait of the marked ones before" in merged.sentence
    assert "of the long TTFTs" not in merged.sentence


def test_long_prompts_that_mostly_wait_are_said_to_wait() -> None:
    rows = _rows(12, cached_tokens=0)
    for row in rows:
        row["queue_ms"] = 0.6 * row["ttft_ms"]
    said = ten_minute_connection(_connect(rows)).sentence
    assert said.startswith("Long input makes the first token late")
    assert "; 60 % of all TTFT is wait in the queue (see `tracekit diagnose`); " in said
    for row in rows:
        row["queue_ms"] = 0.1 * row["ttft_ms"]
    assert "in the queue" not in ten_minute_connection(_connect(rows)).sentence


def _rows(n: int, **fixed: Any) -> list[dict[str, Any]]:
    return [
        {
            "request_id": f"r{i}",
            "status": "ok",
            "start_unix_ns": factory.START_NS + i,
            "input_tokens": 100 * (i + 1),
            "output_tokens": 50,
            "ttft_ms": 10.0 * (i + 1),
            "e2e_ms": 1_000.0 + 10 * i,
            **fixed,
        }
        for i in range(n)
    ]


def test_the_newest_come_last_and_only_so_many() -> None:
    con = _connect(_rows(50))
    table = ten_minute_connection(con, last=12)
    assert [r.request for r in table.rows] == [f"r{i}" for i in range(38, 50)]
    assert len(ten_minute_connection(con, last=500).rows) == 50


def test_seven_rows_are_too_few() -> None:
    table = ten_minute_connection(_connect(_rows(7)))
    assert {f.answer for f in table.findings} == {"not_enough_rows"}
    assert table.sentence.startswith("Not enough rows for a conclusion: 7 completed requests, 8")
    assert ten_minute_connection(_connect(_rows(8))).findings[0].answer == "yes"


def test_token_rate_is_computed_where_it_is_missing() -> None:
    table = ten_minute_connection(_connect(_rows(8)))
    assert table.rows[0].tokens_per_s == pytest.approx(50.0)
    assert table.rows[0].total_ms == 1_000.0


def test_a_rate_that_is_low_by_itself() -> None:
    rows = _rows(9, ttft_ms=100.0)
    rows[4]["e2e_ms"] = 5_000.0
    table = ten_minute_connection(_connect(rows))
    assert [r.low_tokens_per_s for r in table.rows].count(True) == 1
    assert not table.rows[4].low_only_by_ttft
    assert table.rows[4].low_tokens_per_s and not table.rows[4].long_ttft


def test_killed_rows_are_shown_but_measure_nothing() -> None:
    rows = _rows(10)
    rows[9] |= {"status": "aborted", "ttft_ms": None, "e2e_ms": 90_000.0}
    rows[8] |= {"status": "error", "ttft_ms": 90_000.0}
    rows.append({**_rows(1)[0], "quarantine_reason": "negative_tokens", "request_id": "bad"})
    rows.append({**_rows(1)[0], "superseded_attempt": 1, "request_id": "retried"})
    table = ten_minute_connection(_connect(rows))
    assert {r.request for r in table.rows} == {f"r{i}" for i in range(10)}
    assert table.median_ttft_ms == pytest.approx(45.0)
    assert table.findings[0].n == 8
    last = table.rows[-1]
    assert (last.status, last.long_ttft, last.ttft_ms) == ("aborted", None, None)
    assert table.rows[-2].long_ttft, "an error's time is still marked"


def test_no_ttft_is_said() -> None:
    table = ten_minute_connection(_connect(_rows(10, ttft_ms=None)))
    assert table.findings[0].answer == "not_enough_rows"
    assert "ttft_ms" in table.missing
    assert "not recorded: TTFT" in table.sentence
    assert all(r.long_ttft is None for r in table.rows)


def test_lengths_that_do_not_vary_push_nothing() -> None:
    table = ten_minute_connection(_connect(_rows(12, input_tokens=500)))
    assert table.findings[0].answer == "not_shown"
    assert "the same in all 12 rows" in table.findings[0].text
    assert table.sentence.startswith("Neither")


def test_times_that_hardly_differ_are_the_same() -> None:
    rows = _rows(12)
    for i, row in enumerate(rows):
        row["ttft_ms"] = 300.0 + 0.001 * i
    table = ten_minute_connection(_connect(rows))
    assert table.findings[0].answer == "not_shown"
    assert "TTFT is the same within 1 % in all 12 rows" in table.findings[0].text


def test_empty() -> None:
    table = ten_minute_connection(_connect([]))
    assert table.rows == ()
    assert table.sentence.startswith("Not enough rows")


def test_json() -> None:
    plain = ten_minute_connection(_connect(_rows(9))).to_json()
    assert plain["schema"] == SCHEMA
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert set(plain) == {
        "schema", "rows", "median_ttft_ms", "median_tokens_per_s", "rules", "findings", "missing",
        "sentence",
    }  # fmt: skip


def test_a_million_spans_give_the_last_twenty() -> None:
    con = factory.clean(3_000, every_ms=10).connect()
    table = ten_minute_connection(con)
    newest = con.sql(
        "select request_id from requests order by start_unix_ns desc limit 1"
    ).fetchall()
    assert len(table.rows) == 20
    assert (table.rows[-1].request,) == newest[0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=8, max_size=40))
def test_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    x = np.array([p[0] for p in pairs], dtype=float)
    y = np.array([p[1] for p in pairs], dtype=float)
    found = rank_correlation(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert found is None
        return
    assert found is not None
    rho, low, high = found
    assert rho == pytest.approx(float(spearmanr(x, y).statistic), abs=1e-9)
    assert -1 <= low <= high <= 1
    assert low - 1e-3 <= rho <= high + 1e-3


def test_interval_by_hand() -> None:
    # rho = 0.5, n = 20: atanh 0.5493, half width 1.96 sqrt(1.125 / 17) = 0.5042
    x = np.arange(20.0)
    y = x.copy()
    rng = np.random.default_rng(0)
    while abs(float(spearmanr(x, y).statistic) - 0.5) > 0.02:
        y = rng.permutation(y)
    found = rank_correlation(x, y)
    assert found is not None
    rho, low, high = found
    half = 1.959964 * np.sqrt((1 + rho**2 / 2) / 17)
    assert low == pytest.approx(np.tanh(np.arctanh(rho) - half))
    assert high == pytest.approx(np.tanh(np.arctanh(rho) + half))


def test_where_both_lengths_push_both_get_advice() -> None:
    rng = np.random.default_rng(4)
    rows: list[dict[str, Any]] = []
    for tokens_in, tokens_out in zip(
        rng.permutation(20) * 400 + 200, rng.permutation(20) * 60 + 40, strict=True
    ):
        ttft = 100.0 + 0.5 * float(tokens_in)
        rows.append(
            {
                "request_id": f"r{len(rows)}",
                "input_tokens": int(tokens_in),
                "output_tokens": int(tokens_out),
                "ttft_ms": ttft,
                "e2e_ms": ttft + 30.0 * float(tokens_out),
                "status": "ok",
            }
        )
    said = ten_minute_connection(_connect(rows)).sentence
    assert said.startswith("Long answers make the time")
    assert "TTFT grows with input tokens" in said
    assert "limit output length" in said
    assert "for the first token try prefix caching" in said


def _row(i: int, **known: float | str | None) -> dict[str, Any]:
    whole = {
        "request_id": f"r{i}",
        "input_tokens": 100 + 7 * (i * 5 % 11),
        "output_tokens": 50 + 3 * (i * 7 % 13),
        "ttft_ms": 100.0 + 40 * (i * 3 % 7),
        "e2e_ms": 900.0 + 90 * (i * 11 % 17),
    }
    return whole | known


@pytest.mark.parametrize(
    ("timed", "said"), [(0, "none of 20 requests has"), (7, "7 of 20 requests have")]
)
def test_rows_without_times_are_not_explained_away(timed: int, said: str) -> None:
    none: dict[str, str | None] = dict.fromkeys(("ttft_ms", "e2e_ms"))
    none["quarantine_reason"] = "no_wall_time"
    rows = [_row(i, **({} if i < timed else none)) for i in range(20)]
    table = ten_minute_connection(_connect(rows))
    assert table.sentence.startswith(f"Not enough times for a conclusion: {said} a TTFT or a total")
    assert "record ttft_ms and e2e_ms, or start_unix_ns and end_unix_ns" in table.sentence
    assert {"ttft_ms", "e2e_ms"} <= set(table.missing)


def test_only_what_was_looked_at_does_not_explain_the_times() -> None:
    def sentence(**known: float | None) -> str:
        return ten_minute_connection(_connect([_row(i, **known) for i in range(20)])).sentence

    assert sentence().startswith(
        "Neither input length nor output length explains these times (n = 20): 0 requests with long"
    )
    no_input = sentence(input_tokens=None)
    assert no_input.startswith(
        "Output length does not explain these times (n = 20; input tokens against TTFT: 0 rows, 8 "
    )
    no_first = sentence(ttft_ms=None)
    assert no_first.startswith("Output length does not explain") and "long TTFT" not in no_first
    assert ": 0 requests with low tokens/s; record" in no_first
    neither = sentence(input_tokens=None, output_tokens=None)
    assert neither.startswith("Not enough rows for a conclusion: input tokens against TTFT: 0 rows")
    assert "explain" not in neither


@pytest.mark.parametrize(
    ("known", "asked", "not_asked"),
    [
        ({}, "; record queue wait and cache hits before", "diagnose"),
        ({"queue_ms": 5.0}, "; record cache hits before", "queue"),
        ({"cached_tokens": 7.0}, "; record queue wait before", "cache"),
        (
            {"queue_ms": 5.0, "cached_tokens": 7.0},
            "; see what queue wait and cache hits explain",
            "record",
        ),
    ],
)
def test_what_is_recorded_is_not_asked_for(
    known: dict[str, float], asked: str, not_asked: str
) -> None:
    rows = [_row(i, **known) for i in range(20)]
    sentence = ten_minute_connection(_connect(rows)).sentence
    assert sentence.startswith("Neither input length nor output length explains")
    assert asked in sentence
    assert not_asked not in sentence


def test_a_request_that_failed_without_an_answer_has_no_low_token_rate() -> None:
    rows = _rows(10)
    rows[8] |= {"status": "error", "output_tokens": 0, "ttft_ms": None}
    rows[9] |= {"status": "aborted", "output_tokens": 2}
    table = ten_minute_connection(_connect(rows))
    assert [r.low_tokens_per_s for r in table.rows[-3:]] == [False, None, True]
