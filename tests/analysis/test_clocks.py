"""Hosts whose clocks differ: one offset a pair and window, inside what causality allows."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.analysis import _captures as captures
from tests.analysis._spans import START_NS, Row, chat, engine, http, table
from tests.analysis._stores import NOW_NS, S, canonical, commit, differences
from tracekit.analysis._clock_cells import Key, gather_cells
from tracekit.analysis._clock_fit import BELIEVED, DRIFT, TOLERANCE_NS, Cell, cells_of, pool
from tracekit.analysis._clock_rows import LINKS, WINDOW_NS, create_nodes, sum_nodes
from tracekit.analysis.doctor import health
from tracekit.analysis.session import Session
from tracekit.analysis.settle import Settler
from tracekit.analysis.settled import recall_clocks
from tracekit.lake.store import Store, StoreReader
from tracekit.report.doctor_text import render

MS = 1_000_000

#: What a clock shows: ms to add to the true time [ms].
Clock = Callable[[float], float]


def _fixed(ms: float) -> Clock:
    return lambda _: ms


def _on(host: str, row: Row, clock: Clock) -> Row:
    """The span as ``host`` stamps it."""
    error = round(clock((row["start_unix_ns"] - START_NS) / MS) * MS)
    return row | {
        "host_name": host,
        "start_unix_ns": row["start_unix_ns"] + error,
        "end_unix_ns": row["end_unix_ns"] + error,
    }


def _call(name: str, at: float, rng: random.Random, server: Clock, **more: Any) -> list[Row]:
    """A client's call of one engine; the network takes 2 to 12 ms each way."""
    there, back = rng.uniform(2, 12), rng.uniform(2, 12)
    shape: Row = {"queue": rng.uniform(1, 50), "prefill": rng.uniform(20, 90), "decode": 200.0}
    row = engine(
        f"e{name}", at + there, trace_name=name, parent=f"c{name}", tokens=(50, 21), **shape
    )
    length = shape["queue"] + shape["prefill"] + shape["decode"] + 2
    more = {"gen_ai__usage__output_tokens": 21} | more
    client = chat(f"c{name}", at, at + there + length + back, trace_name=name, **more)
    return [_on("client", client, _fixed(0)), _on("server", row, server)]


def _calls(
    count: int, server: Clock, *, every_ms: float = 500, seed: int = 1, first_ms: float = 0
) -> list[Row]:
    rng = random.Random(seed)
    rows: list[Row] = []
    for i in range(count):
        rows += _call(f"{seed}-{i}", first_ms + i * every_ms, rng, server)
    return rows


def _derived(rows: Iterable[Row]) -> duckdb.DuckDBPyConnection:
    return captures.derived(table("spans", rows))


_PHASES = """
    coalesce(client_wait_ms, 0) + coalesce(network_ms, 0) + coalesce(frontend_ms, 0)
    + coalesce(route_ms, 0) + coalesce(queue_ms, 0) + coalesce(prefill_ms, 0)
    + coalesce(queue_or_prefill_ms, 0) + coalesce(kv_transfer_ms, 0) + coalesce(decode_ms, 0)
    + unexplained_ms
"""


def _check(con: duckdb.DuckDBPyConnection, *, clipped: int = 0, set_aside: int = 0) -> None:
    """Phases sum to the wall time, none is negative; so many requests are clipped or set aside."""
    bad = con.execute(
        f"""
        select request_id, network_ms from requests
        where abs({_PHASES} - e2e_ms) > 1e-6 or network_ms < 0 or unexplained_ms < 0
        """
    ).fetchall()
    assert bad == []
    found = con.execute(
        "select count(*) filter (clipped_ms > 1), count(quarantine_reason) from requests"
    ).fetchall()
    assert found == [(clipped, set_aside)]


def _offsets(con: duckdb.DuckDBPyConnection, host: str) -> list[int]:
    return [
        offset
        for (offset,) in con.execute(
            f"select distinct clock_offset_ns from legs where host_name = '{host}' order by 1"
        ).fetchall()
    ]


