"""Quantile regression and the cost model, held against known costs."""

from __future__ import annotations

import duckdb
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from tests.analysis import factory
from tests.analysis.factory import Traffic
from tracekit.analysis import sqlfiles
from tracekit.analysis._duck import put
from tracekit.analysis.cache import cache_due, usual_hits
from tracekit.analysis.fit import (
    COST_MODEL_SCHEMA,
    PHASE_TERMS,
    PHASES,
    CostModel,
    fit_cost_model,
)
from tracekit.analysis.prefixes import Prefixes
from tracekit.analysis.quantile import quantile_fit
from tracekit.analysis.speculation import speculation

Floats = npt.NDArray[np.float64]


def _facts(con: duckdb.DuckDBPyConnection, name: str = "request_facts") -> None:
    put(con, "cache_due", cache_due(Prefixes()))
    put(con, "usual_hits", usual_hits(con))
    put(con, "speculation", speculation(con))
    body = sqlfiles.load("attribution", "request_facts").body
    con.execute(f"create or replace temp table {name} as {body}")


def _model(traffic: Traffic) -> CostModel:
    con = traffic.connect()
    _facts(con)
    return fit_cost_model(con)


def _loss(x: Floats, y: Floats, a: Floats, tau: float) -> float:
    off = y - x @ a
    return float(np.where(off > 0, tau * off, (tau - 1) * off).sum())


def test_a_constant_is_the_quantile() -> None:
    y = np.array([1.0, 2.0, 3.0, 4.0, 100.0])
    one = np.ones((5, 1))
    # a quarter of five rows: the second smallest
    assert quantile_fit(one, y, tau=0.25)[0] == pytest.approx(2.0)
    assert quantile_fit(one, y, tau=0.5)[0] == pytest.approx(3.0)


def test_weights_count_as_copies() -> None:
    y = np.array([1.0, 2.0, 3.0])
    one = np.ones((3, 1))
    heavy = quantile_fit(one, y, tau=0.5, weights=np.array([1.0, 1.0, 5.0]))
    assert heavy[0] == pytest.approx(3.0)


def test_exact_line_is_found() -> None:
    x = np.column_stack([np.ones(50), np.arange(50.0), np.arange(50.0) ** 2])
    truth = np.array([7.0, 0.3, 0.02])
    assert quantile_fit(x, x @ truth, tau=0.25) == pytest.approx(truth, rel=1e-6)


def test_coefficients_are_never_negative() -> None:
    x = np.column_stack([np.ones(40), np.arange(40.0)])
    falling = 100.0 - np.arange(40.0)
    a = quantile_fit(x, falling, tau=0.5)
    assert a[1] == 0.0
    assert a[0] == pytest.approx(np.median(falling), abs=1.0)


def test_a_size_that_never_varies_costs_nothing_by_size() -> None:
    y = np.array([20.0, 21.0, 22.0, 23.0, 24.0])
    x = np.column_stack([np.ones(5), np.full(5, 64.0), np.array([1.0, 2.0, 3.0, 4.0, 5.0])])
    assert quantile_fit(x, y, tau=0.5) == pytest.approx([19.0, 0.0, 1.0])


def test_nothing_to_fit_is_zero() -> None:
    assert quantile_fit(np.ones((4, 2)), np.zeros(4), tau=0.25).tolist() == [0.0, 0.0]
    assert quantile_fit(np.zeros((4, 2)), np.ones(4), tau=0.25).tolist() == [0.0, 0.0]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(5, 60),
    st.sampled_from([0.1, 0.25, 0.5]),
)
def test_no_other_nonnegative_line_fits_better(seed: int, n: int, tau: float) -> None:
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.exponential(100, n)])
    y = rng.exponential(50, n) + rng.uniform(0, 2) * x[:, 1]
    a = quantile_fit(x, y, tau=tau)
    best = _loss(x, y, a, tau)
    for _ in range(30):
        other = np.maximum(a + rng.normal(0, [5.0, 0.05]), 0)
        assert _loss(x, y, other, tau) >= best - 1e-6 * max(best, 1)


