"""Findings are not of equal rank: the headline, what cost most, and what matters little."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

from tests.analysis import factory
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import Diagnosis, FleetShare, FleetTotal
from tracekit.analysis.fleet import Fleet
from tracekit.analysis.ranking import Row, _lead_with_what_matters
from tracekit.analysis.slo import parse_slo
from tracekit.analysis.verdicts import _against_limit
from tracekit.report import diagnosis_md, diagnosis_text
from tracekit.report.console import make_console

_SLO = "ttft=1500ms"


def _text(found: Diagnosis, *, every: bool = False) -> str:
    stream = io.StringIO()
    make_console(stream, width=200).print(diagnosis_text.render(found, width=200, every=every))
    return stream.getvalue()


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    traffic = factory.clean(1_200, disaggregated=True)
    traffic.add("queue", np.arange(300, 340), 9_000.0)
    traffic.add("frontend", np.arange(500, 515), 4_000.0)
    traffic.add("prefill", np.arange(700, 710), 50_000.0)
    traffic.add("kv_transfer", np.arange(900, 902), 3_000.0)
    return diagnose_connection(traffic.connect(), parse_slo(_SLO))


def test_the_order_is_headline_then_seconds_then_what_matters_little(found: Diagnosis) -> None:
    by_phase = {f.phase: f for f in found.findings}
    assert [f.phase for f in found.findings][:3] == ["queue", "prefill", "frontend"]
    assert by_phase["prefill"].lost_s == pytest.approx(500, rel=0.05)
    assert by_phase["frontend"].lost_s == pytest.approx(60, rel=0.05)
    assert by_phase["kv_transfer"].minor and by_phase["kv_transfer"].n == 2
    flags = [f.minor for f in found.findings]
    assert flags == sorted(flags) and not flags[0], "the minor ones come last"


def test_minor_ones_are_one_line_unless_all_are_wanted(found: Diagnosis) -> None:
    minor = [f for f in found.findings if f.minor]
    folded = diagnosis_text.folded_line(minor)
    assert folded.startswith(f"and {len(minor)} smaller one") and "TTFT 6.0" in folded
    short, whole = _text(found), _text(found, every=True)
    flat = " ".join(short.split())
    assert f"{folded}: --all lists them, --json always does" in flat
    assert minor[0].sentence not in flat
    assert minor[0].sentence in " ".join(whole.split()) and "smaller one" not in whole
    assert "smaller one" in diagnosis_md.render(found)
    assert minor[0].sentence not in diagnosis_md.render(found)
    assert minor[0].sentence in diagnosis_md.render(found, every=True)
    assert found.to_json()["findings"][-1]["minor"] is True, "JSON holds all of them"


def test_under_two_per_cent_of_the_loss_is_minor_whatever_its_number() -> None:
    traffic = factory.clean(1_200)
    traffic.add("queue", np.arange(300, 360), 20_000.0)
    traffic.add("frontend", np.arange(500, 505), 2_000.0)
    findings = diagnose_connection(traffic.connect(), parse_slo(_SLO)).findings
    frontend = next(f for f in findings if f.phase == "frontend")
    assert frontend.n == 5 and frontend.minor
    # the only one there is stays, however few its requests are
    alone = factory.clean(300)
    alone.add("queue", np.arange(1), 9_000.0)
    (only,) = diagnose_connection(alone.connect(), parse_slo(_SLO)).findings
    assert only.n == 1 and not only.minor


def test_one_word_for_what_is_slow(found: Diagnosis) -> None:
    given = _text(found)
    assert "requests that miss the TTFT SLO" in given and "miss it   " in given
    traffic = factory.clean(1_200)
    traffic.add("queue", np.arange(300, 340), 9_000.0)
    free = _text(diagnose_connection(traffic.connect(), parse_slo(None)))
    assert "slow requests" in free and "slow is   the slowest 5 %" in free
    for text in (given, free):
        for word in ("violation", "misses", "limits missed", "objective"):
            assert word not in text


@pytest.mark.parametrize("apart", [False, True])
def test_disaggregation_is_not_advised_where_it_is_there_already(apart: bool) -> None:
    traffic = factory.clean(1_000, long_share=0.05, disaggregated=apart)
    findings = diagnose_connection(traffic.connect(), parse_slo("ttft=1s")).findings
    long = [f for f in findings if f.cause == "long_prompt" and f.metric == "ttft"]
    assert long and all("prefix caching" in f.action for f in long)
    assert all(("disaggregation" in f.action) is not apart for f in long)


def test_what_is_as_slow_as_its_size_lost_nothing() -> None:
    traffic = factory.clean(1_200, long_share=0.05)
    traffic.add("queue", np.arange(300, 320), 9_000.0)
    findings = diagnose_connection(traffic.connect(), parse_slo(_SLO)).findings
    shaped = [f for f in findings if f.cause == "long_prompt"]
    assert shaped and all(f.lost_s == 0 for f in shaped)
    assert all(f.lost_s > 0 for f in findings if f.cause != "long_prompt")


def test_without_a_limit_what_can_be_acted_on_is_the_headline() -> None:
    """The slowest 5 % hold ordinary requests, too: what nothing explains may be some of them."""
    traffic = factory.clean(1_200)
    # waits spread over the window: nothing tells why
    traffic.add("queue", np.arange(100, 1_150, 35), 9_000.0)
    again = np.arange(700, 725)
    traffic.add("prefill", again, 9_000.0)
    traffic.columns["double_prefill_ms"] = [0.0] * 1_200
    traffic.set("double_prefill_ms", again, 9_000.0)
    for slo, first in ((_SLO, "unknown"), ("", "double_prefill")):
        found = diagnose_connection(traffic.connect(), parse_slo(slo)).findings
        shares = {f.cause: f.share_of_misses for f in found if f.metric == "ttft"}
        assert shares["unknown"] > shares["double_prefill"]
        assert found[0].cause == first


def test_one_or_two_of_many_are_no_finding_of_high_confidence(found: Diagnosis) -> None:
    """Sure of their phase, not that it is a fault: a clean run has such, too."""
    by_phase = {f.phase: f for f in found.findings if f.metric == "ttft"}
    stray = by_phase["kv_transfer"]
    assert stray.n == 2 and stray.share_of_misses < 0.05
    assert (stray.confidence, stray.confidence_label) == (0.89, "likely")
    assert "by chance" in stray.evidence[-1] and "likely (0.89)" in stray.sentence
    assert by_phase["queue"].confidence_label == "high"
    # one that is all there is, is not one of many
    alone = factory.clean(300)
    alone.add("queue", np.arange(1), 9_000.0)
    (only,) = diagnose_connection(alone.connect(), parse_slo(_SLO)).findings
    assert only.confidence_label == "high"


@pytest.mark.parametrize(("n", "told"), [(48, False), (59, False), (60, True)])
def test_a_95th_percentile_of_too_few_is_told_nowhere(n: int, told: bool) -> None:
    """As in the table of percentiles, which shows a dash: three requests must lie above it."""
    traffic = factory.clean(n)
    traffic.add("queue", np.arange(20, 22), 9_000.0)
    con = traffic.connect()
    found = diagnose_connection(con, parse_slo(None))
    assert (found.percentiles["ttft_ms"].p95 is not None) is told
    first = [f.evidence[0] for f in found.findings if f.metric == "ttft"]
    assert first
    for line in first:
        assert ("95th percentile of the requests" in line and " against " in line) is told
        assert (f"among the slowest few of {n} requests" in line) is not told
    rows = con.sql(
        "select s.*, t.ttft_n as threshold_n from slow_requests as s "
        "join slow_thresholds as t on s.model = t.model and s.route = t.route where metric = 'ttft'"
    )
    for row in rows.to_arrow_table().to_pylist():
        line = _against_limit(row)
        assert (" over " in line and "the 95th percentile of" in line) is told
        assert (f"among the slowest few of {n} requests of the same model" in line) is not told


@pytest.mark.parametrize(("share", "said"), [(0.0, False), (0.0004, True), (0.25, True)])
def test_nothing_unexplained_is_not_told(found: Diagnosis, share: float, said: bool) -> None:
    text = _text(replace(found, unexplained_share=share))
    assert ("no finding accounts for" in text) is said


def _row(metric: str, phase: str, share: float, lost_s: float, cause: str = "unknown") -> Row:
    return {
        "class": "request_shape" if cause == "long_prompt" else "attributed",
        "metric": metric,
        "phase": phase,
        "cause": cause,
        "share_of_misses": share,
        "total_excess_ms": lost_s * 1_000,
    }


def _fleet(placebo: float, reference: str = "window") -> Fleet:
    """What may be ordinary of the decodes; of everything else nothing."""
    share = FleetShare("tpot", "decode", 0.9, 0.9, placebo, 0.9 - placebo, 100, 100, None)
    total = FleetTotal("tpot", 100, 100, 0.9, placebo, 0.9 - placebo, 0.0, 0.1, reference, 100)
    return Fleet((share,), (total,))


def _leads(rows: list[Row], fleet: Fleet) -> str:
    def rank(row: Row) -> tuple[float, float, str, str, str]:
        key = (row["metric"], row["phase"], row["cause"])
        return (-row["share_of_misses"], -row["total_excess_ms"], *key)

    rows.sort(key=rank)
    before = [dict(r) for r in rows]
    _lead_with_what_matters(rows, rank, fleet)
    assert sorted(map(str, rows)) == sorted(map(str, before))
    return f"{rows[0]['metric']} {rows[0]['phase']}"


@pytest.mark.parametrize(
    ("placebo", "reference", "queue", "first"),
    [
        (0.0, "window", 0.5, "tpot decode"),
        (0.72, "window", 0.5, "ttft queue"),
        (0.72, "window", 0.1, "tpot decode"),  # an upper bound never takes all
        (0.72, "baseline", 0.1, "ttft queue"),
        (0.2, "window", 0.5, "tpot decode"),
    ],
)
def test_what_may_be_ordinary_is_taken_off(
    placebo: float, reference: str, queue: float, first: str
) -> None:
    # both findings of a phase share what is ordinary of it
    rows = [
        _row("tpot", "decode", 0.7, 50, "prefill_interference"),
        _row("tpot", "decode", 0.1, 10),
        _row("ttft", "queue", queue, 60),
    ]
    assert _leads(rows, _fleet(placebo, reference)) == first


@pytest.mark.parametrize(
    ("share", "lost_s", "first"),
    [
        (0.5, 60, "tpot decode"),  # a little more is nothing
        (0.5, 6_000, "ttft queue"),
        (0.3, 6_000, "tpot decode"),  # comparable no longer
        (0.1, 60_000, "tpot decode"),
    ],
)
def test_between_metrics_seconds_count(share: float, lost_s: float, first: str) -> None:
    rows = [_row("tpot", "decode", 0.8, 50), _row("ttft", "queue", share, lost_s)]
    assert _leads(rows, _fleet(0.0)) == first


def test_a_size_that_leads_still_leads() -> None:
    rows = [
        _row("ttft", "prefill", 0.9, 1, "long_prompt"),
        _row("tpot", "decode", 0.8, 50),
        _row("ttft", "queue", 0.5, 9_000),
    ]
    assert _leads(rows, _fleet(0.8)) == "ttft prefill"