# ---------------------------------------------------------------------------------------------
# a client and a server
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_ms", [-10_000.0, -200.0, -60.0, -20.0, 20.0, 200.0, 10_000.0])
def test_a_skewed_server_is_moved_into_its_clients_calls(skew_ms: float) -> None:
    con = _derived(_calls(60, _fixed(skew_ms)))
    _check(con)
    (offset,) = _offsets(con, "server")
    # the nearest to zero of what causality allows: the fastest way there or back takes 2 ms
    assert 0 < abs(skew_ms) - abs(offset) / MS < 3
    assert offset * skew_ms < 0
    assert _offsets(con, "client") == [0]
    rows = con.execute(
        "select distinct clock_uncertainty_ms from requests union "
        "select distinct uncertainty_ms from phases where phase = 'network'"
    ).fetchall()
    ((uncertainty,),) = rows
    assert abs(-skew_ms - offset / MS) < 2 * uncertainty < 8
    # one clock stamped both ends of these
    own = "select count(uncertainty_ms) from phases where phase <> 'network'"
    assert con.execute(own).fetchall() == [(0,)]


def test_clocks_that_no_request_contradicts_are_left_alone() -> None:
    even, early = _derived(_calls(60, _fixed(0))), _derived(_calls(60, _fixed(1.5)))
    for con in (even, early):
        _check(con)
        assert _offsets(con, "server") == [0]
    sums = "select sum(network_ms + frontend_ms), sum(queue_ms), sum(decode_ms) from requests"
    for one, other in zip(
        even.execute(sums).fetchall()[0], early.execute(sums).fetchall()[0], strict=True
    ):
        assert one == pytest.approx(other, abs=1e-6)


def test_a_clock_that_drifts_is_followed() -> None:
    # 100 ppm for half an hour: 180 ms
    con = _derived(_calls(1800, lambda at_ms: 100e-6 * at_ms, every_ms=1000))
    _check(con)
    rows = con.execute(
        f"""
        select (scheduled_unix_ns - {START_NS}) / 1e6, clock_offset_ns / 1e6
        from legs where host_name = 'server' order by 1
        """
    ).fetchall()
    for at_ms, offset_ms in rows:
        assert abs(100e-6 * at_ms + offset_ms) < 10, at_ms
    # one offset for many requests, not one each
    assert 5 < len(_offsets(con, "server")) < 60


