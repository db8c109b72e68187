"""The diagnosis of recorded vLLM traffic, against what its load client wrote down itself."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.diagnosis import Diagnosis
from tracekit.analysis.session import Session
from tracekit.analysis.slo import Slo
from tracekit.analysis.ten_minute import ten_minute_table
from tracekit.analysis.window import Window
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store

_DEMO = Path(str(files("tracekit"))) / "demo_data"
_RECORDED = Path(__file__).parents[1] / "data"


def _client(scenario: str) -> list[dict[str, Any]]:
    with gzip.open(_DEMO / f"{scenario}.requests.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _session(tmp_path: Path, scenario: str) -> Session:
    store = Store.open(tmp_path / scenario, create=True)
    import_paths(store, [str(p) for p in sorted(_DEMO.glob(f"{scenario}.*.gz"))])
    return Session.open(store)


def _diagnosis(session: Session, slo: Slo) -> Diagnosis:
    return diagnose(session, slo)


def test_waiting_for_a_slot_is_the_queue(tmp_path: Path) -> None:
    """Poisson 4/s against 8 running slots: waits of up to 3.7 s, nothing else is slow."""
    client = _client("queue")
    with _session(tmp_path, "queue") as session:
        diagnosis = _diagnosis(session, Slo(ttft_ms=500.0))
        late = {r["request_id"] for r in client if r["ttft_ms"] > 500}
        found = session.con.sql("select request_id, phase from verdicts").fetchall()
    assert diagnosis.requests.completed == len(client) == 120
    # the client's own count; requests at the limit may fall to either side of it
    assert diagnosis.misses.total == pytest.approx(len(late), abs=2)
    assert len({i for i, _ in found} ^ late) <= 2
    assert {phase for _, phase in found} == {"queue"}
    top = diagnosis.findings[0]
    assert (top.phase, top.metric) == ("queue", "ttft")
    assert top.share_of_misses == 1
    # spans do not tell full slots from full KV memory, so neither is claimed
    assert top.cause == "unknown"
    assert "engine metrics" in {m.field for m in diagnosis.missing_evidence}


def test_long_prompts_stall_the_others(tmp_path: Path) -> None:
    """Every ninth prompt is long; those are the only culprits that may be named."""
    client = _client("long-prompt")
    long = {r["request_id"] for r in client if r["input_tokens"] > 1_000}
    assert len(long) == 8
    with _session(tmp_path, "long-prompt") as session:
        _diagnosis(session, Slo(ttft_ms=500.0, tpot_ms=40.0))
        rows = session.con.sql(
            "select request_id, phase, culprit_request_id from verdicts "
            "where cause = 'prefill_interference'"
        ).fetchall()
        shaped = session.con.sql(
            "select request_id from verdicts where metric = 'ttft' and cause = 'long_prompt'"
        ).fetchall()
    assert len(rows) >= 8
    assert {culprit for _, _, culprit in rows} <= long
    # most of the gap is before the first token: the step that was busy, and shared prefill steps
    assert {"frontend", "prefill"} <= {phase for _, phase, _ in rows}
    assert {i for (i,) in shaped} <= long


def test_an_expectation_of_short_prompts_says_nothing_of_long_ones(tmp_path: Path) -> None:
    """A baseline of 17 to 64 tokens, then prompts of up to 1,816: their prefill took 1 to 4 s."""
    store = Store.open(tmp_path / "both", create=True)
    import_paths(
        store,
        [
            str(_RECORDED / "vllm" / "baseline.otlp.jsonl.gz"),
            str(_DEMO / "long-prompt.otlp.pb.gz"),
        ],
    )
    with Session.open(store) as session:
        ((low, high),) = session.con.sql(
            "select min(start_unix_ns), max(start_unix_ns) + 1 from requests "
            "where request_id not like '%long-prompt%'"
        ).fetchall()
    with Session.open(store, window=Window(high, None, "the long prompts")) as session:
        diagnosis = diagnose(
            session, Slo(ttft_ms=1_000.0), baseline=Window(low, high, "the short ones")
        )
        verdicts = session.frame(
            "select v.*, r.input_tokens from verdicts as v "
            "join requests as r on v.request_key = r.request_key"
        ).to_dicts()
    long = [v for v in verdicts if v["input_tokens"] > 1_000]
    assert len(long) == 8
    assert {(v["class"], v["reason"], v["excess_ms"]) for v in long} == {
        ("insufficient_evidence", "reach", None)
    }
    # who waited behind them is known as before
    others = [v for v in verdicts if v["input_tokens"] <= 1_000]
    assert others and {v["cause"] for v in others} == {"prefill_interference"}
    assert all(v["excess_ms"] > 0 for v in others)
    assert diagnosis.unexplained_reasons["reach"] == 8
    (note,) = [m for m in diagnosis.missing_evidence if m.field == "large requests"]
    assert note.why == (
        "8 slow requests are more than 4 times as large as any that prefill was fitted on (at "
        "most 64 tokens), so what they should take is not known"
    )
    assert "--baseline" in note.how
    assert all("no fault" not in f.sentence for f in diagnosis.findings)


def test_the_table_of_the_last_twenty(tmp_path: Path) -> None:
    client = sorted(_client("long-prompt"), key=lambda r: r["start_unix_ns"])[-20:]
    with _session(tmp_path, "long-prompt") as session:
        table = ten_minute_table(session)
    assert [r.request for r in table.rows] == [r["request_id"] for r in client]
    for row, truth in zip(table.rows, client, strict=True):
        assert row.input_tokens == truth["input_tokens"]
        assert row.output_tokens == truth["output_tokens"]
        assert row.ttft_ms == pytest.approx(truth["ttft_ms"], abs=5)
    assert table.findings[0].n == 20


def test_what_the_prefix_cache_saved(tmp_path: Path) -> None:
    """Half of 80 prompts share 512 of about 535 tokens: what prompts take, against the others'."""
    client = _client("prefix-cache")
    with _session(tmp_path, "prefix-cache") as session:
        found = _diagnosis(session, Slo()).prefix_cache
        quarter = dict(
            session.con.sql(
                "select cached_tokens > 0, quantile_cont(prefill_ms, 0.25) from requests group by 1"
            ).fetchall()
        )
    hits = sum(bool(r["cached_tokens"]) for r in client)
    assert found is not None
    assert (found.hits, found.n) == (hits, len(client)) == (39, 80)
    # same prompts, with and without a hit, at the fit's own quantile
    assert found.saved_s == pytest.approx(hits * (quarter[False] - quarter[True]) / 1e3, rel=0.15)
    wall_s = sum(r["e2e_ms"] for r in client) / 1e3
    assert found.saved_share == pytest.approx(found.saved_s / (wall_s + found.saved_s), rel=0.02)


