"""Prefills that are slow after an idle time: told where they go together, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from tests.analysis import factory
from tests.analysis.factory import Traffic
from tracekit.analysis import load
from tracekit.analysis.diagnose import diagnose_connection
from tracekit.analysis.diagnosis import Diagnosis
from tracekit.analysis.slo import parse_slo
from tracekit.lake.schema import TABLES

_N = 200
_WOKEN = np.arange(20, _N, 18)
_IDLE_MS = 12_000.0


def _traffic(*, every_ms: float = 400.0, workers: int = 1) -> Traffic:
    traffic = factory.clean(_N, workers=workers, every_ms=every_ms)
    size = np.random.default_rng(2).integers(100, 600, _N)
    traffic.columns["input_tokens"] = size.astype(object)
    traffic.phases["prefill"] = 8 + 0.05 * size * np.random.default_rng(3).lognormal(0, 0.05, _N)
    traffic.columns["output_tokens"] = np.full(_N, 20, dtype=object)
    traffic.phases["decode"] = np.full(_N, 180.0) * np.random.default_rng(4).lognormal(0, 0.05, _N)
    return traffic


def _pause(traffic: Traffic, before: np.ndarray, ms: float = _IDLE_MS) -> None:
    """Nothing comes for ``ms`` before each of these."""
    start = np.asarray(traffic.columns["start_unix_ns"], dtype=np.int64)
    shift = np.zeros(traffic.n, dtype=np.int64)
    shift[before] = int(ms * 1e6)
    traffic.columns["start_unix_ns"] = start + np.cumsum(shift)


def _woken() -> Traffic:
    traffic = _traffic()
    _pause(traffic, _WOKEN)
    traffic.add("prefill", _WOKEN, 170.0)
    return traffic


def _diagnosis(con: duckdb.DuckDBPyConnection) -> Diagnosis:
    return diagnose_connection(con, parse_slo("ttft=150ms"))


def _says_idle(found: Diagnosis) -> bool:
    said = [found.sentence, *(m.field for m in found.missing_evidence)]
    said += [line for f in found.findings for line in (f.sentence, f.action, *f.evidence)]
    return any("idle" in line or "GPU clocks" in line for line in said)


def test_slow_ones_after_a_pause_are_told_with_the_pause() -> None:
    con = _woken().connect()
    found = _diagnosis(con)
    (top,) = found.findings
    assert (top.phase, top.cause, top.n) == ("prefill", "unknown", len(_WOKEN))
    assert "idle (12." in top.sentence and "clocks" in top.action
    assert any(f"{len(_WOKEN)} of the {len(_WOKEN)} looked into" in line for line in top.evidence)
    assert "GPU clocks" in [m.field for m in found.missing_evidence]
    rows = con.execute("select idle_ms, usual_share from after_idle").fetchall()
    assert len(rows) == len(_WOKEN)
    start = np.asarray(_woken().columns["start_unix_ns"], dtype=np.int64)
    end = start + (_woken().e2e_ms * 1e6).astype(np.int64)
    true = [(start[i] - end[:i].max()) / 1e6 for i in _WOKEN]
    # a slice of time, here 250 ms, is busy to its end
    for (idle, usual), truth in zip(sorted(rows), sorted(true), strict=True):
        assert truth - 300 <= idle <= truth + 50 and usual < 0.03


def _anyone_slow(traffic: Traffic) -> None:
    """The slow ones are not those after the pauses."""
    _pause(traffic, _WOKEN)
    traffic.add("prefill", _WOKEN + 5, 170.0)


def _seldom(traffic: Traffic) -> None:
    """Every request comes after a pause, and some are slow."""
    _pause(traffic, np.arange(1, _N), 5_000.0)
    traffic.add("prefill", _WOKEN, 170.0)


def _most_awake(traffic: Traffic) -> None:
    """Of those after a pause most are as quick as ever."""
    _pause(traffic, np.arange(2, _N, 6))
    traffic.add("prefill", np.arange(2, _N, 6)[:10], 170.0)


def _short(traffic: Traffic) -> None:
    _pause(traffic, _WOKEN, 900.0)
    traffic.add("prefill", _WOKEN, 170.0)


def _decode(traffic: Traffic) -> None:
    _pause(traffic, _WOKEN)
    traffic.add("queue", _WOKEN, 170.0)


def _four(traffic: Traffic) -> None:
    _pause(traffic, _WOKEN[:4])
    traffic.add("prefill", _WOKEN[:4], 170.0)


@pytest.mark.parametrize(
    "spoil", [_anyone_slow, _seldom, _most_awake, _short, _decode, _four, lambda _: None]
)
def test_nothing_is_said_of_pauses_that_do_not_matter(spoil: Callable[[Traffic], None]) -> None:
    traffic = _traffic()
    spoil(traffic)
    assert not _says_idle(_diagnosis(traffic.connect()))


def test_of_a_sample_nobody_knows_whether_the_worker_was_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "_LOAD_ROWS", 100)
    assert not _says_idle(_diagnosis(_woken().connect()))


def _with_clocks(traffic: Traffic, *, low: bool, reasons: int = 0) -> duckdb.DuckDBPyConnection:
    """Samples each second; the clock of the GPU is a third after a pause if ``low``."""
    start = np.asarray(traffic.columns["start_unix_ns"], dtype=np.int64)
    second = 1_000_000_000
    at = np.arange(start[0], start[-1] + 2 * second, second)
    near = start[_WOKEN][np.searchsorted(start[_WOKEN], at - 5 * second).clip(max=len(_WOKEN) - 1)]
    woken = np.abs(at - near) < 2 * second
    before = np.searchsorted(start, at + second, side="right") - 1
    busy = at - start[before] < second
    rows = [
        {
            "host": "h0",
            "win_start_unix_ns": int(t),
            "win_end_unix_ns": int(t) + second,
            "gpu_time_util": 0.4 if b else 0.0,
            "sm_clock_hz": 600_000_000 if w and low else 1_900_000_000,
            "clock_reasons": reasons if w else 0,
            "status": "ok",
        }
        for t, w, b in zip(at.tolist(), woken.tolist(), busy.tolist(), strict=True)
    ]
    con = traffic.connect()
    for name, some in (("gpu_samples", rows), ("metric_samples", [])):
        schema = TABLES[name].schema
        con.register("incoming", pa.Table.from_pylist(some, schema=schema))
        con.execute(f"create temp table {name} as select * from incoming")
        con.unregister("incoming")
    con.execute("insert into legs (role, worker, host_name) values ('engine', 'w0', 'h0')")
    return con


def test_a_clock_that_power_holds_down_does_not_sleep() -> None:
    found = _diagnosis(_with_clocks(_woken(), low=True, reasons=4))
    assert found.findings and "gpu_asleep" not in [f.cause for f in found.findings]


@pytest.mark.parametrize(("low", "cause"), [(True, "gpu_asleep"), (False, "unknown")])
def test_clocks_say_whether_the_gpu_slept(low: bool, cause: str) -> None:
    found = _diagnosis(_with_clocks(_woken(), low=low))
    top = found.findings[0]
    assert (top.phase, top.cause, top.n) == ("prefill", cause, len(_WOKEN))
    assert "GPU clocks" not in [m.field for m in found.missing_evidence]
    if cause == "gpu_asleep":
        assert "gone to sleep" in top.sentence and "awake" in top.action
        assert any("of what such GPUs reach" in line for line in top.evidence)
