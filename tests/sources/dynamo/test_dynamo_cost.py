"""What a transfer costs a token, fitted on recordings whose bandwidth is known."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.sources._recorded import DATA
from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.session import Session
from tracekit.analysis.slo import parse_slo
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store


@pytest.mark.parametrize("name", ["pd_slow_kv", "pd_slow_kv_bootstrap"])
def test_the_fitted_cost_of_a_token_is_the_bandwidth(name: str) -> None:
    """131,072 bytes a token at 0.4 GB/s: 328 ms for 1,000 tokens, in either mode."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "s", create=True)
        import_paths(
            store,
            [
                str(DATA / "dynamo" / f"{name}.{kind}.jsonl.gz")
                for kind in ("otlp", "request_trace")
            ],
        )
        with Session.open(store) as session:
            found = diagnose(session, parse_slo("ttft=150ms"))
        (finding,) = [f for f in found.findings if f.phase == "kv_transfer"][:1]
        said = [e for e in finding.evidence if e.startswith("a transfer takes")]
        assert len(said) == 1
        cost_ms = float(said[0].split()[3])
        assert cost_ms == pytest.approx(1000 * 131_072 / 0.4e9 * 1e3, rel=0.03)
        assert "kv_transfer" in found.sentence or "KV transfer" in found.sentence
