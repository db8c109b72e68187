"""Seconds that cached KV saved or cost: against the known cost of prompts, and when it is quiet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.analysis import factory
from tests.analysis.factory import PREFILL_MS, Traffic
from tracekit.analysis import _drawn
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import CacheSavings, Diagnosis
from tracekit.analysis.slo import parse_slo
from tracekit.report import side_notes


def _saved(traffic: Traffic) -> CacheSavings | None:
    return diagnose_connection(traffic.connect(), parse_slo("ttft=800ms")).prefix_cache


def _truth_s(traffic: Traffic) -> float:
    tokens = np.array(traffic.columns["input_tokens"], dtype=float)
    cached = np.array(traffic.columns["cached_tokens"], dtype=float)
    left = tokens - cached
    _, a1, a2 = PREFILL_MS
    return float((a1 * cached + a2 * (tokens**2 / 2 - left * (cached + left / 2))).sum()) / 1e3


def test_the_sum_is_what_the_hits_would_have_cost() -> None:
    traffic = factory.clean(600, cached_share=0.4, long_share=0.1, long_tokens=9_000)
    found = _saved(traffic)
    truth = _truth_s(traffic)
    assert found is not None and truth > 10
    # the expectation is a low quantile: with noise of 8 %, 5 % below the truth
    assert found.saved_s == pytest.approx(0.95 * truth, rel=0.05)
    hits = int((np.array(traffic.columns["cached_tokens"], dtype=float) > 0).sum())
    assert (found.hits, found.n, found.sampled) == (hits, 600, 600)
    without = traffic.e2e_ms.sum() / 1e3 + found.saved_s
    assert found.saved_share == pytest.approx(found.saved_s / without)
    assert found.fit_error < 0.1


def test_a_sample_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = factory.clean(3_000, cached_share=0.4)
    whole = _saved(traffic)
    monkeypatch.setattr(_drawn, "DRAWN_MAX", 1_000)
    drawn = _saved(traffic)
    assert whole is not None and drawn is not None
    assert 500 < drawn.sampled < 1_100 and whole.sampled == 3_000
    assert drawn.n == whole.n == 3_000
    assert drawn.hits == pytest.approx(whole.hits, rel=0.1)
    assert drawn.saved_s == pytest.approx(whole.saved_s, rel=0.15)
    assert drawn.saved_share == pytest.approx(whole.saved_share, rel=0.15)


def _unknown(traffic: Traffic) -> None:
    traffic.columns["cached_tokens"] = [None] * traffic.n


def _no_hits(traffic: Traffic) -> None:
    traffic.columns["cached_tokens"] = [0] * traffic.n


def _preempted(traffic: Traffic) -> None:
    traffic.columns["preemptions"] = [1] * traffic.n


def _noisy(traffic: Traffic) -> None:
    spread = np.exp(np.random.default_rng(3).normal(0, 1.2, traffic.n))
    traffic.phases["prefill"] *= spread


def _all_hit_but(traffic: Traffic, misses: int) -> None:
    """Prompts of 3,000 tokens with 2,400 in the cache, but for some."""
    cached = np.where(np.arange(traffic.n) < misses, 0, 2_400)
    a0, a1, a2 = PREFILL_MS
    left = 3_000.0 - cached
    traffic.phases["prefill"] = a0 + a1 * left + a2 * left * (cached + left / 2)
    traffic.columns["input_tokens"] = [3_000] * traffic.n
    traffic.columns["cached_tokens"] = [int(c) for c in cached]


@pytest.mark.parametrize("spoil", [_unknown, _no_hits, _preempted, _noisy])
def test_nothing_is_claimed_where_nothing_can_be_told(spoil: Callable[[Traffic], None]) -> None:
    traffic = factory.clean(200, cached_share=0.4)
    assert _saved(traffic) is not None
    spoil(traffic)
    assert _saved(traffic) is None


@pytest.mark.parametrize(("misses", "told"), [(0, False), (4, False), (5, True)])
def test_prompts_as_large_must_have_been_computed(misses: int, told: bool) -> None:
    traffic = factory.clean(100)
    _all_hit_but(traffic, misses)
    found = _saved(traffic)
    assert (found is not None) == told
    if found is not None:
        assert (found.hits, found.n, found.unjudged) == (95, 100, {})
        # 2,400 tokens each: 0.05 x 2,400 + 1e-6 x (4.5e6 - 600 x 2,700) = 122.88 ms
        assert found.saved_s == pytest.approx(95 * 0.12288, rel=0.02)


def test_a_fit_borrowed_from_another_model_says_nothing() -> None:
    traffic = factory.clean(220, cached_share=0.4)
    models = np.array(["a"] * 200 + ["b"] * 20, dtype=object)
    traffic.columns["model"] = models
    found = _saved(traffic)
    assert found is not None and found.n == 200
    # the hits of the other are said to be left out
    cached = np.array(traffic.columns["cached_tokens"], dtype=float) > 0
    assert found.hits == cached[:200].sum()
    assert found.unjudged == {"unfitted": cached[200:].sum()}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda t: t.set("preemptions", np.arange(200, 400), 1), "preempted"),
        (lambda t: _disturb(t, np.arange(200, 400)), "spread"),
    ],
)
def test_hits_that_are_not_judged_are_counted(
    spoil: Callable[[Traffic], None], reason: str
) -> None:
    traffic = factory.clean(400, cached_share=0.4)
    traffic.columns["model"] = np.array(["a"] * 200 + ["b"] * 200, dtype=object)
    traffic.columns["preemptions"] = np.array([0] * 400, dtype=object)
    whole = _saved(traffic)
    cached = np.array(traffic.columns["cached_tokens"], dtype=float) > 0
    assert whole is not None and (whole.hits, whole.unjudged) == (cached.sum(), {})
    spoil(traffic)
    found = _saved(traffic)
    assert found is not None
    assert (found.hits, found.unjudged) == (cached[:200].sum(), {reason: cached[200:].sum()})


def _disturb(traffic: Traffic, rows: np.typing.NDArray[np.int64]) -> None:
    traffic.phases["prefill"][rows] *= np.exp(np.random.default_rng(3).normal(0, 1.2, len(rows)))


def test_only_what_says_its_cached_tokens_counts() -> None:
    traffic = factory.clean(200, cached_share=0.4)
    traffic.set("cached_tokens", np.arange(50), None)
    found = _saved(traffic)
    assert found is not None and found.n == 150


# -- loads from another place ----------------------------------------------------------------------


def _loading(n: int = 200, *, load_ms: float = 170.0, tokens: int = 64, loads: int = 80) -> Traffic:
    """Of ``n`` requests the last ``loads`` load ``tokens`` of their prompt from a slower tier."""
    traffic = factory.clean(n)
    rows = np.arange(n - loads, n)
    size = np.array(traffic.columns["input_tokens"], dtype=float)
    size[rows] += tokens
    traffic.columns["input_tokens"] = size.astype(np.int64).astype(object)
    traffic.set("cached_tokens", rows, tokens)
    traffic.columns["kv_bytes"] = np.array([None] * n, dtype=object)
    traffic.set("kv_bytes", rows, tokens * 131_072)
    wobble = np.exp(np.random.default_rng(5).normal(0, 0.08, loads))
    traffic.phases["kv_transfer"][rows] = load_ms * wobble
    return traffic


def _diagnosis(traffic: Traffic) -> Diagnosis:
    return diagnose_connection(traffic.connect(), parse_slo("ttft=150ms"))


def test_a_load_is_held_against_computing_the_same_tokens() -> None:
    found = _diagnosis(_loading())
    loads = found.kv_loads
    assert loads is not None and loads.is_loss
    assert (loads.n, loads.slower, loads.sampled, loads.tokens) == (80, 80, 80, 64)
    assert loads.load_s == pytest.approx(80 * 0.17, rel=0.03)
    # 64 tokens at 0.05 ms each and a little attention; the expectation is a low quantile
    assert loads.recompute_s == pytest.approx(80 * 3.2e-3, rel=0.15)
    assert loads.same_time_tokens == pytest.approx(170 / 0.05, rel=0.15)
    top = found.findings[0]
    assert top.phase == "kv_transfer" and "slower tier" in top.action
    assert any("break-even" in line for line in top.evidence)
    assert found.to_json()["kv_loads"]["is_loss"] is True


def test_loads_that_pay_are_no_loss() -> None:
    found = _diagnosis(_loading(load_ms=20.0, tokens=900))
    assert found.kv_loads is not None and not found.kv_loads.is_loss
    assert not any("elsewhere" in note for note in side_notes.phase_notes(found))
    assert not any("slower tier" in f.action for f in found.findings)


def _no_bytes(traffic: Traffic) -> None:
    traffic.columns["kv_bytes"] = None


def _handed_over(traffic: Traffic) -> None:
    """The prompt's KV comes from a prefill server, which had a part of it in its cache."""
    size = np.array(traffic.columns["input_tokens"], dtype=float)
    traffic.columns["kv_bytes"] = (size * 131_072).astype(np.int64).astype(object)


