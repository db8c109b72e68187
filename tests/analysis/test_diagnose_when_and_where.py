"""When and where a fault acts decides its cause: bursts in long windows, workers, lost caches."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pytest

from tests.analysis import factory
from tests.analysis.factory import Traffic
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import Diagnosis
from tracekit.analysis.slo import parse_slo
from tracekit.analysis.window import Window
from tracekit.errors import UsageError

Ints = npt.NDArray[np.int64]


def _run(traffic: Traffic, slo: str) -> tuple[Diagnosis, duckdb.DuckDBPyConnection]:
    con = traffic.connect()
    return diagnose_connection(con, parse_slo(slo)), con


def _causes(con: duckdb.DuckDBPyConnection, phase: str) -> dict[str, int]:
    query = f"select cause, count(*) from verdicts where phase = '{phase}' group by cause"
    return dict(con.execute(query).fetchall())


@pytest.mark.parametrize(
    ("hours", "n", "seconds"), [(0.25, 1_500, 3), (2, 4_000, 3), (12, 6_000, 8)]
)
def test_a_burst_is_one_however_long_the_window(hours: float, n: int, seconds: float) -> None:
    traffic = factory.clean(n, every_ms=hours * 3_600_000 / n)
    start = np.asarray(traffic.columns["start_unix_ns"], dtype=np.int64)
    burst = np.arange(n // 2, n // 2 + 90)
    start[burst] = start[burst[0]] + np.arange(90) * int(seconds / 90 * 1e9)
    traffic.columns["start_unix_ns"] = start
    traffic.add("queue", burst, np.linspace(500, 6_000, 90))
    diagnosis, con = _run(traffic, "ttft=450ms")
    causes = _causes(con, "queue")
    assert causes["arrival_burst"] >= 0.9 * sum(causes.values()) > 75
    assert (diagnosis.findings[0].phase, diagnosis.findings[0].cause) == ("queue", "arrival_burst")


def test_more_traffic_that_stays_is_no_burst_not_even_at_its_beginning() -> None:
    traffic = factory.clean(3_000, every_ms=400)
    start = np.asarray(traffic.columns["start_unix_ns"], dtype=np.int64)
    # from the 1,500th on three times as many a second, to the end
    start[1_500:] = start[1_500] + (start[1_500:] - start[1_500]) // 3
    traffic.columns["start_unix_ns"] = start
    traffic.add("queue", np.arange(1_530, 3_000), np.linspace(500, 9_000, 1_470))
    _, con = _run(traffic, "ttft=450ms")
    causes = _causes(con, "queue")
    assert causes.get("arrival_burst", 0) < 0.02 * sum(causes.values())
    assert causes["capacity"] > 0.9 * sum(causes.values())


def test_a_burst_that_was_served_long_ago_is_no_cause() -> None:
    traffic = factory.clean(2_000, every_ms=400)
    start = np.asarray(traffic.columns["start_unix_ns"], dtype=np.int64)
    burst = np.arange(1_000, 1_060)
    start[burst] = start[1_000] + np.arange(60) * 30_000_000
    traffic.columns["start_unix_ns"] = start
    # nobody of the burst waits; half a minute later some do
    late = np.flatnonzero((start > start[1_000] + 50e9) & (start < start[1_000] + 58e9))
    traffic.add("queue", late, 2_000)
    _, con = _run(traffic, "ttft=450ms")
    assert len(late) >= 10
    assert _causes(con, "queue") == {"unknown": len(late)}


def _without_server_phases(traffic: Traffic) -> Traffic:
    traffic.merge_queue_and_prefill(np.arange(traffic.n))
    return traffic


@pytest.mark.parametrize("phases", [True, False])
def test_the_slow_worker_of_a_log_without_phases(phases: bool) -> None:
    traffic = factory.clean(1_500, workers=4)
    slow = np.asarray(traffic.columns["worker"]) == "w2"
    traffic.phases["decode"][slow] *= 1.8
    if not phases:
        _without_server_phases(traffic)
    con = traffic.connect()
    # what a client saw names no worker; its record does
    con.execute("update phases set worker = null")
    diagnosis = diagnose_connection(con, parse_slo("tpot=14ms"))
    causes = _causes(con, "decode")
    assert causes["slow_worker"] >= 0.97 * sum(causes.values()) > 200
    assert "w2" in diagnosis.sentence


def test_a_slow_worker_that_goes_on_alone_is_still_the_slow_one() -> None:
    traffic = factory.clean(1_500, workers=3)
    worker = np.asarray(traffic.columns["worker"], dtype=object)
    worker[1_300:] = "w1"
    traffic.columns["worker"] = traffic.columns["prefill_worker"] = worker
    traffic.phases["decode"][worker == "w1"] *= 2.0
    _, con = _run(traffic, "tpot=15ms")
    causes = _causes(con, "decode")
    assert causes["slow_worker"] >= 0.97 * sum(causes.values()) > 400


def test_when_all_workers_are_slow_none_is_named() -> None:
    traffic = factory.clean(2_000, workers=3)
    at = np.arange(1_000, 1_200)
    traffic.phases["decode"][at] *= np.random.default_rng(6).lognormal(1.0, 0.15, 200)
    diagnosis, con = _run(traffic, "tpot=16ms")
    causes = _causes(con, "decode")
    assert "slow_worker" not in causes
    assert causes["unknown"] > 100
    told = " ".join(line for f in diagnosis.findings for line in f.evidence)
    assert "all alike" in told


def _cached(
    traffic: Traffic, tokens: Ints, hit: Ints, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Give the traffic these prompts and cache hits; returns what prefill then takes [ms]."""
    a0, a1, a2 = factory.PREFILL_MS
    new = (tokens - hit).astype(float)
    prefill = (a0 + a1 * new + a2 * new * (hit + new / 2)) * rng.lognormal(0, 0.05, len(tokens))
    traffic.phases["prefill"] = prefill
    columns: dict[str, Any] = {"input_tokens": tokens, "cached_tokens": hit}
    traffic.columns |= columns
    return prefill


