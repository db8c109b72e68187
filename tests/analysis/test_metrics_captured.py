"""Recorded traffic with the engine's own metrics beside it: a full KV cache, a KV hand-over."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.analysis._scrapes import metric_rows, scrapes
from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.session import Session
from tracekit.analysis.slo import Slo
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store

_DEMO = Path(str(files("tracekit"))) / "demo_data"
_SPANS = Path(__file__).parent.parent / "data" / "vllm"
_DATA = Path(__file__).parent.parent / "data" / "vllm_metrics"


def _store(tmp_path: Path, *files: Path) -> Store:
    store = Store.open(tmp_path / "store", create=True)
    import_paths(store, [str(file) for file in files])
    return store


def _add_metrics(store: Store, name: str, service: str) -> None:
    with Session.open(store) as session:
        ((instance,),) = session.con.execute(
            "select distinct service_instance_id from spans where service_name = $name",
            {"name": service},
        ).fetchall()
    store.append("metric_samples", metric_rows(_DATA / name, service=service, instance=instance))


def _lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_a_full_kv_cache_makes_the_queue(tmp_path: Path) -> None:
    """1,792 tokens of KV for 8 slots: waits of up to 50 s, 63 preemptions, by the engine itself."""
    client = _lines(_DATA / "kv-pressure.requests.jsonl.gz")
    late = {r["request_id"] for r in client if r["ttft_ms"] > 2_000}
    told = [s for _, _, s in scrapes(_DATA / "kv-pressure.metrics.txt.gz")]
    preemptions = [s.value for s in told if s.name == "vllm:num_preemptions_total"]
    assert preemptions[-1] - preemptions[0] == 63
    waiting = [s.value for s in told if s.name == "vllm:num_requests_waiting"]
    slots = [s.value for s in told if s.name == "vllm:num_requests_running"]
    # most of the time requests wait although fewer run than there are slots
    assert median(waiting) > 5 and median(slots) < 8

    store = _store(
        tmp_path, _DATA / "kv-pressure.otlp.pb.gz", _DATA / "kv-pressure.requests.jsonl.gz"
    )
    with Session.open(store) as session:
        unsure = diagnose(session, Slo(ttft_ms=2_000.0))
    assert unsure.findings[0].cause == "unknown"
    assert "engine metrics" in {m.field for m in unsure.missing_evidence}

    _add_metrics(store, "kv-pressure.metrics.txt.gz", "vllm-server")
    with Session.open(store) as session:
        found = diagnose(session, Slo(ttft_ms=2_000.0))
        verdicts = session.con.sql("select request_id, phase, cause from verdicts").fetchall()
        ((seen,),) = session.con.execute("select sum(preemptions) from worker_samples").fetchall()
    assert seen == 63
    assert found.requests.completed == len(client) == 60
    assert found.misses.total == pytest.approx(len(late), abs=1)
    assert len({i for i, _, _ in verdicts} ^ late) <= 1
    assert {(phase, cause) for _, phase, cause in verdicts} == {("queue", "kv_capacity")}
    (top,) = (f for f in found.findings if f.metric == "ttft")
    # the wait that the engine itself reports
    queued = sorted(r["ttft_ms"] for r in client if r["request_id"] in late)
    assert top.excess_ms == pytest.approx(median(queued), rel=0.05)
    assert "engine metrics" not in {m.field for m in found.missing_evidence}
    assert "preempt" in " ".join(top.evidence)


def test_a_queue_beside_an_empty_kv_cache_is_for_a_slot(tmp_path: Path) -> None:
    """8 slots, and by the engine's own gauge never more than a few per cent of the KV in use."""
    told = [s for _, _, s in scrapes(_DATA / "queue.metrics.txt.gz")]
    assert max(s.value for s in told if s.name == "vllm:kv_cache_usage_perc") < 0.1
    assert max(s.value for s in told if s.name == "vllm:num_requests_running") == 8

    store = _store(tmp_path, _DEMO / "queue.otlp.pb.gz")
    # another process' metrics tell nothing of this queue, and are no reason to ask for metrics
    store.append(
        "metric_samples",
        metric_rows(_DATA / "queue.metrics.txt.gz", service="another", instance="x"),
    )
    with Session.open(store) as session:
        unsure = diagnose(session, Slo(ttft_ms=500.0))
    (note,) = [m for m in unsure.missing_evidence if m.field == "engine metrics"]
    assert "metrics are stored, but no KV usage of these requests' worker" in note.why
    assert "--service NAME" in note.how

    _add_metrics(store, "queue.metrics.txt.gz", "vllm-server")
    with Session.open(store) as session:
        found = diagnose(session, Slo(ttft_ms=500.0))
    top = found.findings[0]
    assert (top.phase, top.cause) == ("queue", "unknown"), "why so many came is not known"
    assert "for a slot" in top.sentence and "not for memory" in top.sentence
    assert "do not show which" not in top.sentence
    assert "limit of running requests (vLLM --max-num-seqs)" in top.action
    assert not [m for m in found.missing_evidence if m.field == "engine metrics"]


