"""What would vanish, as people read it: the part that is ordinary, what is left, what it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tests.analysis import factory
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import Diagnosis, FleetShare, FleetTotal, TopStratum
from tracekit.analysis.slo import parse_slo
from tracekit.report import diagnosis_md, diagnosis_text, fleet_text


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    traffic = factory.clean(600, long_share=0.02)
    traffic.add("queue", np.arange(30), 2_000.0)
    return diagnose_connection(traffic.connect(), parse_slo("ttft=800ms"))


def _with(found: Diagnosis, *, reference: str | None, placebo: float | None) -> Diagnosis:
    net = None if placebo is None else 0.34 - placebo
    top = TopStratum("m70b", "rag", 0.8)
    share = FleetShare("ttft", "queue", 0.34, 0.3, placebo, net, 120_000, 49_000, top)
    small = replace(share, phase="network", vanish_share=0.005, placebo_share=0.0, net_share=0.005)
    total = FleetTotal("ttft", 120_000, 49_000, 0.345, placebo, net, 0.6, 0.055, reference, 900)
    return replace(found, fleet=(share, small), fleet_totals=(total,))


def test_the_part_that_is_ordinary_is_said(found: Diagnosis) -> None:
    shown = _with(found, reference="baseline", placebo=0.08)
    (row,) = fleet_text.rows(shown)
    assert row == (
        "TTFT",
        "queue",
        "34 % (of which 8.0 % is ordinary variation)",
        "30 %",
        "120,000",
        "m70b rag (80 %)",
    )
    notes = " ".join(fleet_text.notes(shown))
    assert "34 % of 120,000 slow requests" in notes
    assert "counted over 49,000 of them" in notes
    assert "no phase repairs the others" in notes
    assert "60 % as slow as their size makes them, 5.5 % in time that nothing explains" in notes
    assert "the baseline's 900 requests" in notes
    assert "a lower bound" in notes
    # a share of the sum is no bound of what the phase would do alone, nor the other way round
    assert "so a part may be larger or smaller than alone" in notes


def test_without_a_baseline_it_is_an_upper_bound(found: Diagnosis) -> None:
    shown = _with(found, reference="window", placebo=0.08)
    assert fleet_text.rows(shown)[0][2] == "34 % (of which up to 8.0 % is ordinary variation)"
    assert "--baseline" in " ".join(fleet_text.notes(shown))
    hardly = _with(found, reference="window", placebo=0.0004)
    assert fleet_text.rows(hardly)[0][2] == "34 % (of which under 0.1 % is ordinary variation)"
    unknown = _with(found, reference=None, placebo=None)
    assert "not known" in fleet_text.rows(unknown)[0][2]
    assert "requests" not in " ".join(fleet_text.notes(unknown)).replace("slow requests", "")


def test_a_finding_says_what_of_it_may_be_ordinary(found: Diagnosis) -> None:
    finding = replace(found.findings[0], metric="ttft")
    unsure = replace(finding, placebo_share=0.2)
    shown = _with(found, reference="window", placebo=0.08)
    assert "up to 20 % of the requests that miss the SLO" in str(fleet_text.ordinary(shown, unsure))
    rendered = diagnosis_md.render(replace(shown, findings=(unsure,)))
    assert (
        "up to 20 % of the requests that miss the SLO may be ordinary variation of queue; "
        "a --baseline window tells" in " ".join(rendered.split())
    )
    told = _with(found, reference="baseline", placebo=0.08)
    assert "20 % of the requests that miss the SLO are what the baseline shows too" in str(
        fleet_text.ordinary(told, unsure)
    )
    assert fleet_text.ordinary(shown, replace(finding, placebo_share=0.0)) is None
    assert fleet_text.ordinary(shown, replace(finding, placebo_share=None)) is None


def test_both_views_show_the_same_rows(found: Diagnosis) -> None:
    console = Console(width=140, record=True)
    console.print(diagnosis_text.render(found, width=140))
    text, md = console.export_text(), diagnosis_md.render(found)
    assert "what would vanish" in text
    assert "## What would vanish" in md
    for row in fleet_text.rows(found):
        for cell in row:
            assert cell in text and cell in md
    for note in fleet_text.notes(found):
        assert note in md
        assert " ".join(note.split()) in " ".join(text.split())


def test_nothing_beyond_ordinary_variation_is_no_table(found: Diagnosis) -> None:
    clean = _with(found, reference="window", placebo=0.34)
    clean = replace(clean, fleet=clean.fleet[:1])
    assert fleet_text.rows(clean) == []
    assert list(fleet_text.notes(clean)) == []
    assert "What would vanish" not in diagnosis_md.render(clean)
