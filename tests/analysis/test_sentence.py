"""Every phase and cause has its words, and the words do not promise what the data do not carry."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tracekit.analysis.diagnosis import (
    Culprit,
    Finding,
    MissingEvidence,
    RequestCounts,
    SloInfo,
)
from tracekit.analysis.finding_words import FindingWords, action_for
from tracekit.analysis.sentence import abstained, diagnosis_sentence, finding_sentence
from tracekit.analysis.verdicts import REASONS
from tracekit.analysis.wording import format_confidence, format_ms, format_share, format_tokens
from tracekit.names import CAUSES, PHASES, SLO_METRICS

_BLAMABLE = [p for p in PHASES if p != "unexplained"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.04, "0.0 ms"),
        (0.44, "0.4 ms"),
        (9.94, "9.9 ms"),
        (10.4, "10 ms"),
        (812.3, "812 ms"),
        (1_940.0, "1.9 s"),
        (99_940.0, "99.9 s"),
        (100_400.0, "100 s"),
        (192_000.0, "3.2 min"),
        (-101.0, "-101 ms"),
    ],
)
def test_milliseconds(value: float, text: str) -> None:
    assert format_ms(value) == text


def test_shares_and_tokens() -> None:
    assert format_share(0.0) == "0 %"
    assert format_share(0.004) == "under 1 %"
    assert format_share(0.344) == "34 %"
    assert format_share(0.996) == "over 99 %"
    assert format_share(1.0) == "100 %"
    assert format_tokens(1_142) == "1,142"
    assert format_tokens(31_200) == "31k"


def test_a_confidence_agrees_with_its_label() -> None:
    assert [format_confidence(v) for v in (0.897, 0.8999999999999999, 0.9, 0.29, 0.699, 1.0)] == [
        "0.89",
        "0.89",
        "0.90",
        "0.29",
        "0.69",
        "1.00",
    ]


def _words(phase: str, cause: str, metric: str = "ttft", shape: bool = False) -> FindingWords:
    culprit = Culprit("req-7", 24_113, victims=14, stall_ms=12_300.0)
    return FindingWords(
        phase=phase,
        cause=cause,
        metric=metric,
        is_shape=shape,
        excess_ms=1_500.0,
        expected_ms=12.0,
        uncached_tokens=31_000.0,
        output_tokens=800.0,
        worker="w3",
        culprits=(culprit,) if cause == "prefill_interference" else (),
    )


@pytest.mark.parametrize(("phase", "cause"), list(itertools.product(_BLAMABLE, CAUSES)))
def test_every_combination_has_an_action_and_a_sentence(phase: str, cause: str) -> None:
    for metric, shape in itertools.product(SLO_METRICS, (False, True)):
        words = _words(phase, cause, metric, shape)
        sentence = finding_sentence(
            words, share=0.34, n=41, looked_into=41, confidence=0.93, label="high", source="given"
        )
        action = action_for(words)
        assert "34 % of" in sentence and "n = 41" in sentence and "0.93" in sentence
        assert action and not action.endswith(".") and action[0].islower()
        assert "add gpu" not in (sentence + action).lower()


def test_attributed() -> None:
    sentence = finding_sentence(
        _words("queue", "arrival_burst"),
        share=0.34,
        n=41,
        looked_into=41,
        confidence=0.93,
        label="high",
        source="given",
    )
    assert sentence == (
        "34 % of the requests that miss the TTFT SLO lost their time in the queue "
        "(+1.5 s, over the 12 ms expected for this shape; confidence in the phase high (0.93), "
        "n = 41); most likely because they came in bursts"
    )


def test_what_is_not_known_is_not_inferred() -> None:
    sentence = finding_sentence(
        _words("decode", "unknown", "tpot"),
        share=0.34,
        n=41,
        looked_into=41,
        confidence=0.93,
        label="high",
        source="given",
    )
    assert sentence.endswith("n = 41) for a reason that the data do not show")
    assert "inferred" not in sentence


def test_shape() -> None:
    sentence = finding_sentence(
        _words("prefill", "long_prompt", shape=True),
        share=0.5,
        n=9,
        looked_into=3,
        confidence=0.8,
        label="likely",
        source="slowest_5_percent",
    )
    assert sentence.startswith(
        "50 % of the requests with the slowest TTFT: as slow as their size makes them"
    )
    assert "31k prompt tokens take 12 ms of prefill here" in sentence
    assert (
        "n = about 9 (3 looked into); a fault of the whole window would look the same" in sentence
    )
    assert sentence.endswith("a --baseline window tells")


def test_a_shape_is_no_fault_only_where_a_healthy_window_says_so() -> None:
    def said(*, from_baseline: bool = False, most_miss: bool = False) -> tuple[str, str]:
        words = replace(
            _words("decode", "fixed_overhead", "tpot", shape=True),
            from_baseline=from_baseline,
            most_miss=most_miss,
        )
        sentence = finding_sentence(
            words, share=1.0, n=9, looked_into=9, confidence=0.8, label="likely", source="given"
        )
        return sentence, action_for(words)

    sentence, action = said(from_baseline=True)
    assert "as slow as their size makes them, no fault (" in sentence
    assert "--baseline" not in sentence and "without any fault" in action
    sentence, action = said()
    assert "no fault of their own" in sentence and "--baseline" in sentence
    assert "without any fault" not in action
    sentence, action = said(most_miss=True)
    assert "no fault" not in sentence and "--baseline window tells" in sentence
    assert action.startswith("name a healthy window with --baseline")


def test_culprit_and_worker_are_named() -> None:
    interference = _words("decode", "prefill_interference", "tpot")
    sentence = finding_sentence(
        interference, share=1.0, n=9, looked_into=9, confidence=1.0, label="high", source="given"
    )
    assert "req-7 (24k prompt tokens)" in sentence
    assert "24k tokens and more" in action_for(interference)
    assert "w3" in action_for(_words("decode", "slow_worker", "tpot"))


def test_a_small_bystander_sets_no_routing_limit() -> None:
    words = _words("decode", "prefill_interference", "tpot")
    bystander = Culprit("req-8", 23, victims=2, stall_ms=50.0)
    words = FindingWords(**{**words.__dict__, "culprits": (*words.culprits, bystander)})
    assert "24k tokens and more" in action_for(words)


_COUNTS = RequestCounts(
    total=1_000,
    completed=1_000,
    aborted=0,
    errored=0,
    timeout=0,
    open=0,
    superseded=0,
    quarantined={},
    without_clock=0,
)


def _finding(share: float) -> Finding:
    return Finding(
        phase="queue",
        cause="unknown",
        metric="ttft",
        share_of_misses=share,
        placebo_share=None,
        excess_ms=1_500.0,
        expected_ms=1.0,
        lost_s=61.5,
        minor=False,
        confidence=0.95,
        confidence_label="high",
        n=41,
        workers=(),
        culprits=(),
        evidence=("e",),
        action="do this",
        sentence="S",
    )


def _sentence(
    findings: tuple[Finding, ...] = (),
    *,
    given: bool = True,
    misses: int = 50,
    unexplained: float | None = 0.1,
    reason: str | None = None,
    rows: int = 5,
    missing: tuple[MissingEvidence, ...] = (),
    completed: int = 1_000,
    aside: int = 0,
    baseline: bool = False,
) -> str:
    changed = {"completed": completed, "quarantined": {"clock_skew": aside}}
    counts = RequestCounts(**{**_COUNTS.__dict__, **changed})
    return diagnosis_sentence(
        findings=findings,
        requests=counts,
        slo=SloInfo(
            800.0 if given else None, None, None, "given" if given else "slowest_5_percent"
        ),
        misses=misses,
        unexplained_share=unexplained,
        reasons={reason: rows} if reason else {},
        missing=missing,
        min_rows=30,
        window_text="the last hour",
        known_from_baseline=baseline,
    )


def test_headline_carries_the_action_and_the_rest() -> None:
    assert _sentence((_finding(0.6),)) == (
        "In the last hour, S; for 10 % of the requests that miss the SLO no single phase can be "
        "named. Next: do this."
    )


@pytest.mark.parametrize(
    ("placebo", "baseline", "said"),
    [
        (None, False, ""),
        (0.3, False, ""),
        (0.55, False, "; up to 55 % may be ordinary variation, a --baseline window tells"),
        (0.55, True, "; 55 % are what the baseline shows too"),
    ],
)
def test_a_headline_that_may_be_ordinary_says_so(
    placebo: float | None, baseline: bool, said: str
) -> None:
    top = replace(_finding(0.6), placebo_share=placebo)
    rest = "; for 10 % of the requests that miss the SLO no single phase can be named"
    assert _sentence((top,), baseline=baseline) == (
        f"In the last hour, S{said}{rest}. Next: do this."
    )


def test_many_requests_set_aside_are_part_of_the_answer() -> None:
    assert "S; 200 of 1,000 requests are set aside and not judged. Next" in _sentence(
        (_finding(0.6),), unexplained=0.0, completed=800, aside=200
    )
    assert "set aside" not in _sentence((_finding(0.6),), completed=950, aside=50)


def test_a_thin_finding_is_no_headline_where_most_is_unexplained() -> None:
    assert _sentence((_finding(0.1),), unexplained=0.6).startswith("Not enough evidence")
    assert _sentence((_finding(0.1),), unexplained=0.4).startswith("In the last hour, S")


def test_nothing_missed() -> None:
    assert _sentence(misses=0, unexplained=None) == (
        "No request missed the SLO in the last hour (1,000 completed, TTFT at most 800 ms)."
    )


def test_abstention_names_the_field_that_decided() -> None:
    cached = MissingEvidence("cached_tokens", "unknown", "record it")
    coverage = MissingEvidence("coverage", "a tenth is dark", "trace the client")
    said = _sentence(reason="coverage", missing=(cached, coverage), unexplained=1.0)
    assert said == "Not enough evidence: coverage: a tenth is dark; trace the client."
    # nothing that is missing would have helped: no flag is suggested for it
    ordinary = _sentence(reason="ordinary", missing=(cached,), unexplained=1.0)
    assert "cached_tokens" not in ordinary
    assert "--baseline" in ordinary
    assert "spread over several phases" in _sentence(reason="spread", unexplained=1.0)


def test_losses_that_do_not_stand_out_are_not_denied() -> None:
    assert _sentence(reason="usual", rows=1, unexplained=1.0) == (
        "Not enough evidence: in the last hour 1 request that misses the SLO took longer than its "
        "size explains: one alone does not tell a fault from chance; look at it with `tracekit "
        "show`, or name a healthy window with --baseline."
    )
    many = _sentence(reason="usual", rows=7, given=False, unexplained=1.0)
    assert "7 slow requests took longer than their size explains, but" in many


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_for_no_finding_has_words(reason: str, n: int) -> None:
    said = abstained(reason, n)
    assert said != "could not be judged"
    assert not set("{}") & set(said)
    assert not ({"their", "they"} if n == 1 else {"its"}) & set(said.split())


def test_too_few() -> None:
    said = _sentence(completed=12, misses=3, unexplained=1.0)
    assert said.startswith("Not enough evidence: 12 completed requests in the last hour, 30 are")
