"""One token that all prompts begin with is no benefit of the prefix cache."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.sources._recorded import DATA
from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.diagnosis import CacheSavings
from tracekit.analysis.session import Session
from tracekit.analysis.slo import Slo
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store


def _saved(name: str) -> CacheSavings | None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "s", create=True)
        import_paths(store, [str(DATA / "sglang" / f"{name}.otlp.jsonl.gz")])
        with Session.open(store) as session:
            return diagnose(session, Slo()).prefix_cache


def test_hits_of_one_token_saved_nothing() -> None:
    """The client was told one cached token for each of the 40 prompts, of 58 at the median."""
    assert _saved("unified-baseline") is None


def test_hits_are_those_that_share_a_prefix() -> None:
    """By the client's usage 412 tokens were cached for 19 of them, one for the other 21."""
    found = _saved("unified-prefix")
    assert found is not None and (found.hits, found.n) == (19, 40)
    assert found.saved_s > 3