def _reference(x: Floats, y: Floats, tau: float, weights: Floats) -> Floats:
    """The same problem by a general solver: the multipliers of the dual linear program."""
    reach = x.max(axis=0)
    solved = linprog(
        -y,
        A_ub=(x / reach).T,
        b_ub=np.zeros(x.shape[1]),
        bounds=np.column_stack([-(1 - tau) * weights, tau * weights]),
        method="highs-ds",
    )
    found: Floats = np.maximum(-np.asarray(solved.ineqlin.marginals), 0) / reach
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([3, 8, 40, 300]),
    st.sampled_from([0.1, 0.25, 0.5]),
    st.integers(1, 3),
    st.booleans(),
)
def test_as_good_as_a_general_solver(
    seed: int, n: int, tau: float, terms: int, rough: bool
) -> None:
    rng = np.random.default_rng(seed)
    size = np.exp(rng.normal(6, 1.2, n))
    x = np.column_stack([np.ones(n), size, size**2 / 2])[:, :terms]
    y = x @ (rng.exponential(50, terms) / x.mean(axis=0)) * np.exp(rng.normal(0, 0.4, n))
    if rough:
        # ties, zeros and no relation at all
        y = rng.permutation(np.floor(y))
        y[: n // 3] = 0
    weights = 10.0 ** rng.uniform(-2, 2, n)
    weights /= weights.mean()
    ours = _weighted_loss(x, y, quantile_fit(x, y, tau=tau, weights=weights), tau, weights)
    theirs = _weighted_loss(x, y, _reference(x, y, tau, weights), tau, weights)
    assert ours <= theirs + 1e-5 * max(theirs, float(weights @ np.abs(y)) * 1e-2)


def _weighted_loss(x: Floats, y: Floats, a: Floats, tau: float, weights: Floats) -> float:
    off = y - x @ a
    return float((weights * np.where(off > 0, tau * off, (tau - 1) * off)).sum())


#: where the fitted quantile of the factory's noise (8 %) lies
_LOW = float(np.exp(-0.6745 * 0.08))


def _assert_true_costs(model: CostModel, *, rel: float) -> None:
    (cell,) = model.cells
    _, a1, a2 = factory.PREFILL_MS
    at = 8_000.0
    _, p1, p2 = cell.fits["prefill"].coefficients
    assert p1 * at + p2 * at**2 / 2 == pytest.approx(_LOW * (a1 * at + a2 * at**2 / 2), rel=rel)
    g0, g1 = factory.DECODE_MS
    d0, d1 = cell.fits["decode"].coefficients
    assert d0 + d1 * 1_000 == pytest.approx(_LOW * (g0 + g1 * 1_000), rel=rel)


def test_true_costs_are_recovered() -> None:
    model = _model(factory.clean(1_500, long_share=0.05, disaggregated=True))
    _assert_true_costs(model, rel=0.03)
    (cell,) = model.cells
    assert cell.topology == "disaggregated"
    assert cell.level == "cell"
    assert cell.n == 1_500
    assert cell.fits["frontend"].coefficients[0] == pytest.approx(
        _LOW * factory.FRONTEND_MS, rel=0.03
    )
    k0, k1 = factory.KV_MS
    f0, f1 = cell.fits["kv_transfer"].coefficients
    assert f0 + f1 * 1_000 == pytest.approx(_LOW * (k0 + k1 * 1_000), rel=0.05)
    # three scales reach about three deviations above the median, seen from the fit
    wide = cell.fits["decode"].s1
    assert 1 + 3 * wide == pytest.approx(np.exp(3.67 * 0.08), rel=0.15)
    assert "queue_or_prefill" not in cell.fits, "a phase the cell never shows"


def test_a_fault_in_most_of_the_traffic_does_not_move_the_expectation() -> None:
    traffic = factory.clean(1_500, long_share=0.05)
    rng = np.random.default_rng(8)
    slow = rng.random(traffic.n) < 0.6
    # by many factors: by one alone it would be another kind of requests (`modes`)
    times = rng.uniform(1.1, 6.0, int(slow.sum()))
    traffic.phases["decode"][slow] *= times
    traffic.phases["prefill"][slow] *= times
    _assert_true_costs(_model(traffic), rel=0.12)


def test_a_queue_is_not_ordinary_because_most_wait() -> None:
    traffic = factory.clean(600)
    rng = np.random.default_rng(8)
    waiting = np.flatnonzero(rng.random(traffic.n) < 0.8)
    traffic.add("queue", waiting, rng.uniform(500, 3_000, len(waiting)))
    queue = _model(traffic).cells[0].fits["queue"]
    assert queue.coefficients[0] < 2
    assert 3 * queue.s0 < 20


def test_cached_tokens_are_not_computed() -> None:
    model = _model(factory.clean(1_500, long_share=0.1, cached_share=0.5))
    _assert_true_costs(model, rel=0.05)


def test_a_small_cell_borrows_from_its_model() -> None:
    big, small = factory.clean(300, seed=1), factory.clean(12, seed=2)
    small.columns["engine_version"] = ["2"] * small.n
    big.columns["engine_version"] = ["1"] * big.n
    cells = {c.engine_version: c for c in _model(factory.join(big, small)).cells}
    assert cells["1"].level == "cell"
    assert cells["2"].level == "model"
    assert cells["2"].n == 12
    assert cells["2"].fits["decode"].n == 312


def test_an_unknown_model_borrows_from_everything() -> None:
    other = factory.clean(12, seed=2, model="other")
    cells = {c.model: c for c in _model(factory.join(factory.clean(300), other)).cells}
    assert cells["other"].level == "all"


def test_too_few_rows_make_no_cell() -> None:
    model = _model(factory.clean(29))
    assert model.cells == ()
    assert model.to_arrow().schema == COST_MODEL_SCHEMA
    assert _model(factory.clean(30)).cells


def test_killed_and_quarantined_requests_are_not_learned_from() -> None:
    traffic = factory.clean(400)
    bad = np.arange(0, 400, 2)
    traffic.phases["decode"][bad] = 0.01
    traffic.phases["prefill"][bad] = 0.01
    traffic.set("status", bad[::2], "aborted")
    traffic.columns["quarantine_reason"] = [None] * 400
    traffic.set("quarantine_reason", bad[1::2], "negative_duration:queue")
    model = _model(traffic)
    assert model.rows == 200
    _assert_true_costs(model, rel=0.15)


def test_bytes_are_used_where_every_transfer_has_them() -> None:
    traffic = factory.clean(200, disaggregated=True)
    traffic.columns["kv_bytes"] = np.asarray(traffic.columns["input_tokens"], dtype=object) * 1_000
    (cell,) = _model(traffic).cells
    assert cell.kv_per_byte
    assert cell.fits["kv_transfer"].coefficients[1] == pytest.approx(
        _LOW * factory.KV_MS[1] / 1_000, rel=0.1
    )
    traffic.set("kv_bytes", np.arange(5), None)
    assert not _model(traffic).cells[0].kv_per_byte


def test_the_same_rows_in_any_order_give_the_same_model() -> None:
    con = factory.clean(500, long_share=0.1).connect()
    _facts(con)
    first = fit_cost_model(con).to_arrow()
    con.execute(
        "create or replace temp table r2 as select * from requests order by md5(request_key)"
    )
    con.execute("create or replace temp view window_requests as select * from r2")
    _facts(con)
    assert fit_cost_model(con).to_arrow().equals(first)


def test_a_fit_says_how_large_its_requests_were() -> None:
    traffic = factory.clean(200)
    traffic.set("input_tokens", np.arange(200), np.linspace(100, 900, 200).round().astype(int))
    traffic.set("cached_tokens", np.arange(200), 0)
    # a part from the cache is not computed, but attended to
    traffic.set("input_tokens", np.array([7]), 5_000)
    traffic.set("cached_tokens", np.array([7]), 4_800)
    # who was killed was not fitted
    traffic.set("input_tokens", np.array([8]), 90_000)
    traffic.set("status", np.array([8]), "timeout")
    con = traffic.connect()
    _facts(con)
    for baseline in (False, True):
        (cell,) = fit_cost_model(con, baseline=baseline).cells
        prefill, decode = cell.fits["prefill"], cell.fits["decode"]
        assert (prefill.reach, prefill.context_reach) == (900.0, 4_800 + 200 / 2)
        ((steps, context),) = con.sql(
            "select max(steps), max(step_context / steps) from request_facts "
            "where completed = 1 and decode_ms > 0"
        ).fetchall()
        assert decode.reach == steps
        assert decode.context_reach == pytest.approx(context)
        assert (cell.fits["queue"].reach, cell.fits["queue"].context_reach) == (None, None)
    row = fit_cost_model(con).to_arrow().to_pylist()[0]
    assert (row["prefill_reach"], row["prefill_context_reach"]) == (900.0, 4_900.0)
    assert row["decode_reach"] == steps and row["queue_or_prefill_reach"] is None
    assert "queue_reach" not in row and "kv_transfer_context_reach" not in row


def test_the_quickest_time_is_not_the_one_without_large_requests() -> None:
    """A third of the time has short prompts only, and less load: its fit knows no long ones."""
    traffic = factory.clean(900)
    rows = np.arange(900)
    long = rows[300:][::10]
    tokens = np.full(900, 64)
    tokens[long] = 6_400
    traffic.set("input_tokens", rows, tokens)
    traffic.set("cached_tokens", rows, 0)
    traffic.phases["prefill"][:] = 20.0 + 0.3 * tokens
    traffic.phases["prefill"][300:] *= 1.2
    (cell,) = _model(traffic).cells
    assert cell.fits["prefill"].reach == 6_400
    tokens[long] = 200
    traffic.set("input_tokens", rows, tokens)
    traffic.phases["prefill"][:] = 20.0 + 0.3 * tokens
    traffic.phases["prefill"][300:] *= 1.2
    (cell,) = _model(traffic).cells
    assert cell.fits["prefill"].is_calm and cell.fits["prefill"].reach == 64


def test_large_cells_are_sampled() -> None:
    model = _model(factory.clean(20_000, long_share=0.03))
    assert 2_000 <= model.rows <= 4_500
    _assert_true_costs(model, rel=0.04)


def test_residuals_match_their_cell() -> None:
    model = _model(factory.join(factory.clean(200), factory.clean(100, seed=2, model="b")))
    assert [len(r) for r in model.residuals] == [
        100 if c.model == "b" else 200 for c in model.cells
    ]
    for pool in model.residuals:
        assert pool.shape[1] == len(PHASES)
        assert np.abs(pool).max() <= 6.0
        # the fit is a low quantile: most residuals lie above it
        assert (pool[:, PHASES.index("decode")] > 0).mean() == pytest.approx(0.75, abs=0.05)


def _slow_from(first: int) -> Traffic:
    traffic = factory.clean(1_000, noise=0.05)
    traffic.phases["decode"][first:] *= 1.6
    return traffic


def test_a_load_that_lasts_moves_no_expectation() -> None:
    calm, busy = _model(_slow_from(1_000)), _model(_slow_from(150))
    at = list(dict(PHASE_TERMS)["decode"]).index(("g0", "steps"))
    fits = [m.cells[0].fits["decode"] for m in (calm, busy)]
    assert [f.is_calm for f in fits] == [False, True]
    assert fits[1].coefficients[at] == pytest.approx(fits[0].coefficients[at], rel=0.1)


def test_what_a_fault_has_slowed_is_no_ordinary_variation() -> None:
    column = PHASES.index("decode")
    calm, busy = (_model(_slow_from(n)).residuals[0][:, column] for n in (1_000, 400))
    assert np.quantile(busy, 0.9) < np.quantile(calm, 0.9) + 1.0
