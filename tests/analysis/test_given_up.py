"""Requests killed before their first token, and windows in which none is slow, say why."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis import factory
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import Diagnosis
from tracekit.analysis.sentence import GIVEN_UP_FIELD
from tracekit.analysis.slo import parse_slo


def _killed(n: int, *statuses: str, spans: bool = False, slow: int = 0) -> Diagnosis:
    """300 requests: ``n`` killed after 6 s, as a client sees them, ``slow`` in the queue."""
    traffic = factory.clean(300)
    rows = np.arange(n)
    traffic.add("queue", rows, 6_000 - traffic.ttft_ms[:n])
    traffic.add("queue", np.arange(200, 200 + slow), 9_000.0)
    traffic.columns["ttft_ms"] = np.where(np.arange(300) < n, np.nan, traffic.ttft_ms)
    if not spans:
        traffic.merge_queue_and_prefill(rows)
    traffic.phases["decode"][rows] = np.nan
    for column in ("input_tokens", "cached_tokens", "output_tokens", "ttft_kind"):
        traffic.set(column, rows, None)
    for i in range(n):
        traffic.set("status", np.array([i]), statuses[i % len(statuses)])
    return diagnose_connection(traffic.connect(), parse_slo("ttft=2s"))


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        (("aborted",), "60 of 60 requests that miss the SLO were given up before their first"),
        (("timeout",), "60 of 60 requests that miss the SLO timed out before their first token"),
        (
            ("aborted", "aborted", "error"),
            "60 of 60 requests that miss the SLO ended before their first token (40 given up, "
            "20 failed)",
        ),
    ],
)
def test_what_was_given_up_is_said(statuses: tuple[str, ...], said: str) -> None:
    found = _killed(60, *statuses)
    assert found.sentence.startswith(f"Not enough evidence: in the whole store {said}")
    assert "after 6.0 s (median), and where they waited is not recorded" in found.sentence
    assert "queue_ms and prefill_ms with status=aborted" in found.sentence
    assert found.missing_evidence[0].field == GIVEN_UP_FIELD


def test_not_where_it_is_recorded_or_a_small_part() -> None:
    recorded = _killed(60, "aborted", spans=True)
    assert GIVEN_UP_FIELD not in {m.field for m in recorded.missing_evidence}
    few = _killed(3, "aborted", slow=60)
    assert GIVEN_UP_FIELD not in {m.field for m in few.missing_evidence}
    # a part of the misses: the headline stays, the note is beside it
    some = _killed(20, "aborted", slow=60)
    assert "the queue" in some.sentence
    assert some.missing_evidence[0].field == GIVEN_UP_FIELD


def test_too_few_completed_and_many_given_up() -> None:
    found = _killed(290, "aborted")
    assert "290 of 290 requests that miss the SLO were given up" in found.sentence


def test_none_slow_says_why() -> None:
    traffic = factory.clean(100)
    for phase in ("frontend", "queue", "prefill", "decode"):
        traffic.phases[phase][:] = 100.0
    traffic.columns["output_tokens"] = [50] * 100
    said = diagnose_connection(traffic.connect(), parse_slo(None)).sentence
    assert said.startswith("Not enough evidence: none of the 100 completed requests in the whole")
    assert "take equally long" in said and "--slo" in said
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        traffic.columns[name] = np.full(100, np.nan)
    said = diagnose_connection(traffic.connect(), parse_slo(None)).sentence
    assert "takes 30 requests with a TTFT, TPOT or total time" in said