def _other_worker(traffic: Traffic) -> None:
    traffic.columns["prefill_worker"] = np.array(["p0"] * traffic.n, dtype=object)


def _unknown_worker(traffic: Traffic) -> None:
    traffic.columns["worker"] = np.array([None] * traffic.n, dtype=object)


@pytest.mark.parametrize(
    "spoil", [_no_bytes, _handed_over, _other_worker, _unknown_worker, _unknown, _no_hits, _noisy]
)
def test_a_transfer_that_may_be_another_thing_is_no_load(
    spoil: Callable[[Traffic], None],
) -> None:
    traffic = _loading()
    spoil(traffic)
    found = _diagnosis(traffic)
    assert found.kv_loads is None
    assert not any("slower tier" in f.action for f in found.findings)


def test_clean_traffic_loads_nothing() -> None:
    for traffic in (
        factory.clean(200),
        factory.clean(200, cached_share=0.5),
        factory.clean(200, cached_share=0.5, disaggregated=True),
    ):
        assert _diagnosis(traffic).kv_loads is None
    assert _diagnosis(_loading(loads=25)).kv_loads is None


def test_a_hand_over_beside_loads_is_not_spoken_of_as_one() -> None:
    pd = factory.clean(200, seed=2, disaggregated=True, model="m70b")
    pd.add("kv_transfer", np.arange(60), 400)
    pd.columns["kv_bytes"] = np.array([None] * 200, dtype=object)
    found = _diagnosis(factory.join(_loading(), pd))
    assert found.kv_loads is not None and found.kv_loads.is_loss
    assert not any("slower tier" in f.action for f in found.findings)
