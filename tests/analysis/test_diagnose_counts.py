"""What a diagnosis counts, gates and leaves out, by hand-checked numbers."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import numpy as np
import pytest

from tests.analysis import factory
from tests.analysis.factory import Traffic
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import SCHEMA, Diagnosis
from tracekit.analysis.slo import Slo, parse_slo

KEYS = {
    "": "schema window slo requests percentiles chunks goodput coverage phases prefix_cache "
    "kv_loads prefix_reuse engine_versions misses findings over_limit fleet fleet_totals "
    "unexplained_share unexplained_reasons missing_evidence sentence",
    "findings": "phase cause metric share_of_misses placebo_share excess_ms expected_ms "
    "lost_s minor confidence confidence_label n workers culprits evidence action sentence",
    "over_limit": "metric limit_ms requests misses phase alone phase_ms waited_ms prefill_ms "
    "confidence confidence_label sentence action",
    "fleet": "metric phase vanish_share alone_share placebo_share net_share n sampled top_stratum",
    "fleet_totals": "metric n sampled vanish_share placebo_share net_share shape_share "
    "unexplained_share reference reference_n",
    "phases": "phase seconds share p50_ms p95_ms",
    "missing_evidence": "field why how",
}


def _run(traffic: Traffic, slo: str = "") -> Diagnosis:
    return diagnose_connection(traffic.connect(), parse_slo(slo))


def _mixed_statuses() -> Traffic:
    traffic = factory.clean(400)
    traffic.columns["quarantine_reason"] = [None] * 400
    for rows, column, value in (
        (range(0, 10), "status", "aborted"),
        (range(10, 15), "status", "error"),
        (range(15, 18), "status", "timeout"),
        (range(18, 20), "status", "open"),
        (range(20, 26), "superseded_attempt", 1),
        (range(26, 28), "quarantine_reason", "negative_duration:queue"),
        (range(28, 29), "quarantine_reason", "negative_tokens"),
    ):
        traffic.set(column, np.array(rows), value)
    return traffic


def test_json_has_the_contract_and_nothing_else() -> None:
    traffic = factory.clean(300)
    traffic.add("queue", np.arange(20), 2_000)
    plain = _run(traffic, "ttft=500ms").to_json()
    assert plain["schema"] == SCHEMA == "tracekit.diagnosis/1"
    assert list(plain) == KEYS[""].split()
    for part in ("findings", "fleet", "fleet_totals", "phases", "missing_evidence"):
        assert plain[part]
        for row in plain[part]:
            assert list(row) == KEYS[part].split()
    assert list(plain["percentiles"]) == ["ttft_ms", "ttfa_ms", "tpot_ms", "itl_ms", "e2e_ms"]
    for percentiles in plain["percentiles"].values():
        assert list(percentiles) == ["p50", "p95", "p99", "n", "kind"]
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert [f["placebo_share"] for f in plain["findings"]] == [0.0], "all of it is the queue's"


def test_every_request_is_in_exactly_one_count() -> None:
    counts = _run(_mixed_statuses()).requests
    assert counts.total == 400
    assert (counts.aborted, counts.errored, counts.timeout, counts.open) == (10, 5, 3, 2)
    assert counts.superseded == 6
    assert counts.quarantined == {"negative_duration:queue": 2, "negative_tokens": 1}
    assert counts.completed == 400 - 29
    assert counts.without_clock == 0


def test_only_completed_requests_are_in_percentiles() -> None:
    traffic = _mixed_statuses()
    for phase in ("prefill", "decode"):
        traffic.phases[phase][:29] = 900_000.0
    diagnosis = _run(traffic)
    e2e = diagnosis.percentiles["e2e_ms"]
    assert e2e.n == 371
    assert e2e.p99 is not None and e2e.p99 < 10_000
    expected = traffic.e2e_ms[29:]
    assert e2e.p50 == pytest.approx(np.percentile(expected, 50))
    assert e2e.p95 == pytest.approx(np.percentile(expected, 95))
    ttft = traffic.ttft_ms[29:]
    assert diagnosis.percentiles["ttft_ms"].p99 == pytest.approx(np.percentile(ttft, 99))
    assert diagnosis.percentiles["ttft_ms"].kind == "server"


@pytest.mark.parametrize(
    ("n", "printed"),
    [(29, ""), (30, "p50"), (59, "p50"), (60, "p50 p95"), (299, "p50 p95"), (300, "p50 p95 p99")],
)
def test_percentiles_are_gated_by_n(n: int, printed: str) -> None:
    diagnosis = _run(factory.clean(n))
    percentiles = diagnosis.percentiles["e2e_ms"]
    assert percentiles.n == n
    assert [p for p in ("p50", "p95", "p99") if getattr(percentiles, p) is not None] == (
        printed.split()
    )
    for phase in diagnosis.phases:
        assert [p for p in ("p50", "p95") if getattr(phase, f"{p}_ms") is not None] == [
            p for p in printed.split() if p != "p99"
        ]


def test_phases_share_all_the_time() -> None:
    traffic = factory.clean(300, disaggregated=True)
    traffic.columns["unexplained_ms"] = np.full(300, 50.0)
    diagnosis = _run(traffic)
    assert sum(p.share for p in diagnosis.phases) == pytest.approx(1)
    by_phase = {p.phase: p for p in diagnosis.phases}
    assert by_phase["decode"].seconds == pytest.approx(traffic.phases["decode"].sum() / 1e3)
    assert by_phase["unexplained"].seconds == pytest.approx(15.0)
    assert "client_wait" not in by_phase
    wall = traffic.e2e_ms.sum()
    assert diagnosis.coverage == pytest.approx(1 - 15_000.0 / wall)


def test_goodput_is_share_and_rate() -> None:
    traffic = factory.clean(200)
    traffic.phases["decode"][:] = 100.0
    traffic.phases["queue"][:] = 0.0
    traffic.phases["queue"][:20] = 5_000.0
    traffic.set("status", np.array([30, 31]), "aborted")
    diagnosis = _run(traffic, "ttft=2s,e2e=20s")
    assert diagnosis.goodput is not None
    assert diagnosis.goodput.n == 200
    assert diagnosis.goodput.share == pytest.approx(178 / 200)
    start = np.asarray(traffic.columns["start_unix_ns"])
    span_s = (start + traffic.e2e_ms * 1e6).max() / 1e9 - start.min() / 1e9
    assert diagnosis.goodput.requests_per_s == pytest.approx(178 / span_s)
    assert diagnosis.misses.total == 20
    assert diagnosis.misses.by_metric == {"ttft": 20}


def test_an_answer_of_one_token_has_no_tpot_to_miss() -> None:
    traffic = factory.clean(100)
    traffic.set("output_tokens", np.arange(100), 1)
    traffic.phases["decode"][:] = 0.0
    diagnosis = _run(traffic, "tpot=1ms")
    assert diagnosis.goodput is not None and diagnosis.goodput.share == 1
    assert diagnosis.misses.total == 0
    assert diagnosis.percentiles["tpot_ms"].n == 0
    assert diagnosis.sentence.startswith("No request missed the SLO")


def _killed(traffic: Traffic, rows: Any, status: str, elapsed_ms: float) -> None:
    """Killed in the queue: no first token, no end of its own."""
    traffic.set("status", rows, status)
    for phase in ("prefill", "decode", "frontend"):
        traffic.phases[phase][rows] = np.nan
    traffic.phases["queue"][rows] = elapsed_ms


def test_a_request_killed_in_the_queue_is_a_miss() -> None:
    traffic = factory.clean(300)
    _killed(traffic, np.arange(12), "aborted", 30_000.0)
    _killed(traffic, np.arange(12, 16), "timeout", 30_000.0)
    _killed(traffic, np.arange(16, 20), "error", 5.0)
    table = traffic.requests()
    con = traffic.connect()
    con.register("incoming", table)
    con.execute("create or replace temp table requests as select * from incoming")
    # what the source does not know of a killed request
    con.execute(
        "update requests set ttft_ms = null, tpot_ms = null, e2e_ms = null, tokens_per_s = null, "
        "output_tokens = null where status <> 'ok'"
    )
    diagnosis = diagnose_connection(con, parse_slo("ttft=1s,e2e=10s"))
    assert diagnosis.misses.by_metric == {"ttft": 16, "e2e": 16}
    rows = con.sql(
        "select distinct class, phase, censored from verdicts where metric = 'ttft'"
    ).fetchall()
    assert rows == [("attributed", "queue", 1)]
    assert any("killed" in line for line in diagnosis.findings[0].evidence)
    assert diagnosis.percentiles["e2e_ms"].n == 280
    assert diagnosis.requests.aborted == 12
    # failed at once: counted, but not slow
    assert diagnosis.requests.errored == 4
    assert diagnosis.goodput is not None
    assert diagnosis.goodput.share == pytest.approx(280 / 300)


def test_small_strata_borrow_their_limit() -> None:
    big = factory.clean(300, seed=1, route="chat")
    small = factory.clean(10, seed=2, route="batch")
    con = factory.join(big, small).connect()
    diagnose_connection(con, Slo())
    levels = dict(con.sql("select route, e2e_level from slow_thresholds").fetchall())
    assert levels == {"chat": "route", "batch": "model"}
    ((all_rows,),) = con.sql(
        "select percentile_cont(0.95) within group (order by e2e_ms) from request_facts"
    ).fetchall()
    limits = dict(con.sql("select route, e2e_ms from slow_thresholds").fetchall())
    assert limits["batch"] == pytest.approx(all_rows)


def test_too_few_requests_say_so() -> None:
    traffic = factory.clean(29)
    traffic.add("queue", np.arange(3), 9_000)
    diagnosis = _run(traffic)
    assert diagnosis.misses.total == 0
    assert diagnosis.findings == ()
    assert diagnosis.unexplained_share is None
    assert "29 completed requests" in diagnosis.sentence
    assert diagnosis.missing_evidence[0].field == "requests"
    # with limits of its own the misses count, but nothing says what is ordinary
    given = _run(traffic, "ttft=1s")
    assert given.misses.total == 3
    assert given.findings == ()
    assert given.unexplained_share == 1
    assert given.sentence.startswith("Not enough evidence")


def test_empty() -> None:
    traffic = factory.clean(40)
    con = traffic.connect()
    con.execute("delete from requests")
    con.execute("delete from phases")
    diagnosis = diagnose_connection(con, parse_slo("ttft=1s"))
    assert diagnosis.requests.total == 0
    assert diagnosis.coverage is None
    assert diagnosis.phases == ()
    assert diagnosis.goodput is not None and diagnosis.goodput.share is None
    assert diagnosis.window.first_unix_ns is None
    assert "Not enough evidence: 0 completed requests" in diagnosis.sentence


def test_no_clock_is_noticed_but_judged() -> None:
    traffic = factory.clean(200)
    traffic.add("queue", np.arange(9), 3_000)
    traffic.drop_clock = True
    diagnosis = _run(traffic, "ttft=1s")
    assert diagnosis.requests.without_clock == 200
    assert "start_unix_ns" in {m.field for m in diagnosis.missing_evidence}
    assert (diagnosis.findings[0].phase, diagnosis.findings[0].n) == ("queue", 9)
    assert diagnosis.goodput is not None and diagnosis.goodput.requests_per_s is None


def test_low_coverage_abstains_unless_the_winner_is_larger() -> None:
    traffic = factory.clean(300)
    rows = np.arange(20)
    unexplained = np.zeros(300)
    unexplained[rows] = 3_000.0
    traffic.columns["unexplained_ms"] = unexplained
    traffic.add("queue", rows[:10], 1_000)
    traffic.add("queue", rows[10:], 8_000)
    con = traffic.connect()
    diagnosis = diagnose_connection(con, parse_slo("e2e=3s"))
    found = dict(
        con.sql(
            f"select request_key, class from verdicts where request_key < 'k01-{20:07d}'"
        ).fetchall()
    )
    assert {found[k] for k in traffic.keys(rows[:10])} == {"insufficient_evidence"}
    assert {found[k] for k in traffic.keys(rows[10:])} == {"attributed"}
    assert "coverage" in {m.field for m in diagnosis.missing_evidence}


def _duck(traffic: Traffic, slo: str) -> duckdb.DuckDBPyConnection:
    con = traffic.connect()
    diagnose_connection(con, parse_slo(slo))
    return con


def test_without_a_prompt_size_only_a_larger_excess_is_blamed() -> None:
    traffic = factory.clean(400)
    rows = np.arange(10)
    traffic.phases["prefill"][rows] = 1_000.0
    traffic.phases["queue"][rows[:5]] = 300.0
    traffic.phases["queue"][rows[5:]] = 4_000.0
    traffic.set("input_tokens", rows, None)
    con = _duck(traffic, "ttft=1200ms")
    found = {
        key: (kind, reason, label)
        for key, kind, reason, label in con.sql(
            "select request_key, class, reason, confidence_label from verdicts"
        ).fetchall()
    }
    low = {found[k] for k in traffic.keys(rows[:5])}
    assert low == {("insufficient_evidence", "size", None)}
    high = {found[k] for k in traffic.keys(rows[5:])}
    assert high == {("attributed", "excess", "likely")}, "the missing size costs the 'high'"


@pytest.mark.parametrize("for_readers", [True, False])
def test_the_answer_is_the_same_without_the_views_for_readers(for_readers: bool) -> None:
    con = factory.clean(400).connect()
    whole = diagnose_connection(factory.clean(400).connect(), parse_slo("ttft=100ms"))
    made = diagnose_connection(con, parse_slo("ttft=100ms"), for_readers=for_readers)
    assert made.to_json() == whole.to_json()
    views = {name for (name,) in con.sql("select view_name from duckdb_views()").fetchall()}
    wanted = {"expected", "verdicts", "fleet_ranges", "fleet_misses"}
    assert views & wanted == (wanted if for_readers else set())


@pytest.mark.parametrize("whole", [10, 100])
def test_more_cached_than_prompt_tokens_is_said(whole: int) -> None:
    traffic = factory.clean(400)
    tokens = np.asarray(traffic.columns["input_tokens"])
    cached = np.zeros(400, dtype=np.int64)
    cached[:whole] = tokens[:whole] + 3
    traffic.columns["cached_tokens"] = cached
    told = {m.field: m.why for m in _run(traffic).missing_evidence}
    assert ("input_tokens" in told) is (whole == 100)
    assert told.get("input_tokens", "25 %").startswith("25 %")


def test_requests_without_a_model_are_said() -> None:
    traffic = factory.clean(400)
    assert "model" not in {m.field for m in _run(traffic).missing_evidence}
    traffic.columns["model"] = [None] * 400
    assert "model" in {m.field for m in _run(traffic).missing_evidence}


@pytest.mark.parametrize("slo", ["ttft=500ms", "e2e=20s", ""])
def test_facts_of_very_many_requests_are_read_not_kept(
    monkeypatch: pytest.MonkeyPatch, slo: str
) -> None:
    chat, batch = factory.clean(300, seed=1, route="chat"), factory.clean(100, seed=2, route="jobs")
    chat.add("queue", np.arange(40), 2_000)
    traffic = factory.join(chat, batch)
    # a cache hit is usual on one route, and a few miss it
    tokens = np.asarray(traffic.columns["input_tokens"])
    hits = np.where(np.arange(400) >= 306, np.minimum(tokens - 1, 40), 0)
    traffic.columns["cached_tokens"] = hits
    # their times are known only by when they were killed
    _killed(traffic, np.arange(50, 62), "aborted", 30_000.0)
    con = traffic.connect()
    con.execute(
        "update requests set ttft_ms = null, tpot_ms = null, e2e_ms = null where status <> 'ok'"
    )

    def slow() -> list[tuple[Any, ...]]:
        return con.sql("select * exclude (slow_id) from slow_requests order by all").fetchall()

    def due(facts: str) -> list[tuple[Any, ...]]:
        return con.sql(
            "select request_key, due_uncached_tokens, due_attended_tokens_sq "
            f"from {facts} where due_uncached_tokens < uncached_tokens order by all"
        ).fetchall()

    monkeypatch.setattr("tracekit.analysis._drawn.DRAWN_MAX", 100)
    kept = diagnose_connection(con, parse_slo(slo)).to_json()
    over, missed = slow(), due("request_facts")
    assert traffic.keys(np.arange(50, 62)) <= {key for key, *_ in over}
    assert missed
    with monkeypatch.context() as many:
        many.setattr("tracekit.analysis.attribution._KEPT_MAX", 399)
        assert diagnose_connection(con, parse_slo(slo)).to_json() == kept
    assert slow() == over
    assert due("request_facts") == missed
    of_kept = {key for (key,) in con.sql("select request_key from kept_facts").fetchall()}
    assert due("kept_facts") == [row for row in missed if row[0] in of_kept]
    views = con.execute("select view_name from duckdb_views() where temporary").fetchall()
    assert ("request_facts",) in views
    plan = con.execute("explain select sum(due_uncached_tokens) from request_facts").fetchall()
    assert "cached_tokens" in str(plan) and "request_key" not in str(plan)
    assert diagnose_connection(con, parse_slo(slo)).to_json() == kept


@pytest.mark.parametrize("completed", [0, 20, 40])
def test_rows_without_times_need_times_not_more_rows(completed: int) -> None:
    traffic = factory.clean(60)
    traffic.columns["quarantine_reason"] = [None] * 60
    traffic.set("quarantine_reason", np.arange(completed, 60), "no_wall_time")
    found = diagnose_connection(traffic.connect(), parse_slo(None))
    said = {m.field: m for m in found.missing_evidence}
    times = said["ttft_ms, e2e_ms"]
    assert found.missing_evidence[0] is times and "requests" not in said
    assert times.why.startswith(f"{60 - completed} of 60 requests have no time that says how long")
    assert "ttft_ms and e2e_ms, or start_unix_ns and end_unix_ns" in times.how
    assert (times.how in found.sentence) == (completed < 30)
    assert "collect" not in found.sentence


def test_few_rows_need_more_whatever_their_times() -> None:
    traffic = factory.clean(25)
    traffic.columns["quarantine_reason"] = [None] * 25
    traffic.set("quarantine_reason", np.arange(20, 25), "no_wall_time")
    fields = [
        m.field for m in diagnose_connection(traffic.connect(), parse_slo(None)).missing_evidence
    ]
    assert fields[:2] == ["ttft_ms, e2e_ms", "requests"]
