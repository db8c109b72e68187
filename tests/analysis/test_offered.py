"""The load that the traffic itself brings: counted by hand, against brute force, and priced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import nnls

from tests.analysis import factory
from tests.analysis.offered_traffic import draw, extra
from tracekit.analysis import _drawn
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.fit import PHASES
from tracekit.analysis.offered import (
    Floats,
    Pressure,
    Traffic,
    _Met,
    _nonnegative,
    _Prompts,
    _Streams,
    read_slow,
    read_traffic,
)
from tracekit.analysis.slo import parse_slo


def test_work_in_front_by_hand() -> None:
    """Prompts of 200 ms at 0, 100 and 150 ms on one engine, and one long after."""
    at = np.array([0.0, 100.0, 150.0, 10_000.0])
    cost = np.full(4, 200.0)
    prompts = _Prompts(at, cost, at + cost)
    front, during, there = prompts.before(at, cost).T
    # at 100 the first has 100 ms left; at 150 it has 50, and the second all of its 200
    assert front.tolist() == [0.0, 100.0, 250.0, 0.0]
    # the first is at work until 200: two came; the second until 400: one more came
    assert during.tolist() == [400.0, 200.0, 0.0, 0.0]
    assert there.tolist() == [0, 1, 2, 0]
    assert prompts.between(np.array([50.0]), np.array([150.0])).tolist() == [400.0]


def test_a_worker_with_more_than_it_can_do_is_no_single_engine() -> None:
    at = np.array([0.0, 100.0, 150.0, 200.0])
    met = _Prompts(at, np.full(4, 200.0), at + 200.0).before(at, np.full(4, 200.0))
    assert met[:, 0].tolist() == [0.0, 0.0, 0.0, 0.0]


def test_streams_beside_by_hand() -> None:
    """One of 100 tokens from 0 to 100 ms, one of 300 from 50 to 150: both run from 50 to 100."""
    streams = _Streams(np.array([0.0, 50.0]), np.array([100.0, 150.0]), np.array([100.0, 300.0]))
    first, lasts = np.array([50.0, 0.0, 100.0]), np.array([50.0, 100.0, 100.0])
    assert streams.beside(first, lasts).tolist() == [[2, 400], [1.5, 250], [0.5, 150]]


@pytest.mark.parametrize("seed", range(3))
def test_streams_beside_as_counted_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, lasts, context = (rng.uniform(0, 1_000, 80) for _ in range(3))
    found = _Streams(first, first + lasts, context).beside(first, lasts)
    for i in range(80):
        both = np.minimum(first + lasts, first[i] + lasts[i]) - np.maximum(first, first[i])
        share = np.maximum(both, 0.0) / lasts[i]
        assert found[i] == pytest.approx([share.sum(), (share * context).sum()])


@pytest.mark.parametrize("seed", range(20))
def test_no_price_is_below_zero(seed: int) -> None:
    """As scipy's solver, the constant left free (a column of ones and one of minus ones)."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(60, 3))
    y = columns @ rng.normal(size=3) + rng.normal(size=60)
    free = np.column_stack([columns, np.ones(60), -np.ones(60)])
    assert _nonnegative(columns, y) == pytest.approx(nnls(free, y)[0][:3], abs=1e-8)


def _lost(traffic: Traffic, phase: str, values: Floats) -> Traffic:
    return replace(traffic, lost={p: values if p == phase else v for p, v in traffic.lost.items()})


def test_what_load_takes_is_found_again() -> None:
    """Decodes that lose what the prefills beside them cost: pressure puts them in that order."""
    traffic = draw(1)
    beside = _Met(traffic).by(traffic)["decode"][:, 0]
    pressure = Pressure(_lost(traffic, "decode", 0.2 + 1.5 * beside))
    stratum = pressure.strata["decode"]
    means = [beside[stratum == s].mean() for s in range(int(stratum.max()) + 1)]
    assert means == sorted(means)
    # half of the requests are in the lowest, at least twelve in the highest
    assert (stratum == 0).mean() == pytest.approx(0.5, abs=0.01)
    assert 12 <= (stratum == stratum.max()).sum() < 48
    assert (pressure.strata_of(traffic)["decode"] == stratum).all()


def test_phases_before_the_worker_know_no_pressure() -> None:
    pressure = Pressure(_lost(draw(2), "network", np.arange(1_500.0)))
    for phase in ("client_wait", "network", "route"):
        assert not pressure.strata[phase].any()


def test_a_part_of_the_requests_stands_for_all() -> None:
    """Of every second request drawn, the work beside a decode is as much, but for noise."""
    traffic = draw(3, n=4_000)
    beside = _Met(traffic).by(traffic)["decode"][:, 0]
    drawn = np.arange(4_000) % 2 == 0
    half = replace(traffic._of(np.flatnonzero(drawn)), part=0.5)
    again = _Met(half).by(half)["decode"][:, 0]
    assert again.mean() == pytest.approx(beside.mean(), rel=0.02)
    assert np.corrcoef(again, beside[drawn])[0, 1] > 0.6


def test_workers_do_not_press_on_each_other() -> None:
    traffic = draw(4, workers=2)
    alone = traffic._of(np.flatnonzero(traffic.worker == "w1"))
    both, own = _Met(traffic).by(alone), _Met(alone).by(alone)
    for role, met in own.items():
        assert both[role] == pytest.approx(met)


def test_no_requests_and_no_clock() -> None:
    none = Pressure(draw(0, n=0))
    assert all(not len(none.strata[p]) for p in PHASES)
    traffic = draw(5)
    traffic.at[::2] = -1
    assert len(traffic.loaded().at) == 750
    assert len(extra(traffic, 5, first=0.2, last=0.4, n=10).at) == 760


def test_slow_requests_that_were_not_drawn_are_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_drawn, "DRAWN_MAX", 500)
    traffic = factory.clean(2_400)
    slow = np.arange(0, 2_400, 7)
    traffic.phases["decode"][slow] *= 2
    con = traffic.connect()
    diagnose_connection(con, parse_slo("tpot=12ms"))
    drawn, found = read_traffic(con, 0.2), read_slow(con)
    assert 300 < len(drawn.key) < 700
    assert set(found.key) >= set(traffic.keys(slow))
    row = {k: i for i, k in enumerate(drawn.key)}
    both = [(i, row[k]) for i, k in enumerate(found.key) if k in row]
    assert len(both) > 30
    for i, j in both:
        for name in ("at", "worker", "prefill_worker", "prefill_ms", "decode_ms", "context"):
            assert getattr(found, name)[i] == getattr(drawn, name)[j]
