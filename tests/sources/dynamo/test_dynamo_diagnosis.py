"""What a diagnosis of Dynamo's recordings says, and what it says is missing."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.sources._recorded import DATA
from tracekit.analysis.detail import request_detail
from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.diagnosis import Diagnosis
from tracekit.analysis.doctor import health
from tracekit.analysis.session import Session
from tracekit.analysis.slo import parse_slo
from tracekit.analysis.window import Window
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store
from tracekit.report.inferred_text import inferred_lines


def _diagnosis(*names: str, slo: str = "ttft=150ms") -> Diagnosis:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "s", create=True)
        import_paths(store, [str(DATA / "dynamo" / name) for name in names])
        with Session.open(store) as session:
            return diagnose(session, parse_slo(slo))


@pytest.mark.trap("dynamo", 1)
def test_an_overloaded_engine_is_not_called_prefill() -> None:
    """Its queue is 1.4 s of TTFT: merged with prefill, and what would split it is named."""
    found = _diagnosis("overload_engine_queue.otlp.jsonl.gz")
    assert all(f.phase == "queue_or_prefill" for f in found.findings)
    assert "prefill" not in {p.phase for p in found.phases}
    (missing,) = [m for m in found.missing_evidence if m.field == "queue_ms, prefill_ms"]
    assert missing.why.startswith("100 % of the requests")
    assert "its spans lie below handle_payload" in missing.how


def test_a_transfer_that_hides_before_the_first_token_is_named_as_missing() -> None:
    spans = _diagnosis("pd_slow_kv.otlp.jsonl.gz")
    (missing,) = [m for m in spans.missing_evidence if m.field == "kv_transfer_ms"]
    assert "DYN_REQUEST_TRACE=1" in missing.how
    both = _diagnosis("pd_slow_kv.otlp.jsonl.gz", "pd_slow_kv.request_trace.jsonl.gz")
    assert not [m for m in both.missing_evidence if m.field == "kv_transfer_ms"]
    assert "kv_transfer" in {p.phase for p in both.phases}


def test_most_of_an_overloaded_engines_merged_time_is_inferred_to_be_a_wait() -> None:
    """`agg_baseline`, the same engine unhurried, has a median of 26 ms for queue and prefill."""
    found = _diagnosis("overload_engine_queue.otlp.jsonl.gz")
    told = [line for f in found.findings for line in f.evidence if line.startswith("inferred: ")]
    assert told
    for line in told:
        matched = re.fullmatch(
            r"inferred: at most ([\d.]+) ms of it is prefill .*, and at least ([\d.]+) s a wait",
            line,
        )
        assert matched is not None, line
        assert 26 <= float(matched[1]) <= 120
        assert 1 <= float(matched[2]) <= 4


#: Simulated transfers: prompt tokens x 131,072 bytes at 0.4 and at 16 GB/s.
_SLOW_MS, _QUICK_MS = 131_072 / 0.4e9 * 1e6, 131_072 / 16e9 * 1e6
_SLOW_KV = ("pd_slow_kv.otlp.jsonl.gz", "pd_slow_kv.request_trace.jsonl.gz")
_HEALTHY = ("pd_baseline.otlp.jsonl.gz", "pd_baseline.request_trace.jsonl.gz")


@pytest.mark.parametrize("slo", ["ttft=150ms", "ttft=220ms"])
def test_a_link_that_is_slow_throughout_is_not_said_to_be_no_fault(slo: str) -> None:
    """Every transfer takes 40 times what it should; nothing in this window says so."""
    found = _diagnosis(*_SLOW_KV, slo=slo)
    (top, *_) = [f for f in found.findings if f.cause == "kv_transfer_size"]
    assert top.confidence < 0.9 and top.confidence_label == "likely"
    assert "--baseline window tells" in top.sentence and "--baseline" in found.sentence
    assert "no fault (" not in top.sentence
    assert "--baseline" in top.action
    (note,) = [m for m in found.missing_evidence if m.field == "baseline"]
    assert "--baseline" in note.how


def test_what_a_transfer_costs_is_said_against_the_baseline() -> None:
    """Imported together: the healthy recording ended 22 s before the slow one began."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "s", create=True)
        import_paths(store, [str(DATA / "dynamo" / name) for name in (*_SLOW_KV, *_HEALTHY)])
        with Session.open(store) as session:
            ((between,),) = session.con.sql(
                "select min(start_unix_ns) from requests where request_id like 'pd_slow_kv%'"
            ).fetchall()
        slow = Window(between - 10**9, None, "the slow ones")
        with Session.open(store, window=slow) as session:
            found = diagnose(
                session, parse_slo("ttft=150ms"), baseline=Window(None, between - 10**9, "before")
            )
    (top, *_) = found.findings
    assert (top.phase, top.cause) == ("kv_transfer", "kv_transfer_bandwidth")
    (line,) = [e for e in top.evidence if e.startswith("a transfer takes ")]
    told = re.fullmatch(
        r"a transfer takes ([\d.]+) ms for 1,000 prompt tokens, and [\d.]+ ms whatever its size "
        r"\(median\); in the baseline window ([\d.]+) ms and [\d.]+ ms",
        line,
    )
    assert told is not None, line
    assert float(told[1]) == pytest.approx(_SLOW_MS, rel=0.05)
    assert float(told[2]) == pytest.approx(_QUICK_MS, abs=4)
    assert not [m for m in found.missing_evidence if "baseline" in m.field]


