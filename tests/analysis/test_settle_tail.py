"""Settling and the tail: however the rows come in, readers see what one derivation would give."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import chat, engine, http, log_row, table
from tests.analysis._stores import (
    NOW_NS,
    Canonical,
    S,
    canonical,
    commit,
    differences,
    made,
    one_shot,
    split,
)
from tracekit.analysis import settle, settled
from tracekit.analysis.session import Session
from tracekit.analysis.settle import Settler, settle_after_import
from tracekit.analysis.settled import LOG_LEG_ID, SPAN_LEG_ID, may_be_leg
from tracekit.lake import maintain
from tracekit.lake.lock import settle_lock
from tracekit.lake.stamping import WATERMARK_APP, stamping
from tracekit.lake.store import Store, StoreReader


def _rows() -> tuple[pa.Table, pa.Table]:
    """The recorded edge cases and the made ones together."""
    spans, log = made()
    return (
        pa.concat_tables([captures.spans("edge"), spans]),
        pa.concat_tables([captures.log("edge"), log]),
    )


@pytest.fixture(scope="module")
def truth() -> Canonical:
    spans, log = _rows()
    return one_shot([spans], [log])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def _seen(store: Store) -> Canonical:
    """What a reader sees that opens the store now."""
    with Session.open(store) as session:
        return canonical(session.con)


def _watermark(store: Store) -> int:
    return store.txn_version("requests", WATERMARK_APP) or 0


# ---------------------------------------------------------------------------------------------
# rows in any order
# ---------------------------------------------------------------------------------------------


def test_the_tail_ends_as_one_derivation(store: Store, truth: Canonical) -> None:
    rng = random.Random(7)
    spans, log = _rows()
    with Session.open(store) as session:
        for number, (a, b) in enumerate(zip(split(spans, 3, rng), split(log, 3, rng), strict=True)):
            commit(store, "spans", a, NOW_NS + number)
            commit(store, "request_log", b, NOW_NS + number)
            assert session.refresh()
            canonical(session.con)
        assert not session.refresh()
        assert differences(canonical(session.con), truth) == []
        # a compaction brings the same rows back in other files
        assert maintain.compact(store, max_small_files=1)
        session.refresh()
        assert differences(canonical(session.con), truth) == []
        raw = session.con.execute("select count(*), (select count(*) from request_log) from spans")
        assert raw.fetchall() == [(spans.num_rows, log.num_rows)]
    assert differences(_seen(store), truth) == []


@pytest.mark.parametrize(("step_s", "parts", "traces"), [(1, 2, 25), (1000, 3, 1000)])
def test_settling_piece_by_piece_ends_as_one_derivation(
    store: Store,
    truth: Canonical,
    monkeypatch: pytest.MonkeyPatch,
    step_s: int,
    parts: int,
    traces: int,
) -> None:
    """With 1000 s between commits the watermark has passed what came before.

    Few traces at a time: requests that span traces come apart and must come together again.
    """
    monkeypatch.setattr(settle, "_CHUNK_TRACES", traces)
    rng = random.Random(step_s)
    spans, log = _rows()
    watermarks = [0]
    revised = 0
    with Session.open(store) as session:
        now = NOW_NS
        for a, b in zip(split(spans, parts, rng), split(log, parts, rng), strict=True):
            commit(store, "spans", a, now)
            commit(store, "request_log", b, now)
            session.refresh()
            before = canonical(session.con)
            report = Settler(store, quiet_ns=0).run_pass(now + 1)
            revised += report.revised
            watermarks.append(_watermark(store))
            assert report.watermark_unix_ns == watermarks[-1]
            session.refresh()
            # settling changes no number
            assert differences(canonical(session.con), before) == []
            assert session.con.execute("select count(*) from tail.requests").fetchall() == [(0,)]
            now += step_s * S
        assert differences(canonical(session.con), truth) == []
        # files that hold several passes: their statistics do not tell which
        assert maintain.compact(store, max_small_files=1)
        held = store.snapshot("requests").files
        assert any(f.stats["revision"][0] != f.stats["revision"][1] for f in held)
        session.refresh()
        assert differences(canonical(session.con), truth) == []
    assert revised > 5
    assert watermarks == sorted(watermarks)
    assert differences(_seen(store), truth) == []


def test_related_legs_at_hand_are_those_that_the_files_hold(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all that settled since is in memory no file is read, and nothing else is found."""
    found: list[int] = []
    at_hand = settled._relate_done

    def both(con: duckdb.DuckDBPyConnection, since: int) -> None:
        settled._relate_files(con, StoreReader(store), since, None)
        con.execute("create or replace temp table from_files as from related")
        at_hand(con, since)
        (other,) = con.execute(
            "select count(*) from ((from related except all from from_files) "
            "union all (from from_files except all from related))"
        ).fetchall()
        assert other == (0,)
        found.extend(n for (n,) in con.execute("select count(*) from related").fetchall())

    monkeypatch.setattr(settled, "_relate_done", both)
    rng = random.Random(3)
    spans, log = _rows()
    with Session.open(store) as session:
        for step, (a, b) in enumerate(zip(split(spans, 4, rng), split(log, 4, rng), strict=True)):
            commit(store, "spans", a, NOW_NS + step * S)
            commit(store, "request_log", b, NOW_NS + step * S)
            session.refresh()
            Settler(store, quiet_ns=0, slack_ns=10**18).run_pass(NOW_NS + step * S + 1)
    assert len(found) > 4 and max(found) > 5


