"""Injected faults are found, named and not over-sold; healthy traffic is left alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pytest

from tests.analysis import factory
from tests.analysis.factory import Traffic
from tracekit.analysis.attribution import Attribution, define_attribution
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import Diagnosis
from tracekit.analysis.slo import Slo, parse_slo
from tracekit.analysis.window import Window


def _run(traffic: Traffic, slo: str = "") -> tuple[Diagnosis, duckdb.DuckDBPyConnection]:
    con = traffic.connect()
    return diagnose_connection(con, parse_slo(slo)), con


def _verdicts(con: duckdb.DuckDBPyConnection, where: str = "true") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        con.sql(f"select * from verdicts where {where} order by request_key, metric")
        .to_arrow_table()
        .to_pylist()
    )
    return rows


def _share(rows: list[dict[str, Any]], **wanted: str) -> float:
    hits = [all(r[k] == v for k, v in wanted.items()) for r in rows]
    return sum(hits) / len(hits)


def _some(traffic: Traffic, share: float, seed: int = 3) -> Any:
    return np.flatnonzero(np.random.default_rng(seed).random(traffic.n) < share)


def test_queue_burst() -> None:
    traffic = factory.clean(1_200, long_share=0.03)
    hit = _some(traffic, 0.05)
    traffic.add("queue", hit, 2_500)
    diagnosis, con = _run(traffic, "ttft=1s")
    faulty = [r for r in _verdicts(con) if r["request_key"] in traffic.keys(hit)]
    assert len(faulty) == len(hit)
    assert _share(faulty, phase="queue", **{"class": "attributed"}) == 1
    top = diagnosis.findings[0]
    assert (top.phase, top.metric) == ("queue", "ttft")
    assert top.excess_ms == pytest.approx(2_500, abs=20)
    assert top.expected_ms < 5
    assert top.confidence_label == "high"
    assert top.n >= 0.9 * len(hit), "a few may have another cause"
    # the long prompts that also miss are their own size, not the queue
    long = [r for r in _verdicts(con) if r["request_key"] not in traffic.keys(hit)]
    assert _share(long, cause="long_prompt", **{"class": "request_shape"}) == 1


def test_arrival_burst_is_told_from_a_lasting_queue() -> None:
    traffic = factory.clean(1_500, every_ms=400)
    start = np.asarray(traffic.columns["start_unix_ns"], dtype=np.int64)
    burst = np.arange(900, 1_000)
    # a hundred requests within three seconds, then as before
    start[burst] = start[900] + np.arange(100) * 30_000_000
    traffic.columns["start_unix_ns"] = start
    traffic.add("queue", burst, np.linspace(500, 4_000, 100))
    diagnosis, con = _run(traffic, "ttft=400ms")
    rows = _verdicts(con, "phase = 'queue'")
    assert len(rows) >= 95
    assert _share(rows, cause="arrival_burst") > 0.9
    assert diagnosis.findings[0].cause == "arrival_burst"

    lasting = factory.clean(1_500, every_ms=400)
    waiting = _some(lasting, 0.8)
    lasting.add("queue", waiting, np.random.default_rng(1).uniform(500, 3_000, len(waiting)))
    diagnosis, con = _run(lasting, "ttft=400ms")
    assert _share(_verdicts(con, "phase = 'queue'"), cause="unknown") > 0.98
    # neither "buy more" nor "raise the limit": slots and KV memory look alike here
    assert "most of the time" in diagnosis.sentence
    assert "vllm:kv_cache_usage_perc" in diagnosis.findings[0].action
    assert "engine metrics" in {m.field for m in diagnosis.missing_evidence}


def test_slow_prefill_on_some_requests() -> None:
    traffic = factory.clean(1_200)
    hit = _some(traffic, 0.05)
    traffic.add("prefill", hit, 700)
    diagnosis, con = _run(traffic, "ttft=500ms")
    assert _share(_verdicts(con), phase="prefill", **{"class": "attributed"}) >= 0.95
    assert diagnosis.findings[0].phase == "prefill"
    assert diagnosis.findings[0].cause == "unknown"


def test_slow_decode_without_a_cause_is_still_decode() -> None:
    traffic = factory.clean(1_200)
    hit = _some(traffic, 0.05)
    traffic.add("decode", hit, 4_000)
    diagnosis, con = _run(traffic, "tpot=25ms")
    assert _share(_verdicts(con), phase="decode", cause="unknown") == 1
    assert "data do not show" in diagnosis.sentence
    assert "chunk times" in {m.field for m in diagnosis.missing_evidence}
    assert "record the client's chunk times" in diagnosis.findings[0].action
    # where they are recorded, nobody is asked to record them
    traffic.columns["max_gap_ms"] = np.full(traffic.n, 40.0)
    diagnosis, _ = _run(traffic, "tpot=25ms")
    assert "chunk times" not in {m.field for m in diagnosis.missing_evidence}
    assert "record" not in diagnosis.findings[0].action


def test_kv_transfer_waiting_is_not_a_slow_link() -> None:
    traffic = factory.clean(1_200, disaggregated=True)
    hit = _some(traffic, 0.08)
    traffic.add("kv_transfer", hit, 400)
    wait = np.full(traffic.n, 3.0)
    wait[hit] = 380.0
    traffic.columns["kv_transfer_wait_ms"] = wait
    diagnosis, con = _run(traffic, "ttft=300ms")
    assert _share(_verdicts(con), phase="kv_transfer", cause="kv_transfer_wait") >= 0.95
    text = diagnosis.sentence + diagnosis.findings[0].action
    assert "faster link" not in text
    assert "hand-off" in text
    # the waiting part unknown: the phase stands, the cause does not
    traffic.columns["kv_transfer_wait_ms"] = None
    _, con = _run(traffic, "ttft=300ms")
    assert _share(_verdicts(con), phase="kv_transfer", cause="unknown") >= 0.94


@pytest.mark.parametrize("share", [0.1, 0.6, 0.9])
def test_a_prompt_computed_twice_is_never_what_it_should_cost(share: float) -> None:
    traffic = factory.clean(1_200, disaggregated=True)
    hit = _some(traffic, share)
    again = np.zeros(traffic.n)
    again[hit] = traffic.phases["prefill"][hit] + 400.0
    traffic.columns["double_prefill_ms"] = again
    traffic.add("prefill", np.arange(traffic.n), again)
    diagnosis, con = _run(traffic, "ttft=400ms")
    faulty = [r for r in _verdicts(con) if r["request_key"] in traffic.keys(hit)]
    assert len(faulty) >= 0.9 * len(hit)
    assert _share(faulty, phase="prefill", cause="double_prefill") >= 0.95
    # the server that computed it again, not the one that should have
    told = [r for r in faulty if r["cause"] == "double_prefill"]
    assert {r["worker"] for r in told} == {"w0", "w1"}
    assert "second prefill on the decode server" in " ".join(diagnosis.findings[0].evidence)
    assert max(r["expected_ms"] for r in told) < 250


def test_client_wait_never_asks_for_hardware() -> None:
    traffic = factory.clean(800)
    traffic.phases["client_wait"] = np.random.default_rng(2).exponential(1.0, traffic.n)
    hit = _some(traffic, 0.5)
    traffic.add("client_wait", hit, 30_000)
    diagnosis, con = _run(traffic, "ttft=2s")
    assert _share(_verdicts(con), phase="client_wait", cause="client_concurrency") == 1
    said = " ".join(
        [diagnosis.sentence, *(f.sentence + f.action for f in diagnosis.findings)]
    ).lower()
    for word in ("gpu", "capacity", "more workers", "scale", "hardware"):
        assert word not in said
    assert "server" in said
    assert diagnosis.findings[0].workers == (), "the wait was not on any worker"


@pytest.mark.parametrize("gaps", [True, False], ids=["token gaps", "spans only"])
def test_interference_names_the_culprits(gaps: bool) -> None:
    traffic = factory.clean(1_500, seed=4, long_share=0.03, every_ms=250)
    long = np.flatnonzero(np.asarray(traffic.columns["input_tokens"], dtype=float) > 10_000)
    victims = traffic.stall_decodes(long, gaps=gaps)
    diagnosis, con = _run(traffic, "tpot=16ms")
    top = diagnosis.findings[0]
    assert (top.phase, top.cause, top.metric) == ("decode", "prefill_interference", "tpot")
    assert top.share_of_misses > 0.9
    ids = set(np.asarray(traffic.columns["request_id"])[long])
    assert {c.request_id for c in top.culprits} <= ids
    assert all(c.input_tokens and c.input_tokens > 10_000 for c in top.culprits)
    stalled = [r for r in _verdicts(con, "cause = 'prefill_interference'")]
    assert {r["request_key"] for r in stalled} <= traffic.keys(np.array(victims))
    assert {r["culprit_request_id"] for r in stalled} <= ids
    # a lower bound: never more than was injected
    assert sum(r["cause_ms"] for r in stalled) <= sum(r["excess_ms"] for r in stalled) + 1e-6
    assert any("lower bound" in line for line in top.evidence)
    assert "GPU" not in diagnosis.sentence


def test_interference_needs_the_same_worker() -> None:
    traffic = factory.clean(1_500, seed=4, long_share=0.03, every_ms=250)
    long = np.flatnonzero(np.asarray(traffic.columns["input_tokens"], dtype=float) > 10_000)
    traffic.stall_decodes(long, gaps=True)
    con = traffic.connect()
    # the same times, but every prefill ran somewhere else
    con.execute("update phases set worker = 'elsewhere' where phase = 'prefill'")
    diagnose_connection(con, parse_slo("tpot=16ms"))
    assert not _verdicts(con, "cause = 'prefill_interference'")


def test_an_engine_that_always_prefills_is_no_interference() -> None:
    traffic = factory.clean(800, seed=4, every_ms=60)
    # prefill on each worker without a break, so that everybody overlaps it
    for i in range(2):
        here = np.flatnonzero(np.asarray(traffic.columns["worker"]) == f"w{i}")
        traffic.phases["prefill"][here[::3]] += 900
    hit = _some(traffic, 0.06)
    traffic.add("decode", hit, 3_000)
    _, con = _run(traffic, "tpot=25ms")
    rows = _verdicts(con, "phase = 'decode' and class = 'attributed'")
    assert len(rows) > 20
    assert _share(rows, cause="prefill_interference") < 0.1


def test_waiting_for_the_engine_step_behind_a_prefill() -> None:
    traffic = factory.clean(1_500, seed=4, long_share=0.03, every_ms=250)
    long = np.flatnonzero(np.asarray(traffic.columns["input_tokens"], dtype=float) > 10_000)
    low, high = traffic.interval_ns("prefill")
    start = np.asarray(traffic.columns["start_unix_ns"], dtype=np.int64)
    worker = np.asarray(traffic.columns["worker"])
    hit = []
    for q in long:
        for v in np.flatnonzero((start > low[q]) & (start < high[q]) & (worker == worker[q])):
            wait = (high[q] - start[v]) / 1e6
            if v not in long and wait > 300 and v not in hit:
                traffic.phases["frontend"][v] += wait
                hit.append(int(v))
    assert len(hit) >= 8
    traffic.columns["engine_step_wait_ms"] = traffic.phases["frontend"] - factory.FRONTEND_MS
    _, con = _run(traffic, "ttft=300ms")
    rows = [r for r in _verdicts(con) if r["request_key"] in traffic.keys(np.array(hit))]
    assert _share(rows, phase="frontend", cause="prefill_interference") == 1


def test_slow_worker_is_named_by_its_residuals() -> None:
    traffic = factory.clean(1_500, workers=4)
    slow = np.asarray(traffic.columns["worker"]) == "w2"
    traffic.phases["decode"][slow] *= 1.8
    traffic.phases["prefill"][slow] *= 1.8
    diagnosis, con = _run(traffic, "tpot=14ms")
    rows = _verdicts(con)
    assert _share(rows, phase="decode", cause="slow_worker", worker="w2") >= 0.97
    assert "w2" in diagnosis.sentence
    assert diagnosis.findings[0].workers == ("w2",)


def test_one_worker_alone_is_never_the_slow_one() -> None:
    traffic = factory.clean(1_000, workers=1)
    traffic.add("decode", _some(traffic, 0.05), 4_000)
    _, con = _run(traffic, "tpot=25ms")
    assert not _verdicts(con, "cause = 'slow_worker'")


def test_preempted_requests() -> None:
    traffic = factory.clean(1_000)
    hit = _some(traffic, 0.05)
    traffic.add("decode", hit, 5_000)
    count = np.zeros(traffic.n, dtype=object)
    count[hit] = 2
    traffic.columns["preemptions"] = count
    _, con = _run(traffic, "tpot=25ms")
    assert _share(_verdicts(con), phase="decode", cause="preemption") == 1


@pytest.mark.parametrize("slo", ["", "ttft=400ms,tpot=12ms,e2e=2500ms"])
def test_healthy_traffic_with_big_requests_is_its_shape(slo: str) -> None:
    false, all_rows = 0, 0
    for seed in range(1, 6):
        diagnosis, con = _run(factory.clean(1_000, seed=seed, long_share=0.05), slo)
        classes = Counter(r["class"] for r in _verdicts(con))
        false += classes["attributed"]
        all_rows += classes.total()
        assert classes["request_shape"] >= 0.9 * classes.total()
        assert diagnosis.findings[0].cause in ("long_prompt", "fixed_overhead")
        assert "no fault" in diagnosis.sentence
    assert false / all_rows < 0.02


def test_long_prompts_are_the_answer_for_slow_rag() -> None:
    diagnosis, con = _run(factory.clean(1_000, long_share=0.08), "ttft=800ms")
    rows = _verdicts(con)
    assert _share(rows, cause="long_prompt", phase="prefill", **{"class": "request_shape"}) == 1
    assert "prompt tokens" in diagnosis.sentence
    assert "prefix caching" in diagnosis.sentence


def test_a_big_request_in_a_long_queue_is_the_queue() -> None:
    traffic = factory.clean(1_000, long_share=0.05)
    long = np.flatnonzero(np.asarray(traffic.columns["input_tokens"], dtype=float) > 10_000)
    traffic.add("queue", long, 9_000)
    _, con = _run(traffic, "ttft=800ms")
    rows = [r for r in _verdicts(con) if r["request_key"] in traffic.keys(long)]
    assert _share(rows, phase="queue", **{"class": "attributed"}) == 1


def test_excess_in_two_phases_alike_is_mixed_or_unsure() -> None:
    traffic = factory.clean(1_000)
    hit = _some(traffic, 0.05)
    rng = np.random.default_rng(5)
    traffic.add("queue", hit, rng.uniform(490, 510, len(hit)))
    traffic.add("prefill", hit, rng.uniform(490, 510, len(hit)))
    traffic.add("frontend", hit, rng.uniform(490, 510, len(hit)))
    diagnosis, con = _run(traffic, "ttft=600ms")
    assert _share(_verdicts(con), **{"class": "mixed"}) == 1
    assert diagnosis.findings == ()
    assert diagnosis.unexplained_share == 1
    assert diagnosis.sentence.startswith("Not enough evidence")
    assert "spread over several phases" in diagnosis.sentence


def test_client_spans_alone_still_get_a_verdict() -> None:
    traffic = factory.clean(1_500)
    everyone = np.arange(traffic.n)
    hit = _some(traffic, 0.06)
    traffic.add("queue", hit, 900)
    traffic.merge_queue_and_prefill(everyone)
    traffic.set("cached_tokens", everyone, None)
    traffic.columns["engine"] = [None] * traffic.n
    diagnosis, con = _run(traffic, "ttft=500ms")
    rows = _verdicts(con)
    assert _share(rows, phase="queue_or_prefill", **{"class": "attributed"}) == 1
    assert {r["confidence_label"] for r in rows} == {"likely"}, "half an answer is never certain"
    assert "--otlp-traces-endpoint" in diagnosis.findings[0].action
    missing = {m.field: m.how for m in diagnosis.missing_evidence}
    assert "--otlp-traces-endpoint" in missing["queue_ms, prefill_ms"]
    assert "--enable-prompt-tokens-details" in missing["cached_tokens"]


def test_a_window_that_is_slow_throughout_needs_the_baseline() -> None:
    healthy, slow = factory.clean(400, seed=1), factory.clean(400, seed=2)
    day = 86_400_000_000_000
    slow.columns["start_unix_ns"] = np.asarray(slow.columns["start_unix_ns"]) + day
    slow.phases["decode"] *= 2.5
    con = factory.join(healthy, slow).connect()
    con.execute(
        "create or replace temp view window_requests as "
        f"select * from requests where start_unix_ns >= {factory.START_NS + day}"
    )
    alone = diagnose_connection(con, parse_slo("tpot=20ms"))
    assert all(f.cause == "fixed_overhead" for f in alone.findings)
    baseline = Window(factory.START_NS, factory.START_NS + day, "the day before")
    against = diagnose_connection(con, parse_slo("tpot=20ms"), baseline=baseline)
    assert against.requests.total == 400
    top = against.findings[0]
    assert top.phase == "decode"
    assert top.share_of_misses == pytest.approx(1, abs=0.02)
    assert top.cause != "fixed_overhead"
    assert any("baseline" in line for line in top.evidence)
    assert con.sql("select distinct tau from cost_model").fetchall() == [(0.5,)]


def test_slowest_five_percent_without_an_slo() -> None:
    traffic = factory.clean(1_000)
    hit = _some(traffic, 0.04)
    traffic.add("queue", hit, 2_000)
    diagnosis, con = _run(traffic)
    assert diagnosis.slo.source == "slowest_5_percent"
    assert diagnosis.goodput is None
    assert set(diagnosis.misses.by_metric.values()) == {50}
    assert "requests with the slowest TTFT" in diagnosis.sentence
    thresholds = con.sql("select ttft_level, tpot_level, e2e_level from slow_thresholds").fetchall()
    assert thresholds == [("route", "route", "route")]


def test_slo_defaults_to_none() -> None:
    assert Slo().metrics == ()


def test_of_many_losses_a_sample_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = factory.clean(1_200)
    hit = _some(traffic, 0.2)
    traffic.add("queue", hit, 2_500)
    whole, _ = _run(traffic, "ttft=1s")
    con = traffic.connect()
    wanted = sorted(traffic.keys(hit))[7]
    define_attribution(con, parse_slo("ttft=1s"), suspects_max=40, include=wanted)
    rows = _verdicts(con, "phase = 'queue'")
    searched = [r for r in rows if r["cause"] != "unsearched"]
    assert len(searched) == 40 < len(rows)
    assert wanted in {r["request_key"] for r in searched}
    found = con.sql("select n, searched, total_excess_ms from findings where phase = 'queue'")
    by_cause = found.fetchall()
    assert sum(n for n, _, _ in by_cause) == pytest.approx(len(rows), abs=1)
    assert sum(k for _, k, _ in by_cause) == 40
    assert sum(t for _, _, t in by_cause) == pytest.approx(sum(r["excess_ms"] for r in rows), 0.01)
    # the diagnosis says the same of the sample as of all, and that it is one
    monkeypatch.setattr("tracekit.analysis.diagnose.define_attribution", _with_few_suspects)
    sampled, _ = _run(traffic, "ttft=1s")
    first, all_of_it = sampled.findings[0], whole.findings[0]
    assert (first.phase, first.cause) == (all_of_it.phase, all_of_it.cause)
    assert first.n == pytest.approx(all_of_it.n, rel=0.1)
    assert any("looked for in" in line for line in first.evidence)
    assert not any("looked for in" in line for line in all_of_it.evidence)


def test_of_many_violations_a_sample_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = factory.clean(1_200, long_share=0.1)
    hit = _some(traffic, 0.3)
    traffic.add("queue", hit, 2_500)
    whole, con = _run(traffic, "ttft=1s,e2e=2s")
    assert whole.misses.judged == sum(whole.misses.by_metric.values())
    all_of_it = {(f.phase, f.cause, f.metric): f for f in whole.findings}
    monkeypatch.setattr("tracekit.analysis.diagnose.JUDGED_MAX", 400)
    sampled, con = _run(traffic, "ttft=1s,e2e=2s")
    assert 200 < sampled.misses.judged <= 400 < sum(whole.misses.by_metric.values())
    assert len(_verdicts(con)) == sampled.misses.judged
    assert sampled.misses.by_metric == whole.misses.by_metric
    assert sampled.findings
    for found in sampled.findings:
        known = all_of_it[found.phase, found.cause, found.metric]
        assert found.share_of_misses == pytest.approx(known.share_of_misses, abs=0.1)
        assert found.n == pytest.approx(known.n, abs=0.1 * whole.misses.by_metric[found.metric])
    assert sampled.unexplained_share == pytest.approx(whole.unexplained_share, abs=0.1)
    judged = {r["request_key"] for r in _verdicts(con)}
    other = next(k for k in sorted(traffic.keys(hit)) if k not in judged)
    define_attribution(con, parse_slo("ttft=1s,e2e=2s"), judged_max=400, include=other)
    assert _verdicts(con, f"request_key = '{other}'")


def _with_few_suspects(*args: Any, **options: Any) -> Attribution:
    return define_attribution(*args, **options, suspects_max=60)


def test_a_missing_size_makes_no_loss_stand_out() -> None:
    """What a phase of unknown size should have taken may be all of it, not nothing."""
    traffic = factory.clean(600)
    long = np.flatnonzero(np.asarray(traffic.columns["output_tokens"]) > 80)[:3]
    traffic.add("queue", long, 2_000)
    _, con = _run(traffic, "e2e=2s")
    (known,) = _verdicts(con, f"request_key = '{sorted(traffic.keys(long))[0]}'")
    traffic.set("input_tokens", long[:1], None)
    _, con = _run(traffic, "e2e=2s")
    (bare,) = _verdicts(con, f"request_key = '{sorted(traffic.keys(long[:1]))[0]}'")
    assert (known["class"], known["reason"]) == (bare["class"], bare["reason"])
