"""Requests whose numbers contradict each other, or whose hosts' clocks do, are set aside."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import chat, engine, table
from tracekit.analysis.swapped import SWAPPED

Row = dict[str, Any]


def _reason(*spans: Row) -> Any:
    con = captures.derived(table("spans", spans), None)
    (record,) = captures.records(con)
    return record["quarantine_reason"]


@pytest.mark.parametrize("skew_ms", [-3000.0, -200.0, 200.0, 3000.0])
def test_a_server_outside_the_clients_call_by_its_clock_is_set_aside(skew_ms: float) -> None:
    client = chat("c", 0, 400, gen_ai__usage__output_tokens=11)
    server = engine("e", 10 + skew_ms, parent="c", queue=20, prefill=50, decode=200)
    assert _reason(client, server) == "clock_skew"


def test_a_server_inside_the_clients_call_is_not() -> None:
    client = chat("c", 0, 400, gen_ai__usage__output_tokens=11)
    assert _reason(client, engine("e", 10, parent="c", queue=20, prefill=50, decode=200)) is None


def test_an_engine_that_went_on_after_an_abort_is_no_skew() -> None:
    client = chat("c", 0, 100, status_code=2, error__type="cancelled")
    server = engine("e", 10, parent="c", queue=20, prefill=50, decode=400)
    assert _reason(client, server) != "clock_skew"


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"gen_ai__latency__time_to_first_token": 0.0}, "unset_duration:ttft"),
        ({"gen_ai__latency__e2e": 0.01}, "inconsistent_durations:ttft>e2e"),
        ({"queue": 600, "prefill": 600, "gen_ai__latency__time_to_first_token": 0.1},
         "inconsistent_durations:queue+prefill>ttft"),
        # told in each other's place: there they fit
        ({"gen_ai__latency__time_in_model_prefill": 0.2,
          "gen_ai__latency__time_in_model_decode": 0.05}, SWAPPED),
        # as long, but decode does not fit into the time to the first token either
        ({"gen_ai__latency__time_in_model_prefill": 0.2,
          "gen_ai__latency__time_in_model_decode": 0.19},
         "inconsistent_durations:queue+prefill>ttft"),
    ],
)  # fmt: skip
def test_durations_that_contradict_each_other_are_set_aside(attributes: Row, reason: str) -> None:
    shape: Row = {"queue": 20, "prefill": 50, "decode": 200} | attributes
    assert _reason(engine("e", 10, end=2000, **shape)) == reason