# ---------------------------------------------------------------------------------------------
# a pass that dies
# ---------------------------------------------------------------------------------------------


def _failing(table_name: str) -> Callable[..., bool]:
    """`Store.append` on a disk that is full once ``table_name`` is written to."""
    append = Store.append

    def appended(self: Store, name: str, rows: pa.Table, **more: Any) -> bool:
        if name == table_name:
            raise OSError("no space left on device")
        return append(self, name, rows, **more)

    return appended


def test_passes_killed_half_way_change_nothing_and_the_next_one_mends_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, log = made()
    commit(store, "spans", spans, NOW_NS)
    commit(store, "request_log", log, NOW_NS)
    truth = one_shot([spans], [log])
    with Session.open(store) as session:
        for number, dies_at in enumerate(("phases", "requests")):
            with monkeypatch.context() as patch:
                patch.setattr(Store, "append", _failing(dies_at))
                with pytest.raises(OSError, match="no space"):
                    Settler(store, quiet_ns=0).run_pass(NOW_NS + 1 + number)
            assert _watermark(store) == 0
            session.refresh()
            assert differences(canonical(session.con), truth) == []
        assert store.snapshot("legs").rows > store.snapshot("phases").rows // 2 > 0
        assert store.snapshot("requests").rows == 0
        assert differences(_seen(store), truth) == []
        report = Settler(store, quiet_ns=0).run_pass(NOW_NS + 3)
        assert (report.settled, report.revised, report.waiting) == (len(truth), 0, 0)
        session.refresh()
        assert differences(canonical(session.con), truth) == []
    assert differences(_seen(store), truth) == []


# ---------------------------------------------------------------------------------------------
# when a request is ripe
# ---------------------------------------------------------------------------------------------


def _call(name: str = "t", start: float = 0) -> tuple[pa.Table, pa.Table]:
    """Engine and client span of one call, each as rows of its own."""
    return (
        table("spans", [engine(f"e{name}", start + 5, trace_name=name, parent=f"c{name}")]),
        table("spans", [chat(f"c{name}", start, start + 200, trace_name=name)]),
    )


def _settled(store: Store, now_unix_ns: int) -> tuple[int, int, int]:
    report = Settler(store).run_pass(now_unix_ns)
    return report.settled, report.revised, report.waiting


