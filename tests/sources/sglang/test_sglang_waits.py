"""What the spans of an SGLang pair tell of its queue is not said to be unknown."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.sources._recorded import DATA
from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.diagnosis import Diagnosis
from tracekit.analysis.session import Session
from tracekit.analysis.slo import parse_slo
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store


def _diagnosis(name: str, slo: str) -> Diagnosis:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "s", create=True)
        import_paths(store, [str(DATA / "sglang" / f"{name}.otlp.jsonl.gz")])
        with Session.open(store) as session:
            return diagnose(session, parse_slo(slo))


def test_a_queue_that_is_not_for_the_decode_servers_memory() -> None:
    """Their `prefill_bootstrap` took about 1 ms of 1.8 s: the prefill server was busy."""
    found = _diagnosis("pd-chunked", "ttft=300ms")
    (top,) = [f for f in found.findings if (f.phase, f.cause) == ("queue", "unknown")]
    assert "not for KV space of the decode server" in top.sentence
    (line,) = [e for e in top.evidence if "wait for KV space on the decode server" in e]
    assert float(line.partition(" ms of their queue")[0]) < 10
    (note,) = [m for m in found.missing_evidence if m.field == "engine metrics"]
    assert "not for KV space of the decode server, which is told apart" in note.why
    assert "nothing tells whether for a slot or for KV memory" not in note.why


def test_spans_that_are_all_there_are_not_asked_for() -> None:
    """One request of 40 has a hole (its root outlived its parts); every phase is traced."""
    found = _diagnosis("pd-baseline", "ttft=200ms")
    for note in found.missing_evidence:
        assert "--enable-trace" not in note.how, note
