"""SGLang's traps that no recording isolates, and its servers behind llm-d (built by hand)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import Row, span, table

SCOPE = "sglang server"


def _server(
    role: str,
    stages: dict[str, tuple[float, float]],
    *,
    start: float,
    end: float,
    parent: str | None = None,
    room: str | None = None,
    **more: object,
) -> list[Row]:
    """A root, its tokenizer's dispatch and its scheduler's stages; ids end in an initial."""
    i = role[:1] or "u"
    service = f"sglang-{role}" if role else "sglang"
    named: Row = {
        "rid": f"rid{i}",
        "gen_ai__request__id": f"rid{i}",
        "gen_ai__usage__prompt_tokens": 80,
        "gen_ai__usage__completion_tokens": 1 if role == "prefill" else 21,
        "gen_ai__response__finish_reasons": '["length"]',
    }
    if room is not None:
        named["bootstrap_room"] = room
    values: Row = named | more
    rows = [
        span(f"{role} Req rid{i}", id=f"R{i}", parent=parent, start=start, end=end, scope=SCOPE,
             service=service, **values),
        span(f"{role.title()}Tokenizer(host:a | pid:1)", id=f"T{i}", parent=f"R{i}", start=start,
             end=start + 2, scope=SCOPE, service=service, host_id="a"),
        span("api_server_dispatch", id=f"A{i}", parent=f"T{i}", start=start + 1, end=start + 2,
             scope=SCOPE, service=service),
        span(f"{role.title()} Scheduler [TP 0]  [PP 0] (host:a | pid:2)", id=f"S{i}",
             parent=f"R{i}", start=start + 2, end=end, scope=SCOPE, service=service, host_id="a",
             tp_rank=0),
    ]  # fmt: skip
    rows += [
        span(name, id=f"{n}{i}", parent=f"S{i}", start=a, end=b, scope=SCOPE, service=service)
        for n, (name, (a, b)) in enumerate(stages.items())
    ]
    return rows


def _only(spans: list[Row]) -> Row:
    con = captures.derived(table("spans", spans))
    (record,) = captures.records(con)
    phases = con.sql("select * from phases order by start_unix_ns").to_arrow_table().to_pylist()
    for before, after in pairwise(phases):
        assert before["end_unix_ns"] == after["start_unix_ns"]
    total = sum(p["end_unix_ns"] - p["start_unix_ns"] for p in phases) / 1e6
    assert total == pytest.approx(record["e2e_ms"])
    return record


UNIFIED = {
    "request_process": (3.0, 3.1),
    "prefill_waiting": (3.1, 30.0),
    "prefill_forward": (30.0, 80.0),
    "decode_waiting": (80.0, 90.0),
    "decode_forward": (90.0, 290.0),
}


@pytest.mark.trap("sglang", 4)
@pytest.mark.trap("sglang", 12)
@pytest.mark.trap("sglang", 13)
def test_latencies_that_mean_something_else_are_not_read() -> None:
    """Traps 4 and 12: time_in_model_prefill holds the queue; time_to_first_token may be e2e."""
    record = _only(_server(
        "", UNIFIED, start=0, end=292,
        gen_ai__latency__time_in_model_prefill=0.079,
        gen_ai__latency__time_to_first_token=0.292,
        gen_ai__latency__e2e=0.292,
    ))  # fmt: skip
    assert record["prefill_ms"] == pytest.approx(50)
    assert record["queue_ms"] == pytest.approx(30 - 2)
    assert record["ttft_ms"] == pytest.approx(80)
    # the stall before the first step is decode (trap 13)
    assert record["decode_ms"] == pytest.approx(210)


@pytest.mark.trap("sglang", 6)
def test_stages_that_overlap_by_jitter_count_once() -> None:
    """Trap 6: clocks are calibrated; gaps may be negative."""
    record = _only(_server(
        "",
        UNIFIED | {"prefill_forward": (29.6, 80.4), "decode_waiting": (79.9, 90.3)},
        start=0,
        end=292,
    ))  # fmt: skip
    assert record["quarantine_reason"] is None
    assert record["queue_ms"] == pytest.approx(29.6 - 2)
    # to the first token, which its end and the next stage's begin tell 0.5 ms apart
    assert record["prefill_ms"] == pytest.approx(80 - 29.6, abs=0.5)
    assert record["queue_ms"] + record["prefill_ms"] + record["decode_ms"] == pytest.approx(290 - 2)


PREFILL = {
    "prefill_prepare": (5.0, 5.1),
    "prefill_bootstrap": (5.1, 6.0),
    "prefill_waiting": (6.0, 40.0),
    "prefill_forward": (40.0, 100.0),
    "prefill_transfer_kv_cache": (100.2, 190.0),
}
DECODE = {
    "decode_prepare": (4.0, 4.1),
    "decode_bootstrap": (4.1, 5.0),
    "decode_transferred": (5.0, 130.0),
    "decode_waiting": (130.0, 131.0),
    "decode_forward": (131.0, 331.0),
}


@pytest.mark.trap("sglang", 1)
@pytest.mark.trap("sglang", 10)
def test_a_pair_of_two_traces_meets_by_its_room() -> None:
    """Without a router's trace each server has its own: the room is all that they share."""
    spans = _server("prefill", PREFILL, start=1, end=192, room="0x1f")
    spans += [
        row | {"trace_id": "ab" * 16}
        for row in _server("decode", DECODE, start=0, end=333, room="0x1f")
    ]
    record = _only(spans)
    assert record["leg_roles"] == "prefill_engine,decode_engine"
    assert record["prefill_ms"] == pytest.approx(60)
    assert record["kv_transfer_ms"] == pytest.approx(30)
    assert record["decode_ms"] == pytest.approx(200)


