"""The table of systems: complete, true to the files it names, and what the README shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracekit.analysis import sqlfiles
from tracekit.analysis.systems import (
    BY_ENGINE,
    KNOWN,
    SHOWN_PHASES,
    SYSTEMS,
    System,
    support_table,
    turn_on,
)

ROOT = Path(__file__).parents[2]


def test_the_readme_shows_the_table_as_it_is() -> None:
    assert support_table() in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
def test_a_system_is_complete(system: System) -> None:
    assert set(system.phases) == set(SHOWN_PHASES)
    assert all(known in KNOWN for known, _ in system.phases.values())
    assert set(system.sources) <= set(sqlfiles.SOURCES)
    assert "spans" in system.turn_on
    if system.doc:
        text = (ROOT / system.doc).read_text()
        for heading in ("## Connect", "## What each phase means here", "## What cannot be known"):
            assert heading in text


def test_every_source_of_an_engine_is_in_the_table() -> None:
    ours = {"genai_client", "http_call", "tracekit_phase", "tracekit_join", "request_log"}
    ours.add("tracekit_request")
    told = {s for system in SYSTEMS for s in system.sources}
    assert told - ours == set(sqlfiles.SOURCES) - ours


def test_hints_are_of_the_engine_at_hand() -> None:
    assert set(BY_ENGINE) >= {"vllm", "sglang", "dynamo", "llama.cpp"}
    assert "--otlp-traces-endpoint" in (turn_on("vllm", "spans") or "")
    assert "DYN_REQUEST_TRACE" in (turn_on("dynamo", "transfer") or "")
    assert turn_on("another", "spans") is None
    assert turn_on(None, "spans", "x") == "x"
