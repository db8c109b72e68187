"""llm-d's spans as its sources describe them (built by hand: there is no recording of it)."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import Row, chat, engine, span, table

PROXY = "llm_d.pd_proxy"


def _named(values: dict[str, float]) -> dict[str, Any]:
    return {key.replace(".", "__"): value for key, value in values.items()}


def _epp(end: float = 400, **more: Any) -> list[Row]:
    """The scheduler's spans: 30 ms of flow control and scheduling, then the whole answer."""
    return [
        span("gateway.request", id="gw", start=0, end=end, kind=2, service="epp", **more),
        span(
            "gateway.request_orchestration",
            id="orch",
            start=2,
            end=32,
            parent="gw",
            kind=2,
            service="epp",
        ),
    ]


def _sidecar(
    *,
    prefill: tuple[float, float] | None = (36, 110),
    decode: tuple[float, float] = (111, 395),
    status: int = 200,
    parent: str | None = "gw",
    beside: bool = False,
) -> list[Row]:
    """The sidecar's spans; ``beside``: as the SGLang connector calls both servers, at once."""
    answer: Row = {"http__response__status_code": status} if 400 <= status < 500 else {}
    rows = [
        span(f"{PROXY}.POST /v1/chat/completions", id="post", start=34, end=397, parent=parent,
             kind=2, service="sidecar", http__route="/v1/chat/completions", **answer),
        span(f"{PROXY}.request", id="prox", start=35, end=396, parent="post", kind=2,
             service="sidecar"),
    ]  # fmt: skip
    above = "prox"
    summary = {f"{PROXY}.true_ttft_ms": decode[0] - 35, f"{PROXY}.total_duration_ms": 360.0,
               f"{PROXY}.decode_duration_ms": float(int(decode[1] - decode[0])),
               f"{PROXY}.coordinator_overhead_ms": 1.0}  # fmt: skip
    if prefill is not None:
        took = float(int(prefill[1] - prefill[0]))
        summary[f"{PROXY}.prefill_duration_ms"] = took
        rows.append(
            span(f"{PROXY}.prefill", id="ppre", start=prefill[0], end=prefill[1], parent="prox",
                 service="sidecar", status=2 if status >= 400 else 0,
                 **_named({f"{PROXY}.prefill.status_code": status,
                           f"{PROXY}.prefill.duration_ms": took,
                           f"{PROXY}.prefill.async": beside}))
        )  # fmt: skip
        above = "ppre"
    if status < 400:
        # trap 2: the decode span hangs on the prefill span that has ended, and has the summary
        rows.append(
            span(f"{PROXY}.decode", id="pdec", start=decode[0], end=decode[1], parent=above,
                 service="sidecar",
                 **_named({f"{PROXY}.decode.concurrent_with_prefill": beside} | summary))
        )  # fmt: skip
    return rows


def _engines() -> list[Row]:
    """vLLM's spans: siblings of the sidecar's, below the scheduler's, of one request id."""
    same: Row = {"parent": "gw", "request_id": "cmpl-7d-0"}
    return [
        engine("p", 37, queue=20, prefill=50, decode=0, tokens=(80, 1), service="vp",
               instance="p0", **same),
        engine("d", 112, queue=60, prefill=8, decode=200, tokens=(80, 21), service="vd",
               instance="d0", **same),
    ]  # fmt: skip


def _only(spans: list[Row]) -> Row:
    con = captures.derived(table("spans", spans))
    (record,) = captures.records(con)
    phases = con.sql("select * from phases order by start_unix_ns").to_arrow_table().to_pylist()
    total = sum(p["end_unix_ns"] - p["start_unix_ns"] for p in phases) / 1e6
    assert total == pytest.approx(record["e2e_ms"])
    for before, after in pairwise(phases):
        assert before["end_unix_ns"] == after["start_unix_ns"]
    return record


