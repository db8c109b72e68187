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


def _anywhere(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Workers and times that say nothing."""
    return rng.integers(0, 4, n), rng.uniform(0, 1e12, n)


def test_two_kinds_are_found_with_their_sizes() -> None:
    rng = np.random.default_rng(1)
    is_slow = np.arange(300) % 3 == 0
    found = two_modes(_ratio(rng, rng.permutation(is_slow), times=3.0), *_anywhere(300, rng))
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
    assert two_modes(_ratio(rng, is_slow, times=times), *_anywhere(300, rng)) is None, why


@pytest.mark.parametrize("value", [1.0, 0.1 + 0.2])
def test_all_alike_is_one_kind(value: float) -> None:
    rng = np.random.default_rng(9)
    assert two_modes(np.full(100, value), *_anywhere(100, rng)) is None


def test_a_long_tail_is_no_second_kind() -> None:
    rng = np.random.default_rng(3)
    assert two_modes(rng.lognormal(0, 0.8, 2_000), *_anywhere(2_000, rng)) is None


@pytest.mark.parametrize("mixed", [0.0, 0.05])
@pytest.mark.parametrize("toggle_s", [900, 300, 20])
def test_what_a_worker_or_the_time_explains_is_no_second_kind(toggle_s: int, mixed: float) -> None:
    rng = np.random.default_rng(4)
    worker, at = rng.integers(0, 3, 1_800), np.sort(rng.uniform(0, 1_800e9, 1_800))
    # on two of three workers, on and off
    is_slow = (worker > 0) & (at // (toggle_s * 1e9) % 2 == 1)
    is_slow ^= rng.random(1_800) < mixed
    ratio = _ratio(rng, is_slow, times=3.0)
    assert two_modes(ratio, worker, at) is None
    # without the time it is a riddle
    assert two_modes(ratio, worker, rng.permutation(at)) is not None


def test_a_fault_that_comes_and_goes_is_still_one() -> None:
    traffic = factory.clean(2_400, every_ms=200)
    start = np.asarray(traffic.columns["start_unix_ns"], dtype=np.int64)
    bad = (start - start[0]) // 10_000_000_000 % 3 == 0
    traffic.phases["decode"][bad] *= 2.5
    result = diagnose_connection(traffic.connect(), parse_slo("tpot=16ms"))
    assert KIND not in {m.field for m in result.missing_evidence}
    assert (result.findings[0].metric, result.findings[0].phase) == ("tpot", "decode")


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), n=st.integers(0, 400), spread=st.floats(0.01, 0.5))
def test_whatever_the_noise_one_kind_is_not_split(seed: int, n: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    assert two_modes(rng.lognormal(0, spread, n), *_anywhere(n, rng)) is None


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
    rng = np.random.default_rng(6)
    is_slow = rng.permutation(np.arange(80) >= 40)
    ratio = np.where(is_slow, 4.0, 1.0) * (1 + 0.001 * (np.arange(80) % 5 - 2))
    found = two_modes(ratio, *_anywhere(80, rng))
    assert isinstance(found, Modes)
    assert found.quick == pytest.approx(1.0)
    assert found.slow == pytest.approx(4.0)
    assert found.slow_share == 0.5