@pytest.mark.parametrize("at_s", [60, 94])
def test_a_clock_that_is_stepped_is_followed(at_s: int) -> None:
    """At the border of a window and in the middle of one."""
    start_s = -(START_NS // S) % 60
    step_ms = (start_s + at_s) * 1e3

    def clock(at_ms: float) -> float:
        return 0 if at_ms < step_ms else 300

    con = _derived(_calls(600, clock))
    _check(con)
    moved = con.execute(
        f"""
        select clock_offset_ns <> 0, count(*),
            count(*) filter ((recv_unix_ns - {START_NS}) / 1e6 < {step_ms} - 20)
        from legs where host_name = 'server' group by 1 order by 1
        """
    ).fetchall()
    before = round(step_ms / 500)
    assert [row[0] for row in moved] == [False, True]
    assert abs(moved[0][1] - before) <= 1
    assert moved[1][2] <= 1


def test_a_few_corrupted_requests_neither_move_a_host_nor_hide_in_a_moved_one() -> None:
    for skew in (0, 200):
        rows = _calls(80, _fixed(skew))
        for which, wrong in ((11, 700), (131, -900)):
            rows[which] = _on("server", rows[which], _fixed(wrong))
        con = _derived(rows)
        _check(con, clipped=2, set_aside=2)
        reasons = con.execute("select distinct quarantine_reason from requests").fetchall()
        assert {r for (r,) in reasons} == {None, "clock_skew"}
        (offset,) = _offsets(con, "server")
        assert abs(offset / MS + skew) < 3


@pytest.mark.parametrize("count", [1, BELIEVED - 1, BELIEVED])
def test_so_many_requests_make_a_clock(count: int) -> None:
    con = _derived(_calls(count, _fixed(-300)))
    believed = count == BELIEVED
    _check(con, clipped=0 if believed else count, set_aside=0 if believed else count)


def test_a_server_that_goes_on_after_an_abort_is_no_skew() -> None:
    rows = _calls(40, _fixed(0))
    for i in range(0, len(rows), 2):
        rows[i] |= {"end_unix_ns": rows[i]["start_unix_ns"] + 30 * MS, "status_code": 2}
        rows[i]["attributes"] = rows[i]["attributes"][:-1] + ', "error.type": "cancelled"}'
    con = _derived(rows)
    assert _offsets(con, "server") == [0]
    assert con.execute("select sum(clipped_ms) from requests").fetchall() == [(0,)]


def test_retries_keep_their_first_start_when_their_server_is_moved() -> None:
    def retried(skew: float) -> duckdb.DuckDBPyConnection:
        rows = _calls(20, _fixed(skew))
        rows += [
            _on(
                "client",
                chat("rc", 50, 900, trace_name="r", gen_ai__usage__output_tokens=11),
                _fixed(0),
            ),
            _on("server", engine("r0", 60, trace_name="r", parent="rc"), _fixed(skew)),
            _on("server", engine("r1", 500, trace_name="r", parent="rc"), _fixed(skew)),
        ]
        return _derived(rows)

    query = """
        select attempt, e2e_ms, client_wait_ms, quarantine_reason from requests
        where list_contains(string_split(leg_roles, ','), 'client') and attempt > 1
    """
    (even,), (skewed,) = (retried(ms).execute(query).fetchall() for ms in (0, -250))
    assert even[0] == 2
    assert skewed[1:3] == pytest.approx(even[1:3], abs=3)
    assert (skewed[0], skewed[3]) == (even[0], even[3])


# ---------------------------------------------------------------------------------------------
# more than two hosts
# ---------------------------------------------------------------------------------------------


def _pd_call(
    name: str, at: float, rng: random.Random, clocks: dict[str, Clock], *, together: bool
) -> list[Row]:
    """A client, a proxy, a prefill and a decode server, each on a host of its own.

    The decode server gets the call after prefill, or (``together``) at once and waits for the KV
    cache; the transfer takes 20 to 60 ms.
    """
    hop = [rng.uniform(1, 6) for _ in range(5)]
    recv = at + hop[0]
    p_start = recv + hop[1]
    queue, prefill, kv = rng.uniform(1, 20), rng.uniform(40, 90), rng.uniform(20, 60)
    p_done = p_start + 2 + queue + prefill
    d_start = recv + hop[2] if together else p_done + 1 + hop[2]
    wait = p_done + kv - d_start - 2
    d_last = d_start + 2 + wait + 10 + 200
    end = d_last + hop[3] + hop[4]
    pre = engine(
        f"p{name}", p_start, trace_name=name, parent=f"g{name}", request_id=f"chatcmpl-{name}",
        queue=queue, prefill=prefill, decode=0, tokens=(50, 1), service="prefill",
    )  # fmt: skip
    dec = engine(
        f"d{name}", d_start, trace_name=name, parent=f"g{name}", request_id=f"chatcmpl-{name}",
        queue=wait, prefill=10, decode=200, tokens=(50, 21), service="decode",
    )  # fmt: skip
    # the proxy closes its span a while after the client has everything
    proxy = http(f"g{name}", recv, d_last + hop[3] + 15, kind=2, trace_name=name, parent=f"c{name}")
    client = chat(f"c{name}", at, end, trace_name=name, gen_ai__usage__output_tokens=21)
    rows = {"client": client, "proxy": proxy, "p-host": pre, "d-host": dec}
    return [_on(host, row, clocks.get(host, _fixed(0))) for host, row in rows.items()]


def _pd_calls(
    count: int, *, together: bool, seed: int = 3, every_ms: float = 400, **skews: float
) -> list[Row]:
    rng = random.Random(seed)
    clocks = {name.replace("_", "-"): _fixed(ms) for name, ms in skews.items()}
    rows: list[Row] = []
    for i in range(count):
        rows += _pd_call(f"{seed}-{i}", i * every_ms, rng, clocks, together=together)
    return rows


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    "skews",
    [
        {},
        {"p_host": 200.0},
        {"p_host": -200.0},
        {"d_host": 200.0},
        {"d_host": -200.0},
        {"proxy": 200.0},
        {"p_host": 200.0, "d_host": -200.0},
        {"proxy": -200.0, "p_host": 150.0, "d_host": 400.0},
    ],
)
def test_hosts_of_a_chain_are_moved_each_by_its_own_offset(skews: Row, together: bool) -> None:
    con = _derived(_pd_calls(80, together=together, **skews))
    _check(con)
    kv_ms = con.execute(
        "select avg(kv_ns) / 1e6, avg(widest_ns) / 1e6 from request_clocks"
    ).fetchall()
    ((kv, widest),) = kv_ms
    assert 0 < kv < 40
    assert 0 < widest < 40
    for host in ("proxy", "p-host", "d-host"):
        (offset,) = _offsets(con, host)
        skew = skews.get(host.replace("-", "_"), 0.0)
        # a transfer takes 20 ms at least, which bounds the servers against each other
        assert abs(offset / MS + skew) < 25 + 1, host
        if host not in {name.replace("_", "-") for name in skews}:
            assert offset == 0, host
    even = _derived(_pd_calls(80, together=together))
    query = f"""
        select request_id, queue_ms, prefill_ms, decode_ms,
            kv_transfer_ms, route_ms, network_ms, {_PHASES} as total
        from requests order by request_id
    """
    for found, true in zip(
        con.execute(query).fetchall(), even.execute(query).fetchall(), strict=True
    ):
        assert found[0] == true[0]
        assert found[1:4] == pytest.approx(true[1:4], abs=1e-6)
        assert found[4:7] == pytest.approx(true[4:7], abs=2 * widest + 1)
        assert found[7] == pytest.approx(true[7], abs=1e-6)


