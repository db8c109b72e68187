"""What would vanish: exact shares, counts made by hand, and a placebo below which faults stay."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis import factory
from tests.analysis.factory import Traffic
from tracekit.analysis.attribution import define_attribution
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import FleetShare, FleetTotal
from tracekit.analysis.fleet import Fleet, measure_fleet
from tracekit.analysis.shapley import coalition_counts, shapley_weights
from tracekit.analysis.slo import parse_slo
from tracekit.analysis.window import Window

_DAY_NS = 86_400_000_000_000


def _values(saved: list[list[int]], needed: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    rows = np.array(saved, dtype=np.float64)
    counts = coalition_counts(rows, np.array(needed, dtype=np.float64))
    return counts @ shapley_weights(rows.shape[1])


@st.composite
def _games(draw: st.DrawFn, players: int | None = None) -> tuple[list[list[int]], list[int]]:
    """Whole milliseconds, so that sums are exact and ties happen."""
    k = players or draw(st.integers(1, 6))
    row = st.lists(st.integers(0, 6), min_size=k, max_size=k)
    saved = draw(st.lists(row, min_size=1, max_size=12))
    needed = [draw(st.integers(1, 14)) for _ in saved]
    return saved, needed


@given(_games())
def test_shapley_values_add_up_to_what_all_repair(game: tuple[list[list[int]], list[int]]) -> None:
    saved, needed = game
    repaired = sum(sum(row) >= need for row, need in zip(saved, needed, strict=True))
    values = _values(saved, needed)
    assert values.sum() == pytest.approx(repaired)
    assert (values > -1e-9).all()


@given(_games(), st.data())
def test_equals_get_equal_shares_and_a_dummy_none(
    game: tuple[list[list[int]], list[int]], data: st.DataObject
) -> None:
    saved, needed = game
    twin = data.draw(st.integers(0, len(saved[0]) - 1))
    values = _values([[*row, row[twin], 0] for row in saved], needed)
    assert values[-2] == pytest.approx(values[twin])
    assert values[-1] == pytest.approx(0)
    without = _values([[*row, row[twin]] for row in saved], needed)
    assert values[:-1] == pytest.approx(without), "a dummy changes nobody's share"


@settings(max_examples=50)
@given(_games(players=3))
def test_shapley_values_equal_all_orders_of_three(game: tuple[list[list[int]], list[int]]) -> None:
    saved, needed = game
    credit = np.zeros(3)
    for row, need in zip(saved, needed, strict=True):
        for order in permutations(range(3)):
            total = 0
            for player in order:
                if total < need <= total + row[player]:
                    credit[player] += 1 / 6
                total += row[player]
    assert _values(saved, needed) == pytest.approx(credit)


def test_coalitions_are_counted_across_chunks() -> None:
    rng = np.random.default_rng(1)
    saved = rng.integers(0, 9, (10_001, 4)).astype(np.float64)
    needed = rng.integers(1, 20, 10_001).astype(np.float64)
    for coalition, count in enumerate(coalition_counts(saved, needed)):
        members = [i for i in range(4) if coalition >> i & 1]
        assert count == (saved[:, members].sum(axis=1) >= needed).sum()


def _measure(
    traffic: Traffic, slo: str = "", **options: Any
) -> tuple[Fleet, duckdb.DuckDBPyConnection]:
    con = traffic.connect()
    attribution = define_attribution(con, parse_slo(slo))
    return measure_fleet(con, attribution.rules, baseline=False, **options), con


def _share(fleet: Fleet, metric: str, phase: str) -> FleetShare:
    (row,) = (r for r in fleet.shares if (r.metric, r.phase) == (metric, phase))
    return row


def _total(fleet: Fleet, metric: str) -> FleetTotal:
    (total,) = (t for t in fleet.totals if t.metric == metric)
    return total


def _exact(n: int = 400) -> Traffic:
    """Every request as expected, so that what is added is the excess."""
    traffic = factory.clean(n, noise=0.0)
    traffic.phases["queue"][:] = 1.0
    for column in ("input_tokens", "output_tokens"):
        tokens = np.asarray(traffic.columns[column], dtype=np.float64)
        traffic.columns[column] = tokens
    return traffic


def _by_hand() -> Traffic:
    """17 misses of ttft=500ms whose counterfactuals are plain; the others take 12 to 250 ms."""
    traffic = _exact()
    rows = np.argsort(np.abs(traffic.ttft_ms - 40.0))[:20]
    assert np.abs(traffic.ttft_ms[rows] - 40.0).max() < 5
    traffic.add("queue", rows[:4], 900.0)
    # either would do
    traffic.add("queue", rows[4:7], 440.0)
    traffic.add("prefill", rows[4:7], 440.0)
    # only both together
    traffic.add("queue", rows[7:12], 700.0)
    traffic.add("prefill", rows[7:12], 700.0)
    # killed after 30 s in the queue; and one of which nothing is known but its end
    traffic.set("status", rows[12:15], "aborted")
    for phase in ("frontend", "prefill", "decode", "queue"):
        traffic.phases[phase][rows[12:15]] = np.nan
    traffic.phases["queue"][rows[12:14]] = 30_000.0
    unexplained = np.zeros(traffic.n)
    unexplained[rows[14]] = 30_000.0
    traffic.columns["unexplained_ms"] = unexplained
    ttft = traffic.ttft_ms
    ttft[rows[12:15]] = np.nan
    # time before the first token that no boundary covers
    ttft[rows[15]] = 900.0
    traffic.columns["ttft_ms"] = ttft
    # a prompt that takes that long
    traffic.columns["input_tokens"][rows[16]] = 20_000.0
    a0, a1, a2 = factory.PREFILL_MS
    traffic.phases["prefill"][rows[16]] = a0 + a1 * 20_000 + a2 * 20_000**2 / 2
    traffic.columns["ttft_ms"][rows[16]] = 5.0 + traffic.phases["prefill"][rows[16]]
    return traffic


def test_counterfactuals_counted_by_hand() -> None:
    fleet, _ = _measure(_by_hand(), "ttft=500ms")
    total = _total(fleet, "ttft")
    assert (total.n, total.sampled) == (17, 17)
    queue, prefill = _share(fleet, "ttft", "queue"), _share(fleet, "ttft", "prefill")
    # 4 + 2 killed are the queue's; of 3 + 5 more, half
    assert queue.vanish_share == pytest.approx(10 / 17)
    assert prefill.vanish_share == pytest.approx(4 / 17)
    assert queue.alone_share == pytest.approx(9 / 17)
    assert prefill.alone_share == pytest.approx(3 / 17)
    assert total.vanish_share == pytest.approx(14 / 17)
    assert total.shape_share == pytest.approx(1 / 17)
    assert total.unexplained_share == pytest.approx(2 / 17)
    assert [r.phase for r in fleet.shares] == ["queue", "prefill"], "the largest first"
    assert queue.top_stratum is None, "there is one only"


def test_a_killed_request_had_something_left_to_do() -> None:
    traffic = _exact()
    traffic.phases["decode"][:] = 900.0
    row = np.array([5])
    traffic.set("status", row, "timeout")
    traffic.phases["queue"][row] = 800.0
    traffic.phases["decode"][row] = 700.0
    # without its queue it would have been at 700 ms and more, and had been killed in decode
    fleet, _ = _measure(traffic, "e2e=1200ms")
    assert _total(fleet, "e2e").n == 1
    assert _total(fleet, "e2e").vanish_share == 0


@pytest.mark.parametrize("seed", range(1, 6))
def test_clean_traffic_is_all_ordinary_variation(seed: int) -> None:
    for slo in ("", "ttft=120ms,tpot=11ms,e2e=2s"):
        fleet, _ = _measure(factory.clean(1_200, seed=seed, disaggregated=seed % 2 == 0), slo)
        assert fleet.totals
        for total in fleet.totals:
            assert total.reference == "window"
            assert total.net_share is not None and total.net_share <= 0.02, total


@pytest.mark.parametrize("busy", [0.4, 0.8, 1.0])
def test_queues_with_a_long_tail_are_ordinary_too(busy: float) -> None:
    traffic = factory.clean(3_000, seed=3)
    rng = np.random.default_rng(3)
    waits = rng.random(traffic.n) < busy
    traffic.phases["queue"] = np.where(waits, rng.exponential(400.0, traffic.n), 0.0)
    fleet, _ = _measure(traffic)
    queue = _share(fleet, "ttft", "queue")
    assert queue.vanish_share > 0.9
    assert queue.net_share is not None and queue.net_share < 0.1


_FAULTS = {
    "queue": ("queue", 0.05, 2_500.0, "ttft=500ms,e2e=3s", "ttft"),
    "prefill": ("prefill", 0.05, 700.0, "ttft=500ms,e2e=3s", "ttft"),
    "decode": ("decode", 0.1, 3_000.0, "tpot=25ms,e2e=3s", "tpot"),
    "half of all": ("queue", 0.5, 2_500.0, "ttft=500ms,e2e=3s", "e2e"),
    "slowest": ("frontend", 0.02, 900.0, "", "ttft"),
}


@pytest.mark.parametrize("name", _FAULTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_shares_are_near_the_paired_truth(name: str, seed: int) -> None:
    phase, share, ms, slo, metric = _FAULTS[name]
    traffic = factory.clean(2_000, seed=seed, long_share=0.02)
    before = {"ttft": traffic.ttft_ms, "e2e": traffic.e2e_ms, "tpot": _tpot(traffic)}
    hit = np.flatnonzero(np.random.default_rng(seed).random(traffic.n) < share)
    traffic.add(phase, hit, ms)
    fleet, con = _measure(traffic, slo)
    limits = con.sql(f"select request_key, threshold_ms from slow_requests where metric='{metric}'")
    place = {k: i for i, k in enumerate(traffic.columns["request_key"])}
    # the same requests without the fault
    spared = [before[metric][place[key]] <= limit for key, limit in limits.fetchall()]
    row = _share(fleet, metric, phase)
    assert row.n == len(spared)
    truth = float(np.mean(spared))
    assert row.vanish_share == pytest.approx(truth, abs=0.06)
    assert row.net_share == pytest.approx(truth, abs=0.08)
    others = [r for r in fleet.shares if r.metric == metric and r.phase != phase]
    assert all(r.net_share is not None and r.net_share < 0.05 for r in others)


def _tpot(traffic: Traffic) -> np.ndarray[Any, np.dtype[np.float64]]:
    tokens = np.asarray(traffic.columns["output_tokens"], dtype=np.float64)
    return np.asarray(traffic.phases["decode"] / np.maximum(tokens - 1, 1))


def test_one_slow_worker_of_four_is_not_ordinary() -> None:
    traffic = factory.clean(1_600, workers=4)
    slow = np.asarray(traffic.columns["worker"]) == "w2"
    traffic.phases["decode"][slow] *= 1.8
    net = _share(_measure(traffic, "tpot=14ms")[0], "tpot", "decode").net_share
    assert net is not None and net > 0.95
    # a fault on all workers that lasts looks like their ordinary variation: no claim is made
    lasting = factory.clean(1_600, workers=4)
    rng = np.random.default_rng(1)
    hit = rng.random(lasting.n) < 0.25
    # by many factors: by one alone it would be another kind of requests
    lasting.phases["decode"][hit] *= rng.uniform(1.3, 2.6, int(hit.sum()))
    row = _share(_measure(lasting, "e2e=2500ms")[0], "e2e", "decode")
    assert row.vanish_share > 0.4
    assert row.net_share is not None and row.net_share < 0.1


def test_the_baseline_says_how_many_misses_are_ordinary() -> None:
    before, now = _exact(), factory.clean(800, seed=2, noise=0.0)
    now.phases["queue"][:] = 1.0
    now.columns["start_unix_ns"] = np.asarray(now.columns["start_unix_ns"]) + _DAY_NS
    before.add("queue", np.arange(4), 900.0)
    now.add("queue", np.arange(40), 900.0)
    con = factory.join(before, now).connect()
    con.execute(
        "create or replace temp view window_requests as "
        f"select * from requests where start_unix_ns >= {factory.START_NS + _DAY_NS}"
    )
    baseline = Window(factory.START_NS, factory.START_NS + _DAY_NS, "the day before")
    diagnosis = diagnose_connection(con, parse_slo("ttft=800ms"), baseline=baseline)
    (row,) = diagnosis.fleet
    # 4 of 400 there are 8 of 800 here, of 40
    assert (row.phase, row.n) == ("queue", 40)
    assert row.vanish_share == pytest.approx(1)
    assert row.placebo_share == pytest.approx(8 / 40)
    assert row.net_share == pytest.approx(32 / 40)
    (total,) = diagnosis.fleet_totals
    assert (total.reference, total.reference_n) == ("baseline", 400)
    assert [f.placebo_share for f in diagnosis.findings] == [pytest.approx(8 / 40)]


def test_without_ordinary_requests_nothing_is_called_ordinary() -> None:
    traffic = factory.clean(400)
    traffic.add("queue", np.arange(400), np.linspace(400.0, 3_000.0, 400))
    fleet, _ = _measure(traffic, "ttft=600ms")
    row = _share(fleet, "ttft", "queue")
    assert row.vanish_share > 0.5
    assert (row.placebo_share, row.net_share) == (None, None)
    assert _total(fleet, "ttft").reference is None


def test_no_misses_no_fleet() -> None:
    assert _measure(factory.clean(100), "ttft=60s")[0] == Fleet((), ())


def test_totals_are_sums_over_strata_and_the_top_one_is_named() -> None:
    small = factory.clean(600, seed=1, model="small")
    large = factory.clean(1_200, seed=2, model="large", long_share=0.04)
    small.add("queue", np.arange(40), 900.0)
    large.add("queue", np.arange(10), 900.0)
    slo = "ttft=500ms"
    both, apart = factory.join(small, large), (small, large)
    whole, _ = _measure(both, slo)
    row, total = _share(whole, "ttft", "queue"), _total(whole, "ttft")
    parts = [_share(_measure(t, slo)[0], "ttft", "queue") for t in apart]
    assert total.n == sum(p.n for p in parts)
    assert row.vanish_share * total.n == pytest.approx(sum(p.vanish_share * p.n for p in parts))
    assert row.top_stratum is not None
    assert (row.top_stratum.model, row.top_stratum.route) == ("small", "chat")
    assert row.top_stratum.share == pytest.approx(40 / 50)


def test_a_sample_agrees_with_all() -> None:
    parts = [factory.clean(6_000, seed=s, model=m) for s, m in ((1, "a"), (2, "b"))]
    traffic = factory.join(*parts)
    rng = np.random.default_rng(5)
    for phase in ("queue", "prefill", "frontend"):
        hit = np.flatnonzero(rng.random(traffic.n) < 0.3)
        traffic.add(phase, hit, rng.uniform(100, 400, len(hit)))
    full, con = _measure(traffic, "ttft=350ms")
    assert _total(full, "ttft").n == _total(full, "ttft").sampled > 3_000
    rules = define_attribution(con, parse_slo("ttft=350ms"), judged_max=1_500).rules
    part = measure_fleet(con, rules, baseline=False)
    total = _total(part, "ttft")
    assert 1_200 < total.sampled <= 1_500
    assert total.n == _total(full, "ttft").n
    for row in full.shares:
        other = _share(part, "ttft", row.phase)
        for name in ("vanish_share", "alone_share", "net_share"):
            assert getattr(other, name) == pytest.approx(getattr(row, name), abs=0.05), name
    assert measure_fleet(con, rules, baseline=False) == part


def test_findings_about_size_have_no_placebo() -> None:
    traffic = factory.clean(1_500, long_share=0.05)
    traffic.add("queue", np.arange(30), 2_000.0)
    diagnosis = diagnose_connection(traffic.connect(), parse_slo("ttft=800ms"))
    known = {f.cause: f.placebo_share for f in diagnosis.findings}
    assert known.pop("long_prompt") is None
    assert known and all(p is not None for p in known.values())
    for finding in diagnosis.findings:
        assert finding.placebo_share is None or finding.placebo_share <= finding.share_of_misses