@pytest.mark.trap("sglang", 4)
@pytest.mark.trap("sglang", 12)
def test_a_pairs_own_latencies_are_of_other_things() -> None:
    """Not streamed, the decode root's TTFT is its e2e; the prefill root's always is. The decode
    root's time_in_model_prefill holds the remote queue, prefill and transfer."""
    spans = _server(
        "prefill", PREFILL, start=1, end=192, room="0x1f",
        gen_ai__latency__time_to_first_token=0.191,
        gen_ai__latency__time_in_model_prefill=0.189,
        gen_ai__latency__e2e=0.191,
    ) + _server(
        "decode", DECODE, start=0, end=333, room="0x1f",
        gen_ai__latency__time_to_first_token=0.333,
        gen_ai__latency__time_in_model_prefill=0.331,
        gen_ai__latency__e2e=0.333,
    )  # fmt: skip
    record = _only(spans)
    assert record["ttft_ms"] == pytest.approx(131)
    assert record["prefill_ms"] == pytest.approx(60)
    assert record["kv_transfer_ms"] == pytest.approx(30)


def test_another_room_is_another_request() -> None:
    spans = _server("prefill", PREFILL, start=1, end=192, room="0x1f")
    spans += [
        row | {"trace_id": "ab" * 16}
        for row in _server("decode", DECODE, start=0, end=333, room="0x20")
    ]
    assert len(captures.records(captures.derived(table("spans", spans)))) == 2


def test_behind_llm_d_the_pair_is_the_schedulers_request() -> None:
    """The SGLang connector calls both at once; the sidecar's spans are their siblings."""
    spans = [
        span("gateway.request", id="gw", start=-40, end=340, kind=2, service="epp"),
        span("gateway.request_orchestration", id="or", start=-38, end=-8, parent="gw",
             service="epp"),
        span("llm_d.pd_proxy.request", id="px", start=-6, end=338, parent="gw", service="sidecar"),
        span("llm_d.pd_proxy.prefill", id="pp", start=-5, end=339, parent="px", service="sidecar"),
        span("llm_d.pd_proxy.decode", id="pd", start=-5, end=337, parent="px", service="sidecar"),
        *_server("prefill", PREFILL, start=1, end=192, room="0x1f", parent="gw"),
        *_server("decode", DECODE, start=0, end=333, room="0x1f", parent="gw"),
    ]  # fmt: skip
    record = _only(spans)
    assert record["leg_roles"] == "gateway,router,prefill_engine,decode_engine,provider"
    # flow control and scheduling 30 ms, then the prefill server's own from its dispatch on
    assert record["queue_ms"] == pytest.approx(30 + 40 - 3 + 1, abs=1.1)
    assert record["prefill_ms"] == pytest.approx(60)
    assert record["kv_transfer_ms"] == pytest.approx(30)
    assert record["decode_ms"] == pytest.approx(200)