def test_a_transfer_says_how_sure_it_is_where_two_clocks_time_it() -> None:
    query = """
        select count(*), count(uncertainty_ms), min(uncertainty_ms) from phases
        where phase = 'kv_transfer' and sub_phase = 'kv_transfer.wait'
    """
    # the decode server alone timed its wait
    alone = _derived(_pd_calls(40, together=False)).execute(query).fetchall()
    assert alone == [(40, 0, None)]
    # from the end of prefill, by another clock, until the decode server went on
    con = _derived(_pd_calls(40, together=True, p_host=200.0))
    ((total, known, least),) = con.execute(query).fetchall()
    assert total == known >= 40
    assert least > 0


def test_legs_of_one_clock_are_never_moved_against_each_other() -> None:
    # the proxy and the decode server share a host, whose clock is late
    skews: Row = {"proxy": -300.0, "d_host": -300.0}
    rows = _pd_calls(60, together=False, **skews)
    for row in rows:
        if row["host_name"] == "d-host":
            row["host_name"] = "proxy"
    con = _derived(rows)
    _check(con)
    (offset,) = _offsets(con, "proxy")
    assert abs(offset / MS - 300) < 10
    names = "select distinct host_name from legs where clock_offset_ns <> 0"
    assert con.execute(names).fetchall() == [("proxy",)]


