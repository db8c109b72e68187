"""What engines tell of the inside of phases: chunks of a prefill, preemptions, other sub-phases."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import duckdb
import pytest

from tests.analysis import _captures as captures
from tests.analysis._legs import check_timelines, leg, run_core
from tests.analysis._spans import MS, START_NS, Row, at, chat, engine, log_row, phase, span, table
from tests.analysis.test_timeline_made import _many
from tracekit import chunks
from tracekit.names import SUB_PHASES

#: One interval: phase, sub-phase or '', start and end in ms.
Line = list[tuple[str, str, float, float]]


def _derived(*spans: Row, log: tuple[Row, ...] = ()) -> duckdb.DuckDBPyConnection:
    con = captures.derived(
        table("spans", spans) if spans else None, table("request_log", log) if log else None
    )
    check_timelines(con)
    return con


def _lines(con: duckdb.DuckDBPyConnection) -> list[Line]:
    lines: dict[str, Line] = defaultdict(list)
    for key, name, sub, start, end in con.execute(
        "select request_key, phase, coalesce(sub_phase, ''), start_unix_ns, end_unix_ns "
        "from phases order by request_key, start_unix_ns"
    ).fetchall():
        lines[key].append((name, sub, (start - START_NS) / MS, (end - START_NS) / MS))
    return list(lines.values())


def _record(con: duckdb.DuckDBPyConnection) -> Row:
    (record,) = captures.records(con)
    return record


def _chunked(*more: Row, parent: str = "c", **named: Any) -> tuple[Row, ...]:
    """A call whose prefill came in three chunks, of 30, 20 and 40 ms."""
    spans = [
        phase("q", "queue", 10, 50, parent=parent, **named),
        phase("p1", "prefill", 50, 80, parent=parent, **named),
        phase("p2", "prefill", 100, 120, parent=parent, **named),
        phase("p3", "prefill", 135, 175, parent=parent, **named),
        phase("d", "decode", 175, 400, parent=parent, **named),
    ]
    return (chat("c", 0, 410), *spans, *more)


def test_between_chunks_a_prefill_waits() -> None:
    con = _derived(*_chunked())
    (line,) = _lines(con)
    assert [row for row in line if row[0] not in ("network", "unexplained")] == [
        ("queue", "", 10, 50),
        ("prefill", "", 50, 80),
        ("prefill", "prefill.wait", 80, 100),
        ("prefill", "", 100, 120),
        ("prefill", "prefill.wait", 120, 135),
        ("prefill", "", 135, 175),
        ("decode", "", 175, 400),
    ]
    record = _record(con)
    assert (record["prefill_ms"], record["prefill_wait_ms"]) == (125, 35)
    assert record["decode_preempted_ms"] is None
    rows = con.execute(
        "select distinct provenance, field, worker from phases where sub_phase = 'prefill.wait'"
    ).fetchall()
    assert rows == [("inferred", "between tracekit.phase=prefill", "app")]
    # who counts prefills counts one
    whole = con.execute(
        "select whole_start_unix_ns, whole_end_unix_ns, count(*) from phases "
        "where phase = 'prefill' group by all"
    ).fetchall()
    assert whole == [(at(50), at(175), 5)]


def test_one_prefill_span_tells_no_wait() -> None:
    record = _record(_derived(chat("c", 0, 410), phase("p", "prefill", 50, 80, parent="c")))
    assert record["prefill_wait_ms"] is None
    # chunks without any time between them tell that there was none
    spans = [phase("p", "prefill", 50, 80, parent="c"), phase("r", "prefill", 80, 99, parent="c")]
    record = _record(_derived(chat("c", 0, 410), *spans))
    assert (record["prefill_wait_ms"], record["prefill_ms"]) == (0, 49)
    # nor do spans of two workers, each of which did a part
    spans = [
        phase("p", "prefill", 50, 80, parent="c", tracekit__worker="a"),
        phase("r", "prefill", 90, 99, parent="c", tracekit__worker="b"),
    ]
    record = _record(_derived(chat("c", 0, 410), *spans))
    assert (record["prefill_wait_ms"], record["prefill_ms"]) == (None, 39)


def test_what_is_computed_again_after_the_first_token_is_no_chunk() -> None:
    con = _derived(
        chat("c", 0, 410),
        phase("p1", "prefill", 50, 80, parent="c"),
        phase("d1", "decode", 80, 200, parent="c"),
        phase("p2", "prefill", 300, 320, parent="c"),
        phase("d2", "decode", 320, 400, parent="c"),
    )
    record = _record(con)
    assert (record["prefill_ms"], record["prefill_wait_ms"], record["decode_ms"]) == (50, None, 200)


def test_a_request_that_queued_between_chunks_queued() -> None:
    con = _derived(*_chunked(phase("q2", "queue", 82, 97, parent="c")))
    (line,) = _lines(con)
    assert [row for row in line if 80 <= row[2] < 100] == [
        ("prefill", "prefill.wait", 80, 82),
        ("queue", "", 82, 97),
        ("prefill", "prefill.wait", 97, 100),
    ]
    assert _record(con)["prefill_wait_ms"] == 20


def test_preempted_time_is_a_part_of_decode() -> None:
    # inside the decode span and below it, or in its place: the same timeline
    inside = phase("x", "decode.preempted", 200, 280, parent="d")
    pieces = [
        phase("d1", "decode", 175, 200, parent="c"),
        phase("x", "decode.preempted", 200, 280, parent="c"),
        phase("d2", "decode", 280, 400, parent="c"),
    ]
    for spans in (_chunked(inside), (*_chunked()[:-1], *pieces)):
        con = _derived(*spans)
        (line,) = _lines(con)
        assert [row for row in line if row[0] == "decode"] == [
            ("decode", "", 175, 200),
            ("decode", "decode.preempted", 200, 280),
            ("decode", "", 280, 400),
        ]
        record = _record(con)
        assert (record["decode_ms"], record["decode_preempted_ms"]) == (225, 80)
        whole = con.execute(
            "select distinct whole_start_unix_ns, whole_end_unix_ns from phases "
            "where phase = 'decode'"
        ).fetchall()
        assert whole == [(at(175), at(400))]


def test_beside_an_engines_own_span_others_only_say_more() -> None:
    own = engine("e", 10, parent="c", step_wait=2, queue=8, prefill=80, decode=300)
    told = [
        phase("p1", "prefill", 20, 50, parent="c"),
        phase("p2", "prefill", 60, 100, parent="c"),
        # below the engine's own span, and longer than its decode
        phase("x", "decode.preempted", 350, 500, parent="e"),
    ]
    alone, both = (_derived(chat("c", 0, 410), own, *more) for more in ([], told))
    (before,), (after,) = _lines(alone), _lines(both)
    at_ms = [row for row in after if row[0] in ("prefill", "decode")]
    assert at_ms == [
        ("prefill", "", 20, 50),
        ("prefill", "prefill.wait", 50, 60),
        ("prefill", "", 60, 100),
        ("decode", "", 100, 350),
        ("decode", "decode.preempted", 350, 400),
    ]
    assert [r for r in before if r[0] not in ("prefill", "decode")] == [
        r for r in after if r[0] not in ("prefill", "decode")
    ]
    record, plain = _record(both), _record(alone)
    assert (record["prefill_wait_ms"], record["decode_preempted_ms"]) == (10, 50)
    assert (plain["prefill_wait_ms"], plain["decode_preempted_ms"]) == (None, None)
    same = [
        c
        for c in record
        if c.endswith("_ms") and c[:-3] not in ("prefill_wait", "decode_preempted")
    ]
    assert {c: record[c] for c in same} == {c: plain[c] for c in same}


def test_a_preemption_told_alone_names_the_clients_time() -> None:
    log = log_row(
        request_id="r",
        trace_id=f"{b't'.hex():0>32}",
        start=0,
        end=400,
        ttft_ms=100.0,
        e2e_ms=400.0,
        streaming=1,
        output_tokens=9,
    )
    con = _derived(
        chat("c", 0, 400, gen_ai__request__id="r"),
        phase("x", "decode.preempted", 200, 280, parent="c"),
        log=(log,),
    )
    (line,) = _lines(con)
    assert [row for row in line if row[0] == "decode"] == [
        ("decode", "", 100, 200),
        ("decode", "decode.preempted", 200, 280),
        ("decode", "", 280, 400),
    ]
    assert _record(con)["decode_preempted_ms"] == 80


def test_a_stall_while_preempted_is_told_as_preempted() -> None:
    offsets = [100_000, 110_000, 120_000, 300_000, 310_000, 320_000]
    log = log_row(
        request_id="r",
        start=0,
        end=320,
        ttft_ms=100.0,
        e2e_ms=320.0,
        streaming=1,
        output_tokens=6,
        chunk_times=chunks.pack(offsets, [1] * 6),
    )
    con = _derived(
        chat("c", 0, 320, gen_ai__response__id="r"),
        phase("p", "prefill", 20, 95, parent="c"),
        phase("d", "decode", 95, 318, parent="c"),
        phase("x", "decode.preempted", 150, 250, parent="d"),
        log=(log,),
    )
    (line,) = _lines(con)
    assert [row for row in line if row[0] == "decode"] == [
        ("decode", "", 95, 130),
        ("decode", "decode.stall", 130, 150),
        ("decode", "decode.preempted", 150, 250),
        ("decode", "decode.stall", 250, 300),
        ("decode", "", 300, 318),
    ]
    record = _record(con)
    assert (record["stall_ms"], record["decode_preempted_ms"]) == (170, 100)


def test_spans_below_phase_spans_are_of_one_request() -> None:
    # a server that sends phases only: nobody made a span of the call
    spans = [
        phase("p", "prefill", 10, 100),
        phase("w", "prefill.wait", 40, 60, parent="p"),
        phase("d", "decode", 100, 200),
        phase("x", "decode.preempted", 120, 150, parent="d"),
    ]
    for row in spans:
        row["parent_span_id"] = row["parent_span_id"] or "f" * 16
    con = _derived(*spans)
    record = _record(con)
    assert (record["prefill_wait_ms"], record["decode_preempted_ms"]) == (20, 30)
    assert record["e2e_ms"] == 190


@pytest.mark.parametrize("name", SUB_PHASES)
def test_every_sub_phase_may_be_told(name: str) -> None:
    con = _derived(chat("c", 0, 410), phase("x", name, 100, 180, parent="c"))
    (line,) = _lines(con)
    assert (name.partition(".")[0], name, 100, 180) in line
    # alone, with nobody that made a span of the call
    con = _derived(phase("x", name, 100, 180))
    assert _lines(con) == [[(name.partition(".")[0], name, 100, 180)]]
    con = _derived(span("x", id="x", start=0, end=9, tracekit__phase="decode.nap"))
    assert _lines(con) == []


def test_what_is_told_goes_before_what_a_client_alone_makes_of_it() -> None:
    # an early role chunk does not make decode of it
    client = chat("c", 0, 410, events=[("first_token", 20.0)])
    con = _derived(client, phase("x", "kv_transfer.wait", 100, 180, parent="c"))
    (line,) = _lines(con)
    assert ("kv_transfer", "kv_transfer.wait", 100, 180) in line
    # nor does one phase that is told bound what else is
    con = _derived(
        chat("c", 0, 410),
        phase("d", "decode", 100, 200, parent="c"),
        phase("x", "decode.preempted", 200, 250, parent="c"),
    )
    assert (_record(con)["decode_ms"], _record(con)["decode_preempted_ms"]) == (150, 50)
    # computing again what was thrown away is a part of it
    con = _derived(
        *_chunked(
            phase("x", "decode.preempted", 410, 500, parent="d"),
            phase("again", "prefill", 480, 500, parent="d"),
            phase("e", "decode", 500, 520, parent="c"),
        )[1:]
    )
    assert (_record(con)["decode_preempted_ms"], _record(con)["prefill_ms"]) == (90, 125)


def test_what_was_inferred_stands_against_what_was_inferred() -> None:
    # a decode server that computes the prompt again, in chunks that somebody else timed
    p = leg(
        "prefill_engine",
        recv=0,
        queued=5 * MS,
        scheduled=10 * MS,
        prefill_end=110 * MS,
        first_token=110 * MS,
        leg_end=111 * MS,
        kv_bytes=0,
    )
    d = leg(
        "decode_engine",
        recv=149 * MS,
        queued=150 * MS,
        scheduled=150 * MS,
        prefill_end=260 * MS,
        first_token=260 * MS,
        last_token=500 * MS,
        leg_end=500 * MS,
        kv_bytes=0,
    )
    chunked = [
        leg("provider", scheduled=150 * MS, prefill_end=180 * MS),
        leg("provider", scheduled=200 * MS, prefill_end=255 * MS),
    ]
    con = run_core({"r": [p, d, *chunked]})
    check_timelines(con)
    record = con.execute("select double_prefill_ms, prefill_wait_ms from requests").fetchone()
    assert record == (110, 0)


def test_no_preemption_told_is_none() -> None:
    log = log_row(request_id="r", start=0, end=400, e2e_ms=400.0, ttft_ms=90.0, preemptions=0)
    assert _record(_derived(log=(log,)))["decode_preempted_ms"] == 0
    log = log_row(request_id="r", start=0, end=400, e2e_ms=400.0, ttft_ms=90.0, preemptions=2)
    assert _record(_derived(log=(log,)))["decode_preempted_ms"] is None


@pytest.mark.parametrize(
    ("moved", "hidden", "exposed"),
    [
        ([(60, 100)], 40, 0),
        ([(60, 140)], 60, 20),
        # two servers stamp the one transfer
        ([(60, 140), (70, 130)], 60, 20),
        ([(30, 110), (40, 90)], 80, 0),
        ([(60, 80), (90, 140)], 50, 20),
        ([(125, 140)], 0, 15),
        ([], None, None),
    ],
)
def test_what_a_prefill_hides_of_a_transfer(
    moved: list[tuple[float, float]], hidden: float | None, exposed: float | None
) -> None:
    spans = [
        phase("p", "prefill", 20, 120, parent="c"),
        phase("d", "decode", 140, 400, parent="c"),
        *(phase(f"k{i}", "kv_transfer", *times, parent="c") for i, times in enumerate(moved)),
    ]
    record = _record(_derived(chat("c", 0, 410), *spans))
    assert record["kv_hidden_ms"] == hidden
    assert record["kv_transfer_ms"] == exposed
    # durations that were put on the timeline do not tell what overlapped
    for row in spans:
        row["attributes"] = row["attributes"].replace(
            "}", ', "tracekit.phase.source": "reported"}', 1
        )
    assert _record(_derived(chat("c", 0, 410), *spans))["kv_hidden_ms"] is None


def test_a_transfer_beside_the_prefill_of_another_server() -> None:
    p = leg(
        "prefill_engine",
        recv=0,
        queued=5 * MS,
        scheduled=10 * MS,
        prefill_end=200 * MS,
        first_token=200 * MS,
        leg_end=205 * MS,
        worker="p",
    )
    d = leg(
        "decode_engine",
        recv=20 * MS,
        queued=30 * MS,
        scheduled=260 * MS,
        kv_start=100 * MS,
        kv_end=240 * MS,
        prefill_end=265 * MS,
        first_token=265 * MS,
        last_token=500 * MS,
        leg_end=500 * MS,
        worker="d",
    )
    con = run_core({"r": [p, d]})
    check_timelines(con)
    record = con.execute("select kv_hidden_ms, kv_transfer_wire_ms from requests").fetchone()
    assert record == (100, 40)
    # what a log states goes before
    log = leg("client", source="request_log", send=0, last_token=500 * MS, kv_hidden_ms=90.0)
    con = run_core({"r": [log, p, d]})
    assert con.execute("select kv_hidden_ms from requests").fetchone() == (90,)


def test_told_stretches_leave_whole_phases_and_names_their_own_time() -> None:
    rng = random.Random(5)
    requests = _many(17, 250)
    told = {
        key: [
            *legs,
            *(
                leg(
                    rng.choice(["provider", "engine"]),
                    recv=start,
                    leg_end=start + rng.randint(0, 500 * MS),
                    sub_phase=rng.choice(SUB_PHASES),
                    worker=rng.choice(["a", None]),
                )
                for start in (rng.randrange(1_500 * MS) for _ in range(rng.randint(0, 4)))
            ),
        ]
        for key, legs in requests.items()
    }
    for force_sweep in (False, True):
        con = run_core(told, force_sweep=force_sweep)
        check_timelines(con)
        bad = con.execute(
            "select * from phases where not starts_with(coalesce(sub_phase, phase), phase)"
        ).fetchall()
        assert bad == []
        more = con.execute(
            "select * from requests where prefill_wait_ms > prefill_ms + 1e-6 "
            "or decode_preempted_ms > decode_ms + 1e-6 or prefill_wait_ms < 0 "
            "or decode_preempted_ms < 0 or kv_hidden_ms < 0"
        ).fetchall()
        assert more == []
    # beside an engine's own span a stretch claims no time
    aside = {
        key: [dict(row, role="provider") if row.get("sub_phase") else row for row in legs]
        for key, legs in told.items()
    }
    names = "client_wait network route frontend queue prefill kv_transfer decode".split()
    columns = ", ".join(f"{n}_ms" for n in names)
    query = f"select request_key, {columns} from requests order by request_key"
    assert run_core(aside).execute(query).fetchall() == run_core(requests).execute(query).fetchall()
