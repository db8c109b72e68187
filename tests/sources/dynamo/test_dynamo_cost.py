"""What a transfer costs a token, fitted on recordings whose bandwidth is known."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import pytest

from tests.sources._recorded import DATA
from tracekit.analysis.detail import request_detail
from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.session import Session
from tracekit.analysis.slo import parse_slo
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store
from tracekit.report.inferred_text import inferred_lines


def _session(folder: Path, name: str) -> Session:
    """The spans and the request trace of a recording."""
    store = Store.open(folder / "s", create=True)
    data = DATA / "dynamo"
    import_paths(
        store, [str(data / f"{name}.{kind}.jsonl.gz") for kind in ("otlp", "request_trace")]
    )
    return Session.open(store)


@pytest.mark.parametrize("name", ["pd_slow_kv", "pd_slow_kv_bootstrap"])
def test_the_fitted_cost_of_a_token_is_the_bandwidth(name: str) -> None:
    """131,072 bytes a token at 0.4 GB/s: 328 ms for 1,000 tokens, in either mode."""
    with tempfile.TemporaryDirectory() as folder:
        with _session(Path(folder), name) as session:
            found = diagnose(session, parse_slo("ttft=150ms"))
        (finding,) = [f for f in found.findings if f.phase == "kv_transfer"][:1]
        said = [e for e in finding.evidence if e.startswith("a transfer takes")]
        assert len(said) == 1
        cost_ms = float(said[0].split()[3])
        assert cost_ms == pytest.approx(1000 * 131_072 / 0.4e9 * 1e3, rel=0.03)
        assert "kv_transfer" in found.sentence or "KV transfer" in found.sentence


@pytest.mark.parametrize(("name", "fixed_ms"), [("pd_slow_kv", 10), ("pd_slow_kv_bootstrap", 50)])
def test_of_each_transfer_the_part_for_its_bytes(name: str, fixed_ms: float) -> None:
    """prompt_tokens x 131,072 bytes / 0.4 GB/s, of every request, beside a constant."""
    with tempfile.TemporaryDirectory() as folder, _session(Path(folder), name) as session:
        diagnose(session, parse_slo("ttft=150ms"))
        rows = session.con.execute(
            "select r.input_tokens, p.kv_transfer_fixed_ms, p.kv_transfer_sized_ms"
            " from inferred_parts as p join requests as r on p.request_key = r.request_key"
        ).fetchall()
    assert len(rows) == 40
    truth_ms = [tokens * 131_072 / 0.4e9 * 1e3 for tokens, _, _ in rows]
    off = [abs(sized - ms) / ms for (_, _, sized), ms in zip(rows, truth_ms, strict=True)]
    assert statistics.median(off) <= 0.05
    assert rows[0][1] == pytest.approx(fixed_ms, abs=3)


@pytest.mark.trap("dynamo", 4)
def test_what_the_prefill_workers_late_token_holds_is_not_called_waiting() -> None:
    """152 ms before that token, where 22 ms is usual: most of the 104 ms transfer is in them."""
    with tempfile.TemporaryDirectory() as folder:
        with _session(Path(folder), "pd_slow_kv") as session:
            merged, _ = inferred_lines(request_detail(session, "pd_slow_kv-0012").inferred)
    assert merged.startswith("inferred from the quickest requests of its size: of 152 ms queue")
    assert merged.endswith("ms is prefill and the rest waiting, or a transfer that came before "
                           "its token")  # fmt: skip


def test_one_requests_page_tells_the_inferred_parts() -> None:
    """Request 5 has 625 prompt tokens: 204.8 ms on the wire."""
    with tempfile.TemporaryDirectory() as folder:
        with _session(Path(folder), "pd_slow_kv_bootstrap") as session:
            detail = request_detail(session, "pd_slow_kv_bootstrap-0005")
    merged, transfer = inferred_lines(detail.inferred)
    assert merged.startswith("inferred from the quickest requests of its size: of 33.8 ms queue")
    assert "KV transfer, 50.2 ms is there whatever the size and 205 ms is for its bytes" in transfer
