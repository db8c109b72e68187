"""What Dynamo's spans are beside engines' own, on retries and in older releases (built by hand)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis import _captures as captures
from tests.analysis._spans import Row, chat, engine, span, table

RID = "5c773c97-2803-4720-afdd-60dcd3edecbf"


def _frontend(end: float = 400, ttft: float = 190, **more: Any) -> Row:
    values: Row = {
        "uri": "/v1/chat/completions",
        "request_id": RID,
        "x_request_id": "mine-1",
        "input_tokens": "80",
        "output_tokens": "21",
        "ttft_ms": str(ttft),
        "request__outcome": "success",
    }
    return span("http-request", id="H", start=0, end=end, service="frontend", **(values | more))


def _route(id: str, start: float, end: float, phase: str, **more: Any) -> Row:
    return span("kv_router.route_request", id=id, start=start, end=end, parent="H", kind=3,
                service="frontend", request_id=RID, phase=phase, **more)  # fmt: skip


def _worker(id: str, start: float, end: float, parent: str, **more: Any) -> Row:
    values: Row = {"component": "backend", "endpoint": "generate", "instance_id": id}
    return span("handle_payload", id=id, start=start, end=end, parent=parent, kind=2,
                service=f"worker-{id}", request_id=RID, **(values | more))  # fmt: skip


def _records(spans: list[Row]) -> list[Row]:
    return captures.records(captures.derived(table("spans", spans)))


def test_an_engines_own_span_wins_over_the_worker_around_it() -> None:
    """The merged time before the first token is split by vLLM's span below handle_payload."""
    own = engine("v", 6, parent="w", queue=120, prefill=50, decode=190, tokens=(80, 21))
    (record,) = _records([
        _frontend(), _route("r", 3, 398, "Aggregated"), _worker("w", 5, 399, "r"), own,
    ])  # fmt: skip
    assert record["sources"] == "dynamo,vllm"
    assert record["queue_ms"] == pytest.approx(120)
    assert record["prefill_ms"] == pytest.approx(50)
    assert record["queue_or_prefill_ms"] is None
    assert record["engine"] == "vllm"


def test_engines_below_two_workers_are_a_pair_by_the_workers_word() -> None:
    """Their own ids and token counts say nothing of each other; the workers' role and id do."""
    (record,) = _records([
        _frontend(),
        _route("rp", 3, 90, "Prefill"), _worker("wp", 4, 89, "rp", component="prefill"),
        engine("p", 5, parent="wp", queue=20, prefill=50, decode=0, tokens=(80, 2), service="vp"),
        _route("rd", 91, 398, "Decode"), _worker("wd", 92, 399, "rd"),
        engine("d", 93, parent="wd", queue=70, prefill=8, decode=200, tokens=(80, 21),
               service="vd"),
    ])  # fmt: skip
    assert record["leg_roles"] == "gateway,prefill_engine,decode_engine"
    assert (record["queue_ms"], record["prefill_ms"]) == pytest.approx((20, 50))
    assert record["kv_transfer_ms"] == pytest.approx(78)


def test_a_migrated_request_is_one() -> None:
    """A worker died; the router sent the request to another with the tokens it had."""
    (record,) = _records([
        _frontend(ttft=50),
        _route("r0", 3, 150, "Aggregated"), _worker("w0", 5, 149, "r0", status=2),
        _route("r1", 151, 398, "Aggregated", migration__is_retry=True),
        _worker("w1", 153, 399, "r1"),
    ])  # fmt: skip
    assert record["queue_or_prefill_ms"] == pytest.approx(50 - 5)
    assert record["decode_ms"] == pytest.approx(350)
    # the frontend knows how it ended, and one answer was asked for
    assert (record["status"], record["choices"]) == ("ok", 1)
    assert record["tpot_ms"] == pytest.approx(350 / 20)


def test_a_first_token_at_zero_is_none() -> None:
    """A cancelled request whose `ttft_ms` was never set has no decode."""
    (record,) = _records([
        _frontend(ttft=0, request__outcome="cancelled"),
        _route("r", 3, 398, "Aggregated"), _worker("w", 5, 399, "r"),
    ])  # fmt: skip
    assert record["ttft_ms"] is None
    assert record["decode_ms"] is None


