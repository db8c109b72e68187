"""Phases and times of recorded requests against the numbers in their spans, done by hand.

The engine's attributes are durations in seconds; a request's phases must be those very numbers,
placed as the facts say, and what lies between two components must be what their spans leave.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median, quantiles
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.analysis import _captures as captures

Row = dict[str, Any]


def _ns(row: Row, attribute: str) -> int:
    seconds: float = captures.attributes(row)[f"gen_ai.latency.{attribute}"]
    return round(seconds * 1e9)


def _calls(scenario: str) -> dict[str, dict[str, Row]]:
    """Trace id → span rows by what they are (client, proxy, engine, prefill, decode)."""
    out: dict[str, dict[str, Row]] = {}
    for row in captures.spans(scenario).to_pylist():
        name = {
            "load-client": "client",
            "vllm-server": "engine",
            "vllm-prefill": "prefill",
            "vllm-decode": "decode",
        }.get(row["service_name"])
        if row["service_name"] == "pd-proxy":
            name = "proxy" if row["kind"] == 2 else None
        if name:
            out.setdefault(row["trace_id"], {})[name] = row
    return out


def _by_trace(rows: list[Row]) -> dict[str, Row]:
    return {row["trace_id"]: row for row in rows}


def _check_ms(record: Row, expected_ns: Mapping[str, int]) -> None:
    wrong = {
        name: (record[name], ns / 1e6)
        for name, ns in expected_ns.items()
        if record[name] is None or abs(record[name] - ns / 1e6) > 1e-6
    }
    assert wrong == {}, record["request_id"]


def test_phases_of_an_aggregated_engine_are_its_attributes() -> None:
    records = _by_trace(captures.records(captures.derived(captures.spans("baseline"))))
    calls = _calls("baseline")
    assert len(calls) == 48
    for trace_id, call in calls.items():
        client, engine = call["client"], call["engine"]
        queue, prefill = _ns(engine, "time_in_queue"), _ns(engine, "time_in_model_prefill")
        ttft, e2e = _ns(engine, "time_to_first_token"), _ns(engine, "e2e")
        record = records[trace_id]
        before = ttft - prefill - queue
        after = engine["end_unix_ns"] - (engine["start_unix_ns"] + e2e)
        _check_ms(
            record,
            {
                "queue_ms": queue,
                "prefill_ms": prefill,
                "decode_ms": e2e - ttft,
                "engine_step_wait_ms": before,
                "frontend_ms": before + after,
                "network_ms": engine["start_unix_ns"]
                - client["start_unix_ns"]
                + client["end_unix_ns"]
                - engine["end_unix_ns"],
                "e2e_ms": client["end_unix_ns"] - client["start_unix_ns"],
                "unexplained_ms": 0,
            },
        )
        unknown = ("client_wait_ms", "route_ms", "queue_or_prefill_ms", "kv_transfer_ms")
        assert [record[name] for name in unknown] == [None] * 4
        tokens = captures.attributes(engine)
        assert record["input_tokens"] == tokens["gen_ai.usage.prompt_tokens"]
        assert record["output_tokens"] == tokens["gen_ai.usage.completion_tokens"]
        assert record["worker"] == f"vllm-server/{engine['service_instance_id'][:8]}"
        assert (record["engine"], record["sources"]) == ("vllm", "genai_client,vllm")
        assert record["leg_roles"] == "client,engine"


def test_phases_of_prefill_and_decode_servers_are_their_attributes() -> None:
    records = _by_trace(captures.records(captures.derived(captures.spans("pd-nixl"))))
    calls = _calls("pd-nixl")
    assert len(calls) == 60
    for trace_id, call in calls.items():
        client, proxy, p, d = (call[n] for n in ("client", "proxy", "prefill", "decode"))
        p_queue, p_prefill = _ns(p, "time_in_queue"), _ns(p, "time_in_model_prefill")
        d_queue, d_prefill = _ns(d, "time_in_queue"), _ns(d, "time_in_model_prefill")
        p_wait = _ns(p, "time_to_first_token") - p_prefill - p_queue
        d_wait = _ns(d, "time_to_first_token") - d_prefill - d_queue
        # the proxy may close its span after the client has its answer
        proxy_end = min(proxy["end_unix_ns"], client["end_unix_ns"])
        p_first = p["start_unix_ns"] + _ns(p, "time_to_first_token")
        d_last = d["start_unix_ns"] + _ns(d, "e2e")
        record = records[trace_id]
        _check_ms(
            record,
            {
                "queue_ms": p_queue,
                "prefill_ms": p_prefill,
                "kv_transfer_wait_ms": d_queue,
                "kv_transfer_recompute_ms": d_prefill,
                "kv_transfer_ms": d_queue + d_prefill,
                "decode_ms": _ns(d, "e2e") - _ns(d, "time_to_first_token"),
                "engine_step_wait_ms": p_wait + d_wait,
                "frontend_ms": p_wait
                + d_wait
                + (p["end_unix_ns"] - p_first)
                + (d["end_unix_ns"] - d_last),
                "route_ms": (p["start_unix_ns"] - proxy["start_unix_ns"])
                + (d["start_unix_ns"] - p["end_unix_ns"])
                + (proxy_end - d["end_unix_ns"]),
                "network_ms": (proxy["start_unix_ns"] - client["start_unix_ns"])
                + (client["end_unix_ns"] - proxy_end),
                "e2e_ms": client["end_unix_ns"] - client["start_unix_ns"],
                "unexplained_ms": 0,
            },
        )
        # the prefill server's one token is the first of the decode server's, not one more
        assert record["output_tokens"] == captures.attributes(d)["gen_ai.usage.completion_tokens"]
        assert record["prefill_worker"] == "vllm-prefill/prefill-0"
        assert record["decode_worker"] == record["worker"] == "vllm-decode/decode-0"
        assert record["leg_roles"] == "client,gateway,prefill_engine,decode_engine"
        assert record["match_score"] == 1


@pytest.mark.parametrize("scenario", ["baseline", "pd-nixl"])
def test_the_clients_log_brings_its_own_times(scenario: str) -> None:
    records = captures.records(captures.derived(captures.spans(scenario), captures.log(scenario)))
    log = {row["request_id"]: row for row in captures.log(scenario).to_pylist()}
    calls = _calls(scenario)
    assert len(records) == len(log)
    for record in records:
        row = log[record["request_id"]]
        assert record["trace_id"] == row["trace_id"]
        # the span opened just before the log's stamp: the wall time starts with the earlier one
        sent = min(calls[row["trace_id"]]["client"]["start_unix_ns"], row["start_unix_ns"])
        ahead_ms = (row["start_unix_ns"] - sent) / 1e6
        assert 0 <= ahead_ms < 5
        assert record["start_unix_ns"] == sent
        # ... and it ends with the last token the client saw, not with the end of its call
        assert record["e2e_ms"] == pytest.approx(row["e2e_ms"] + ahead_ms, abs=1e-6)
        assert record["ttft_ms"] == pytest.approx(row["ttft_ms"] + ahead_ms, abs=0.3)
        assert record["ttft_kind"] == "first_content"
        assert record["output_tokens"] == row["output_tokens"]
        assert record["route"] == row["route"]
        assert record["model"] == row["model"]
        steps = row["output_tokens"] - 1
        # the proxy passed on this one's first token 129 ms late, the last one 15: the decode server
        # made its 37 tokens in 650.7 ms, of which the client saw the last 536.8
        held_ms = 650.7 - 536.8 if record["request_id"] == "pd-nixl-0038" else 0
        if steps:
            assert record["tpot_ms"] == pytest.approx(
                (row["e2e_ms"] - row["ttft_ms"] + held_ms) / steps, abs=0.01
            )


#: Medians that were measured between client and engine, in ms: TTFT, decode.
_MEASURED = {
    "baseline": (5.0, 2.0),
    "long-prompt": (5.2, 2.0),
    "prefix-cache": (5.3, 2.0),
    "queue": (7.2, 2.0),
    "pd-nixl": (30.5, 5.0),
}


@pytest.mark.parametrize("with_client_spans", [True, False])
def test_without_the_clients_log_times_are_as_near_as_measured(with_client_spans: bool) -> None:
    spans = captures.spans(*_MEASURED)
    if not with_client_spans:
        spans = spans.filter(pc.equal(spans["name"], "llm_request"))
    records = _by_trace(captures.records(captures.derived(spans)))
    assert len(records) == sum(captures.CALLS[scenario] for scenario in _MEASURED)
    for scenario, (at_most_ttft, at_most_decode) in _MEASURED.items():
        log = captures.log(scenario).to_pylist()
        ttft = [abs(records[row["trace_id"]]["ttft_ms"] - row["ttft_ms"]) for row in log]
        decode = [
            abs(records[row["trace_id"]]["decode_ms"] - (row["e2e_ms"] - row["ttft_ms"]))
            for row in log
        ]
        assert median(decode) <= at_most_decode, scenario
        if with_client_spans:
            assert median(ttft) < 0.5, scenario
        else:
            assert median(ttft) <= at_most_ttft * 1.05, scenario
            assert quantiles(ttft, n=20)[-1] <= 110, scenario