def test_one_engine_has_one_offset_for_each_client_host() -> None:
    rows = []
    for seed, skew in ((5, 0.0), (6, 250.0)):
        for row in _calls(50, _fixed(-400), seed=seed):
            if row["host_name"] == "client":
                row = _on(f"client-{seed}", row, _fixed(skew))
            rows.append(row)
    con = _derived(rows)
    _check(con)
    found = con.execute(
        """
        select c.host_name, min(e.clock_offset_ns), count(distinct e.clock_offset_ns)
        from legs as c join legs as e using (request_key)
        where c.role = 'client' and e.role = 'engine' group by 1 order by 1
        """
    ).fetchall()
    assert [(name, n) for name, _, n in found] == [("client-5", 1), ("client-6", 1)]
    assert [offset / MS for _, offset, _ in found] == pytest.approx([400, 650], abs=5)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    st.sampled_from(["proxy", "p_host", "d_host"]),
    st.floats(-10_000, 10_000),
    st.booleans(),
    st.integers(0, 3),
)
def test_moving_a_hosts_clock_changes_nothing_within_a_host(
    host: str, skew: float, together: bool, seed: int
) -> None:
    even = _derived(_pd_calls(12, together=together, seed=seed))
    con = _derived(_pd_calls(12, together=together, seed=seed, **{host: skew}))
    ((widest,),) = con.execute("select max(widest_ns) / 1e6 from request_clocks").fetchall()
    query = f"""
        select request_id, coalesce(quarantine_reason, ''), queue_ms, prefill_ms, decode_ms,
            network_ms, route_ms, kv_transfer_ms, {_PHASES} as total, clipped_ms
        from requests order by request_id
    """
    for found, true in zip(
        con.execute(query).fetchall(), even.execute(query).fetchall(), strict=True
    ):
        # one or two requests that contradict equal clocks by a little are clipped, not believed
        clipped = found[9]
        assert clipped < 20
        assert found[:2] == true[:2]
        assert found[2:5] == pytest.approx(true[2:5], abs=1e-6 + clipped)
        assert found[5:8] == pytest.approx(true[5:8], abs=2 * widest + 1 + clipped)
        assert found[8] == pytest.approx(true[8], abs=1e-6)


# ---------------------------------------------------------------------------------------------
# stores
# ---------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def _pairs(rows: list[Row]) -> list[pa.Table]:
    """Rows two by two: calls as they come in."""
    return [table("spans", rows[i : i + 2]) for i in range(0, len(rows), 2)]


def _server_offsets(store: Store) -> list[float]:
    with Session.open(store) as session:
        return [offset / MS for offset in _offsets(session.con, "server")]


def test_a_tail_that_sees_one_call_at_a_time_comes_to_know_a_clock(store: Store) -> None:
    calls = _pairs(_calls(8, _fixed(-300)))
    with Session.open(store) as session:
        for number, call in enumerate(calls):
            commit(store, "spans", call, NOW_NS + number)
            session.refresh()
        reasons = session.con.execute(
            "select quarantine_reason is null from requests order by start_unix_ns"
        ).fetchall()
        assert [ok for (ok,) in reasons] == [False] * (BELIEVED - 1) + [True] * (
            len(calls) - BELIEVED + 1
        )
    # one that opens later sees all of them, and so does the settler
    assert _server_offsets(store) == pytest.approx([297], abs=3)
    with Session.open(store) as session:
        before = canonical(session.con)
        Settler(store, quiet_ns=0).run_pass(NOW_NS + 100)
        session.refresh()
        assert differences(canonical(session.con), before) == []


def test_what_settled_passes_learned_moves_later_requests(store: Store) -> None:
    calls = _pairs(_calls(40, _fixed(-300)))
    commit(store, "spans", pa.concat_tables(calls[:30]), NOW_NS)
    Settler(store, quiet_ns=0).run_pass(NOW_NS + 1)
    (known,) = store.snapshot("clock_offsets").files
    assert known.rows == 1
    # each of the others would be too few to believe
    for number, call in enumerate(calls[30:], start=1):
        now = NOW_NS + number * 100 * S
        commit(store, "spans", call, now)
        with Session.open(store) as session:
            before = canonical(session.con)
            assert session.con.execute(
                "select count(*) from requests where quarantine_reason is not null"
            ).fetchall() == [(0,)]
            Settler(store, quiet_ns=0).run_pass(now + 1)
            session.refresh()
            # settling changes no number
            assert differences(canonical(session.con), before) == []
    # what says nothing new is not written again
    assert store.snapshot("clock_offsets").rows < 5
    with Session.open(store) as session:
        row = session.frame("select * from clock_offsets order by revision limit 1").to_dicts()[0]
    assert (row["domain_a"], row["domain_b"]) == ("client", "server")
    assert row["n"] == row["violations"] == 30
    assert row["low_ns"] <= row["offset_ns"] <= row["high_ns"]


