"""Redraws: a wide margin is certain, a coin toss is half, and the shortcut changes nothing."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from tracekit.analysis import confidence
from tracekit.analysis._duck import put
from tracekit.analysis.confidence import draws_for, winner_confidence
from tracekit.analysis.fit import PHASES, RESIDUAL_CAP, Cell, CostModel
from tracekit.analysis.rules import Rules

Pool = npt.NDArray[np.float32]


def _model(pool: Pool) -> CostModel:
    cell = Cell("m", "", "", "aggregated", len(pool), "cell", False, {})
    return CostModel((cell,), 0.25, "window", len(pool), (pool,))


def _noise(n: int = 500, spread: float = 1.0) -> Pool:
    rng = np.random.default_rng(11)
    drawn = rng.normal(0, spread, (n, len(PHASES))).clip(-RESIDUAL_CAP, RESIDUAL_CAP)
    return drawn.astype(np.float32)


def _connect(rows: list[dict[str, Any]]) -> duckdb.DuckDBPyConnection:
    """`rows`: candidate, phase, expected_total_ms, limit_ms, and phases {name: (excess, scale)}."""
    con = duckdb.connect()
    winners, phases = [], []
    for i, row in enumerate(rows, start=1):
        known = sorted((e for e, _ in row["phases"].values() if e is not None), reverse=True)
        scales = [s for _, s in row["phases"].values() if s is not None]
        winners.append(
            {
                "excess_ms": row["phases"][row["phase"]][0],
                "scale_ms": row["phases"][row["phase"]][1],
                "widest_scale_ms": max(scales),
                "runner_up_excess_ms": known[1] if len(known) > 1 else None,
                "unjudged_ms": sum(1_000.0 for e, _ in row["phases"].values() if e is None),
                "slow_id": i,
                "candidate": row.get("candidate", "attributed"),
                "phase": row["phase"],
                "cell_index": 0,
                "expected_total_ms": row.get("expected_total_ms", 0.0),
                "limit_ms": row.get("limit_ms", 1.0),
            }
        )
        for name, (excess, scale) in row["phases"].items():
            phases.append(
                {
                    "slow_id": i,
                    "phase": name,
                    "excess_ms": excess,
                    "actual_ms": 1_000.0,
                    "scale_ms": scale,
                }
            )
    put(con, "winners", pa.Table.from_pylist(winners))
    standing = [{k: w[k] for k in ("slow_id", "candidate")} for w in winners]
    put(con, "standing", pa.Table.from_pylist(standing))
    put(con, "slow_phases", pa.Table.from_pylist(phases))
    return con


def _confidences(rows: list[dict[str, Any]], pool: Pool) -> list[float]:
    table = winner_confidence(_connect(rows), _model(pool), Rules())
    found = dict(zip(table["slow_id"].to_pylist(), table["confidence"].to_pylist(), strict=True))
    assert sorted(found) == list(range(1, len(rows) + 1))
    return [found[i] for i in sorted(found)]


def test_a_wide_margin_is_certain_and_a_toss_is_half() -> None:
    wide = {"phase": "queue", "phases": {"queue": (900.0, 10.0), "prefill": (100.0, 10.0)}}
    toss = {"phase": "queue", "phases": {"queue": (500.0, 50.0), "prefill": (500.0, 50.0)}}
    ahead = {"phase": "queue", "phases": {"queue": (540.0, 50.0), "prefill": (500.0, 50.0)}}
    found = _confidences([wide, toss, ahead], _noise())
    assert found[0] == 1.0
    assert found[1] == pytest.approx(0.5, abs=0.1)
    # 40 ms ahead of a difference with 70 ms deviation: 0.72
    assert found[2] == pytest.approx(0.716, abs=0.1)


def test_an_unjudged_phase_competes_with_all_of_its_time() -> None:
    rows = [{"phase": "queue", "phases": {"queue": (900.0, 10.0), "prefill": (None, None)}}]
    assert _confidences(rows, _noise())[0] < 0.05, "prefill took 1000 ms"


def test_ordinary_variation_that_is_always_positive_is_taken_off() -> None:
    pool = np.abs(_noise(spread=0.1)) + 3
    rows = [{"phase": "queue", "phases": {"queue": (500.0, 100.0), "prefill": (450.0, 1.0)}}]
    assert _confidences(rows, pool.astype(np.float32))[0] == 0.0


def test_shape_holds_while_nothing_stands_out() -> None:
    base = {"candidate": "request_shape", "phase": "prefill", "expected_total_ms": 900.0}
    quiet = {**base, "limit_ms": 1_000.0, "phases": {"prefill": (5.0, 30.0)}}
    over = {**base, "limit_ms": 500.0, "phases": {"prefill": (200.0, 10.0)}}
    edge = {**base, "limit_ms": 1_000.0, "phases": {"prefill": (90.0, 30.0)}}
    found = _confidences([quiet, over, edge], _noise())
    assert found[0] > 0.97
    assert found[1] == 1.0
    assert found[2] == pytest.approx(0.5, abs=0.12)


def test_the_shortcut_for_certain_rows_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for _ in range(200):
        queue, prefill, frontend = rng.exponential(300, 3)
        names = {"queue": queue, "prefill": prefill, "frontend": frontend}
        rows.append(
            {
                "phase": max(names, key=lambda k: names[k]),
                "phases": {k: (v, float(rng.exponential(40))) for k, v in names.items()},
            }
        )
    short = _confidences(rows, _noise())
    monkeypatch.setattr(confidence, "_CERTAIN", "false")
    assert _confidences(rows, _noise()) == short
    assert 0 < sum(c == 1.0 for c in short) < len(short)


def test_no_candidates_make_an_empty_relation() -> None:
    rows = [{"candidate": "mixed", "phase": "queue", "phases": {"queue": (900.0, 10.0)}}]
    assert winner_confidence(_connect(rows), _model(_noise()), Rules()).num_rows == 0


def test_draws_shrink_with_the_number_of_requests() -> None:
    assert draws_for(10) == 200
    assert draws_for(25_000) == 100
    assert draws_for(10_000_000) == 32