def test_a_server_that_had_stopped_is_no_peer_with_room(tmp_path: Path) -> None:
    """The server of `baseline` was gone before that of `kv-pressure` made its requests wait."""
    store = Store.open(tmp_path / "store", create=True)
    recorded = ("vllm/baseline.otlp.pb.gz", "vllm_metrics/kv-pressure.otlp.pb.gz")
    import_paths(store, [str(_RECORDED / name) for name in recorded])
    with Session.open(store) as session:
        served = session.con.sql(
            "select worker, min(start_unix_ns), max(end_unix_ns) from requests "
            "group by worker order by 2"
        ).fetchall()
        diagnosis = _diagnosis(session, Slo(ttft_ms=5_000.0))
        waited = session.con.sql(
            "select cause, count(*) from verdicts where phase = 'queue' group by 1"
        ).fetchall()
        compared = session.con.sql("select count(*) from peer_load").fetchall()
    (_, _, stopped), (_, started, _) = served
    assert stopped < started
    assert sum(n for _, n in waited) > 20
    assert "router_imbalance" not in {cause for cause, _ in waited}
    assert compared == [(0,)]
    assert diagnosis.findings[0].phase == "queue"
    assert "router" not in diagnosis.sentence


def test_streams_that_stand_still_under_a_prefill_are_not_the_front_end(tmp_path: Path) -> None:
    """Engine log: the step that stalled prefix-cache-0001 for 2.1 s (4.4 s lost in all) took
    2,107 ms and computed 510 prompt tokens of another request. Both running streams waited for it.
    """
    store = Store.open(tmp_path / "store", create=True)
    import_paths(store, [str(p) for p in sorted(_DEMO.glob("*.gz"))])
    with Session.open(store) as session:
        _diagnosis(session, Slo())
        causes = dict(
            session.con.sql(
                "select request_id, cause from verdicts where phase = 'decode' and metric = 'tpot' "
                "and request_id like 'prefix-cache-000%'"
            ).fetchall()
        )
    assert "prefix-cache-0001" in causes
    assert "frontend_stall" not in causes.values()
