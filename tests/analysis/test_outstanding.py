"""Which losses stand out from what this traffic does all the time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.analysis import factory
from tests.analysis.offered_traffic import draw, extra
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.gathering import Bools, Ints, gathered, weights_of
from tracekit.analysis.offered import Traffic, _Met
from tracekit.analysis.places import Losses, Places
from tracekit.analysis.rules import Rules
from tracekit.analysis.slo import parse_slo

_S = 1_000_000_000


def _decoding(seed: int, slow: Bools | None = None) -> tuple[Places, Traffic]:
    """Decodes that lose by the prefills beside them, three times as much where ``slow``."""
    traffic = draw(seed, uneven=1.5)
    lost = 2.0 * _Met(traffic).by(traffic)["decode"][:, 0]
    traffic.lost["decode"][:] = lost if slow is None else np.where(slow, 3.0 * lost, lost)
    return Places(traffic, Rules()), traffic


def _slowest(places: Places, traffic: Traffic, n: int) -> Losses:
    rows = np.sort(np.argsort(traffic.lost["decode"])[-n:])
    code = np.zeros(n, dtype=np.int64)
    decode = np.full(n, "decode", dtype=object)
    stratum, size_ms = places._pressure.strata["decode"][rows], traffic.decode_ms[rows]
    return Losses(traffic.at[rows], decode, traffic.worker[rows], code, stratum, size_ms)


def _parts(places: Places, losses: Losses, *, even: bool = False) -> Ints:
    """The parts of the time (from 1) in which these losses gather; ``even``: as if all were due
    as much."""
    weights = weights_of(losses.at, losses.code)
    cells = places.cells("time", losses, weights)
    if even:
        cells = replace(cells, share=np.concatenate([[0.0], np.full(20, 0.05)]))
    return np.flatnonzero(gathered(cells, weights, None, chance=0.01, denser=2.0))


def test_waves_of_load_are_no_fault() -> None:
    """The slowest forty of healthy requests come in waves, as the load does, and are no fault."""
    found, blind = 0, 0
    for seed in range(20):
        losses = _slowest(*_decoding(seed), 40)
        places, _ = _decoding(seed)
        found += len(_parts(places, losses)) > 0
        blind += len(_parts(places, losses, even=True)) > 0
    assert found == 0
    assert blind >= 10


def test_an_unknown_worker_is_no_peer() -> None:
    """Half of the requests are known by their client alone: one worker has nobody beside it."""
    traffic = draw(1)
    traffic.worker[::2] = traffic.prefill_worker[::2] = ""
    places = Places(traffic, Rules())
    losses = _slowest(places, traffic, 40)
    assert places.cells("worker", losses, np.ones(40)).places == []


def test_a_pause_takes_no_part_of_the_time() -> None:
    """Three warm-up requests hours before: the twentieths are those of the time with requests."""
    traffic = draw(1)
    alone = Places(traffic, Rules())
    traffic.at[:3] -= 20_000 * _S
    parts = Places(traffic, Rules())._part
    # the pause is as long as one part; all others are as before, a little longer each
    assert (parts[:3] == 1).all()
    assert 0.8 * 75 < np.bincount(parts)[3:].mean() < 1.2 * 75
    assert np.bincount(parts)[3:].min() > 40
    assert np.corrcoef(parts[3:], alone._part[3:])[0, 1] > 0.99


def test_what_a_surge_began_may_end_later() -> None:
    traffic = extra(draw(2), 2, first=0.3, last=0.5, n=300)
    places = Places(traffic, Rules())
    surge = next(s for s in places._surges if s.worker is None)
    part = places._part - 1
    # every second request is slow until two parts after the surge
    rows = np.flatnonzero((part >= surge.first) & (part < surge.end + 2))[::2]
    n = len(rows)
    losses = Losses(
        traffic.at[rows],
        np.full(n, "decode", dtype=object),
        traffic.worker[rows],
        np.zeros(n, dtype=np.int64),
        places._pressure.strata["decode"][rows],
        traffic.decode_ms[rows],
    )
    assert places.in_surge(losses, losses, np.ones(n)).all()
    none = losses.of(np.flatnonzero(part[rows] >= surge.end))
    assert not places.in_surge(none, none, np.ones(len(none.at))).any()


def test_losses_beyond_what_the_load_explains_gather() -> None:
    for seed in range(10):
        slow = np.zeros(1_500, dtype=bool)
        slow[600:900] = True
        places, traffic = _decoding(seed, slow)
        parts = _parts(places, _slowest(places, traffic, 40))
        assert len(set(parts) & {9, 10, 11, 12}) >= 2
        assert set(parts) <= set(range(7, 15))


def test_noise_of_one_phase_is_no_fault_where_another_phase_fails() -> None:
    traffic = factory.clean(3_600, every_ms=250, noise=0.1)
    bad = np.arange(3_200, 3_600)
    traffic.phases["prefill"][bad] *= 3
    con = traffic.connect()
    diagnosis = diagnose_connection(con, parse_slo(""))
    verdicts = dict(
        con.execute(
            "select metric || ' ' || phase, count(*) from verdicts "
            "where class = 'attributed' group by all"
        ).fetchall()
    )
    assert verdicts["ttft prefill"] > 100
    assert verdicts.get("tpot decode", 0) < 0.1 * diagnosis.misses.by_metric["tpot"]


def test_few_victims_are_found_by_those_that_lost_as_much_within_the_limits() -> None:
    traffic = factory.clean(3_600, every_ms=250, noise=0.1)
    # some prefills take as long at any time, many more in a quarter of it
    rng = np.random.default_rng(5)
    bad = np.flatnonzero(rng.uniform(size=3_600) < 0.02)
    bad = np.union1d(bad, np.flatnonzero(rng.uniform(size=900) < 0.15) + 1_800)
    traffic.phases["prefill"][bad] *= 2.2
    con = traffic.connect()
    ttft = np.sum([np.nan_to_num(traffic.phases[p]) for p in factory.PHASES[:-1]], axis=0)
    limit = np.sort(ttft[bad])[-8]
    diagnose_connection(con, parse_slo(f"ttft={limit:.0f}ms"))
    found = con.execute(
        "select s.arrival_unix_ns from outstanding as o "
        "join slow_requests as s on o.slow_id = s.slow_id "
        "where s.metric = 'ttft' and o.reason = 'time'"
    ).fetchall()
    assert found
    start = factory.START_NS + 1_800 * 250_000_000
    assert all(start - 60 * _S <= at < start + 285 * _S for (at,) in found)
