"""An engine version that makes everything slower is named, though it leaves no excess."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.analysis import factory
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import Diagnosis
from tracekit.analysis.slo import parse_slo
from tracekit.report import side_notes


def _deploy(
    decode: float = 1.0, prefill: float = 1.0, *, n: int = 400, slo: str = "tpot=12ms", **new: Any
) -> Diagnosis:
    """``n`` requests of 0.31, then as many of 0.32 that take so many times as long."""
    before, after = factory.clean(n), factory.clean(n, seed=2, **new)
    after.phases["decode"] *= decode
    after.phases["prefill"] *= prefill
    after.columns["start_unix_ns"] = after.columns["start_unix_ns"] + 3_600 * 10**9
    for traffic, version in ((before, "0.31"), (after, "0.32")):
        traffic.columns["engine_version"] = np.array([version] * n, dtype=object)
    return diagnose_connection(factory.join(before, after).connect(), parse_slo(slo))


@pytest.mark.parametrize(
    ("decode", "prefill", "said"),
    [
        (1.5, 1.0, "1.5 times as long per token"),
        (1.0, 1.8, "1.8 times as long for a prefill"),
        (1.5, 1.8, "1.8 times as long for a prefill and 1.5 times as long per token"),
    ],
)
def test_a_slower_version_is_noted(decode: float, prefill: float, said: str) -> None:
    found = _deploy(decode, prefill)
    assert side_notes.LOOK_SWAPPED not in (notes := list(side_notes.phase_notes(found)))
    assert notes[0] == (
        f"engine version 0.32 of m8b takes {said} as 0.31 for the same requests: tracekit compare "
        "engine_version=0.31 engine_version=0.32"
    )
    for pace in found.to_json()["engine_versions"]:
        assert (pace["slower"], pace["quicker"], pace["model"]) == ("0.32", "0.31", "m8b")
        truth = {"decode": decode, "prefill": prefill}[pace["phase"]]
        assert pace["factor"] == pytest.approx(truth, rel=0.07)
        assert pace["slower_ms"] == pytest.approx(pace["factor"] * pace["quicker_ms"])


def test_what_it_makes_slow_is_not_called_no_fault() -> None:
    found = _deploy(1.5)
    top = found.findings[0]
    assert top.cause in ("fixed_overhead", "long_prompt") and top.metric == "tpot"
    assert "as slow as their size makes them with engine version 0.32, which takes 1.5" in (
        top.sentence
    )
    assert "no fault" not in found.sentence and "any fault" not in found.sentence
    assert "tracekit compare engine_version=0.31 engine_version=0.32" in found.sentence
    # and of the quicker version it still is; no more than half are over this limit
    same = _deploy(1.0, slo="tpot=10ms")
    assert 2 * same.misses.total < same.requests.completed
    assert same.findings and "no fault" in same.findings[0].sentence


@pytest.mark.parametrize("n", [40, 400])
def test_other_traffic_or_chance_is_no_slower_version(n: int) -> None:
    for found in (_deploy(n=n), _deploy(1.1, n=n), _deploy(n=n, long_share=0.3)):
        assert found.engine_versions == ()
    assert _deploy(1.5, n=20).engine_versions == (), "too few for a fit of their own"