def test_a_lost_span_of_the_router_parts_no_request() -> None:
    """The frontend's `request_id` is the workers' too."""
    (record,) = _records([
        _frontend(), _worker("wp", 4, 89, "lost1", component="prefill"),
        _worker("wd", 92, 399, "lost2"),
    ])  # fmt: skip
    assert record["leg_roles"] == "gateway,prefill_engine,decode_engine"


def test_spans_of_older_releases() -> None:
    """Up to about 0.9 handle_payload hung on prefill_routing, or on http-request itself."""
    (record,) = _records([
        _frontend(),
        span("prefill_routing", id="pr", start=2, end=90, parent="H", service="frontend"),
        _worker("wp", 4, 89, "pr"), _worker("wd", 92, 399, "H"),
    ])  # fmt: skip
    assert record["leg_roles"] == "gateway,prefill_engine,decode_engine"


@pytest.mark.trap("dynamo", 6)
def test_housekeeping_is_no_request() -> None:
    """Trap 6: queries between workers, probes and /metrics."""
    assert not _records([
        span("http-request", id="m", start=0, end=1, service="frontend", uri="/metrics"),
        span("http-request", id="h", start=0, end=1, service="frontend", uri="/health"),
        _worker("k", 0, 1, "none", endpoint="worker_kv_query_source_0"),
    ])  # fmt: skip


@pytest.mark.trap("dynamo", 1)
def test_a_wait_for_the_router_is_queue() -> None:
    """Trap 1's other half: an overloaded router, S 669 of a wait of 672 ms."""
    (record,) = _records([
        _frontend(end=900, ttft=720),
        span("kv_router.select_worker", id="sel", start=2, end=672, parent="H",
             service="frontend"),
        span("kv_router.schedule", id="sch", start=2.5, end=671.5, parent="sel",
             service="frontend"),
        _route("r", 673, 898, "Aggregated"), _worker("w", 675, 899, "r"),
    ])  # fmt: skip
    assert record["queue_ms"] == pytest.approx(669)
    assert record["queue_or_prefill_ms"] == pytest.approx(720 - 675)


@pytest.mark.trap("dynamo", 5)
def test_spans_that_end_after_the_one_they_hang_on_lose_nothing() -> None:
    """A worker's span ends up to 1 ms after its parent's, a parent's 100 ms after its child's."""
    (record,) = _records([
        _frontend(end=500, avg_itl_ms="10.3"), _route("r", 3, 398, "Aggregated"),
        _worker("w", 5, 399, "r"),
    ])  # fmt: skip
    assert record["quarantine_reason"] is None
    assert record["leg_roles"] == "gateway,engine"
    # the last of 21 tokens is 20 gaps after the first
    assert record["decode_ms"] == pytest.approx(20 * 10.3)
    assert record["e2e_ms"] == pytest.approx(190 + 20 * 10.3)


@pytest.mark.parametrize("gaps", ["", "nan", "-1", "20", "1e300", "[1]"])
def test_gaps_that_do_not_fit_the_span_tell_no_last_token(gaps: str) -> None:
    (record,) = _records([_frontend(avg_itl_ms=gaps), _worker("w", 5, 399, "H")])
    assert record["e2e_ms"] == pytest.approx(400)


def _trace_record(**more: Any) -> Row:
    values: Row = {
        "request_id": RID, "input_tokens": 80, "output_tokens": 21, "cached_tokens": 64,
        "prefill_wait_time_ms": 5.0, "ttft_ms": 190.0, "total_time_ms": 400.0,
    }  # fmt: skip
    return span("dynamo.request.trace.v1", id="rec", trace_name="rec", start=0, end=400,
                scope="tracekit.import.dynamo-request-trace", **(values | more))  # fmt: skip