def test_streams_that_froze_were_preempted(tmp_path: Path) -> None:
    """20 of 60 streams are over 50 ms a token; all but one of these stood still for over a second,
    and the engine counted 63 preemptions meanwhile: that is no matter of their size.
    """
    slow, frozen = set(), set()
    for r in _lines(_DATA / "kv-pressure.requests.jsonl.gz"):
        at = r["chunk_offsets_ms"]
        gaps = [b - a for a, b in itertools.pairwise(at)]
        if sum(gaps) / (r["output_tokens"] - 1) > 50:
            slow.add(r["request_id"])
            if max(gaps) - median(gaps) > 1_000:
                frozen.add(r["request_id"])
    assert (len(slow), len(frozen)) == (20, 19)
    store = _store(
        tmp_path, _DATA / "kv-pressure.otlp.pb.gz", _DATA / "kv-pressure.requests.jsonl.gz"
    )
    _add_metrics(store, "kv-pressure.metrics.txt.gz", "vllm-server")
    with Session.open(store) as session:
        found = diagnose(session, Slo(tpot_ms=50.0))
        rows = session.con.sql("select request_id, class, phase, cause from verdicts").fetchall()
    assert {i for i, *_ in rows} == slow
    blamed = {
        i for i, c, phase, why in rows if (c, phase, why) == ("attributed", "decode", "preemption")
    }
    assert blamed <= frozen and len(blamed) >= 0.8 * len(frozen)
    assert "request_shape" not in {c for _, c, _, _ in rows}
    assert "preempted" in found.sentence


def test_a_hand_over_is_half_waiting(tmp_path: Path) -> None:
    """Decode servers wait 3.5 s in all for KV caches whose bytes take 1.8 s, and then compute the
    last prompt token again: all as the engines say themselves.
    """
    told = [s for _, _, s in scrapes(_DATA / "pd-nixl.decode.metrics.txt.gz")]
    times = [s.value for s in told if s.name == "vllm:nixl_xfer_time_seconds_sum"]
    counts = [s.value for s in told if s.name == "vllm:nixl_xfer_time_seconds_count"]
    assert counts[-1] - counts[0] == 60
    waits = [s["gen_ai.latency.time_in_queue"] for s in _engine_spans("vllm-decode")]
    steps = [s["gen_ai.latency.time_in_model_prefill"] for s in _engine_spans("vllm-decode")]
    assert len(waits) == 60 and sum(waits) == pytest.approx(3.509, abs=1e-3)

    store = _store(tmp_path, _SPANS / "pd-nixl.otlp.pb.gz")
    _add_metrics(store, "pd-nixl.decode.metrics.txt.gz", "vllm-decode")
    with Session.open(store) as session:
        diagnose(session, Slo(ttft_ms=400.0))
        ((total_ms, waited_ms, again_ms, middle_ms, n),) = session.con.execute(
            "select sum(kv_transfer_ms), sum(kv_transfer_wait_ms), sum(kv_transfer_recompute_ms), "
            "median(kv_transfer_wait_ms), count(kv_transfer_ms) from requests"
        ).fetchall()
        ((moved_s,),) = session.con.execute("select sum(transfer_s) from worker_samples").fetchall()
    assert n == 60
    # spans do not tell when bytes moved: the whole wait is one
    assert waited_ms == pytest.approx(sum(waits) * 1e3, abs=1)
    assert middle_ms == pytest.approx(median(waits) * 1e3, abs=0.1)
    assert again_ms == pytest.approx(sum(steps) * 1e3, abs=1)
    assert total_ms == pytest.approx(waited_ms + again_ms, abs=1)
    assert (
        moved_s == pytest.approx(times[-1] - times[0], abs=1e-6) == pytest.approx(1.782, abs=1e-3)
    )


def _engine_spans(service: str) -> Iterator[dict[str, float]]:
    """The times of one service's spans, read without our decoder."""
    for message in _lines(_SPANS / "pd-nixl.otlp.jsonl.gz"):
        for resource in message["resourceSpans"]:
            attributes = {a["key"]: a["value"] for a in resource["resource"]["attributes"]}
            if attributes["service.name"] != {"stringValue": service}:
                continue
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    yield {
                        a["key"]: a["value"]["doubleValue"]
                        for a in span["attributes"]
                        if "doubleValue" in a["value"]
                    }
