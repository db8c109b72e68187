"""Reading an SLO, and handing it to SQL as one row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analysis.slo import Slo, parse_slo
from tracekit.errors import UsageError


def test_units() -> None:
    assert parse_slo("ttft=800ms,tpot=50ms,e2e=10s") == Slo(800.0, 50.0, 10_000.0)
    assert parse_slo("ttft=800") == Slo(ttft_ms=800.0), "a bare number is milliseconds"
    assert parse_slo(" e2e = 1.5m , tpot=500us ") == Slo(tpot_ms=0.5, e2e_ms=90_000.0)
    assert parse_slo("ttft=.5s") == Slo(ttft_ms=500.0)


@pytest.mark.parametrize("text", ["", "  ", None])
def test_none_given_means_the_slowest(text: str | None) -> None:
    slo = parse_slo(text)
    assert slo == Slo()
    assert slo.source == "slowest_5_percent"
    assert slo.metrics == ()


@pytest.mark.parametrize(
    "text",
    [
        "ttft",
        "ttft=",
        "ttft=fast",
        "ttft=-5ms",
        "ttft=0",
        "ttft=5h",
        "itl=5ms",
        "ttft_ms=5",
        "ttft=1s,ttft=2s",
        "ttft=1e3",
        "ttft=nan",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_slo(text)


def test_one_row() -> None:
    slo = Slo(tpot_ms=50.0)
    assert slo.to_arrow().to_pylist() == [
        {"ttft_ms": None, "tpot_ms": 50.0, "e2e_ms": None, "source": "given"}
    ]
    assert slo.metrics == ("tpot",)
    assert slo.to_json()["source"] == "given"


@given(st.text(max_size=30))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        slo = parse_slo(text)
    except UsageError:
        return
    limits = [slo.limit_ms(m) for m in ("ttft", "tpot", "e2e")]
    assert all(limit is None or limit > 0 for limit in limits)


@pytest.mark.parametrize("text", ["ttft=0.8", "e2e=9", "tpot=50ms,ttft=2"])
def test_a_small_bare_number_may_mean_seconds_and_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="has no unit"):
        parse_slo(text)


def test_a_small_limit_with_its_unit_is_taken() -> None:
    assert parse_slo("ttft=0.8ms,tpot=8,e2e=900").ttft_ms == 0.8