@pytest.mark.parametrize("cached", ["tokens", "share"])
def test_a_lost_cache_is_seen_without_hashes(cached: str) -> None:
    traffic = factory.clean(1_200)
    rng = np.random.default_rng(7)
    tokens = rng.integers(4_000, 6_000, 1_200)
    hit = np.full(1_200, 3_000) if cached == "tokens" else tokens * 9 // 10
    lost = np.arange(600, 680)
    hit[lost] = 0
    prefill = _cached(traffic, tokens, hit, rng)
    limit = float(np.percentile(np.delete(prefill, lost), 99) + 60)
    diagnosis, con = _run(traffic, f"ttft={limit:.0f}ms")
    causes = _causes(con, "prefill")
    assert causes["cache_miss"] >= 0.9 * sum(causes.values()) > 50
    assert diagnosis.findings[0].cause == "cache_miss"


def test_who_waits_behind_a_slow_worker_is_told_so() -> None:
    traffic = factory.clean(900, workers=3)
    worker = np.asarray(traffic.columns["worker"], dtype=object)
    # only the wait is over a limit, so nobody within the limits tells how w1 serves
    slow = worker == "w1"
    traffic.phases["decode"][slow] *= 2.5
    traffic.add("queue", np.flatnonzero(slow), np.linspace(600, 9_000, int(slow.sum())))
    _, con = _run(traffic, "ttft=550ms")
    causes = _causes(con, "queue")
    assert causes["slow_worker"] >= 0.97 * sum(causes.values()) > 250


@pytest.mark.parametrize(("requests", "said"), [(0, "holds no completed requests"), (24, "24")])
def test_a_baseline_of_too_few_requests_is_refused(requests: int, said: str) -> None:
    traffic = factory.clean(400)
    starts = np.asarray(traffic.columns["start_unix_ns"], dtype=np.int64)
    baseline = Window(int(starts[0]), int(starts[requests]), "then")
    with pytest.raises(UsageError, match=said):
        diagnose_connection(traffic.connect(), parse_slo("ttft=1s"), baseline=baseline)


def test_a_client_alone_is_a_client_side() -> None:
    traffic = _without_server_phases(factory.clean(400))
    result, _ = _run(traffic, "ttft=400ms")
    assert "client span" not in {m.field for m in result.missing_evidence}


def test_first_turns_have_nothing_to_miss() -> None:
    traffic = factory.clean(1_200)
    rng = np.random.default_rng(8)
    tokens = rng.integers(4_000, 6_000, 1_200)
    # a tenth of a route begins a conversation, at any time
    hit = np.where(rng.random(1_200) < 0.1, 0, tokens * 9 // 10)
    prefill = _cached(traffic, tokens, hit, rng)
    limit = float(np.median(prefill[hit == 0]) * 0.8)
    _, con = _run(traffic, f"ttft={limit:.0f}ms")
    assert "cache_miss" not in _causes(con, "prefill")


def test_a_cold_worker_is_no_slow_one() -> None:
    traffic = factory.clean(1_500, workers=3)
    rng = np.random.default_rng(9)
    tokens = rng.integers(4_000, 6_000, 1_500)
    worker = np.asarray(traffic.columns["worker"], dtype=object)
    # one of three lost its cache for a while
    cold = (worker == "w1") & (np.arange(1_500) >= 700) & (np.arange(1_500) < 1_000)
    hit = np.where(cold, 0, tokens * 9 // 10)
    prefill = _cached(traffic, tokens, hit, rng)
    limit = float(np.percentile(prefill[~cold], 99) + 60)
    _, con = _run(traffic, f"ttft={limit:.0f}ms")
    causes = _causes(con, "prefill")
    assert causes["cache_miss"] >= 0.95 * sum(causes.values()) > 90


def test_growth_that_nobody_felt_does_not_excuse_a_slow_worker() -> None:
    traffic = factory.clean(3_000, workers=3, every_ms=400)
    start = np.asarray(traffic.columns["start_unix_ns"], dtype=np.int64)
    # half as many more a second from the 1,000th on; one worker is slow from the 2,000th on
    start[1_000:] = start[1_000] + (start[1_000:] - start[1_000]) * 2 // 3
    traffic.columns["start_unix_ns"] = start
    worker = np.asarray(traffic.columns["worker"], dtype=object)
    slow = (worker == "w1") & (np.arange(3_000) >= 2_000)
    traffic.phases["decode"][slow] *= 3.0
    traffic.add("queue", np.flatnonzero(slow), np.linspace(600, 9_000, int(slow.sum())))
    _, con = _run(traffic, "ttft=550ms")
    causes = _causes(con, "queue")
    assert causes["slow_worker"] >= 0.97 * sum(causes.values()) > 300
