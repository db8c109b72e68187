"""Log rows as requests: alone or beside spans, with a clock or without, with phases or without."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._legs import check_timelines
from tests.analysis._spans import at, chat, engine, http, log_row, table, trace
from tracekit.analysis.swapped import SWAPPED
from tracekit.chunks import pack
from tracekit.lake.schema import RECORD_COLUMNS, TABLES
from tracekit.names import PHASES

Row = dict[str, Any]


def _requests(*log: Row, spans: tuple[Row, ...] = ()) -> list[Row]:
    con = captures.derived(table("spans", spans) if spans else None, table("request_log", log))
    check_timelines(con, "request_points")
    return captures.records(con)


def _known(record: Row) -> dict[str, Any]:
    return {p: pytest.approx(record[f"{p}_ms"]) for p in PHASES if record[f"{p}_ms"] is not None}


def test_a_row_whose_columns_contradict_each_other_is_no_matter_of_clocks() -> None:
    # e2e in seconds, phases in ms
    (record,) = _requests(
        log_row(
            start=100, ttft_ms=50.0, e2e_ms=0.25, queue_ms=10.0, prefill_ms=40.0, decode_ms=200.0
        )
    )
    assert record["quarantine_reason"].startswith("inconsistent_durations")


def test_phases_longer_than_the_call_are_no_phases_though_no_token_is_placed() -> None:
    told = {"e2e_ms": 300.0, "prefill_ms": 100.0}
    (record,) = _requests(log_row(start=100, decode_ms=400.0, **told))
    assert record["quarantine_reason"] == "inconsistent_durations:phases>e2e"
    # rounding, and a server that went on after its client had left
    (rounded,) = _requests(log_row(start=100, decode_ms=249.0, **told))
    assert rounded["quarantine_reason"] is None
    (left,) = _requests(log_row(start=100, decode_ms=400.0, status="aborted", **told))
    assert left["quarantine_reason"] is None


@pytest.mark.parametrize("status", ["ok", "aborted", "error"])
def test_a_queue_is_known_though_nothing_after_it_is(status: str) -> None:
    (record,) = _requests(log_row(start=100, queue_ms=100.0, e2e_ms=500.0, status=status))
    assert _known(record) == {"queue": 100.0, "unexplained": 400.0}
    (record,) = _requests(log_row(queue_ms=100.0, frontend_ms=5.0, e2e_ms=500.0, status=status))
    assert record["queue_ms"] == pytest.approx(100.0)
    assert record["frontend_ms"] == pytest.approx(5.0)
    assert record["ttft_ms"] is None


def test_rows_that_share_an_id_are_requests_of_their_own_each_with_its_clock() -> None:
    seen_by_client = log_row(request_id="r", start=100, ttft_ms=60.0, e2e_ms=250.0)
    for ahead in (-120_000, -150, 150, 120_000):
        phases = {"ttft_ms": 50.0, "queue_ms": 10.0, "prefill_ms": 40.0}
        server = log_row(request_id="r", start=100 + ahead, e2e_ms=240.0, **phases)
        assert [r["quarantine_reason"] for r in _requests(seen_by_client, server)] == [None, None]
        # what a row says of itself is its own affair: no other clock takes part in it
        wrong = log_row(
            request_id="r", start=100 + ahead, e2e_ms=0.24, **(phases | {"decode_ms": 200.0})
        )
        reasons = sorted(str(r["quarantine_reason"]) for r in _requests(seen_by_client, wrong))
        assert reasons == ["None", "inconsistent_durations:phases>e2e"]


def test_a_row_whose_prefill_and_decode_fit_only_in_each_others_place() -> None:
    told = {"ttft_ms": 50.0, "e2e_ms": 250.0, "queue_ms": 10.0}
    (swapped,) = _requests(log_row(start=100, prefill_ms=200.0, decode_ms=40.0, **told))
    assert swapped["quarantine_reason"] == SWAPPED
    (right,) = _requests(log_row(start=100, prefill_ms=40.0, decode_ms=200.0, **told))
    assert right["quarantine_reason"] is None


def test_a_row_with_a_clock_keeps_its_times() -> None:
    (record,) = _requests(
        log_row(
            request_id="chatcmpl-x",
            start=100,
            ttft_ms=50.0,
            ttft_kind="first_content",
            e2e_ms=250.0,
            input_tokens=30,
            output_tokens=21,
            model="m",
            route="chat",
            tenant="t",
            worker="w",
            cached_tokens=16,
            finish_reason="stop",
            streaming=1,
            note="hm",
        )
    )
    assert (record["start_unix_ns"], record["end_unix_ns"]) == (at(100), at(350))
    assert (record["first_token_unix_ns"], record["last_token_unix_ns"]) == (at(150), at(350))
    assert (record["ttft_ms"], record["e2e_ms"], record["tpot_ms"]) == (50, 250, 10)
    assert record["tokens_per_s"] == pytest.approx(21 / 0.25)
    assert _known(record) == {"queue_or_prefill": 50, "decode": 200, "unexplained": 0}
    kept = ("request_id", "model", "route", "tenant", "worker", "cached_tokens", "note")
    assert [record[c] for c in kept] == ["chatcmpl-x", "m", "chat", "t", "w", 16, "hm"]
    assert (record["finish_reason"], record["streaming"], record["has_clock"]) == ("stop", 1, 1)
    assert (record["leg_roles"], record["sources"]) == ("client", "request_log")


def test_a_row_without_a_start_counts_from_its_own_start() -> None:
    first, second, third = sorted(
        _requests(
            log_row(request_id="a", ttft_ms=50.0, e2e_ms=250.0, output_tokens=21),
            log_row(request_id="b", e2e_ms=250.0),
            # twenty rows of a spreadsheet need no ids
            log_row(source_row=3, ttft_ms=50.0, e2e_ms=250.0, queue_ms=10.0, prefill_ms=40.0),
        ),
        key=lambda r: r["request_id"] or "z",
    )
    for record in (first, second, third):
        assert record["has_clock"] == 0
        times = ("start_unix_ns", "end_unix_ns", "first_token_unix_ns", "last_token_unix_ns")
        assert [record[t] for t in times] == [None] * 4
        assert record["date"] is not None
        assert record["e2e_ms"] == 250
    assert (first["ttft_ms"], first["tpot_ms"]) == (50, 10)
    assert _known(second) == {"unexplained": 250}
    assert _known(third) == {"queue": 10, "prefill": 40, "decode": 200, "unexplained": 0}


def test_a_row_of_tokens_alone_is_counted_without_times() -> None:
    (record,) = _requests(log_row(request_id="a", input_tokens=5, output_tokens=7))
    assert (record["input_tokens"], record["output_tokens"]) == (5, 7)
    assert record["quarantine_reason"] == "no_wall_time"
    assert record["ttft_ms"] is None


@pytest.mark.parametrize(
    ("row", "quarantine", "ttft", "known"),
    [
        ({"start": 0}, None, None, {"unexplained": 0}),
        ({"start": 0, "ttft_ms": 50.0}, None, 50, {"queue_or_prefill": 50, "unexplained": 0}),
        ({"e2e_ms": 0.0}, None, None, {"unexplained": 0}),
        ({"start": 0, "ttft_ms": -3.0}, "negative_duration:ttft", None, {"unexplained": 0}),
        ({"start": 0, "input_tokens": -1}, "negative_tokens", None, {"unexplained": 0}),
    ],
)
def test_a_call_that_is_still_open_has_no_wall_time_yet(
    row: Row, quarantine: str | None, ttft: float | None, known: Row
) -> None:
    (record,) = _requests(log_row(request_id="a", status="open", **row))
    assert (record["status"], record["quarantine_reason"]) == ("open", quarantine)
    assert (record["e2e_ms"], record["end_unix_ns"]) == (None, None)
    assert record["ttft_ms"] == ttft
    assert _known(record) == known


@pytest.mark.parametrize("status", ["ok", "error", "aborted", "timeout"])
def test_a_call_that_ended_without_a_wall_time_is_set_aside(status: str) -> None:
    (record,) = _requests(log_row(request_id="a", start=0, status=status))
    assert (record["status"], record["quarantine_reason"]) == (status, "no_wall_time")


def test_accepted_tokens_come_from_the_chunks_unless_the_source_tells() -> None:
    chunks = pack([50_000, 60_000, 70_000, 80_000], [1, 3, 2, 4])
    told, derived, plain = _requests(
        log_row(request_id="a", start=0, e2e_ms=80.0, output_tokens=10, chunk_times=chunks,
                accepted_tokens_per_step=2.5),
        log_row(request_id="b", start=0, e2e_ms=80.0, output_tokens=10, chunk_times=chunks),
        log_row(request_id="c", start=0, e2e_ms=80.0, output_tokens=4,
                chunk_times=pack([50_000, 60_000, 70_000, 80_000], [1, 1, 1, 1])),
    )  # fmt: skip
    # 3 + 2 + 4 tokens in three steps
    assert [r["accepted_tokens_per_step"] for r in (told, derived, plain)] == [2.5, 3.0, None]


def test_waiting_in_the_client_is_in_the_wall_time() -> None:
    cases: list[tuple[Row, float, float, float | None]] = [
        ({"intended_start": 0, "start": 40}, 0, 40, 40),
        ({"start": 0, "client_wait_ms": 40.0}, 0, 40, 40),
        ({"intended_start": 0, "start": 40, "client_wait_ms": 40.0}, 0, 40, 40),
        ({"intended_start": 90, "start": 40}, 40, 40, None),  # meant for after it was sent
        ({"start": 40}, 40, 40, None),
    ]
    records = _requests(
        *(
            log_row(request_id=f"r{i}", ttft_ms=100.0, e2e_ms=300.0, **row)
            for i, (row, *_) in enumerate(cases)
        )
    )
    records.sort(key=lambda r: str(r["request_id"]))
    for record, (row, start, send, client_wait) in zip(records, cases, strict=True):
        assert (record["ttft_ms"], record["e2e_ms"]) == (100, 300), row
        assert record["end_unix_ns"] == at(start + 300)
        assert record["start_unix_ns"] == at(send)
        assert record["client_wait_ms"] == client_wait
        assert record["queue_or_prefill_ms"] == 100 - (client_wait or 0)


def test_phases_of_a_row_are_placed_back_from_the_first_token() -> None:
    (record,) = _requests(
        log_row(
            request_id="a",
            start=0,
            ttft_ms=100.0,
            e2e_ms=300.0,
            network_ms=6.0,
            route_ms=8.0,
            frontend_ms=5.0,
            queue_ms=20.0,
            prefill_ms=50.0,
            kv_transfer_ms=10.0,
            decode_ms=200.0,
        )
    )
    # what the columns leave of the time before the first token goes to who sent it
    assert _known(record) == {
        "network": 7,
        "route": 8,
        "frontend": 5,
        "queue": 20,
        "prefill": 50,
        "kv_transfer": 10,
        "decode": 200,
        "unexplained": 0,
    }


def test_what_no_column_of_a_row_tells_is_unexplained() -> None:
    (record,) = _requests(
        log_row(
            request_id="a", start=0, ttft_ms=100.0, e2e_ms=300.0, queue_ms=20.0, prefill_ms=50.0
        )
    )
    assert _known(record) == {"queue": 20, "prefill": 50, "decode": 200, "unexplained": 30}
    (record,) = _requests(
        log_row(request_id="a", start=0, ttft_ms=100.0, e2e_ms=300.0, prefill_ms=70.0)
    )
    assert _known(record) == {"prefill": 70, "decode": 200, "unexplained": 30}
    (record,) = _requests(
        log_row(request_id="a", start=0, ttft_ms=100.0, e2e_ms=300.0, queue_ms=20.0)
    )
    assert (record["queue_ms"], record["decode_ms"]) == (20, 200)


def test_a_row_with_phases_and_no_ttft_is_placed_from_its_start() -> None:
    (record,) = _requests(
        log_row(request_id="a", start=0, queue_ms=20.0, prefill_ms=50.0, decode_ms=200.0)
    )
    assert (record["ttft_ms"], record["e2e_ms"]) == (70, 270)
    assert _known(record) == {"queue": 20, "prefill": 50, "decode": 200, "unexplained": 0}


def test_rows_that_failed_have_an_end_and_no_token() -> None:
    rows = [
        log_row(request_id="a", start=0, e2e_ms=90.0, status="error", error="http 400"),
        log_row(request_id="b", start=1000, end=1400, status="aborted", streaming=1),
        log_row(request_id="c", start=2000, e2e_ms=90.0, status="timeout"),
        log_row(request_id="d", start=3000, ttft_ms=30.0, e2e_ms=90.0, status="aborted"),
    ]
    error, waited, timeout, cut = _requests(*rows)
    assert [r["status"] for r in (error, waited, timeout, cut)] == [
        "error",
        "aborted",
        "timeout",
        "aborted",
    ]
    assert [r["e2e_ms"] for r in (error, waited, timeout, cut)] == [90, 400, 90, 90]
    assert error["error"] == "http 400"
    assert _known(waited) == {"queue_or_prefill": 400, "unexplained": 0}
    assert _known(error) == {"unexplained": 90}
    assert _known(cut) == {"queue_or_prefill": 30, "decode": 60, "unexplained": 0}
    assert all(r["last_token_unix_ns"] is None for r in (error, waited, timeout))


def _call(name: str = "x", start: float = 0) -> tuple[Row, Row]:
    return (
        chat("c", start, start + 220, trace_name=name, gen_ai__response__id=f"chatcmpl-{name}"),
        engine("e", start + 5, parent="c", trace_name=name, request_id=f"chatcmpl-{name}"),
    )


CALL = _call()


def test_a_row_that_names_a_traced_call_is_its_client_leg() -> None:
    cases: list[tuple[Row, float]] = [
        ({"trace_id": trace("x0")}, 1.0),
        ({"request_id": "x1"}, 0.95),
        ({"request_id": "chatcmpl-x2"}, 0.95),
        ({"request_id": "my-own", "trace_id": trace("x3")}, 1.0),
    ]
    rows = [
        log_row(
            start=1000 * i + 1,
            intended_start=1000 * i - 30,
            ttft_ms=64.0,
            e2e_ms=180.0,
            route="chat",
            source_row=i,
            **names,
        )
        for i, (names, _) in enumerate(cases)
    ]
    spans = [row for i in range(len(cases)) for row in _call(f"x{i}", 1000 * i)]
    for i, record in enumerate(_requests(*rows, spans=tuple(spans))):
        assert (record["legs_count"], record["match_score"]) == (3, cases[i][1])
        assert record["sources"] == "genai_client,request_log,vllm"
        assert record["route"] == "chat"
        assert record["intended_start_unix_ns"] == at(1000 * i - 30)
        # the log knows the last token, the span only the end of the call
        assert record["e2e_ms"] == 180
        assert record["ttft_ms"] == 64
        assert record["client_wait_ms"] == 30
        assert (record["queue_ms"], record["prefill_ms"]) == (10, 40)


@pytest.mark.parametrize("spans", [CALL, CALL[1:]])
def test_a_row_without_a_clock_takes_the_clock_of_its_call(spans: tuple[Row, ...]) -> None:
    (record,) = _requests(
        log_row(
            request_id="x", ttft_ms=60.0, e2e_ms=170.0, chunk_times=pack([60_000, 170_000], [1, 10])
        ),
        spans=spans,
    )
    start = 0 if len(spans) == 2 else 5
    assert record["has_clock"] == 1
    assert record["start_unix_ns"] == at(start)
    assert record["e2e_ms"] == 170
    assert record["ttft_ms"] == 60
    assert record["last_token_unix_ns"] == at(start + 170)
    assert (record["queue_ms"], record["prefill_ms"]) == (10, 40)
    assert record["quarantine_reason"] is None


def test_a_row_joins_an_untraced_engine_of_the_completions_api() -> None:
    (record,) = _requests(
        log_row(request_id="x", start=1, ttft_ms=64.0, e2e_ms=180.0),
        spans=(engine("e", 5, request_id="cmpl-x-0"),),
    )
    assert (record["leg_roles"], record["match_score"]) == ("client,engine", 0.95)


def test_a_row_of_another_call_stays_apart() -> None:
    records = _requests(
        log_row(request_id="x", start=600_000, e2e_ms=50.0),
        log_row(request_id="y", start=2, e2e_ms=50.0),
        log_row(request_id="x", start=3, e2e_ms=50.0, input_tokens=9),
        spans=CALL,
    )
    assert [r["legs_count"] for r in records] == [2, 1, 1, 1]


def test_rows_of_one_reused_id_go_to_the_nearest_call() -> None:
    spans = [
        row | {"trace_id": trace(f"t{i}"), "span_id": row["span_id"]}
        for i in range(3)
        for row in (
            chat("c", i * 250, i * 250 + 220, gen_ai__response__id="chatcmpl-x"),
            engine("e", i * 250 + 5, parent="c", request_id="chatcmpl-x"),
        )
    ]
    rows = [
        log_row(request_id="x", start=i * 250 + 1, ttft_ms=60.0 + i, e2e_ms=180.0)
        for i in (2, 0, 1)
    ]
    # and a row whose call left no trace at all must not take another's
    rows.append(log_row(request_id="x", start=-300, ttft_ms=9.0, e2e_ms=180.0))
    records = _requests(*rows, spans=tuple(spans))
    assert [(r["legs_count"], r["ttft_ms"]) for r in records] == [
        (1, 9),
        (3, 61),
        (3, 62),
        (3, 63),
    ]


def test_a_row_beside_spans_does_not_bring_its_phases_again() -> None:
    (record,) = _requests(
        log_row(request_id="x", start=1, ttft_ms=60.0, e2e_ms=180.0, queue_ms=1.0, prefill_ms=2.0),
        spans=CALL,
    )
    assert (record["queue_ms"], record["prefill_ms"]) == (10, 40)
    assert (record["choices"], record["output_tokens"]) == (1, 11)


def test_chunk_times_give_gaps_and_stalls() -> None:
    # 20 ms apart, one pause of 500 ms, one chunk of three tokens
    offsets = [100_000 + 20_000 * i for i in range(10)] + [780_000 + 20_000 * i for i in range(5)]
    con = captures.derived(
        None,
        table(
            "request_log",
            [
                log_row(
                    request_id="a",
                    start=0,
                    ttft_ms=100.0,
                    e2e_ms=860.0,
                    output_tokens=17,
                    chunk_times=pack(offsets, [1] * 12 + [3, 1, 1]),
                ),
                log_row(request_id="b", start=0, ttft_ms=9.0, e2e_ms=20.0, chunk_times="1:garbage"),
                log_row(request_id="c", start=0, e2e_ms=20.0, max_gap_ms=7.0, stall_ms=3.0),
            ],
        ),
    )
    records = {r["request_id"]: r for r in captures.records(con)}
    first = records["a"]
    assert (first["chunk_count"], first["max_gap_ms"], first["stall_ms"]) == (15, 500, 480)
    assert first["tpot_ms"] == pytest.approx(760 / 16)
    stalls = con.execute(
        "select gap_index, start_unix_ns, end_unix_ns, gap_ms, excess_ms from token_gaps "
        "where is_stall = 1"
    ).fetchall()
    assert stalls == [(10, at(280), at(780), 500, 480)]
    assert con.execute("select count(*) from token_gaps").fetchall() == [(14,)]
    assert records["b"]["chunk_count"] is None
    assert records["b"]["ttft_ms"] == 9
    assert (records["c"]["max_gap_ms"], records["c"]["stall_ms"]) == (7, 3)


def test_a_row_imported_twice_is_one_request() -> None:
    row = log_row(request_id="a", start=0, e2e_ms=20.0)
    again = row | {"ingested_unix_ns": row["ingested_unix_ns"] + 5, "source_row": 9}
    assert len(_requests(row, row, again)) == 1


@pytest.mark.parametrize("scenario", ["baseline", "pd-nixl"])
def test_exported_records_come_back_as_they_were(scenario: str) -> None:
    before = captures.records(captures.derived(captures.spans(scenario)))
    empty = dict.fromkeys(TABLES["request_log"].column_names)
    rows = [
        empty
        | {c: record[c] for c in RECORD_COLUMNS}
        | {"log_key": record["request_key"], "ingested_unix_ns": 1, "date": "2026-11-29"}
        for record in before
    ]
    after = {(r["request_id"], r["start_unix_ns"]): r for r in _requests(*rows)}
    assert len(after) == len(before)
    # time in routers after the last token cannot be told from the network by its sum
    loose = {"network_ms", "route_ms"} if scenario == "pd-nixl" else set()
    for old in before:
        new = after[old["request_id"], old["start_unix_ns"]]
        for column in RECORD_COLUMNS:
            if column in loose:
                assert new[column] == pytest.approx(old[column], abs=60)
            elif isinstance(old[column], float):
                assert new[column] == pytest.approx(old[column], abs=1e-5), column
            else:
                assert new[column] == old[column], column


def test_a_gateways_own_log_joins_the_clients_trace() -> None:
    (record,) = _requests(
        log_row(trace_id=trace("t"), start=1, e2e_ms=190.0),
        spans=(http("h", 0, 200, kind=3),),
    )
    assert record["leg_roles"] == "client"
    assert record["legs_count"] == 2


def test_a_stated_tpot_of_another_definition_is_not_ours() -> None:
    """(1,000 - 200) ms over 10 gaps are 80 ms; a row that says nearly so may know better."""
    told = {"ttft_ms": 200.0, "e2e_ms": 1_000.0, "output_tokens": 11}
    for stated, shown in ((82.0, 82.0), (1_000 / 11, 80.0), (40.0, 80.0)):
        (request,) = _requests(log_row(start=100, tpot_ms=stated, **told))
        assert request["tpot_ms"] == pytest.approx(shown)