def test_a_request_settles_when_its_own_spans_have_been_quiet(store: Store) -> None:
    server, client = _call()
    end = server["end_unix_ns"][0].as_py()
    commit(store, "spans", server, end)
    assert _settled(store, end + 59 * S) == (0, 0, 0)
    assert _watermark(store) <= end
    # its client span comes after 59 s: sixty more seconds of quiet, others do not matter
    commit(store, "spans", client, end + 59 * S)
    commit(store, "spans", _call("other")[0], end + 110 * S)
    assert _settled(store, end + 118 * S) == (0, 0, 1)
    assert _watermark(store) <= end
    assert _settled(store, end + 119 * S) == (1, 0, 0)
    with Session.open(store) as session:
        rows = session.con.execute(
            "select leg_roles, settled_unix_ns is not null from requests order by legs_count"
        ).fetchall()
    assert rows == [("engine", False), ("client,engine", True)]
    # what waits holds the watermark
    assert _settled(store, end + 400 * S) == (1, 0, 0)
    assert _watermark(store) > end + 110 * S


def test_a_request_settles_ten_minutes_after_its_end_at_the_latest(store: Store) -> None:
    server, client = _call()
    end = client["end_unix_ns"][0].as_py()
    commit(store, "spans", server, end + 500 * S)
    for at_s in (550, 590, 599):  # the same span again and again: never quiet
        commit(store, "spans", client, end + at_s * S)
    assert _settled(store, end + 599 * S) == (0, 0, 1)
    assert _settled(store, end + 600 * S) == (1, 0, 0)


def test_the_watermark_never_falls_and_passes_nothing_that_waits(store: Store) -> None:
    waits, _ = _call("waits")
    ripe, _ = _call("ripe")
    commit(store, "spans", waits, NOW_NS + 100 * S)
    commit(store, "spans", ripe, NOW_NS)
    settler = Settler(store)
    seen = []
    for now in (120, 130, 60, 10, 155, 170, 1000, 30):  # the clock is set back twice
        settler.run_pass(NOW_NS + now * S)
        seen.append(_watermark(store) - NOW_NS)
    assert seen == sorted(seen)
    assert seen[0] > 0
    assert max(seen[:5]) <= 100 * S < seen[5]
    assert len(_seen(store)) == 2
    revisions = {f.stats["revision"] for f in store.snapshot("requests").files if f.rows}
    assert len(revisions) == 2