def test_a_window_without_limits_names_what_would_say_more() -> None:
    found = _diagnosis("overload_engine_queue.otlp.jsonl.gz", slo="")
    (note,) = [m for m in found.missing_evidence if m.field == "slo, baseline"]
    assert "--slo" in note.how and "--baseline" in note.how


def _client_ttft_ms(scenario: str) -> np.ndarray:
    with gzip.open(DATA / "dynamo" / f"{scenario}.client.jsonl.gz", "rt") as lines:
        return np.array([json.loads(line)["first_token_ms"] for line in lines])


@pytest.mark.parametrize("scenario", ["overload_engine_queue", "kv_pressure"])
def test_what_most_of_an_overload_waits_for_is_the_answer(scenario: str) -> None:
    """Most of the window is over the limit, so it does not tell what is ordinary; the limit does.

    Truth is the client's clock, and 26 ms for queue and prefill of the same engine unhurried.
    """
    late = _client_ttft_ms(scenario)
    late = late[late > 500]
    found = _diagnosis(f"{scenario}.otlp.jsonl.gz", slo="ttft=500ms,tpot=30ms")
    (over,) = [o for o in found.over_limit if o.metric == "ttft"]
    assert over.misses == pytest.approx(len(late), abs=2)
    assert (over.phase, over.alone) == ("queue_or_prefill", over.misses)
    assert over.phase_ms == pytest.approx(np.median(late), rel=0.1)
    assert over.waited_ms is not None and over.prefill_ms is not None
    assert 0.9 * np.median(late) < over.waited_ms <= np.median(late) - 26
    assert 26 < over.prefill_ms < 120
    # it is the headline; that decode takes what it takes here is none of TTFT
    assert over.sentence in found.sentence
    assert (
        f"{over.misses} of {found.requests.completed} requests miss the TTFT SLO" in over.sentence
    )
    assert re.search(r"inferred from .* at least [\d.]+ s of that is waiting", found.sentence)
    assert "no fault" not in found.sentence and "smaller model" not in found.sentence
    # merged time is never surely one of its parts
    assert over.confidence_label == "likely"


def test_a_transfer_in_merged_time_is_neither_waiting_nor_prefill() -> None:
    """Without the request trace the transfer (150 ms at the median) is before the first token."""
    found = _diagnosis(_SLOW_KV[0], slo="ttft=150ms")
    for over in found.over_limit:
        assert over.phase == "queue_or_prefill" and over.waited_ms is None
        assert "a KV transfer may be in it" in over.sentence
        assert "waiting" not in over.sentence
    merged = [f for f in found.findings if f.phase == "queue_or_prefill"]
    assert found.over_limit or merged
    for finding in merged:
        assert "at least" not in finding.sentence


@pytest.mark.trap("dynamo", 4)
def test_a_prefill_token_that_was_seen_late_is_said_to_hold_the_transfer() -> None:
    """0010, 0011 and 0012: their records' prefill time swallowed 100 to 140 ms of transfer."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "s", create=True)
        import_paths(store, [str(DATA / "dynamo" / name) for name in _SLOW_KV])
        with Session.open(store) as session:
            ids = session.con.sql(
                "select request_id, request_key from requests "
                "where queue_or_prefill_ms > 100 order by request_id"
            ).fetchall()
            assert [i for i, _ in ids] == [f"pd_slow_kv-00{n}" for n in (10, 11, 12)]
            for request_id, _ in ids:
                detail = request_detail(session, request_id)
                said = "\n".join(inferred_lines(detail.inferred))
                assert "the rest waiting, or a transfer that came before its token" in said
                assert detail.inferred is not None
                assert detail.inferred["queue_at_least_ms"] is None


def test_records_beside_the_spans_are_no_traces_that_fell_apart(tmp_path: Path) -> None:
    """Records carry no trace id of their requests; the spans of each are in one trace."""
    store = Store.open(tmp_path / "s", create=True)
    names = ("pd_baseline.otlp.jsonl.gz", "pd_baseline.request_trace.jsonl.gz")
    import_paths(store, [str(DATA / "dynamo" / name) for name in names])
    with Session.open(store) as session:
        found = health(session)
    assert found.joins["requests"] == 40
    assert not [r.text for r in found.remarks if "several traces" in r.text]
