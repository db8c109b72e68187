"""What is said of llama.cpp's requests, with and without its metrics; clients' clocks are right."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sources._recorded import DATA, client, recorded
from tests.sources.llama_cpp._llama_cpp import FILES, LOG_START_NS
from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.session import Session
from tracekit.analysis.slo import parse_slo
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store

MS = 1_000_000


@contextmanager
def _session(log: str | None, metrics: str | None) -> Iterator[Session]:
    """A server's log and the metrics of one scenario."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "s", create=True)
        if log is not None:
            import_paths(
                store, [str(FILES[log])], service="llama", log_start_unix_ns=LOG_START_NS[log]
            )
        if metrics is not None:
            path = DATA / "llama_cpp" / f"{metrics}.metrics.txt.gz"
            import_paths(store, [str(path)], service="llama")
        with Session.open(store) as session:
            yield session


@pytest.mark.trap("llama_cpp", 1)
def test_others_work_is_no_cost_of_a_cached_prompt() -> None:
    """Six prompts with one token to compute took 1.0 to 2.2 s: 13 ms each, and others' batches."""
    with _session("base", None) as session:
        diagnose(session, parse_slo("ttft=500ms"))
        verdicts = session.frame(
            "select f.prefill_ms, v.expected_ms, v.phase, v.cause, v.class from verdicts as v "
            "join request_facts as f using (request_key) where f.uncached_tokens = 1"
        ).rows()
    assert len(verdicts) == 6
    for prefill_ms, expected_ms, *told in verdicts:
        assert prefill_ms > 1_000
        assert expected_ms < 100
        assert told == ["prefill", "prefill_interference", "attributed"]


@pytest.mark.trap("llama_cpp", 1)
def test_a_decode_that_stood_still_beside_a_long_prefill_is_not_slow() -> None:
    with _session("base", None) as session:
        found = diagnose(session, parse_slo("tpot=60ms"))
    first = found.findings[0]
    assert (first.phase, first.cause) == ("decode", "prefill_interference")
    # the long prompts of `long-prompt` and `edge`
    assert all((c.input_tokens or 0) > 700 for c in first.culprits[:3])


@pytest.mark.trap("llama_cpp", 7)
def test_deferred_requests_are_not_all_that_wait() -> None:
    """By the clients' clocks three calls had no slot at a scrape that says 0: they queued."""
    at = 1_795_988_449_524_774_131
    waiting = [
        call["request_id"]
        for call in client("llama_cpp", "long-prompt")
        if call["stream"]
        and call["send_unix_ns"] + 20 * MS < at < call["headers_unix_ns"] - 20 * MS
    ]
    assert len(waiting) == 3
    with _session(None, "long-prompt") as session:
        ((gauge,),) = session.con.execute(
            f"select value from worker_metrics where field = 'waiting' and at_unix_ns = {at}"
        ).fetchall()
    assert gauge == 0
    found = recorded("llama_cpp/long-prompt.client.jsonl.gz")
    names = {r["request_key"]: r["request_id"] for r in found.requests}
    queued = {
        names[p["request_key"]]
        for p in found.phases
        if p["phase"] == "queue" and p["start_unix_ns"] < at < p["end_unix_ns"]
    }
    assert set(waiting) <= queued


@pytest.mark.trap("llama_cpp", 7)
def test_a_gauge_that_leaves_some_out_makes_no_queue_shorter() -> None:
    """Six deferred, where seven had arrived and had no slot (the log); and mostly 0 before that."""
    at = 1_795_988_708_393_009_738
    told = []
    for metrics in (None, "overload-trace"):
        with _session("trace", metrics) as session:
            found = diagnose(session, parse_slo("ttft=1s"))
            told.append([(f.phase, f.n, f.share_of_misses) for f in found.findings])
            if metrics is not None:
                ((gauge, waited),) = session.con.execute(
                    "select (select value from worker_metrics where field = 'waiting' "
                    f"and at_unix_ns = {at}), (select count(*) from legs "
                    f"where queued_unix_ns < {at} and scheduled_unix_ns > {at})"
                ).fetchall()
                assert (gauge, waited) == (6, 7)
    assert told[0] == told[1] == [("queue", 6, 1.0)]
    # and who is sent to look at it is told so
    how = [m.how for m in found.missing_evidence if m.field == "engine metrics"]
    assert how and all("leaves out who came during the running batch" in h for h in how)


@pytest.mark.trap("llama_cpp", 7)
def test_a_scrape_tells_of_the_moment_when_the_batch_was_over() -> None:
    """One waited 1.66 s for its batch: what it says is of its end, and of no time before it."""
    with _session(None, "cancelled") as session:
        rows = session.con.execute(
            "select at_unix_ns, value from worker_metrics where field = 'waiting' and at_unix_ns "
            "between 1795988546000000000 and 1795988549000000000 order by 1"
        ).fetchall()
    assert rows[0] == (1_795_988_548_374_765_923, 5)


def test_clients_rows_without_network_times_are_a_client_side(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", create=True)
    import_paths(store, [str(DATA / "llama_cpp" / "prefix-cache.client.jsonl.gz")])
    with Session.open(store) as session:
        told = diagnose(session, parse_slo("ttft=500ms")).missing_evidence
        assert "client span" not in {m.field for m in told}
    with _session("base", None) as session:
        told = diagnose(session, parse_slo("ttft=500ms")).missing_evidence
        assert "client span" in {m.field for m in told}


def test_a_clients_log_is_a_client_side_and_a_servers_log_is_none(tmp_path: Path) -> None:
    """The server does not say when a call arrived, so no phase is the client's alone."""
    calls = [str(DATA / "llama_cpp" / "baseline.client.jsonl.gz")]
    server = [str(FILES["base"])]
    missing = {}
    for name, files in {"calls": calls, "server": server, "both": calls + server}.items():
        store = Store.open(tmp_path / name, create=True)
        import_paths(store, files, log_start_unix_ns=LOG_START_NS["base"])
        with Session.open(store) as session:
            found = diagnose(session, parse_slo("ttft=500ms"))
            ((n, seen),) = session.con.execute(
                "select n, with_client from field_coverage"
            ).fetchall()
            missing[name] = [m.why for m in found.missing_evidence if m.field == "client span"]
        # 50 calls were made in this scenario; the server's log goes on after it
        assert seen == (0 if name == "server" else 50)
        assert n == 50 if name == "calls" else n > 50
    assert missing["calls"] == []
    assert missing["server"][0].startswith("100 % of the requests have no client side")
    assert missing["both"][0].startswith(f"{100 * (n - 50) / n:.0f} % of the requests")