def test_one_corrupted_call_is_not_believed_against_what_is_known(store: Store) -> None:
    calls = _pairs(_calls(30, _fixed(0)))
    commit(store, "spans", pa.concat_tables(calls), NOW_NS)
    Settler(store, quiet_ns=0).run_pass(NOW_NS + 1)
    wrong = _pairs(_calls(2, _fixed(900), seed=2, first_ms=20_000))
    commit(store, "spans", pa.concat_tables(wrong), NOW_NS + S)
    assert _server_offsets(store) == [0]
    # a third makes it a clock that was stepped
    more = _pairs(_calls(3, _fixed(900), seed=4, first_ms=21_000))
    commit(store, "spans", pa.concat_tables(more), NOW_NS + 2 * S)
    assert _server_offsets(store) == pytest.approx([-897, 0], abs=3)


def test_clocks_are_looked_up_near_in_time_only(store: Store) -> None:
    for hours in range(3):
        first = hours * 2 * 3_600_000
        rows = pa.concat_tables(_pairs(_calls(10, _fixed(-300), seed=hours, first_ms=first)))
        now = START_NS + (first + 60_000) * MS
        commit(store, "spans", rows, now)
        Settler(store, quiet_ns=0).run_pass(now + S)
    snapshot = store.snapshot("clock_offsets")
    assert len(snapshot.files) == 3
    recall = recall_clocks(StoreReader(store))
    near = recall(START_NS, START_NS + 60 * S)
    assert near is not None
    assert near.count(".parquet") == 1
    assert recall(START_NS - 7200 * S, START_NS - 3600 * S) is None


def test_the_doctor_names_the_clock_that_is_off(store: Store) -> None:
    rows = _pd_calls(40, together=True, p_host=200.0)
    rows[2] = _on("p-host", rows[2], _fixed(1000))
    commit(store, "spans", table("spans", rows), NOW_NS)
    with Session.open(store) as session:
        found = health(session)
    first, *others = found.clocks
    assert (first["clock"], first["against"], first["moved"]) == ("p-host", "client", 40)
    assert first["offset_ms"] == pytest.approx(-200, abs=25)
    assert (first["clipped"], first["set_aside"]) == (1, 1)
    assert {(row["clock"], row["moved"], row["offset_ms"]) for row in others} == {
        ("proxy", 0, 0.0),
        ("d-host", 0, 0.0),
    }
    texts = [remark.text for remark in found.remarks if remark.topic == "clocks"]
    assert len(texts) == 2
    assert texts[0].startswith("the clock of p-host is 1")
    assert "ms ahead of that of client (+- 1" in texts[0]
    assert texts[1].startswith("1 request whose legs contradict")
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(render(found, None, missing=None))
    assert "p-host" in console.export_text()


# ---------------------------------------------------------------------------------------------
# the arithmetic
# ---------------------------------------------------------------------------------------------


def _cell(start_s: int, low_ms: float, high_ms: float, n: int = 10, violations: int = 10) -> Cell:
    return Cell(start_s * S, start_s * S, low_ms * MS, high_ms * MS, n, violations)


def _cells(low_ms: list[float], high_ms: list[float]) -> list[Cell]:
    at = np.arange(len(low_ms), dtype=np.int64) * S
    return cells_of(at, np.array(low_ms) * MS, np.array(high_ms) * MS)


def test_an_interval_is_that_of_all_requests_less_the_few_that_stick_out() -> None:
    (cell,) = _cells([100.0 + i for i in range(30)], [150.0] * 30)
    assert (cell.low, cell.high, cell.n, cell.violations) == (129 * MS, 150 * MS, 30, 30)
    # nothing bounds it from above, and two are wrong
    (cell,) = _cells([-5.0] * 28 + [400.0, 900.0], [np.inf] * 30)
    assert (cell.low, cell.violations) == (-5 * MS, 0)
    # of many, more may be; one in a hundred here
    (cell,) = _cells([-5.0] * 396 + [400.0, 500.0, 600.0, 700.0], [np.inf] * 400)
    assert (cell.low, cell.violations) == (-5 * MS, 0)
    # one cannot be, whatever the clocks
    (cell,) = _cells([-5.0] * 9 + [400.0], [5.0] * 9 + [300.0])
    assert (cell.low, cell.high, cell.violations) == (-5 * MS, 5 * MS, 0)


