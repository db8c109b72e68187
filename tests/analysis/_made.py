"""Legs made by hand for the rules of ``sql/core``."""

from __future__ import annotations

from typing import Any

from tests.analysis._legs import check_timelines, leg, run_core
from tracekit.names import PHASES

MS = 1_000_000


Legs = list[dict[str, Any]]


def one_record(*legs: dict[str, Any], force_sweep: bool = False) -> dict[str, Any]:
    con = run_core({"r": legs}, force_sweep=force_sweep)
    check_timelines(con)
    row: dict[str, Any] = (
        con.sql(
            "select r.*, p.path from requests as r join request_points as p using (request_key)"
        )
        .to_arrow_table()
        .to_pylist()[0]
    )
    return row


def known_phases(record: dict[str, Any]) -> dict[str, float]:
    """The phases of a record that are known, in ms."""
    return {p: record[f"{p}_ms"] for p in PHASES if record[f"{p}_ms"] is not None}


def engine_leg(**more: Any) -> dict[str, Any]:
    times = {
        "recv": 3 * MS,
        "queued": 10 * MS,
        "scheduled": 500 * MS,
        "first_token": 600 * MS,
        "last_token": 890 * MS,
        "leg_end": 891 * MS,
    }
    return leg("engine", **(times | {"output_tokens": 30, "engine": "vllm"} | more))


def client_leg(**more: Any) -> dict[str, Any]:
    times = {"send": 0, "first_token": 605 * MS, "last_token": 900 * MS, "leg_end": 905 * MS}
    return leg("client", **(times | {"output_tokens": 30, "ttft_kind": "first_content"} | more))
