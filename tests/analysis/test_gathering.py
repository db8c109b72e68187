"""Which losses gather: what was found leaves with its time, and the rest is no burst."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from tracekit.analysis.gathering import (
    Cells,
    Ints,
    binomial_tail,
    episodes,
    gathered,
    place_chance,
    stretches,
    weights_of,
)

_S = 1_000_000_000
_WINDOW_S = 2_000
_PARTS = 20


def _at(rng: np.random.Generator, first_s: float, last_s: float, n: int) -> Ints:
    return (rng.uniform(first_s, last_s, n) * _S).astype(np.int64)


def _scan(losses: Ints) -> Ints:
    """The parts of the time (from 1) in which these losses gather, all parts being alike."""
    cell = losses // (_WINDOW_S // _PARTS * _S) + 1
    share = np.concatenate([[0.0], np.full(_PARTS, 1.0 / _PARTS)])
    world = np.concatenate([[-1], np.zeros(_PARTS, dtype=np.int64)])
    places = [(i + 1, j + 1) for i, j in stretches(_PARTS)]
    cells = Cells(cell, share, world, places, _PARTS)
    return np.flatnonzero(gathered(cells, np.ones(len(losses)), None, chance=0.01, denser=2.0))


@pytest.mark.parametrize("seed", range(5))
def test_even_losses_gather_nowhere(seed: int) -> None:
    assert not len(_scan(_at(np.random.default_rng(seed), 0, _WINDOW_S, 150)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("first_s", [0, 700, 1_900])
def test_a_burst_at_an_edge_makes_no_burst_of_the_rest(seed: int, first_s: float) -> None:
    rng = np.random.default_rng(seed)
    even, burst = _at(rng, 0, _WINDOW_S, 100), _at(rng, first_s, first_s + 100, 150)
    found = _scan(np.concatenate([even, burst]))
    assert found.tolist() == [int(first_s // 100) + 1]


def test_two_bursts_are_found_one_after_the_other() -> None:
    rng = np.random.default_rng(1)
    losses = [_at(rng, 0, _WINDOW_S, 60), _at(rng, 300, 400, 80), _at(rng, 1_600, 1_700, 40)]
    assert set(_scan(np.concatenate(losses))) == {4, 17}


@pytest.mark.parametrize(("n", "k", "p"), [(10, 7, 0.3), (150, 20, 0.05), (2_000, 150, 0.05)])
def test_tail_is_the_binomial_one(n: int, k: int, p: float) -> None:
    assert binomial_tail(n, k, p) == pytest.approx(binom.sf(k - 1, n, p), rel=1e-9)


def test_tail_of_many_is_a_bound() -> None:
    exact = binom.sf(399, 5_000, 0.05)
    assert exact <= binomial_tail(5_000, 400, 0.05) <= 50 * exact


def test_what_holds_most_of_the_requests_is_no_place() -> None:
    assert place_chance(100, 100, 0.8, 2.0) == 1
    assert place_chance(100, 100, 0.8, 2.0, place_max=0.95) < 1e-9


def test_losses_in_one_moment_on_one_worker_count_together() -> None:
    at = np.array([0, _S, _S, _S, 9 * _S, -1, -1], dtype=np.int64)
    worker = np.array([0, 0, 0, 1, 0, 0, 0], dtype=np.int64)
    third = 3**-0.5
    assert weights_of(at, worker) == pytest.approx([third, third, third, 1, 1, 1, 1])
    assert episodes(at, worker, 0) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1, 1, 1, 1])
    assert episodes(at, worker, 100 * _S) == pytest.approx([0.25, 0.25, 0.25, 1, 0.25, 1, 1])
