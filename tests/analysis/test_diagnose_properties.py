"""What must hold for any traffic: one verdict each, shares within one, less data no surer."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.analysis import factory
from tests.analysis.factory import Traffic
from tracekit.analysis.attribution import ATTRIBUTION, define_attribution
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.slo import Slo, parse_slo
from tracekit.analysis.sqlfiles import load, names
from tracekit.names import CAUSES, CLASSES, PHASES

_LABELS = {None: 0, "mixed": 1, "likely": 2, "high": 3}
_SLOW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def _traffic(draw: st.DrawFn) -> Traffic:
    """Some clean traffic with a few faults, and holes where a source does not know."""
    seed = draw(st.integers(1, 99))
    rng = np.random.default_rng(seed)
    traffic = factory.clean(
        draw(st.integers(25, 160)),
        seed=seed,
        long_share=draw(st.sampled_from([0.0, 0.1])),
        disaggregated=draw(st.booleans()),
        workers=draw(st.integers(1, 3)),
    )
    for phase in draw(st.lists(st.sampled_from(["queue", "prefill", "decode", "frontend"]))):
        rows = np.flatnonzero(rng.random(traffic.n) < 0.1)
        traffic.add(phase, rows, rng.exponential(1_500, len(rows)))
    for column in draw(
        st.lists(st.sampled_from(["input_tokens", "output_tokens", "cached_tokens", "worker"]))
    ):
        traffic.set(column, np.flatnonzero(rng.random(traffic.n) < 0.2), None)
    for status in draw(st.lists(st.sampled_from(["aborted", "error", "timeout", "open"]))):
        traffic.set("status", np.flatnonzero(rng.random(traffic.n) < 0.05), status)
    if draw(st.booleans()):
        traffic.merge_queue_and_prefill(np.flatnonzero(rng.random(traffic.n) < 0.3))
    if draw(st.booleans()):
        traffic.columns["unexplained_ms"] = rng.exponential(100, traffic.n)
    traffic.drop_clock = draw(st.booleans())
    return traffic


@_SLOW
@given(_traffic(), st.sampled_from(["", "ttft=300ms,tpot=12ms,e2e=2s", "e2e=1ms"]))
def test_every_slow_request_gets_one_verdict_per_metric(traffic: Traffic, slo: str) -> None:
    con = traffic.connect()
    diagnosis = diagnose_connection(con, parse_slo(slo))
    rows = con.sql("select * from verdicts").to_arrow_table().to_pylist()
    assert len({(r["request_key"], r["metric"]) for r in rows}) == len(rows)
    slow = con.sql("select request_key, metric from slow_requests").fetchall()
    assert sorted(slow) == sorted((r["request_key"], r["metric"]) for r in rows)
    for r in rows:
        assert r["class"] in CLASSES
        assert r["cause"] in CAUSES
        assert r["phase"] is None or r["phase"] in PHASES
        assert (r["phase"] is None) == (r["class"] in ("unexplained", "insufficient_evidence"))
        assert r["value_ms"] > r["threshold_ms"]
        if r["class"] != "attributed" and r["class"] != "request_shape":
            assert r["cause"] == "unknown"
        else:
            assert 0 <= r["confidence"] <= 1
        if r["class"] == "attributed":
            assert r["excess_ms"] >= 20
            assert r["confidence"] >= 0.7
    per_metric: dict[str, float] = {}
    for finding in diagnosis.findings:
        per_metric[finding.metric] = per_metric.get(finding.metric, 0) + finding.share_of_misses
        assert finding.sentence and finding.action and finding.evidence
    assert all(share <= 1 + 1e-9 for share in per_metric.values())
    if diagnosis.unexplained_share is not None:
        assert 0 <= diagnosis.unexplained_share <= 1
    counts = diagnosis.requests
    assert counts.total == traffic.n == (
        counts.completed + counts.aborted + counts.errored + counts.timeout + counts.open
        + counts.superseded + sum(counts.quarantined.values())
    )  # fmt: skip


@_SLOW
@given(_traffic(), st.sampled_from(["input_tokens", "output_tokens", "cached_tokens"]), st.data())
def test_a_removed_field_never_makes_a_verdict_surer(
    traffic: Traffic, field: str, data: st.DataObject
) -> None:
    slo = parse_slo("ttft=300ms,tpot=12ms,e2e=2s")
    before = _by_request(traffic.connect(), slo)
    if not before:
        return
    key, _ = data.draw(st.sampled_from(sorted(before)))
    row = int(np.flatnonzero(np.asarray(traffic.columns["request_key"]) == key)[0])
    # the measured times stay: only the one field is gone
    table = traffic.requests()
    con = traffic.connect()
    con.register("incoming", table)
    con.execute("create or replace temp table requests as select * from incoming")
    con.execute(
        f"update requests set {field} = null where request_key = ?",
        [traffic.columns["request_key"][row]],
    )
    after = _by_request(con, slo)
    for (found, metric), (kind, label) in after.items():
        if found != key:
            continue
        assert (found, metric) in before
        was_kind, was_label = before[(found, metric)]
        assert _LABELS[label] <= _LABELS[was_label] or was_kind == "request_shape", (
            f"{was_kind}/{was_label} became {kind}/{label} without {field}"
        )


def _by_request(con: duckdb.DuckDBPyConnection, slo: Slo) -> dict[tuple[str, str], tuple[Any, Any]]:
    define_attribution(con, slo)
    rows = con.sql("select request_key, metric, class, confidence_label from verdicts").fetchall()
    return {(key, metric): (kind, label) for key, metric, kind, label in rows}


def test_the_order_of_rows_changes_nothing() -> None:
    traffic = factory.clean(500, long_share=0.05, disaggregated=True)
    traffic.add("queue", np.arange(0, 500, 20), 1_500)
    con = traffic.connect()
    first = diagnose_connection(con, parse_slo("ttft=400ms,tpot=12ms")).to_json()
    con.execute(
        "create or replace temp table shuffled as select * from requests order by hash(trace_id)"
    )
    con.execute("create or replace temp view window_requests as select * from shuffled")
    con.execute(
        "create or replace temp table other as select * from phases order by hash(request_key)"
    )
    con.execute("create or replace temp table phases as select * from other")
    second = diagnose_connection(con, parse_slo("ttft=400ms,tpot=12ms")).to_json()
    assert _rounded(second) == _rounded(first)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return value


def test_the_relations_can_be_defined_anew() -> None:
    traffic = factory.clean(300)
    traffic.add("queue", np.arange(10), 2_000)
    con = traffic.connect()
    first = diagnose_connection(con, parse_slo("ttft=1s"))
    assert diagnose_connection(con, parse_slo("ttft=60s")).misses.total == 0
    assert diagnose_connection(con, parse_slo("ttft=1s")) == first


def test_every_file_is_loaded_and_documents_its_columns() -> None:
    assert set(ATTRIBUTION) == set(names("attribution"))
    traffic = factory.clean(60)
    con = traffic.connect()
    define_attribution(con, Slo())
    for name in ATTRIBUTION:
        file = load("attribution", name)
        assert file.purpose and file.grain and file.inputs, name
        columns = con.sql(f"select * from {name} limit 0").columns
        assert list(file.columns) == list(columns), name


@pytest.mark.parametrize("name", ATTRIBUTION)
def test_inputs_are_defined_before(name: str) -> None:
    given = {
        "window_requests", "requests", "phases", "token_gaps", "slo", "attribution_rules",
        "cost_model", "outstanding", "winner_confidence", "suspect_requests", "overlap_rules",
        "bins", "arrival_rules", "arrival_times", "load_rules", "time_bins", "worker_samples",
        "pressure_rules", "pressure_times", "contention", "worker_slices", "slice_rules",
        "transfer_costs", "cache_due", "usual_hits", "prompt_kinds", "judged",
        "speculation", "after_idle", "inferred_rules",
    }  # fmt: skip
    inputs = {i.strip() for i in load("attribution", name).inputs.split(",")}
    before = set(ATTRIBUTION[: ATTRIBUTION.index(name)])
    assert inputs <= before | given, inputs - before - given
