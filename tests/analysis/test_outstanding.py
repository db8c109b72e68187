"""Which losses gather: what was found leaves with its time, and the rest is no burst."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis import factory
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.outstanding import Ints, _gathered, _Traffic
from tracekit.analysis.rules import Rules
from tracekit.analysis.slo import parse_slo

_S = 1_000_000_000
_WINDOW_S = 2_000


def _at(rng: np.random.Generator, first_s: float, last_s: float, n: int) -> Ints:
    return (rng.uniform(first_s, last_s, n) * _S).astype(np.int64)


def _scan(losses: Ints) -> Ints:
    """The parts of the time in which these losses gather."""
    rng = np.random.default_rng(0)
    workers = {"worker": ["a"], "prefill_worker": ["a"]}
    traffic = _Traffic(_at(rng, 0, _WINDOW_S, 4_000), workers, np.full(4_000, 100.0))
    none = np.full(len(losses), "", dtype=object)
    cells = traffic.cells("time", losses, none, none)
    found = _gathered(cells, np.ones(len(losses)), None, Rules())
    return np.flatnonzero(found)


@pytest.mark.parametrize("seed", range(5))
def test_even_losses_gather_nowhere(seed: int) -> None:
    assert not len(_scan(_at(np.random.default_rng(seed), 0, _WINDOW_S, 150)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("first_s", [0, 700, 1_900])
def test_a_burst_at_an_edge_makes_no_burst_of_the_rest(seed: int, first_s: float) -> None:
    rng = np.random.default_rng(seed)
    even, burst = _at(rng, 0, _WINDOW_S, 100), _at(rng, first_s, first_s + 100, 150)
    found = _scan(np.concatenate([even, burst]))
    assert set(found) <= {int(first_s // 100) + 1}
    assert len(found) == 1


def test_two_bursts_are_found_one_after_the_other() -> None:
    rng = np.random.default_rng(1)
    losses = [_at(rng, 0, _WINDOW_S, 60), _at(rng, 300, 400, 80), _at(rng, 1_600, 1_700, 40)]
    assert set(_scan(np.concatenate(losses))) == {4, 17}


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
