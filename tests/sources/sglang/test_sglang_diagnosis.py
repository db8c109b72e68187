"""What a diagnosis says of the recordings: the full pool, the interrupted decode."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.sources._recorded import DATA
from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.diagnosis import Diagnosis
from tracekit.analysis.session import Session
from tracekit.analysis.slo import parse_slo
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store


def _diagnosis(slo: str, *names: str) -> Diagnosis:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "s", create=True)
        import_paths(store, [str(DATA / "sglang" / f"{n}.otlp.jsonl.gz") for n in names])
        with Session.open(store) as session:
            return diagnose(session, parse_slo(slo))


@pytest.mark.trap("sglang", 2)
@pytest.mark.trap("sglang", 11)
def test_a_full_decode_pool_is_memory_and_neither_network_nor_prefill() -> None:
    found = _diagnosis("ttft=1s", "pd-decode-full", "pd-baseline")
    first = found.findings[0]
    assert (first.phase, first.cause) == ("queue", "kv_capacity")
    assert first.share_of_misses > 0.6
    assert any("the wait for KV space on the decode server" in e for e in first.evidence)
    # trap 2: they wait on the prefill server, and it is the decode server's KV cache that is full
    assert first.workers == ("sglang-decode",)
    assert not any(f.phase == "kv_transfer" for f in found.findings)


@pytest.mark.trap("sglang", 13)
def test_others_prefills_are_named_for_a_decode_that_stalls() -> None:
    """Trap 13: a decode step holds other requests' prefill chunks, up to 3.4 s."""
    found = _diagnosis("ttft=1s,tpot=60ms", "unified-chunked")
    first = next(f for f in found.findings if f.metric == "tpot")
    assert (first.phase, first.cause) == ("decode", "prefill_interference")
    # the culprits are long prompts, of 700 to 2,200 words
    assert first.culprits
    assert all((c.input_tokens or 0) > 1_000 for c in first.culprits[:3])
