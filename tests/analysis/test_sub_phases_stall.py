"""Stalls inside decode: parts of the phase with a name of their own; the phase stays as long."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.analysis import _captures as captures
from tests.analysis._legs import START_NS, check_timelines, leg, rerun_core, run_core, timelines
from tests.analysis.test_timeline_made import _any_leg, _many
from tracekit.analysis.sqlfiles import load

MS = 1_000_000

Legs = list[dict[str, Any]]
Gaps = list[tuple[int, int, int]]


def _call() -> Legs:
    return [
        leg("client", send=0, first_token=500 * MS, last_token=900 * MS, leg_end=905 * MS),
        leg(
            "engine",
            recv=5 * MS,
            queued=10 * MS,
            scheduled=100 * MS,
            prefill_end=490 * MS,
            first_token=490 * MS,
            last_token=890 * MS,
            leg_end=895 * MS,
            worker="w",
        ),
    ]


@pytest.mark.parametrize("force_sweep", [False, True])
def test_a_stall_is_the_end_of_its_gap_within_decode(force_sweep: bool) -> None:
    gaps = [
        # began before the engine's first token: only decode can stall
        (430 * MS, 560 * MS, 120 * MS),
        (600 * MS, 700 * MS, 90 * MS),
        # the engine was done before the client had the token
        (850 * MS, 899 * MS, 40 * MS),
    ]
    con = run_core({"r": _call()}, force_sweep=force_sweep, gaps={"r": gaps})
    check_timelines(con)
    assert [row for row in timelines(con)["r"] if row[0] == "decode"] == [
        ("decode", phase, START_NS + start * MS, START_NS + end * MS)
        for phase, start, end in [
            ("decode.stall", 490, 560),
            ("", 560, 610),
            ("decode.stall", 610, 700),
            ("", 700, 859),
            ("decode.stall", 859, 890),
        ]
    ]
    rows = con.execute(
        "select distinct phase, sub_phase, provenance, field, role, worker, "
        f"whole_start_unix_ns - {START_NS}, whole_end_unix_ns - {START_NS} from phases "
        "where phase in ('prefill', 'decode') order by phase, sub_phase nulls first"
    ).fetchall()
    decode = (490 * MS, 890 * MS)
    assert rows == [
        ("decode", None, "measured", "last_token", "engine", "w", *decode),
        ("decode", "decode.stall", "measured", "chunk_times", "engine", "w", *decode),
        ("prefill", None, "measured", "prefill_end", "engine", "w", None, None),
    ]
    assert con.execute("select decode_ms, prefill_ms from requests").fetchone() == (400, 390)


def test_a_stall_may_be_all_of_decode() -> None:
    con = run_core({"r": _call()}, gaps={"r": [(480 * MS, 895 * MS, 415 * MS)]})
    check_timelines(con)
    assert [row[1] for row in timelines(con, raw=True)["r"] if row[0] == "decode"] == [
        "decode.stall"
    ]


def test_a_part_has_the_clocks_of_its_own_ends() -> None:
    # the client stamped the gap, the engine the decode: where they meet, two clocks did
    calls = {"r": _call(), "s": _call()}
    con = run_core(calls)
    con.execute("update request_points set widest_ns = 2000000 where request_key = 'r'")
    con.execute(
        f"insert into token_gaps by name select request_key, revision, 1 as is_stall, "
        f"{START_NS + 700 * MS} as end_unix_ns, 90.0 as excess_ms from request_points"
    )
    for name in ("phase_parts", "phases_split", "phases"):
        _rebuild(con, name)
    rows = con.execute(
        "select request_key, sub_phase, uncertainty_ms from phases where phase = 'decode' "
        "order by request_key, start_unix_ns"
    ).fetchall()
    assert rows == [
        ("r", None, 2.0),
        ("r", "decode.stall", None),
        ("r", None, 2.0),
        ("s", None, None),
        ("s", "decode.stall", None),
        ("s", None, None),
    ]


def _rebuild(con: duckdb.DuckDBPyConnection, name: str) -> None:
    con.execute(f"create or replace table {name} as {load('core', name).body}")


def _compare(requests: dict[str, Legs], gaps: dict[str, Gaps]) -> int:
    """Cutting moves nothing but the names; how many stalls there are."""
    whole, cut = run_core(requests), run_core(requests, gaps=gaps)
    check_timelines(cut)
    columns = "request_key, revision, phase, sub_phase, {} as s, {} as e, role, worker"
    plain = columns.format("start_unix_ns", "end_unix_ns")
    # the phases put together again are those that were cut
    again = (
        f"select {plain} from phases where whole_start_unix_ns is null union all "
        "select request_key, revision, phase, null, whole_start_unix_ns, whole_end_unix_ns, role, "
        "worker from phases where start_unix_ns = whole_start_unix_ns"
    )
    order = " order by all"
    assert (
        cut.execute(f"select * from ({again}){order}").fetchall()
        == whole.execute(f"select {plain} from phases{order}").fetchall()
    )
    uncut = "select request_key, columns('_ms$') from requests order by all"
    assert cut.execute(uncut).fetchall() == whole.execute(uncut).fetchall()
    # every stalled instant of decode has the name, and nothing else has
    lines = timelines(whole)
    for key, found in timelines(cut).items():
        stalls = _merged([(START_NS + e - x, START_NS + e) for _, e, x in gaps.get(key, []) if x])
        expected = [
            (max(a, s), min(b, e))
            for phase, sub, s, e in lines[key]
            if phase == "decode" and not sub
            for a, b in stalls
            if a < e and b > s
        ]
        named = [(s, e) for _, sub, s, e in found if sub == "decode.stall"]
        assert _merged(named) == _merged(expected)
    count = cut.execute("select count(*) from phases where sub_phase = 'decode.stall'").fetchone()
    assert count is not None
    return int(count[0])


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def test_stalls_anywhere_leave_the_phases_as_they_are() -> None:
    rng = random.Random(11)
    requests = _many(3, 300)
    gaps = {
        key: [
            (a, a + length, rng.randint(1, length))
            for _ in range(rng.randint(0, 6))
            for a, length in [(rng.randrange(1_000 * MS), rng.randint(1, 400 * MS))]
        ]
        for key in requests
    }
    assert _compare(requests, gaps) > 50


_GAP = st.tuples(
    st.integers(0, 20) | st.integers(0, 5_000_000_000), st.integers(1, 2_000_000_000)
).flatmap(lambda g: st.tuples(st.just(g[0]), st.just(g[0] + g[1]), st.integers(1, g[1])))


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.lists(_any_leg(), min_size=1, max_size=4), st.lists(_GAP, max_size=5)),
        min_size=1,
        max_size=10,
    )
)
def test_stalls_of_any_legs(made: list[tuple[Legs, Gaps]]) -> None:
    _compare(
        {f"r{i}": legs for i, (legs, _) in enumerate(made)},
        {f"r{i}": gaps for i, (_, gaps) in enumerate(made)},
    )


def test_a_recorded_stall() -> None:
    # by hand, from the client's file: 57 chunks, median gap 12.543 ms, one gap over
    # max(4 x 12.543, 50) ms: chunk 15 came at 221.427 ms, chunk 16 at 320.318 ms
    con = captures.derived(captures.spans("baseline"), captures.log("baseline"))
    rows = con.execute(
        "select p.start_unix_ns, p.end_unix_ns, p.duration_ms, p.role, r.stall_ms "
        "from phases as p join requests as r on p.request_key = r.request_key "
        "where r.request_id = 'baseline-0006' and p.sub_phase = 'decode.stall'"
    ).fetchall()
    start_ns = 1_795_982_382_751_867_403
    assert rows == [
        (start_ns + 233_970_000, start_ns + 320_318_000, 86.348, "engine", pytest.approx(86.348))
    ]


def test_recorded_stalls_are_cut_alike_on_both_ways() -> None:
    derived = captures.derived(captures.spans(*captures.CALLS), captures.log(*captures.CALLS))
    swept = rerun_core(derived, force_sweep=True)
    for con in (derived, swept):
        check_timelines(con)
        over = con.execute(
            """
            select count(*) from requests as r join (
                select request_key, sum(duration_ms) as ms from phases
                where sub_phase = 'decode.stall' group by request_key
            ) as s on r.request_key = s.request_key
            where s.ms > r.decode_ms + 1e-6 or s.ms > r.stall_ms + 1e-6
            """
        ).fetchone()
        assert over == (0,)
    assert timelines(derived) == timelines(swept)
