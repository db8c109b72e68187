"""A finding whose requests are mostly one model's, or one route's, names it; chance does not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis import factory
from tests.analysis.factory import Traffic
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.rules import Rules
from tracekit.analysis.slo import parse_slo
from tracekit.analysis.strata import _stands_out


def _late(traffic: Traffic, rows: list[int]) -> list[str]:
    """Evidence of the one finding when these rows wait in the queue."""
    traffic.add("queue", np.array(rows), 3_000.0)
    (finding,) = diagnose_connection(traffic.connect(), parse_slo("ttft=2s")).findings
    assert (finding.phase, finding.n) == ("queue", len(rows))
    return [line for line in finding.evidence if "of all requests" in line]


def _models(n: int = 200) -> Traffic:
    """Every fourth request is of model b and route x."""
    traffic = factory.clean(n)
    is_b = np.arange(n) % 4 == 0
    traffic.columns["model"] = np.where(is_b, "b", "a").astype(object)
    traffic.columns["route"] = np.where(is_b, "x", "chat").astype(object)
    return traffic


def test_the_model_is_named_with_its_part_of_the_traffic() -> None:
    traffic = _models()
    traffic.columns["route"] = ["chat"] * 200
    lines = _late(traffic, list(range(0, 80, 4)))
    assert lines == ["all of them are of model b, which has 25 % of all requests"]


def test_the_route_is_named_as_well() -> None:
    # 16 of 20 are b's
    lines = _late(_models(), [*range(0, 64, 4), 1, 2, 3, 5])
    assert lines == [
        "80 % of them are of model b, which has 25 % of all requests",
        "80 % of them are of route x, which has 25 % of all requests",
    ]


def test_a_model_with_most_of_the_traffic_is_no_news() -> None:
    # 15 of 20 are a's, as of all
    assert _late(_models(), list(range(20))) == []


def test_one_model_alone_is_not_named() -> None:
    assert _late(factory.clean(200), list(range(20))) == []


def test_an_unknown_model_has_no_name() -> None:
    traffic = _models()
    traffic.columns["route"] = ["chat"] * 200
    traffic.set("model", np.arange(0, 200, 4), None)
    assert _late(traffic, list(range(0, 80, 4))) == []


@pytest.mark.parametrize(
    ("k", "n", "usual", "named"),
    [
        (20, 20, 0.25, True),
        # half of them is not most
        (10, 20, 0.05, False),
        # 0.5 ** 6 = 0.016, 0.5 ** 7 = 0.008
        (6, 6, 0.5, False),
        (7, 7, 0.5, True),
        # of many requests little is more than chance, and yet not worth a word
        (10_000, 10_000, 0.9, False),
        (7_000, 10_000, 0.6, False),
        (7_300, 10_000, 0.6, True),
        (20, 20, 1.0, False),
    ],
)
def test_what_stands_out(k: int, n: int, usual: float, named: bool) -> None:
    assert _stands_out(k, n, usual, Rules()) == named
