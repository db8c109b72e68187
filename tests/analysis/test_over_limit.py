"""A limit is an absolute bar: what holds the time of those over it needs no expectation."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.analysis import factory
from tracekit.analysis.diagnose import diagnose, diagnose_connection
from tracekit.analysis.diagnosis import Diagnosis, OverLimit, RequestCounts, SloInfo
from tracekit.analysis.rules import enough
from tracekit.analysis.sentence import diagnosis_sentence
from tracekit.analysis.session import Session
from tracekit.analysis.slo import parse_slo
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store
from tracekit.report import diagnosis_md

_DATA = Path(__file__).parents[1] / "data"


def _of(traffic: factory.Traffic, slo: str) -> Diagnosis:
    return diagnose_connection(traffic.connect(), parse_slo(slo))


@pytest.mark.parametrize(
    ("k", "n", "lower"),
    # Wilson's interval at z = 1.2816, worked out by hand: n / (n + z^2) for n of n
    [(1, 1, 0.378), (3, 3, 0.646), (15, 15, 0.901), (0, 5, 0.0), (5, 10, 0.313)],
)
def test_few_that_agree_are_not_sure(k: int, n: int, lower: float) -> None:
    assert enough(k, n) == pytest.approx(lower, abs=0.001)


def test_twelve_requests_of_which_ten_miss() -> None:
    traffic = factory.clean(12)
    traffic.add("queue", np.arange(10), 9_000)
    found = _of(traffic, "ttft=5s")
    (over,) = found.over_limit
    assert (over.misses, over.requests, over.alone, over.phase) == (10, 12, 10, "queue")
    assert over.confidence_label == "low"
    assert found.findings == (), "nobody is judged by a dozen"
    assert found.sentence.startswith(
        "In the whole store, 10 of 12 requests miss the TTFT SLO (5.0 s): the queue alone takes "
        "longer than that in 10 of them (9.0 s at the median; confidence in the phase low"
    )
    assert "30 are needed" in found.sentence


def test_two_of_twelve_are_counted_and_no_more() -> None:
    traffic = factory.clean(12)
    traffic.add("queue", np.arange(2), 9_000)
    sentence = _of(traffic, "ttft=5s").sentence
    assert sentence.startswith("Not enough evidence: 12 completed requests")
    assert "; 2 of 12 miss the TTFT SLO; collect more" in sentence


def test_a_server_that_had_to_retract(tmp_path: Path) -> None:
    """24 requests; truth is the client's clock."""
    with gzip.open(_DATA / "sglang" / "unified-retract.client.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    late = sum(r["first_chunk_unix_ns"] - r["send_unix_ns"] > 500_000_000 for r in rows)
    store = Store.open(tmp_path / "store", create=True)
    import_paths(store, [str(_DATA / "sglang" / "unified-retract.otlp.jsonl.gz")])
    with Session.open(store) as session:
        found = diagnose(session, parse_slo("ttft=500ms"))
    (over,) = found.over_limit
    assert over.misses == pytest.approx(late, abs=1) and over.requests == len(rows) == 24
    assert over.phase == "queue" and over.waited_ms is None, "it is measured, nothing is inferred"
    assert over.sentence in found.sentence


def test_what_findings_account_for_is_not_said_twice() -> None:
    traffic = factory.clean(300)
    traffic.add("queue", np.arange(100), 9_000)
    found = _of(traffic, "ttft=5s")
    assert found.findings[0].share_of_misses == 1
    assert found.over_limit == ()


def test_several_phases_name_none() -> None:
    """Each a third of what is allowed and more, none of them all of it."""
    traffic = factory.clean(20)
    for phase in ("frontend", "queue", "prefill"):
        traffic.add(phase, np.arange(15), 2_000)
    (over,) = _of(traffic, "ttft=5s").over_limit
    assert (over.phase, over.alone, over.confidence) == (None, 0, None)
    assert over.misses == 15


def test_other_limits_are_said_beside_the_headline() -> None:
    """Half wait for long without a finding: they cannot hide behind a finding on decode."""
    found = _of(factory.clean(300), "ttft=500ms")
    over = OverLimit(
        metric="ttft",
        limit_ms=500.0,
        requests=300,
        misses=150,
        phase="queue",
        alone=150,
        phase_ms=900.0,
        waited_ms=None,
        prefill_ms=None,
        confidence=0.95,
        confidence_label="high",
        sentence="150 of 300 requests miss it",
        action="look",
    )
    object.__setattr__(found, "over_limit", (over,))
    assert "- 150 of 300 requests miss it; try: look" in diagnosis_md.render(found)
    object.__setattr__(found, "sentence", f"In all, {over.sentence}.")
    assert "try: look" not in diagnosis_md.render(found), "the headline says it already"


@pytest.mark.parametrize(("misses", "leads"), [(300, True), (50, False)])
def test_the_tail_of_healthy_traffic_is_no_headline(misses: int, leads: bool) -> None:
    over = OverLimit(
        metric="ttft",
        limit_ms=500.0,
        requests=1_000,
        misses=misses,
        phase="queue",
        alone=misses,
        phase_ms=900.0,
        waited_ms=None,
        prefill_ms=None,
        confidence=0.95,
        confidence_label="high",
        sentence="S",
        action="A",
    )
    counts = RequestCounts(1_000, 1_000, 0, 0, 0, 0, 0, {}, 0)
    said = diagnosis_sentence(
        findings=(),
        requests=counts,
        slo=SloInfo(500.0, None, None, "given"),
        misses=misses,
        unexplained_share=1.0,
        reasons={"usual": misses},
        missing=(),
        min_rows=30,
        window_text="the last hour",
        over_limit=(over,),
    )
    assert said == "In the last hour, S. Next: A." if leads else said.startswith("Not enough")
