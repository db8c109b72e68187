"""Two kinds of requests under one name, told from a slow worker, a slow time and plain noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis import factory
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.missing import KIND
from tracekit.analysis.modes import Modes, two_modes
from tracekit.analysis.slo import parse_slo


def _ratio(rng: np.random.Generator, is_slow: np.ndarray, *, times: float) -> np.ndarray:
    return rng.lognormal(0, 0.06, len(is_slow)) * np.where(is_slow, times, 1.0)


def test_two_kinds_are_found_with_their_sizes() -> None:
    rng = np.random.default_rng(1)
    is_slow = np.arange(300) % 3 == 0
    found = two_modes(_ratio(rng, is_slow, times=3.0), rng.integers(0, 24, 300))
    assert found is not None
    assert found.slow_share == pytest.approx(100 / 300)
    assert found.slow / found.quick == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(
    ("slow_rows", "times", "why"),
    [
        (300, 1.0, "one kind"),
        (150, 1.3, "too near to each other"),
        (30, 3.0, "a tenth is a tail, not a kind"),
    ],
)
def test_one_kind_is_one_kind(slow_rows: int, times: float, why: str) -> None:
    rng = np.random.default_rng(2)
    is_slow = rng.permutation(300) < slow_rows
    assert two_modes(_ratio(rng, is_slow, times=times), np.zeros(300, dtype=np.int64)) is None, why


def test_a_long_tail_is_no_second_kind() -> None:
    ratio = np.random.default_rng(3).lognormal(0, 0.8, 2_000)
    assert two_modes(ratio, np.zeros(2_000, dtype=np.int64)) is None


@pytest.mark.parametrize("mixed", [0.0, 0.05])
def test_a_slow_worker_is_no_second_kind(mixed: float) -> None:
    rng = np.random.default_rng(4)
    worker, stretch = rng.integers(0, 3, 900), np.arange(900) // 90
    # slow from the third stretch to the eighth, on one worker
    is_slow = (worker == 1) & (stretch >= 2) & (stretch < 8)
    is_slow ^= rng.random(900) < mixed
    ratio = _ratio(rng, is_slow, times=3.0)
    assert two_modes(ratio, worker * 10 + stretch) is None
    # without the worker's name the time alone does not tell who is slow
    if mixed:
        assert two_modes(ratio, stretch) is not None


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), n=st.integers(0, 400), spread=st.floats(0.01, 0.5))
def test_whatever_the_noise_one_kind_is_not_split(seed: int, n: int, spread: float) -> None:
    ratio = np.random.default_rng(seed).lognormal(0, spread, n)
    assert two_modes(ratio, np.zeros(n, dtype=np.int64)) is None


def test_neither_kind_is_blamed_and_the_field_is_named() -> None:
    traffic = factory.clean(400)
    slow = np.random.default_rng(5).random(400) < 0.5
    traffic.phases["decode"][slow] *= 3
    result = diagnose_connection(traffic.connect(), parse_slo("tpot=15ms"))
    assert result.misses.total > 50
    assert not [f for f in result.findings if f.phase == "decode"]
    assert result.missing_evidence[0].field == KIND
    assert "two speeds" in result.sentence and "decode" in result.sentence


def test_the_numbers_of_modes_are_those_of_the_groups() -> None:
    is_slow = np.arange(80) >= 40
    ratio = np.where(is_slow, 4.0, 1.0) * (1 + 0.001 * (np.arange(80) % 5 - 2))
    found = two_modes(ratio, np.zeros(80, dtype=np.int64))
    assert isinstance(found, Modes)
    assert found.quick == pytest.approx(1.0)
    assert found.slow == pytest.approx(4.0)
    assert found.slow_share == 0.5
