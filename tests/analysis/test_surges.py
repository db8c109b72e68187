"""When load itself was other than usual: rare by chance, found where it was made so."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis.offered_traffic import draw, extra
from tracekit.analysis.gathering import Ints
from tracekit.analysis.offered import Traffic
from tracekit.analysis.surges import FINE, Surge, _work, surges

_PARTS = 20
_CHANCE = 0.01


def _parts(traffic: Traffic) -> Ints:
    edges = np.linspace(traffic.at[0], traffic.at[-1] + 1, _PARTS + 1)
    return np.clip(np.searchsorted(edges, traffic.at, side="right") - 1, 0, _PARTS - 1)


def _surges(traffic: Traffic) -> list[Surge]:
    edges = np.linspace(traffic.at[0], traffic.at[-1] + 1, _PARTS * FINE + 1)
    fine = np.clip(np.searchsorted(edges, traffic.at, side="right") - 1, 0, _PARTS * FINE - 1)
    return surges(traffic, fine, _PARTS, _CHANCE)


@pytest.mark.parametrize("seed", range(10))
def test_sessions_that_come_as_they_like_are_no_surge(seed: int) -> None:
    """Eight requests within some seconds of each other count as one, nearly."""
    traffic = draw(seed, n=200)
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(200), 8)
    more = traffic._of(rows)
    more.at[:] += rng.integers(0, 4_000_000_000, len(rows))
    assert len(_surges(more.loaded())) <= 1


def test_arrivals_that_know_nothing_of_each_other_hardly_surge() -> None:
    """Two families of tests at 1 % each, 200 times: over 12 come by chance once in 1,000."""
    found = sum(bool(_surges(draw(seed, workers=3))) for seed in range(200))
    assert found <= 12


@pytest.mark.parametrize("seed", range(3))
def test_more_requests_are_a_surge(seed: int) -> None:
    traffic = extra(draw(seed), seed, first=0.3, last=0.5, n=300)
    found = [s for s in _surges(traffic) if s.worker is None]
    assert found
    assert all(abs(s.first - 6) <= 1 and abs(s.end - 10) <= 1 for s in found)


@pytest.mark.parametrize("seed", range(3))
def test_a_few_long_prompts_are_a_surge_of_work(seed: int) -> None:
    traffic = extra(draw(seed), seed, first=0.5, last=0.75, n=12, cost=20.0)
    found = [s for s in _surges(traffic) if s.worker is None]
    assert found
    assert all(9 <= s.first and s.end <= 16 for s in found)


@pytest.mark.parametrize("seed", range(3))
def test_prompts_that_missed_the_cache_are_a_surge(seed: int) -> None:
    traffic = draw(seed)
    traffic.missed[(_parts(traffic) >= 4) & (_parts(traffic) < 9) & (np.arange(1_500) % 3 == 0)] = (
        True
    )
    assert any(s.first in (4, 5) and s.end in (8, 9) for s in _surges(traffic))


@pytest.mark.parametrize("seed", range(3))
def test_one_worker_that_gets_more_is_named(seed: int) -> None:
    traffic = draw(seed, workers=4)
    moved = (_parts(traffic) >= 10) & (_parts(traffic) < 15) & (np.arange(1_500) % 3 == 0)
    traffic.worker[moved] = "w2"
    traffic.prefill_worker[moved] = "w2"
    found = _surges(traffic)
    assert {s.worker for s in found} >= {"w2"}
    assert all(9 <= s.first <= 11 and 14 <= s.end <= 16 for s in found if s.worker == "w2")


def test_the_bound_holds_for_unequal_prompts() -> None:
    """Of 400 draws of a heavy tail hardly more than 5 % say less than 5 %: the bound is an upper
    one."""
    rng = np.random.default_rng(3)
    even = np.full(_PARTS, 1 / _PARTS)
    cost = rng.lognormal(0, 1.2, 600)
    hits = sum(
        _work(rng.integers(0, _PARTS, 600), cost, even)[0] * _PARTS < 0.05 for _ in range(400)
    )
    assert hits <= 30


def test_nothing_gathers_in_nothing() -> None:
    none = draw(0, n=0)
    assert surges(none, np.zeros(0, dtype=np.int64), _PARTS, _CHANCE) == []


@pytest.mark.parametrize("seed", range(3))
def test_what_is_not_known_of_some_is_no_load_of_the_others(seed: int) -> None:
    """Sizes, cache hits and workers of the second half of the time were not recorded."""
    traffic = draw(seed, workers=3)
    traffic.missed[np.random.default_rng(seed).random(1_500) < 0.2] = True
    assert not _surges(traffic)
    dark = np.arange(1_500) >= 750
    for column in (traffic.prefill_ms, traffic.decode_ms):
        column[dark] = 0.0
    traffic.missed[dark] = traffic.hit_known[dark] = False
    traffic.worker[dark] = traffic.prefill_worker[dark] = ""
    assert not _surges(traffic)