def test_where_no_offset_suits_all_the_time_is_cut_or_the_most_count() -> None:
    one, other = _cells([-5.0] * 10 + [95.0] * 10, [5.0] * 10 + [105.0] * 10)
    assert (one.offset_ns, other.offset_ns) == (0, 95 * MS)
    (cell,) = _cells([-5.0, 95.0] * 2 + [-5.0] * 10, [5.0, 105.0] * 2 + [5.0] * 10)
    assert (cell.offset_ns, cell.violations) == (0, 0)


def test_what_is_known_of_other_times_is_widened_by_drift() -> None:
    near, far = pool([_cell(0, 90, 110), _cell(100, 50, 300)])
    assert near == _cell(0, 90, 110, 20, 20)
    assert far.low == pytest.approx((90 - DRIFT * 100_000) * MS)
    assert far.high == pytest.approx((110 + DRIFT * 100_000) * MS)
    # what contradicts it was a step: each side keeps its own
    stepped = pool([_cell(0, 90, 110), _cell(60, -10, 10, 10, 0), _cell(120, -9, 12, 10, 0)])
    assert [c.offset_ns for c in stepped] == [90 * MS, 0, 0]
    # unless too few say so
    corrupted = pool([_cell(0, 90, 110), _cell(60, 500, 510, 2, 2), _cell(120, 90, 110)])
    assert [c.offset_ns // MS for c in corrupted] == [90, 84, 90]
    # and these few count once there are enough of them, whichever side of the step they are on
    few = [_cell(60 * i, 500, 510, 1, 1) for i in range(1, 5)]
    assert [c.offset_ns // MS for c in pool([_cell(0, 90, 110), *few])] == [90, 500, 500, 500, 500]


def test_small_differences_are_no_clocks() -> None:
    assert _cell(0, TOLERANCE_NS / MS / 2, 9).offset_ns == 0
    assert _cell(0, 2 * TOLERANCE_NS / MS, 9).offset_ns == 2 * TOLERANCE_NS
    assert _cell(0, 50, 90, 2, 2).offset_ns == 0


@st.composite
def _nodes(draw: st.DrawFn) -> tuple[Any, ...]:
    """A row of `clock_nodes`: few combinations of clocks, some bounds; few contradict zero."""
    clocks = draw(st.sampled_from([("a", None, None, "b"), ("b", "a", "c", "a")]))
    at_ns = START_NS + draw(st.integers(0, WINDOW_NS))
    bounds: list[int | None] = []
    missing = draw(st.sampled_from([(), (), (0, 1), (1, 4, 5)]))
    for _ in LINKS:
        low, high = draw(st.integers(-(10**9), 0)), draw(st.integers(0, 10**9))
        low += draw(st.sampled_from([0] * 200 + [2 * 10**9]))
        bounds += [low, high]
    for gone in missing:
        bounds[gone] = None
    return (draw(st.uuids()).hex, *clocks, at_ns, *bounds)


@settings(max_examples=30, deadline=None)
@given(st.lists(_nodes(), min_size=1, max_size=30), st.integers(1, 4))
def test_sums_of_requests_say_of_clocks_what_the_requests_say(
    rows: list[tuple[Any, ...]], parts: int
) -> None:
    """Bounds and times of every pair and window, and whether anybody contradicts equal clocks."""
    with duckdb.connect() as con:
        for name in ("every", "part", "summed"):
            create_nodes(con, name)
        marks = ", ".join("?" * len(rows[0]))
        for part in range(parts):
            con.execute("delete from part")
            for name in ("every", "part"):
                if rows[part::parts]:
                    con.executemany(f"insert into {name} values ({marks})", rows[part::parts])
            sum_nodes(con, "summed", "part")

        def said(name: str) -> tuple[dict[Key, tuple[float, ...]], bool]:
            cells = gather_cells(con.sql(f"from {name}").to_arrow_table())
            found = {cells.key(i): cells.cell(i) for i in range(len(cells.a))}
            return (
                {k: (c.start_ns, c.end_ns, c.low, c.high) for k, c in found.items()},
                any(c.violations for c in found.values()),
            )

        assert said("summed") == said("every")
