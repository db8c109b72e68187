"""Prefill and decode in each other's place: found where they are, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis import factory
from tests.analysis.factory import Traffic
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import Diagnosis
from tracekit.analysis.missing import SWAPPED_FIELDS
from tracekit.analysis.slo import parse_slo
from tracekit.analysis.swapped import SWAPPED, looks_swapped, swapped_ranks
from tracekit.report import side_notes


def _swap(traffic: Traffic) -> Traffic:
    phases = traffic.phases
    phases["prefill"], phases["decode"] = phases["decode"], phases["prefill"]
    return traffic


def _ranks(traffic: Traffic) -> tuple[float, float] | None:
    size = np.array(traffic.columns["input_tokens"], dtype=float)
    cached = np.array([c or 0 for c in traffic.columns["cached_tokens"]], dtype=float)
    steps = np.array(traffic.columns["output_tokens"], dtype=float) - 1
    return swapped_ranks(traffic.phases["prefill"], traffic.phases["decode"], size - cached, steps)


def _diagnosis(traffic: Traffic) -> Diagnosis:
    return diagnose_connection(traffic.connect(), parse_slo("ttft=100ms"))


def _noted(found: Diagnosis) -> list[str]:
    return [m.why for m in found.missing_evidence if m.field == SWAPPED_FIELDS]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), noise=st.floats(0.02, 0.6), long_share=st.floats(0.0, 0.3))
def test_times_in_their_own_place_never_look_swapped(
    seed: int, noise: float, long_share: float
) -> None:
    assert _ranks(factory.clean(60, seed=seed, noise=noise, long_share=long_share)) is None


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), noise=st.floats(0.02, 0.2))
def test_swapped_ones_do(seed: int, noise: float) -> None:
    found = _ranks(_swap(factory.clean(200, seed=seed, noise=noise)))
    assert found is not None and min(found) > 0.6


def test_long_prompts_with_long_answers_tell_nothing() -> None:
    traffic = factory.clean(200)
    size = np.array(traffic.columns["input_tokens"], dtype=np.int64)
    traffic.columns["output_tokens"] = (size // 4 + 2).astype(object)
    traffic.phases["decode"] = size / 4 * 9.0
    assert _ranks(traffic) is None
    # each goes with either size as well: swapped or not cannot be told
    assert _ranks(_swap(traffic)) is None


def test_answers_of_one_length_tell_nothing() -> None:
    traffic = factory.clean(200)
    traffic.columns["output_tokens"] = np.full(200, 100, dtype=object)
    # context makes all of the difference in decode
    traffic.phases["decode"] = 900 + np.array(traffic.columns["input_tokens"], dtype=float)
    assert _ranks(traffic) is None


def test_long_contexts_alone_swap_nothing() -> None:
    """Answers of nearly one length, a little longer after long prompts: decode goes with these."""
    traffic = factory.clean(400, noise=0.02)
    size = np.array(traffic.columns["input_tokens"], dtype=float)
    place = np.argsort(np.argsort(size)) / 400
    more = np.random.default_rng(4).uniform(0, 1.1, 400)
    traffic.columns["output_tokens"] = (100 + 40 * (place + more)).astype(np.int64).astype(object)
    traffic.phases["decode"] = 100 + size
    assert _ranks(traffic) is None


def test_a_busy_engine_hides_what_prefill_goes_with_but_swaps_nothing() -> None:
    traffic = factory.clean(300)
    traffic.phases["prefill"] *= np.exp(np.random.default_rng(1).normal(0, 2.0, 300))
    assert _ranks(traffic) is None


@pytest.mark.parametrize(("n", "told"), [(29, False), (40, True)])
def test_a_few_rows_are_not_enough(n: int, told: bool) -> None:
    assert (_ranks(_swap(factory.clean(n, noise=0.03))) is not None) == told


def test_nothing_is_blamed_on_swapped_times() -> None:
    found = _diagnosis(_swap(factory.clean(200)))
    assert not found.findings and found.misses.total > 100
    (why,) = _noted(found)
    assert "200 requests of vllm look swapped" in why and "neither is judged" in why
    assert why in found.sentence
    assert list(side_notes.phase_notes(found)) == [side_notes.LOOK_SWAPPED]


def test_clean_traffic_gets_no_such_note() -> None:
    for traffic in (
        factory.clean(200),
        factory.clean(200, cached_share=0.5, disaggregated=True),
        factory.clean(200, long_share=0.2),
    ):
        assert not _noted(_diagnosis(traffic))


def test_the_swapped_version_alone_is_not_judged_and_lends_nothing() -> None:
    old, new = _swap(factory.clean(200, seed=2)), factory.clean(200, seed=3)
    new.add("prefill", np.arange(20), 900)
    old.columns["engine_version"] = np.array(["0.6.4"] * 200, dtype=object)
    new.columns["engine_version"] = np.array(["0.6.5"] * 200, dtype=object)
    found = _diagnosis(factory.join(old, new))
    assert ["vllm 0.6.4" in why for why in _noted(found)] == [True]
    blamed = [f for f in found.findings if f.cause not in ("long_prompt", "fixed_overhead")]
    assert [(f.phase, f.n) for f in blamed] == [("prefill", 20)]


def test_rows_that_say_it_themselves_are_counted_by_version() -> None:
    traffic = factory.clean(100)
    traffic.columns["engine_version"] = np.array(["0.6.4"] * 100, dtype=object)
    traffic.columns["quarantine_reason"] = np.array([SWAPPED] * 90 + [None] * 10, dtype=object)
    found = _diagnosis(traffic)
    (why,) = _noted(found)
    assert "90 requests of vllm 0.6.4" in why and "set aside" in why
    assert why in found.sentence and "collect more" not in found.sentence


def test_the_doctor_finds_both_kinds() -> None:
    said = factory.clean(50, seed=2)
    said.columns["quarantine_reason"] = np.array([SWAPPED] * 50, dtype=object)
    told = _swap(factory.clean(100, seed=3))
    told.columns["quarantine_reason"] = np.array([None] * 100, dtype=object)
    con = factory.join(said, told).connect()
    assert [(s.n, s.prefill_by_output is None) for s in looks_swapped(con)] == [
        (50, True),
        (100, False),
    ]
    assert looks_swapped(factory.clean(100).connect()) == ()
    assert looks_swapped(factory.clean(10).connect()) == ()
