"""The score: each measure on a few rows whose value is known."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from attribution.culprits import judge_culprits
from attribution.naive import NaiveRules
from attribution.report import markdown, svg
from attribution.score import calibration, said_phase, summarize
from attribution.truth import PHASES, Truth


def _verdict(phase: str | None, *, cause: str = "unknown", confidence: float = 0.95,
             klass: str = "attributed") -> dict[str, Any]:  # fmt: skip
    return {
        "metric": "ttft",
        "class": klass,
        "phase": phase,
        "cause": cause,
        "confidence": confidence,
        "confidence_label": "high",
        "worker": None,
        "culprits": [],
    }


def _row(phase: str, causes: list[str], *, lost: bool = False) -> dict[str, Any]:
    return {
        "index": 0,
        "metric": "ttft",
        "phase": phase,
        "excess_ms": 400.0,
        "runner_up_ms": 10.0,
        "causes": causes,
        "injected": ["arrival_burst"],
        "value_ms": 900.0,
        "clean_ms": 500.0,
        "lost": lost,
        "preempted": False,
    }


def _run(rows: list[dict[str, Any]], said: list[dict[str, Any] | None]) -> dict[str, Any]:
    naive = dict.fromkeys(
        ("share", "z", "median", "share_scoped", "z_scoped", "median_scoped"), "queue"
    )
    variant = {"said": said, "naive": [naive for _ in rows], "findings": []}
    return {
        "seed": 1,
        "topology": "agg",
        "faults": ["burst"],
        "intensity": 2,
        "removed": "",
        "requests": 1_500,
        "kind": "fault",
        "added": 5,
        "misses": {"ttft": len(rows), "tpot": 0, "e2e": 0},
        "rows": rows,
        "variants": {"own": variant, "baseline": variant},
        "cpu_s": 1.0,
    }


def _clean(verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    variant = {"verdicts": verdicts, "findings": []}
    return {
        "seed": 1,
        "topology": "agg",
        "faults": [],
        "intensity": 2,
        "removed": "",
        "requests": 1_500,
        "kind": "clean",
        "variants": {"own": variant, "baseline": variant},
        "cpu_s": 1.0,
    }


def test_abstaining_and_missing_verdicts_are_wrong_and_lost_spans_are_apart() -> None:
    rows = [_row("queue", ["arrival_burst"]) for _ in range(4)]
    rows.append(_row("queue", ["arrival_burst"], lost=True))
    said = [
        _verdict("queue", cause="arrival_burst"),
        _verdict("queue", klass="mixed"),
        None,
        _verdict("decode"),
        _verdict("decode"),
    ]
    summary = summarize([_run(rows, said)], "own")
    assert summary["rows"] == 4
    burst = summary["phase"]["faults"]["burst"]
    assert burst["accuracy"] == 0.25
    assert burst["answered"] == 0.5
    assert summary["confusion"] == {"queue": {"queue": 1, "mixed": 1, "no verdict": 1, "decode": 1}}
    assert summary["cause"]["macro"] == 0.25
    assert summary["naive"]["median"]["macro"] == 1.0
    assert summary["lost"] == {"n": 1, "wrong_phase": 1.0}


def test_causes_count_only_where_the_fault_cost_something() -> None:
    rows = [_row("queue", ["arrival_burst"]), _row("queue", [])]
    said: list[dict[str, Any] | None] = [_verdict("queue", cause="arrival_burst"), None]
    summary = summarize([_run(rows, said)], "own")
    assert summary["cause"]["macro"] == 1.0
    assert summary["phase"]["macro"] == 0.5


def test_on_clean_traffic_only_a_blamed_phase_is_false() -> None:
    verdicts = [
        _verdict("prefill", klass="request_shape"),
        _verdict(None, klass="unexplained"),
        _verdict("decode"),
        _verdict("queue", klass="mixed"),
    ]
    clean = summarize([_clean(verdicts)], "own")["clean"]
    assert (clean["slow"], clean["false"], clean["rate"]) == (4, 1, 0.25)


def test_calibration_error_is_zero_where_confidence_is_earned() -> None:
    def rows(confidence: float, right: int, n: int) -> list[dict[str, Any]]:
        return [
            {
                "phase": "queue",
                "says": "queue" if k < right else "decode",
                "said": {"confidence": confidence},
            }
            for k in range(n)
        ]

    assert calibration(rows(0.95, 95, 100))["ece"] == pytest.approx(0.0)
    assert calibration(rows(1.0, 50, 100))["ece"] == pytest.approx(0.5)
    mixed = rows(0.95, 95, 100) + rows(0.75, 55, 100)
    assert calibration(mixed)["ece"] == pytest.approx(0.1)


def test_a_culprit_is_right_from_half_of_the_best_saving() -> None:
    truth = [
        Truth(i, "tpot", "decode", 0.3, 0.0, frozenset(("prefill_interference",)), frozenset())
        for i in range(5)
    ]
    saved = {7: [0.10, 0.049, 0.10, 0.01, 0.1], 8: [0.02, 0.100, 0.05, 0.01, 0.1]}
    records = judge_culprits(truth, [7, 7, None, 7, -1], saved)
    # one victim's best candidate saves too little to be anybody's culprit
    assert [(r["named"], r["right"]) for r in records] == [
        (True, True),
        (True, False),
        (False, False),
        (True, False),
    ]


def test_naive_rules_pick_share_deviation_and_median_excess() -> None:
    base = {f"{p}_ms": [0.0] * 5 for p in PHASES}
    base["queue_ms"] = [0.0, 0.0, 0.0, 0.0, 90.0]
    base["prefill_ms"] = [100.0, 110.0, 90.0, 100.0, 105.0]
    base["decode_ms"] = [500.0, 2_000.0, 1_000.0, 1_000.0, 1_200.0]
    frame = pl.DataFrame({"request_id": [f"r{i}" for i in range(5)], "status": ["ok"] * 5, **base})
    blamed = NaiveRules(frame).blame("r4", "ttft")
    assert blamed["share"] == "decode"
    assert blamed["share_scoped"] == "prefill"
    assert blamed["z"] == "queue"
    assert blamed["median"] == "decode"
    assert blamed["median_scoped"] == "queue"
    assert NaiveRules(frame).blame("unknown", "ttft")["share"] is None


def test_the_report_is_made_of_any_scored_runs() -> None:
    runs = [_run([_row("queue", ["arrival_burst"])], [_verdict("queue")]), _clean([])]
    summaries = {v: summarize(runs, v) for v in ("own", "baseline")}
    about = {
        "runs": 2, "fault_runs": 1, "two_runs": 0, "clean_runs": 1, "requests": 1_500,
        "seeds": "1", "command": "run.py", "minutes": 1.0, "cpu_minutes": 1.0,
    }  # fmt: skip
    text = markdown(summaries, about)
    assert "| burst | 1 | 1.000 |" in text
    assert svg(summaries["own"]).startswith("<svg")
    assert said_phase(None) == "no verdict"