@pytest.mark.trap("dynamo", 8)
def test_cached_tokens_are_the_engines_where_it_tells_them() -> None:
    """The router expected 64 cached tokens; the engine had evicted them and computed all 80."""
    own = engine("v", 6, parent="w", queue=120, prefill=50, decode=190, tokens=(80, 21),
                 gen_ai__usage__cached_tokens=0)  # fmt: skip
    spans = [_frontend(), _route("r", 3, 398, "Aggregated"), _worker("w", 5, 399, "r")]
    (predicted,) = _records([*spans, _trace_record()])
    assert predicted["cached_tokens"] == 64
    (record,) = _records([*spans, _trace_record(), own])
    assert record["sources"] == "dynamo,dynamo_trace,vllm"
    assert record["cached_tokens"] == 0


def test_a_cancelled_and_a_refused_request() -> None:
    spans = [
        _frontend(request__outcome="cancelled"),
        _frontend(request__outcome="rejected", ttft=-1) | {
            "trace_id": "ab" * 16, "span_id": "cd" * 8},
    ]  # fmt: skip
    assert sorted(r["status"] for r in _records(spans)) == ["aborted", "error"]


def _foreign(id: str, start: float, end: float, parent: str | None = None, **more: Any) -> Row:
    """Another program's span of the name that Dynamo's worker uses."""
    return span("handle_payload", id=id, start=start, end=end, parent=parent, **more)


def test_another_programs_spans_are_no_requests() -> None:
    """Their names are common words: attributes tell whose they are."""
    alike: Row = {"service": "shop", "method": "POST"}
    assert not _records([
        _foreign("a", 0, 50), _foreign("b", 0, 50, kind=2, request_id="7"),
        _foreign("c", 0, 50, kind=2, endpoint="generate"),
        _foreign("d", 0, 50, kind=2, component="queue"),
        _foreign("e", 0, 50, kind=2, component="queue", instance_id="1", endpoint="webhook"),
        span("http-request", id="f", start=0, end=9, uri="/v1/users", request_id="7", **alike),
        span("http-request", id="g", start=0, end=9, uri="/v1/completions", **alike),
        span("http-request", id="h", start=0, end=9, uri="/v1/completionsx", request_id="7",
             **alike),
        # and Dynamo's own that generate nothing
        _frontend(uri="/v1/models", method="GET") | {"span_id": "01" * 8},
        _frontend(uri="/v1/responses", method="GET") | {"span_id": "02" * 8},
    ])  # fmt: skip


@pytest.mark.parametrize("uri", ["/v1/chat/completions", "/v1/completions/", "/v1/messages?beta=1"])
def test_a_frontends_span_is_a_request_on_every_route_that_generates(uri: str) -> None:
    (record,) = _records([_frontend(uri=uri, method="POST")])
    assert (record["route"], record["ttft_ms"]) == (uri, pytest.approx(190))


def test_a_worker_is_known_by_its_router_or_by_its_name() -> None:
    """Without the endpoint, which all spans that were recorded have."""
    for parent, values in (
        ("r", {"endpoint": None, "instance_id": None}),
        ("H", {"endpoint": None}),
        ("H", {"component": None}),
        ("H", {"instance_id": None}),
    ):
        (record,) = _records([
            _frontend(), _route("r", 3, 398, "Aggregated"), _worker("w", 5, 399, parent, **values),
        ])  # fmt: skip
        assert record["leg_roles"] == "gateway,engine"
        assert record["queue_or_prefill_ms"] == pytest.approx(190 - 5)


def test_another_programs_spans_do_not_come_between_a_call_and_its_engine() -> None:
    call: Row = {"gen_ai__request__id": "mine"}
    for spans in (
        # beside the engine, and around the call
        [chat("c", 0, 300, **call), engine("v", 20, parent="c"), _foreign("h", 5, 8, "c")],
        [_foreign("h", -20, 400, kind=2), chat("c", 0, 300, parent="h", **call),
         engine("v", 20, parent="c")],
    ):  # fmt: skip
        (record,) = _records(spans)
        assert record["leg_roles"] == "client,engine"
        assert record["e2e_ms"] == pytest.approx(300)
        assert record["ttft_ms"] == pytest.approx(20 + 2 + 10 + 40)
