"""The arithmetic of a comparison: the exact split, the draws, the corrections, how sides read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.lint_sql import violations
from tracekit.analysis import sqlfiles
from tracekit.analysis.compare_side import LABELS, condition, parse_side
from tracekit.analysis.compare_split import Drawn, Floats, Part, common_cache, split
from tracekit.analysis.compare_stats import (
    draw_weights,
    drawn_quantiles,
    holm,
    interval,
    time_slices,
)
from tracekit.errors import UsageError

NOW = 1_795_982_400_000_000_000
HOUR = 3_600_000_000_000
TERMS = ("total", "models_routes", "shapes", "one_sided", "cache", "cost")


def _part(seed: int, n: int, kinds: int, *, lacking: bool, flat: bool = False) -> Part:
    rng = np.random.default_rng(seed)
    kind = np.concatenate([np.arange(kinds), rng.integers(-1 if lacking else 0, kinds, n)])
    n = len(kind)
    tokens = np.full(n, 500.0) if flat else np.exp(rng.normal(6, 1, n))
    cached = rng.random(n) * tokens
    x = np.column_stack([np.ones(n), tokens - cached, (tokens - cached) ** 2])
    level = tokens * rng.random()
    z = np.column_stack([np.ones(n), level, level**2])
    values = rng.exponential(100, n) + tokens * rng.random() * (1 + kind)
    slices = rng.integers(0, 5, n)
    slices[:5] = np.arange(min(5, n))
    return Part(values, x, z, kind.astype(np.int64), slices.astype(np.int64), _draws(seed, 5))


def _draws(seed: int, slices: int) -> Floats:
    return draw_weights(slices, draws=20, seed=seed)


def _terms(drawn: Drawn) -> dict[str, Floats]:
    return {name: getattr(drawn, name) for name in TERMS}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_a=st.integers(5, 60),
    n_b=st.integers(5, 60),
    kinds=st.integers(1, 4),
    lacking=st.booleans(),
    flat=st.booleans(),
)
def test_the_split_is_exact(
    seed: int, n_a: int, n_b: int, kinds: int, lacking: bool, flat: bool
) -> None:
    a = _part(seed, n_a, kinds, lacking=lacking, flat=flat)
    b = _part(seed + 1, n_b, kinds, lacking=lacking)
    there, _ = split(a, b, kinds)
    scale = float(np.abs(a.values).max() + np.abs(b.values).max())
    whole = b.values.mean() - a.values.mean()
    assert there.total[0] == pytest.approx(whole, abs=1e-9 * scale)
    # what one side's fit says of the other's sizes may be far off: exact to that, in every draw
    size = np.sum([np.abs(v) for v in _terms(there).values()], axis=0) + scale
    off = np.abs(there.mix + there.cache + there.cost - there.total)
    assert (off[0] <= 1e-7 * size[0]).all()
    assert (off <= 1e-6 * size).mean() > 0.9
    # which side is called A changes nothing but the sign
    back, _ = split(b, a, kinds)
    for name, values in _terms(there).items():
        assert getattr(back, name)[0] == pytest.approx(-values[0], abs=1e-6 * size[0]), name


def _linear(seed: int, tokens: Floats, slope: float, n_slices: int = 8) -> Part:
    n = len(tokens)
    x = np.column_stack([np.ones(n), tokens])
    rng = np.random.default_rng(seed)
    return Part(
        10 + slope * tokens,
        x,
        x,
        np.zeros(n, np.int64),
        rng.integers(0, n_slices, n),
        draw_weights(n_slices, draws=50, seed=seed),
    )


def test_the_split_finds_what_was_put_in() -> None:
    rng = np.random.default_rng(1)
    short, long = rng.uniform(100, 900, 300), rng.uniform(300, 1_500, 200)
    only_mix, _ = split(_linear(1, short, 0.5), _linear(2, long, 0.5), 1)
    assert only_mix.cost == pytest.approx(np.zeros(51), abs=1e-6)
    assert only_mix.shapes[0] == pytest.approx(0.5 * (long.mean() - short.mean()), rel=1e-9)
    only_cost, _ = split(_linear(1, short, 0.5), _linear(2, short, 0.8), 1)
    assert only_cost.cost[0] == pytest.approx(0.3 * short.mean(), rel=1e-9)
    assert only_cost.shapes[0] == pytest.approx(0, abs=1e-6)
    both, kinds = split(_linear(1, short, 0.5), _linear(2, long, 0.8), 1)
    assert both.shapes[0] == pytest.approx(0.65 * (long.mean() - short.mean()), rel=1e-9)
    assert both.cost[0] == pytest.approx(0.3 * (long.mean() + short.mean()) / 2, rel=1e-9)
    assert kinds.a_fit[0] == pytest.approx([10, 0.5], rel=1e-6)


def test_shares_of_kinds_are_mix() -> None:
    def side(n_small: int, n_large: int, factor: float) -> Part:
        kinds = np.repeat([0, 1], [n_small, n_large])
        one = np.ones((len(kinds), 1))
        slices = np.arange(len(kinds)) % 4
        values = np.where(kinds == 0, 10.0, 100.0) * factor
        return Part(values, one, one, kinds, slices, _draws(1, 4))

    drawn, _ = split(side(80, 20, 1.0), side(30, 70, 0.9), 2)
    assert drawn.models_routes[0] == pytest.approx(0.5 * 90 * 0.95)
    assert drawn.cost[0] == pytest.approx(-(0.55 * 1 + 0.45 * 10))
    assert drawn.total[0] == pytest.approx((0.3 * 9 + 0.7 * 90) - (8 + 20))
    assert drawn.shapes[0] == drawn.cache[0] == drawn.one_sided[0] == 0


def test_common_cache_hits_follow_the_prompts_length() -> None:
    prompts = np.array([100.0, 200.0, 300.0, 400.0])
    uncached = prompts * 0.25
    a, b = common_cache(
        [prompts, prompts], [uncached, prompts], [np.zeros(4, int), np.zeros(4, int)], 1
    )
    assert a == pytest.approx(prompts * 0.625) and b == pytest.approx(a)


def test_drawn_quantiles_are_those_of_the_rows_drawn() -> None:
    rng = np.random.default_rng(3)
    values = np.concatenate([rng.lognormal(5, 1, 2_000), np.full(200, 77.0)])
    slices = rng.integers(0, 20, len(values))
    weights = draw_weights(20, draws=30, seed=1)
    drawn = drawn_quantiles(values, slices, weights, (0.5, 0.95, 0.99))
    assert drawn[0] == pytest.approx(np.quantile(values, (0.5, 0.95, 0.99)))
    for row, weight in zip(drawn[1:], weights[1:], strict=True):
        rows = np.repeat(values, weight[slices].astype(int))
        assert row == pytest.approx(np.quantile(rows, (0.5, 0.95, 0.99)), rel=0.05)


def test_slices_hold_bursts_together_and_cut_idle_time() -> None:
    at = np.concatenate([np.linspace(0, 60e9, 200), 3_600e9 + np.linspace(0, 60e9, 200)])
    slices, count = time_slices(at, lasting_ms=1_000, fewest=12, most=60, seed=1)
    assert count == len(np.unique(slices)) == 60
    # an idle hour is not most of the time there is
    assert len(np.unique(slices[:200])) >= 29 and len(np.unique(slices[200:])) >= 29
    burst = np.concatenate([np.linspace(0, 600e9, 300), 100e9 + np.linspace(0, 1e9, 200)])
    slices, _ = time_slices(burst, lasting_ms=1_000, fewest=12, most=60, seed=1)
    assert len(np.unique(slices[300:])) <= 2
    few, count = time_slices(at, lasting_ms=50_000, fewest=12, most=60, seed=1)
    assert count == 12 and len(few) == 400
    same, count = time_slices(np.full(100, 5e18), lasting_ms=1, fewest=12, most=60, seed=1)
    assert count == 12 and np.bincount(same).min() >= 8
    _, count = time_slices(np.full(100, np.nan), lasting_ms=1, fewest=12, most=60, seed=1)
    assert 40 <= count <= 60
    assert time_slices(np.array([]), lasting_ms=1, fewest=12, most=60, seed=1)[1] == 0


@pytest.mark.parametrize("freedom", [3, 11, 59])
def test_intervals_are_students(freedom: int) -> None:
    rng = np.random.default_rng(1)
    draws = rng.normal(2.0, 1.0, 4_000)
    draws = 2.0 + (draws - draws.mean()) / draws.std(ddof=1)
    low, high, p = interval(np.concatenate([[2.0], draws]), level=0.95, freedom=freedom)
    reach = stats.t.ppf(0.975, freedom)
    assert high == pytest.approx(max(2 + reach, np.quantile(draws, 0.975)), rel=0.02)
    assert low == pytest.approx(min(2 - reach, np.quantile(draws, 0.025)), rel=0.05)
    sided = 2 * float((draws <= 0).mean())
    assert p == pytest.approx(max(2 * stats.t.sf(2.0, freedom), sided), rel=0.03)


def test_interval_of_what_never_varies() -> None:
    assert interval(np.zeros(50), level=0.95, freedom=9) == (0, 0, 1)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.9, 0.8]) == [1, 1]


def test_how_sides_are_written() -> None:
    def parsed(text: str) -> tuple[str | None, int | None, int | None, dict[str, str]]:
        spec = parse_side(text, now_unix_ns=NOW)
        assert spec.text == text
        window = spec.window
        return (
            None if spec.store is None else str(spec.store),
            window.since_unix_ns if window else None,
            window.until_unix_ns if window else None,
            dict(spec.labels),
        )

    assert parsed("1h") == (None, NOW - HOUR, None, {})
    assert parsed("2h..1h") == (None, NOW - 2 * HOUR, NOW - HOUR, {})
    assert parsed(f"{NOW - HOUR}..") == (None, NOW - HOUR, None, {})
    assert parsed("2026-11-29T10:00Z..2026-11-29T11:00Z")[1] == 1_795_946_400_000_000_000
    assert parsed("model=org/m@2,worker=w1") == (None, None, None,
                                                 {"model": "org/m@2", "worker": "w1"})  # fmt: skip
    assert parsed("some/store") == ("some/store", None, None, {})
    assert parsed("./1h") == ("1h", None, None, {})
    assert parsed("/data/s@1h,route=chat") == ("/data/s", NOW - HOUR, None, {"route": "chat"})
    assert parsed("/data/s@") == ("/data/s", None, None, {})
    assert parsed("@1h") == (None, NOW - HOUR, None, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no side"),
        ("yesterday", "no window, label or folder"),
        ("colour=red", "unknown label 'colour'; known: model, route"),
        ("1h,2h", "names two windows"),
        ("model=a,model=b", "names model twice"),
        ("x@soon", "'soon' is not a time"),
    ],
)
def test_what_is_no_side(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_side(text, now_unix_ns=NOW)


def test_labels_are_conditions_on_known_columns() -> None:
    from tracekit.lake.schema import TABLES

    assert set(LABELS) <= set(TABLES["requests"].schema.names)
    assert condition(()) == "true"
    assert condition((("model", "it's"),)) == "(coalesce(model = 'it''s', false))"


def test_its_sql_is_portable_and_documented() -> None:
    (name,) = sqlfiles.names("compare")
    file = sqlfiles.load("compare", name)
    assert violations(file.text) == []
    assert file.grain and file.inputs == "request_facts, window_requests"