@pytest.mark.trap("llm_d", 2)
def test_a_request_is_one_with_its_engines_and_its_sidecar() -> None:
    record = _only([*_epp(), *_sidecar(), *_engines()])
    assert record["leg_roles"] == "gateway,router,prefill_engine,decode_engine,provider"
    # flow control and scheduling 30 ms, and the prefill engine's own queue 20 ms
    assert record["queue_ms"] == pytest.approx(50)
    assert record["prefill_ms"] == pytest.approx(50)
    # the decode engine's queue is its wait for the KV cache, its 8 ms the last token's
    assert record["kv_transfer_ms"] == pytest.approx(68)
    assert record["decode_ms"] == pytest.approx(200)
    assert record["ttft_ms"] == pytest.approx(112 + 2 + 60 + 8)


@pytest.mark.trap("llm_d", 1)
def test_the_proxys_true_ttft_is_no_ttft() -> None:
    """Trap 1: it is when the decode call began. Without engine spans no token is known."""
    record = _only([*_epp(), *_sidecar()])
    assert record["ttft_ms"] is None
    assert record["queue_ms"] == pytest.approx(30)
    # the prefill call holds the prefill engine's queue
    assert record["queue_or_prefill_ms"] == pytest.approx(110 - 36)
    assert record["prefill_ms"] is None
    assert not record["kv_transfer_ms"]
    assert not record["decode_ms"]


@pytest.mark.trap("llm_d", 6)
def test_a_prefill_that_failed_was_handed_to_nobody() -> None:
    """Trap 6: after a 5xx the decode server does all of it, and no decode span is sent."""
    whole = engine("d", 112, parent="gw", queue=5, prefill=90, decode=150, tokens=(80, 21),
                   service="vd", instance="d0", request_id="cmpl-7d-0")  # fmt: skip
    record = _only([*_epp(), *_sidecar(status=503), whole])
    assert "prefill_engine" not in record["leg_roles"]
    assert record["kv_transfer_ms"] is None
    assert record["prefill_ms"] == pytest.approx(90)
    assert record["queue_ms"] == pytest.approx(35)


@pytest.mark.trap("llm_d", 6)
def test_of_a_failed_prefill_nothing_is_known_without_the_engines_spans() -> None:
    """The decode server prefills and decodes in what follows; the sidecar says nothing of it."""
    record = _only([*_epp(), *_sidecar(status=503)])
    assert record["queue_ms"] == pytest.approx(30)
    assert record["unexplained_ms"] == pytest.approx(370)


@pytest.mark.trap("llm_d", 6)
def test_a_prefill_that_the_client_got_wrong_is_its_error() -> None:
    """A 4xx goes to the client: no prefill, and no decode server that would do all of it."""
    record = _only([*_epp(), *_sidecar(status=400)])
    assert (record["status"], record["error"]) == ("error", "http 400")
    assert record["queue_ms"] == pytest.approx(30)
    for phase in ("queue_or_prefill", "prefill", "kv_transfer", "decode"):
        assert not record[f"{phase}_ms"], phase


@pytest.mark.trap("llm_d", 3)
def test_a_spans_own_times_are_finer_than_its_duration() -> None:
    """Trap 3: of 74.9 ms `duration_ms` says 74.0, and so do the summary's."""
    record = _only([*_epp(), *_sidecar(prefill=(36, 110.9))])
    assert record["queue_or_prefill_ms"] == pytest.approx(74.9)


@pytest.mark.trap("llm_d", 2)
def test_a_decode_span_without_the_span_it_hangs_on_is_no_request() -> None:
    """It has the summary of the whole request, and is still a part of it: set aside, if lost."""
    spans = [*_epp(), *(row for row in _sidecar() if row["name"] != f"{PROXY}.prefill")]
    found = captures.records(captures.derived(table("spans", spans)))
    assert [(r["leg_roles"], r["quarantine_reason"]) for r in found] == [
        ("gateway,router,provider", None),
        ("decode_engine", "incomplete_trace"),
    ]
    # the engines, which hang on the scheduler's span, hold it
    record = _only([*spans, *_engines()])
    assert record["decode_ms"] == pytest.approx(200)
    assert record["kv_transfer_ms"] == pytest.approx(68)