def test_a_late_span_revises_its_own_request_only(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = _call("late")
    both = pa.concat_tables(_call("whole", 5000))
    commit(store, "spans", server, NOW_NS)
    commit(store, "spans", both, NOW_NS)
    Settler(store).run_pass(NOW_NS + 3600 * S)
    assert _watermark(store) > NOW_NS
    commit(store, "spans", client, NOW_NS + 3600 * S)
    columns = "legs_count, settled_unix_ns, supersedes_revision"
    query = f"select {columns} from requests order by start_unix_ns"
    with Session.open(store) as session:
        # the tail shows the revision before it has settled
        first = NOW_NS + 3600 * S - settle._CHUNKS_MAX
        assert session.con.execute(query).fetchall() == [(2, None, first), (2, first, None)]
        # a pass that dies before `requests` has settled nothing, its legs notwithstanding
        with monkeypatch.context() as patch:
            patch.setattr(Store, "append", _failing("requests"))
            with pytest.raises(OSError, match="no space"):
                Settler(store).run_pass(NOW_NS + 3690 * S)
        session.refresh()
        assert session.con.execute(query).fetchall() == [(2, None, first), (2, first, None)]
        report = Settler(store).run_pass(NOW_NS + 3700 * S)
        assert (report.settled, report.revised) == (1, 1)
        session.refresh()
        second = NOW_NS + 3700 * S - settle._CHUNKS_MAX
        assert session.con.execute(query).fetchall() == [(2, second, first), (2, first, None)]
    assert store.snapshot("requests").rows == 3
    # the same span once more is nothing new
    commit(store, "spans", client, NOW_NS + 3800 * S)
    assert _settled(store, NOW_NS + 3900 * S) == (0, 0, 0)


def test_two_requests_that_turn_out_to_be_one_are_merged(store: Store) -> None:
    # what links the client to the engine is the last to come
    ends = [chat("c", 0, 220), engine("e", 5, parent="h")]
    link = http("h", 2, 215, kind=3, parent="c")
    settler = Settler(store, quiet_ns=0)
    commit(store, "spans", table("spans", ends), NOW_NS)
    assert settler.run_pass(NOW_NS + 1).settled == 2
    commit(store, "spans", table("spans", [link]), NOW_NS + 100 * S)
    expected = one_shot([table("spans", [*ends, link])], [captures.empty("request_log")])
    assert len(expected) == 1
    assert differences(_seen(store), expected) == []
    report = settler.run_pass(NOW_NS + 100 * S + 1)
    assert (report.settled, report.revised) == (1, 1)
    with Session.open(store) as session:
        assert differences(canonical(session.con), expected) == []
        (kept,) = session.con.execute("select request_key from requests").fetchall()
    rows = store.snapshot("requests").scan_sql()
    merged = f"select request_key, merged_into from ({rows}) where merged_into is not null"
    ((gone, into),) = duckdb.connect().execute(merged).fetchall()
    assert gone != into == kept[0]


@pytest.mark.parametrize("late", ["engine", "row"])
def test_the_id_of_an_answer_finds_its_call_long_after_either_settled(
    store: Store, late: str
) -> None:
    parts = {
        "engine": ("spans", table("spans", [engine("e", 5, request_id="chatcmpl-given")])),
        "row": (
            "request_log",
            table(
                "request_log",
                [log_row(request_id="mine", response_id="chatcmpl-given", start=1, e2e_ms=250.0)],
            ),
        ),
    }
    (first,) = parts.keys() - {late}
    commit(store, *parts[first], NOW_NS)
    assert _settled(store, NOW_NS + 90 * S) == (1, 0, 0)
    commit(store, *parts[late], NOW_NS + 100 * S)
    expected = one_shot([parts["engine"][1]], [parts["row"][1]])
    assert len(expected) == 1
    assert differences(_seen(store), expected) == []
    assert _settled(store, NOW_NS + 200 * S) == (1, 1, 0)
    assert differences(_seen(store), expected) == []


@pytest.mark.parametrize("late", ["retry", "first"])
def test_attempts_find_each_other_whichever_settled_first(store: Store, late: str) -> None:
    retry = [
        engine("e1", 500, parent="c", request_id="chatcmpl-b"),
        chat("c", 0, 700, gen_ai__usage__output_tokens=11),
    ]
    first = [engine("e0", 5, parent="c", request_id="chatcmpl-a")]
    then = retry if late == "retry" else first
    commit(store, "spans", table("spans", first if late == "retry" else retry), NOW_NS)
    Settler(store, quiet_ns=0).run_pass(NOW_NS + 1)
    commit(store, "spans", table("spans", then), NOW_NS + 100 * S)
    expected = one_shot([table("spans", [*first, *retry])], [captures.empty("request_log")])
    assert differences(_seen(store), expected) == []
    assert _settled(store, NOW_NS + 200 * S) == (2, 1, 0)
    assert differences(_seen(store), expected) == []
    # once more of the same settles nothing again
    commit(store, "spans", table("spans", then), NOW_NS + 300 * S)
    assert _settled(store, NOW_NS + 400 * S) == (0, 0, 0)


@pytest.mark.parametrize("between", [True, False])
def test_a_call_that_turns_out_to_hold_several_gives_up_its_request(
    store: Store, between: bool
) -> None:
    """With clients ``between`` the outer call and its engines, or without."""
    outer = chat("outer", 0, 900)
    engines = [
        engine(f"e{i}", 12 + 400 * i, parent=f"c{i}" if between else "outer", tokens=(50 + i, 11))
        for i in range(2)
    ]
    clients = [chat(f"c{i}", 10 + 400 * i, 300 + 400 * i, parent="outer") for i in range(2)]
    late = [*clients, engines[1]] if between else [engines[1]]
    commit(store, "spans", table("spans", [outer, engines[0]]), NOW_NS)
    Settler(store, quiet_ns=0).run_pass(NOW_NS + 1)
    commit(store, "spans", table("spans", late), NOW_NS + 100 * S)
    every = table("spans", [outer, engines[0], *late])
    expected = one_shot([every], [captures.empty("request_log")])
    assert sorted(map(len, expected)) == ([2, 2] if between else [1, 1])
    assert differences(_seen(store), expected) == []
    Settler(store, quiet_ns=0).run_pass(NOW_NS + 100 * S + 1)
    assert differences(_seen(store), expected) == []


def test_a_row_that_names_nothing_is_the_same_row_long_after_it_settled(store: Store) -> None:
    rows = table("request_log", [log_row(source_row=5, ttft_ms=30.0, e2e_ms=90.0)])
    commit(store, "request_log", rows, NOW_NS)
    assert Settler(store, quiet_ns=0).run_pass(NOW_NS + 1).settled == 1
    Settler(store, quiet_ns=0).run_pass(NOW_NS + 500 * S)
    assert _watermark(store) > NOW_NS
    commit(store, "request_log", rows, NOW_NS + 600 * S)
    assert len(_seen(store)) == 1
    assert Settler(store, quiet_ns=0).run_pass(NOW_NS + 700 * S).settled == 0
    assert len(_seen(store)) == 1


def test_an_import_settles_at_once_unless_another_process_does(store: Store) -> None:
    spans, log = made()
    commit(store, "spans", spans, time.time_ns())
    commit(store, "request_log", log, time.time_ns())
    with settle_lock(store, blocking=True):
        assert settle_after_import(store) is None
    assert store.snapshot("requests").rows == 0
    report = settle_after_import(store)
    assert report is not None
    assert report.settled == len(one_shot([spans], [log]))


def test_the_watermark_waits_for_rows_on_their_way(store: Store) -> None:
    spans, log = _rows()
    with stamping(store) as stamped_unix_ns:
        # a pass ten minutes later: the commit below has taken that long
        Settler(store, quiet_ns=0, slack_ns=0).run_pass(stamped_unix_ns + 600 * S)
        commit(store, "spans", spans, stamped_unix_ns)
        commit(store, "request_log", log, stamped_unix_ns)
    truth = one_shot([spans], [log])
    assert differences(_seen(store), truth) == []
    Settler(store, quiet_ns=0, slack_ns=0).run_pass(stamped_unix_ns + 700 * S)
    assert differences(_seen(store), truth) == []


def test_after_an_import_a_reader_has_no_tail(store: Store) -> None:
    spans, log = _rows()
    with stamping(store) as stamped_unix_ns:
        commit(store, "spans", spans, stamped_unix_ns)
        commit(store, "request_log", log, stamped_unix_ns)
    assert settle_after_import(store) is not None
    assert _watermark(store) > stamped_unix_ns
    with Session.open(store) as session:
        raw = "select (select count(*) from tail.spans), (select count(*) from tail.request_log)"
        assert session.con.execute(raw).fetchall() == [(0, 0)]
        assert differences(canonical(session.con), one_shot([spans], [log])) == []


def test_spans_that_are_no_calls_hold_nothing_up(store: Store) -> None:
    commit(store, "spans", captures.spans("startup-base"), NOW_NS)
    assert _settled(store, NOW_NS + 600 * S) == (0, 0, 0)
    assert _watermark(store) > NOW_NS
    assert _seen(store) == {}


def test_settled_rows_are_told_by_the_same_ids_and_marks_as_the_sources_give() -> None:
    con = captures.derived(*_rows())
    told = con.execute(
        f"select {SPAN_LEG_ID}, {may_be_leg()} from spans union all "
        f"select {LOG_LEG_ID}, true from request_log"
    ).fetchall()
    may_be = {leg for leg, is_leg in told if is_leg}
    legs = {leg for (leg,) in con.execute("select leg_id from leg_rows").fetchall()}
    # a log row may give more than one leg, named after the first
    assert {leg for leg in legs if "-" not in leg} <= may_be
    assert {leg.partition("-")[0] for leg in legs if "-" in leg} <= may_be
    assert {leg for leg, is_leg in told if not is_leg}.isdisjoint(legs)
