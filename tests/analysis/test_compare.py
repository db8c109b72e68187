"""What changed between two sides, against traffic whose truth is known."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.analysis import _sides, factory
from tests.analysis._sides import RULES, compared, metric, phase
from tests.analysis.factory import Traffic
from tracekit.analysis import compare_words
from tracekit.analysis.compare_rules import CompareRules
from tracekit.analysis.comparison import SCHEMA, VERDICTS, Comparison, Effect
from tracekit.analysis.slo import parse_slo
from tracekit.report import compare_md, compare_text
from tracekit.report.console import make_console
from tracekit.words import plural

NOTHING = ("no_change", "not_enough_evidence")


def _long(seed: int, share: float = 0.1, *, workers: int = 2) -> Traffic:
    return factory.clean(600, seed=seed, long_share=share, workers=workers)


def test_nothing_changed_is_said() -> None:
    result = compared(factory.clean(600, seed=1), factory.clean(600, seed=2))
    assert result.verdict == "no_change"
    assert result.sentence.startswith("No change from A (side A) to B (side B): TTFT mean ")
    assert "n = 600 and 600" in result.sentence
    assert not any(e.is_change for m in result.metrics for s in m.statistics if (e := s.effect))


def test_false_changes_are_rare() -> None:
    """At most 5 % of comparisons of like with like may report anything at all."""
    wrong = []
    for seed in range(40):
        a, b = (
            factory.join(
                factory.clean(200, seed=s, noise=0.2, long_share=0.08, cached_share=0.3),
                factory.clean(100, seed=s + 500, noise=0.2, model="m70b", route="rag"),
            )
            for s in (2 * seed, 2 * seed + 1)
        )
        result = compared(a, b)
        if result.verdict not in NOTHING:
            wrong.append(result.sentence)
    assert len(wrong) <= 2, wrong


def test_bursts_are_not_taken_for_a_change() -> None:
    """Requests of one burst are one piece of evidence, not a hundred."""
    wrong = []
    for seed in range(20):
        a, b = (
            _sides.bursty(factory.clean(400, seed=s), s) for s in (2 * seed + 100, 2 * seed + 101)
        )
        result = compared(a, b)
        if result.verdict not in NOTHING:
            wrong.append(result.sentence)
    assert len(wrong) <= 2, wrong
    # the same requests drawn one by one would be sure of most of these
    single = CompareRules(draws=300, min_slices=400, max_slices=400, slice_walls=0)
    taken = 0
    for seed in range(8):
        a, b = (
            _sides.bursty(factory.clean(400, seed=s), s) for s in (2 * seed + 100, 2 * seed + 101)
        )
        taken += compared(a, b, rules=single).verdict not in NOTHING
    assert taken >= 4


def test_prefill_that_costs_half_as_much_again() -> None:
    b = _long(2)
    b.phases["prefill"] *= 1.5
    result = compared(_long(1), b)
    prefill = phase(result, "prefill")
    clean = float(np.mean(_long(2).phases["prefill"]))
    assert prefill.split.cost.is_change and prefill.split.cost.confidence_label == "high"
    # half of what the same requests took, averaged over both sides' requests
    assert prefill.split.cost.change == pytest.approx(
        0.25 * (clean + float(np.mean(_long(1).phases["prefill"]))), rel=0.15
    )
    assert prefill.split.cost.low < prefill.split.cost.change < prefill.split.cost.high
    assert not prefill.split.mix.is_change and not prefill.split.cache.is_change
    assert result.verdict == "slower"
    assert "prefill at equal mix +" in result.sentence
    assert "decode" not in result.sentence
    assert not phase(result, "decode", "e2e_ms").split.cost.is_change
    faster = compared(b, _long(1))
    assert faster.verdict == "faster"
    assert phase(faster, "prefill").split.cost.change == pytest.approx(
        -prefill.split.cost.change, rel=1e-9
    )


def test_other_sizes_are_mix_not_cost() -> None:
    a, b = _long(1), _long(2, share=0.4)
    result = compared(a, b)
    prefill = phase(result, "prefill")
    assert prefill.split.mix.is_change and not prefill.split.cost.is_change
    assert prefill.split.mix.change == pytest.approx(
        np.mean(b.phases["prefill"]) - np.mean(a.phases["prefill"]), rel=0.08
    )
    assert result.verdict == "slower"
    assert "traffic mix +" in result.sentence and "from other request sizes" in result.sentence
    assert "at equal mix" not in result.sentence


def test_mix_and_cost_at_once_are_told_apart() -> None:
    a, b = _long(1), _long(2, share=0.4)
    b.phases["prefill"] *= 1.5
    result = compared(a, b)
    prefill = phase(result, "prefill").split
    assert prefill.mix.is_change and prefill.cost.is_change
    mean_a, mean_b = np.mean(a.phases["prefill"]), np.mean(b.phases["prefill"]) / 1.5
    # symmetrical: sizes at the mean of both costs, costs at the mean of both sizes
    assert prefill.mix.change == pytest.approx(1.25 * (mean_b - mean_a), rel=0.1)
    assert prefill.cost.change == pytest.approx(0.25 * (mean_a + mean_b), rel=0.1)
    assert "prefill at equal mix +" in result.sentence and "traffic mix +" in result.sentence


def test_cost_and_mix_that_cancel_are_not_silence() -> None:
    a, b = _long(1, share=0.4), _long(2, share=0.26)
    b.phases["prefill"] *= 1.5
    result = compared(a, b)
    assert phase(result, "prefill").split.cost.is_change
    assert not metric(result, "ttft_ms").split.total.is_change  # type: ignore[union-attr]
    assert "prefill at equal mix +" in result.sentence
    assert result.verdict in ("offset", "slower", "mixed")


def test_one_slow_worker_is_named() -> None:
    a, b = (_long(s, workers=4) for s in (1, 2))
    hit = np.asarray(b.columns["worker"]) == "w1"
    b.phases["prefill"][hit] *= 3
    result = compared(a, b)
    shifts = {w.worker: w for w in result.workers if (w.metric, w.phase) == ("ttft_ms", "prefill")}
    assert {w for w, s in shifts.items() if s.named} == {"w1"}
    clean = float(np.mean(b.phases["prefill"][hit])) / 3
    assert shifts["w1"].change_ms == pytest.approx(2 * clean, rel=0.15)
    assert all(abs(s.change_ms) < 10 for w, s in shifts.items() if w != "w1")
    assert "on worker w1 (+" in result.sentence
    # slow everywhere: nobody is named
    b.phases["prefill"][~hit] *= 3
    assert not any(w.named for w in compared(a, b).workers)
    # slow before and after: no news, whoever else becomes slow
    a, b = (_long(s, share=0.0, workers=4) for s in (1, 2))
    for side in (a, b):
        side.phases["prefill"][np.asarray(side.columns["worker"]) == "w1"] *= 3
    assert compared(a, b).verdict == "no_change"
    b.phases["prefill"][np.asarray(b.columns["worker"]) == "w2"] *= 3
    named = {w.worker for w in compared(a, b).workers if w.named and w.metric == "ttft_ms"}
    assert named == {"w2"}


def test_simpson_is_told() -> None:
    """Every model faster, the mean slower, because more requests go to the slow one."""
    result = compared(_sides.two_models(1, 0.2, 1.0), _sides.two_models(2, 0.7, 0.8))
    e2e = metric(result, "e2e_ms").split
    assert e2e is not None
    assert e2e.total.is_change and e2e.total.change > 0
    assert e2e.cost.is_change and e2e.cost.change < 0
    assert e2e.mix.change == pytest.approx(e2e.models_routes_ms + e2e.shapes_ms, rel=1e-9)
    assert e2e.models_routes_ms == pytest.approx(e2e.mix.change, rel=0.1)
    assert result.simpson is not None and result.simpson in result.sentence
    assert "every model got faster in TTFT (" in result.simpson
    assert "more requests go to m70b (20 % of them on A, 70 % on B)" in result.simpson
    assert {s.model for s in result.strata} == {"m8b", "m70b"}
    # the same shift with every model slower is no paradox
    assert compared(_sides.two_models(1, 0.2, 1), _sides.two_models(2, 0.7, 1.3)).simpson is None


def test_a_model_that_one_side_lacks_is_mix() -> None:
    a = factory.clean(500, seed=1)
    new = factory.clean(200, seed=3, model="m70b")
    new.phases["decode"] *= 4
    result = compared(a, factory.join(factory.clean(500, seed=2), new))
    e2e = metric(result, "e2e_ms").split
    assert e2e is not None and e2e.mix.is_change and not e2e.cost.is_change
    assert e2e.one_sided_ms == pytest.approx(e2e.mix.change, rel=0.15)
    assert any("29 % of B is of a kind (model, route)" in note for note in result.notes)


def test_fewer_cache_hits_are_neither_mix_nor_cost() -> None:
    a, b = (
        factory.clean(800, seed=s, long_share=0.3, cached_share=c) for s, c in ((1, 0.8), (2, 0.1))
    )
    result = compared(a, b)
    prefill = phase(result, "prefill").split
    assert prefill.cache.is_change and prefill.cache.change > 100
    assert not prefill.cost.is_change and not prefill.mix.is_change
    assert "prefix-cache hits +" in result.sentence
    # where one side does not say what was cached, that is said, and nothing is guessed
    b.columns["cached_tokens"] = None
    result = compared(a, b)
    assert "cached_tokens" in {m.field for m in result.missing_evidence}
    assert phase(result, "prefill").split.cache.change == 0


def test_timeouts_that_rise_are_the_headline() -> None:
    """p99 falls when the slowest are killed; that is no improvement."""
    a, b = (factory.clean(800, seed=s) for s in (1, 2))
    for traffic in (a, b):
        late = np.arange(0, 800, 10)
        traffic.add("queue", late, 20_000)
    b.set("status", late, "timeout")
    result = compared(a, b)
    assert result.verdict == "fewer_completed"
    assert result.sentence.startswith("B completes fewer of its requests: 100.0 % to 90.0 % (-10.0")
    assert "TTFT p95 is at least 20" in result.sentence
    ttft = {s.statistic: s for s in metric(result, "ttft_ms").statistics}
    assert ttft["p99"].effect is not None and ttft["p99"].effect.change < -10_000
    assert ttft["p99"].b_at_least_ms == pytest.approx(ttft["p99"].a_ms, rel=0.05)
    assert result.b.requests.timeout == 80 and result.b.requests.completed == 720
    back = compared(b, a)
    assert back.verdict == "slower" and "completes more of its requests" in back.sentence
    text = _text(result)
    assert "80 timed out" in text and ">=20" in text


@pytest.mark.parametrize("n", [0, 1, 29])
def test_too_few_requests(n: int) -> None:
    a = factory.clean(max(n, 1), seed=1)
    if n == 0:
        a.set("status", np.arange(1), "open")
    result = compared(a, factory.clean(300, seed=2))
    assert result.verdict == "not_enough_evidence"
    of = plural(max(n, 1), "request")
    assert f"A (side A) has {n} completed of {of}; 30 are needed" in result.sentence
    assert [m.field for m in result.missing_evidence] == ["requests"]
    assert not any(s.effect for m in result.metrics for s in m.statistics)
    for one in result.metrics:
        assert all(s.a_ms is None for s in one.statistics)
    assert _text(result) and compare_md.render(result)


def test_what_the_data_could_not_show_is_no_no_change() -> None:
    a, b = (factory.clean(35, seed=s, noise=1.5) for s in (1, 2))
    result = compared(a, b)
    assert result.verdict == "not_enough_evidence"
    assert "would not show with n = 35 and 35" in result.sentence
    assert "cannot tell whether" in result.sentence and "collect more" in result.sentence


def test_the_headline_is_not_surer_than_the_rows() -> None:
    """Means of one metric that cannot tell are no "no change" of the others."""
    like = compared(factory.clean(600, seed=1), factory.clean(600, seed=2))

    def with_wide(*wide: str) -> Comparison:
        metrics = []
        for m in like.metrics:
            assert m.split is not None
            mean = next(s for s in m.statistics if s.statistic == "mean")
            assert mean.effect is not None and mean.a_ms is not None
            if m.metric in wide:
                effect = replace(mean.effect, low=-0.4 * mean.a_ms, high=0.1 * mean.a_ms)
                m = replace(
                    m,
                    statistics=(replace(mean, effect=effect), *m.statistics[1:]),
                    split=replace(m.split, total=effect),
                )
            metrics.append(m)
        return replace(like, metrics=tuple(metrics))

    for wide, verdict, begin in (
        ((), "no_change", "No change from A"),
        (("tpot_ms",), "no_change", "No change in TTFT and E2E from A"),
        (("ttft_ms",), NOTHING[1], "Not enough evidence: cannot tell whether TTFT changed from A"),
        (
            ("ttft_ms", "e2e_ms"),
            NOTHING[1],
            "Not enough evidence: cannot tell whether TTFT and E2E",
        ),
        (("ttft_ms", "tpot_ms", "e2e_ms"), NOTHING[1], "Not enough evidence: cannot tell whether"),
    ):
        shown = with_wide(*wide)
        said, sentence = compare_words.conclude(shown, RULES)
        assert (said, sentence.startswith(begin)) == (verdict, True), sentence
        rows = {row[0]: row[5] for row in compare_text.statistic_rows(shown)}
        for name in ("TTFT", "TPOT", "E2E"):
            unsure = f"{name.lower()}_ms" in wide
            assert rows[f"{name} mean"] == ("cannot tell" if unsure else "no change")
            assert (f"{name} by 40 %" in sentence) == unsure
    rest = compare_words.conclude(with_wide("ttft_ms", "e2e_ms"), RULES)[1].partition("; ")[2]
    assert rest.startswith("no change: TPOT mean ")


def test_no_p95_below_60_requests() -> None:
    few, enough = factory.clean(59, seed=1), factory.clean(60, seed=2)
    result = compared(few, enough)
    assert [m.metric for m in result.metrics] == ["ttft_ms", "tpot_ms", "e2e_ms"]
    for one in result.metrics:
        p95 = next(s for s in one.statistics if s.statistic == "p95")
        assert p95.a_ms is None and p95.a_at_least_ms is None
        assert p95.b_ms is not None and p95.effect is None
    result = compared(enough, factory.clean(60, seed=3))
    assert all(s.a_ms for m in result.metrics for s in m.statistics if s.statistic == "p95")
    # a tail of too few moments is said to be that, where there is one
    assert ("too few" in _text(result)) == ("too few: what is at or above it" in _text(result))


def test_no_p99_below_300_requests() -> None:
    result = compared(factory.clean(299, seed=1), factory.clean(400, seed=2))
    p99 = next(s for s in metric(result, "ttft_ms").statistics if s.statistic == "p99")
    assert p99.a_ms is None and p99.b_ms is not None and p99.effect is None


def test_a_phase_that_one_side_does_not_know_is_not_compared() -> None:
    a, b = factory.clean(400, seed=1), factory.clean(400, seed=2)
    b.merge_queue_and_prefill(np.arange(400))
    result = compared(a, b)
    assert {p.phase for p in metric(result, "ttft_ms").phases} == {"rest"}
    assert {p.phase for p in metric(result, "e2e_ms").phases} == {"decode", "rest"}
    fields = {(m.field, m.why[:2]) for m in result.missing_evidence}
    assert {("queue_ms", "B:"), ("prefill_ms", "B:"), ("queue_or_prefill_ms", "A:")} <= fields
    assert result.verdict == "no_change"
    # the whole is compared all the same
    b.phases["queue_or_prefill"] *= 2
    result = compared(a, b)
    assert result.verdict == "slower"
    assert "time outside the phases that both sides know at equal mix +" in result.sentence


def test_clients_and_servers_clocks_are_not_one_measure() -> None:
    a, b = factory.clean(400, seed=1), factory.clean(400, seed=2)
    a.columns["leg_roles"] = ["client,engine"] * 400
    b.columns["leg_roles"] = ["engine"] * 400
    a.phases["network"] = np.full(400, 300.0)
    result = compared(a, b)
    assert result.verdict == "no_change", result.sentence
    assert any("taken at the client, B's at the server" in note for note in result.notes)
    assert metric(result, "ttft_ms").statistics[0].a_ms == pytest.approx(40, rel=0.2)


def test_sizes_that_do_not_overlap_cannot_be_told_from_cost() -> None:
    a, b = factory.clean(300, seed=1), factory.clean(300, seed=2)
    tokens = np.asarray(b.columns["input_tokens"], dtype=float)
    b.columns["input_tokens"] = (tokens + 20_000).astype(int).astype(object)
    b.phases["prefill"] += 1_000
    result = compared(a, b)
    prefill = phase(result, "prefill")
    assert prefill.split.cost.p_value is None and prefill.split.mix.p_value is None
    assert prefill.split.apart == ("input_tokens",) and prefill.split.total.is_change
    assert re.search(r"; prefill \+1\.0 s \(95 % [^)]+\) by mix or cost;", result.sentence)
    assert any("hardly overlap" in note for note in result.notes)
    assert result.verdict == "slower"
    assert "what is traffic mix and what is cost cannot be told apart" in result.sentence


def test_sizes_that_are_not_recorded_cannot_be_told_from_cost() -> None:
    a, b = factory.clean(300, seed=1), factory.clean(300, seed=2)
    b.columns["input_tokens"] = None
    b.phases["prefill"] *= 3
    result = compared(a, b)
    assert ("input_tokens", "B:") in {(m.field, m.why[:2]) for m in result.missing_evidence}
    assert "cannot be told apart" in result.sentence


def test_a_few_requests_without_a_size_do_no_harm() -> None:
    a, b = _long(1), _long(2)
    b.set("input_tokens", np.arange(0, 600, 40), None)
    b.phases["prefill"] *= 1.5
    result = compared(a, b)
    prefill = phase(result, "prefill").split
    assert prefill.cost.is_change and not prefill.mix.is_change
    assert not result.missing_evidence
    _assert_exact(result, a, b)


def test_goodput_is_compared_with_an_slo() -> None:
    a, b = factory.clean(400, seed=1), factory.clean(400, seed=2)
    b.add("queue", np.arange(0, 400, 4), 2_000)
    result = compared(a, b, slo=parse_slo("ttft=1s"))
    assert result.goodput is not None and result.goodput.effect is not None
    assert result.goodput.a_share == 1 and result.goodput.b_share == pytest.approx(0.75)
    assert result.goodput.effect.is_change
    assert result.goodput.effect.change == pytest.approx(-0.25)
    assert compared(a, b).goodput is None
    # a killed request met nothing
    b.set("status", np.arange(0, 400, 4), "timeout")
    killed = compared(a, b, slo=parse_slo("ttft=60s")).goodput
    assert killed is not None and killed.b_share == pytest.approx(0.75)


def test_more_load_is_noted() -> None:
    result = compared(factory.clean(300, seed=1), factory.clean(300, seed=2, every_ms=100))
    assert any(note.startswith("load differs: 2.") for note in result.notes)


def test_without_clocks_it_still_compares() -> None:
    a, b = factory.clean(300, seed=1), factory.clean(300, seed=2)
    a.drop_clock = b.drop_clock = True
    b.phases["prefill"] *= 3
    a.columns["start_unix_ns"] = np.asarray(a.columns["start_unix_ns"])
    result = compared(a, b)
    assert result.verdict == "slower"
    assert any("no start times" in note for note in result.notes)


@pytest.mark.parametrize("case", ["mix", "cost", "cache", "models", "merged"])
def test_parts_sum_to_the_change(case: str) -> None:
    a, b = _long(1), _long(2, share=0.3)
    if case == "cost":
        b.phases["prefill"] *= 1.7
    elif case == "cache":
        a, b = (factory.clean(400, seed=s, cached_share=s / 4) for s in (1, 2))
    elif case == "models":
        a, b = _sides.two_models(1, 0.2, 1), _sides.two_models(2, 0.6, 1.2)
    elif case == "merged":
        b.merge_queue_and_prefill(np.arange(600))
    _assert_exact(compared(a, b), a, b)


def _assert_exact(result: Comparison, a: Traffic, b: Traffic) -> None:
    wanted = {
        "ttft_ms": float(b.ttft_ms.mean() - a.ttft_ms.mean()),
        "e2e_ms": float(b.e2e_ms.mean() - a.e2e_ms.mean()),
    }
    for one in result.metrics:
        split = one.split
        assert split is not None
        mean = next(s for s in one.statistics if s.statistic == "mean")
        assert mean.effect is not None
        if one.metric in wanted:
            assert mean.effect.change == pytest.approx(wanted[one.metric], rel=1e-9, abs=1e-9)
        parts = [split, *(p.split for p in one.phases)]
        for part in parts:
            terms = part.mix.change + part.cache.change + part.cost.change
            assert terms == pytest.approx(part.total.change, rel=1e-9, abs=1e-7)
            mix = part.models_routes_ms + part.shapes_ms + part.one_sided_ms
            assert mix == pytest.approx(part.mix.change, rel=1e-9, abs=1e-7)
        phases = sum(p.split.total.change for p in one.phases)
        assert phases == pytest.approx(mean.effect.change, rel=1e-9, abs=1e-7)


def test_json_is_plain_and_whole() -> None:
    b = _long(2)
    b.phases["prefill"] *= 2
    result = compared(_long(1), b, slo=parse_slo("ttft=2s"))
    document = json.loads(json.dumps(result.to_json()))
    assert document["schema"] == SCHEMA == "tracekit.comparison/1"
    assert document == result.to_json()
    assert result.verdict in VERDICTS
    assert document["method"]["rules"]["draws"] == RULES.draws
    assert document["metrics"][0]["phases"][-1]["split"]["cost"]["is_change"] is True
    again = compared(_long(1), b, slo=parse_slo("ttft=2s"))
    assert again.to_json() == document, "the same data give the same answer"


def _text(result: Comparison, width: int = 130) -> str:
    import io

    stream = io.StringIO()
    make_console(stream, width=width).print(compare_text.render(result, width=width))
    return stream.getvalue()


def test_an_interval_around_0_that_is_wide_is_no_answer() -> None:
    def word(low: float, high: float, base: float = 100.0) -> str:
        effect = Effect(high / 2, low, high, 1.0, is_change=False, confidence_label=None)
        return compare_text.sure_word(effect, base, 0.25)

    assert word(-5, 6) == "no change"
    assert word(-1000, 2300) == word(-5, 26) == word(-26, 5) == "cannot tell"
    assert word(-26, 5, base=1000) == "no change"
    assert word(3, 8) == "not certain"


def test_a_narrow_text_leaves_out_no_more_than_it_must() -> None:
    result = compared(_long(1), _long(2))
    heads = [_head(result, width) for width in range(60, 131, 5)]
    shown = [("95 %" in head, "n of A" in head) for head in heads]
    assert shown == sorted(shown), "the wider, the more"
    assert set(shown) == {(False, False), (True, False), (True, True)}


def _head(result: Comparison, width: int) -> str:
    lines = _text(result, width).splitlines()
    return next((line for line in lines if line.split()[:1] == ["metric"]), "")


def test_text_and_markdown_say_the_same() -> None:
    a, b = _long(1, workers=4), _long(2, workers=4, share=0.3)
    b.phases["prefill"][np.asarray(b.columns["worker"]) == "w1"] *= 4
    result = compared(a, b)
    text, markdown = " ".join(_text(result).split()), compare_md.render(result)
    assert " ".join(result.sentence.split()) in text
    assert result.sentence in markdown
    for rows in (compare_text.statistic_rows(result), compare_text.split_rows(result)):
        for row in rows:
            assert " ".join(" ".join(row).split()) in text
            assert " | ".join(cell.strip() for cell in row) in markdown
    for line in (*compare_text.mix_lines(result), *compare_text.worker_lines(result)):
        assert line in text and line in markdown
