"""Somebody is always the slowest: a few of them are no headline and no high confidence."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.analysis import factory
from tests.sources._recorded import DATA
from tracekit.analysis.diagnose import diagnose, diagnose_connection
from tracekit.analysis.diagnosis import Diagnosis
from tracekit.analysis.session import Session
from tracekit.analysis.slo import Slo, parse_slo
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store


def _recorded(*names: str) -> Diagnosis:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "s", create=True)
        import_paths(store, [str(DATA / name) for name in names])
        with Session.open(store) as session:
            return diagnose(session, Slo())


@pytest.mark.parametrize(
    "names",
    [
        ("dynamo/agg_baseline.otlp.jsonl.gz",),
        ("dynamo/pd_baseline.otlp.jsonl.gz", "dynamo/pd_baseline.request_trace.jsonl.gz"),
        ("sglang/unified-baseline.otlp.jsonl.gz",),
        ("sglang/pd-baseline.otlp.jsonl.gz",),
        ("llama_cpp/baseline.client.jsonl.gz",),
    ],
)
def test_healthy_recordings_of_forty_requests(names: tuple[str, ...]) -> None:
    """Two of forty are the slowest 5 %: whatever they lost, it is no headline."""
    found = _recorded(*names)
    assert found.sentence.startswith("Not enough evidence")
    assert "lost their time" not in found.sentence and "no fault" not in found.sentence
    for finding in found.findings:
        assert finding.n <= 3
        assert finding.confidence < 0.7 and finding.confidence_label == "mixed"
    assert [m for m in found.missing_evidence if m.field == "slo, baseline"]


def test_what_little_stands_out_is_named() -> None:
    traffic = factory.clean(40)
    traffic.add("queue", np.arange(2), 9_000)
    said = diagnose_connection(traffic.connect(), Slo()).sentence
    assert "no more than 2 requests of the slowest stand out (in the queue, 9.0 s longer" in said
    assert "--slo" in said and "--baseline" in said


def test_confidence_grows_with_the_requests_that_agree() -> None:
    """Without a limit: 1 of 1 is 0.38 sure, 5 of 5 0.75, 20 of 20 0.92 (Wilson, one in ten)."""
    shown = []
    for n, slow in ((40, 1), (140, 5), (440, 20)):
        traffic = factory.clean(n)
        traffic.add("queue", np.arange(slow), 9_000)
        found = diagnose_connection(traffic.connect(), Slo())
        (top,) = [f for f in found.findings if (f.phase, f.metric) == ("queue", "ttft")]
        assert top.n == slow
        shown.append(top.confidence)
    assert shown == pytest.approx([0.378, 0.753, 0.924], abs=0.002)


def test_who_misses_a_given_limit_is_no_matter_of_rank() -> None:
    traffic = factory.clean(300)
    traffic.add("queue", np.arange(1), 9_000)
    found = diagnose_connection(traffic.connect(), parse_slo("ttft=5s"))
    assert "lost their time in the queue" in found.sentence
    assert found.findings[0].confidence_label == "high"