@pytest.mark.trap("llm_d", 4)
@pytest.mark.parametrize(
    "kept", [names for n in range(1, 5) for names in combinations(("epp", "side", "p", "d"), n)],
    ids="+".join,
)  # fmt: skip
def test_whatever_sampling_left_is_one_request(kept: tuple[str, ...]) -> None:
    """Trap 4: scheduler, sidecar and engines are sampled each by itself."""
    p, d = _engines()
    parts = {"epp": _epp(), "side": _sidecar(), "p": [p], "d": [d]}
    record = _only([row for name in kept for row in parts[name]])
    assert (record["status"], record["quarantine_reason"]) == ("ok", None)
    assert (record["decode_ms"] or 0) == pytest.approx(200 if "d" in kept else 0)
    if "p" in kept:
        assert record["prefill_ms"] == pytest.approx(50)
        assert record["queue_ms"] == pytest.approx(20 + 30 * ("epp" in kept))
    if "d" in kept and ("p" in kept or "side" in kept):
        assert record["kv_transfer_ms"] == pytest.approx(68)
    elif "d" not in kept:
        assert not record["kv_transfer_ms"]
        assert record["ttft_ms"] is None or "side" not in kept


@pytest.mark.trap("llm_d", 4)
def test_without_the_scheduler_the_client_holds_it_together() -> None:
    """Trap 4: the scheduler and the sidecar keep a tenth; the client's own trace goes on."""
    spans = [chat("c", -5, 405), *_sidecar(parent="c")]
    spans += [row | {"parent_span_id": spans[0]["span_id"]} for row in _engines()]
    record = _only(spans)
    assert record["leg_roles"].startswith("client,")
    assert record["prefill_ms"] == pytest.approx(50)
    assert record["decode_ms"] > 0


@pytest.mark.trap("llm_d", 2)
def test_the_sidecar_alone_is_a_request() -> None:
    record = _only(_sidecar(parent=None))
    # the prefill call ended, though the decode's span lies below it
    assert record["queue_or_prefill_ms"] == pytest.approx(110 - 36)
    assert record["unexplained_ms"] == pytest.approx(395 - 110)
    assert record["status"] == "ok"


@pytest.mark.trap("llm_d", 1)
@pytest.mark.trap("llm_d", 5)
def test_a_prefill_call_that_ends_after_the_request_tells_no_prefill() -> None:
    """Trap 5: the SGLang connector calls both at once and does not wait for the prefill server."""
    for end in (130, 500):
        record = _only([*_epp(), *_sidecar(prefill=(36, end), decode=(36, 395), beside=True)])
        assert record["e2e_ms"] == pytest.approx(395)
        assert record["queue_ms"] == pytest.approx(30)
        # it ends when the transfer was seen to be over: queue, prefill or that, and decode beside
        assert record["queue_or_prefill_ms"] is None
        assert record["prefill_ms"] is None
        assert not record["kv_transfer_ms"]
        assert not record["decode_ms"]
        # trap 1: and its "true" TTFT is 1 ms
        assert record["ttft_ms"] is None
        assert record["unexplained_ms"] == pytest.approx(395 - 36)


def test_another_gateways_request_is_none_of_the_schedulers() -> None:
    other = span("gateway.request", id="gw", start=0, end=500, kind=2, http__route="/users")
    assert not captures.records(captures.derived(table("spans", [other])))
    # two calls below it are no attempts of one
    calls = [chat("c", 10, 300, parent="gw"), engine("a", 20, parent="c"),
             chat("d", 310, 600, parent="gw"), engine("b", 320, parent="d")]  # fmt: skip
    found = captures.records(captures.derived(table("spans", [other, *calls])))
    assert [r["leg_roles"] for r in found] == ["client,engine"] * 2
    assert [r["attempt"] for r in found] == [1, 1]
    # an internal span of that name is no server's
    mine = span("gateway.request", id="gw", start=0, end=500, kind=1, gen_ai__request__id="r")
    assert not captures.records(captures.derived(table("spans", [mine])))


@pytest.mark.parametrize("key", ["gen_ai__request__id", "gen_ai__request__model", "target_model"])
def test_the_schedulers_span_is_known_by_its_own_attributes_too(key: str) -> None:
    named: Row = {key: "m"}
    record = _only([span("gateway.request", id="gw", start=0, end=500, kind=2, **named)])
    assert record["leg_roles"] == "gateway"
    assert record["unexplained_ms"] == pytest.approx(500)
